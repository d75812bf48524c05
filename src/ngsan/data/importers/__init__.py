"""Readers of other people's formats."""
