"""Words: tokenisation and vocabulary."""
