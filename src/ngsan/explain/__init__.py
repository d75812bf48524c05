"""A page that shows where a model looked for each word, and which regions attended to which."""

from ngsan.explain.maps import Explained, Explainer, Said
from ngsan.explain.page import write_page

__all__ = ["Explained", "Explainer", "Said", "write_page"]
