"""Readers of other data formats."""
