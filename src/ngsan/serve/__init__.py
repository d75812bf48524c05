"""The studio's server: the page, and captions over HTTP. It needs `pip install 'ngsan[serve]'`."""
