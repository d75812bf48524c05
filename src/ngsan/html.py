"""Renders HTML pages from the templates in `ngsan/templates`.

Pages are single files that load nothing from elsewhere. Values are escaped by the template engine.
"""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **values: object) -> str:
    """Renders a template, such as "gallery.html.j2".

    Characters that UTF-8 cannot hold, such as bytes of a file name, become escapes.
    """
    text = _environment().get_template(template).render(values)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def data_uri(content: bytes, media_type: str) -> str:
    """A file as a `data:` address."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # A style sheet or script of this package, unescaped.
    environment.globals["raw"] = lambda name: Markup((_TEMPLATES / name).read_text("utf-8"))
    environment.filters["csp_hash"] = lambda text: Markup(f"'sha256-{_digest(text)}'")
    return environment


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
