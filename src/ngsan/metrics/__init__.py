"""Scores of captions, and how sure they are."""
