"""Parallel text: files of sentences and their translations, as flat arrays of subwords."""
