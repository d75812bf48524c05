"""The studio's server: the page, and captions over HTTP."""
