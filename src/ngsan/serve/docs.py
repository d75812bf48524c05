"""A page about the API, made of its description; it needs no script and no other host."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

STYLE = Path(__file__).with_name("docs.css")
"""How it looks."""

_AT = "http://127.0.0.1:8080"
_SCENE = (
    '{"model": "ng-san", "signed": true, "things": ['
    '{"shape": "ball", "colour": "red", "x": 0.3, "y": 0.5, "width": 0.2, "height": 0.2}, '
    '{"shape": "box", "colour": "blue", "x": 0.7, "y": 0.5, "width": 0.2, "height": 0.2}]}'
)
_EXAMPLES = {
    "post /v1/caption": f"curl -F image=@holiday.jpg -F n_best=3 {_AT}/v1/caption",
    "post /v1/explain": f"curl -F image=@holiday.jpg {_AT}/v1/explain",
    "post /v1/scene": f"curl --json '{_SCENE}' {_AT}/v1/scene",
    "get /v1/bias": f"curl '{_AT}/v1/bias?model=g-san-ci&head=0'",
    "get /v1/models": f"curl {_AT}/v1/models",
}

_Schema = Mapping[str, Any]


def docs_page(description: _Schema) -> str:
    """The page.

    Args:
        description: The API in OpenAPI.
    """
    parts = description.get("components", {}).get("schemas", {})
    sections = [
        _section(method, path, about, parts)
        for path, methods in description["paths"].items()
        for method, about in methods.items()
    ]
    info = description["info"]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}</title>"
        '<link rel="icon" href="/static/icon.svg">'
        '<link rel="stylesheet" href="/docs.css"></head><body><main>'
        f"<h1>{escape(info['title'])}</h1>{_paragraphs(info['description'])}"
        '<p><a href="/">The page</a> uses the same addresses. For programs: '
        '<a href="/openapi.json">openapi.json</a>.</p>'
        f"{''.join(sections)}</main></body></html>\n"
    )


def _section(method: str, path: str, about: _Schema, parts: _Schema) -> str:
    made = [
        f'<h2><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h2>',
        f"<p><b>{escape(about.get('summary', ''))}.</b></p>",
        _paragraphs(about.get("description", "")),
    ]
    example = _EXAMPLES.get(f"{method} {path}")
    if example:
        made.append(f"<pre>{escape(example)}</pre>")
    asked = _asked(about, parts)
    if asked:
        made.append(f"<h3>Takes</h3>{_table(asked)}")
    answers = [
        (status, answer.get("description", ""), "") for status, answer in about["responses"].items()
    ]
    made.append(f"<h3>Answers</h3>{_table(answers)}")
    return "".join(made)


def _asked(about: _Schema, parts: _Schema) -> list[tuple[str, str, str]]:
    """Name, kind and meaning of what goes into a request."""
    rows = [
        (one["name"], _kind(one["schema"], parts), "needed" if one.get("required") else "")
        for one in about.get("parameters", ())
    ]
    for kind, body in about.get("requestBody", {}).get("content", {}).items():
        if rows and kind == "application/json":
            rows.append(("image, images", "in JSON, files in base64", "with the same options"))
            continue
        schema = _resolved(body["schema"], parts)
        needed = schema.get("required", ())
        rows += [
            (name, _kind(value, parts), value.get("description", "needed" * (name in needed)))
            for name, value in schema.get("properties", {}).items()
        ]
    return rows


def _resolved(schema: _Schema, parts: _Schema) -> _Schema:
    if "$ref" in schema:
        found: _Schema = parts[schema["$ref"].rpartition("/")[2]]
        return found
    return schema


def _kind(schema: _Schema, parts: _Schema) -> str:
    """What a value is, in words."""
    schema = _resolved(schema, parts)
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("format") == "binary":
        return "file"
    kind = str(schema.get("type", "value"))
    if kind == "array":
        return f"list, each: {_kind(schema['items'], parts)}"
    if kind == "object":
        keys = schema.get("properties", {})
        return ", ".join(f"{key} ({_kind(value, parts)})" for key, value in keys.items())
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    if low is None and high is None:
        return kind
    above = "above " if "exclusiveMinimum" in schema else ""
    return f"{kind}, {above}{low:,} to {high:,}" if None not in (low, high) else kind


def _table(rows: list[tuple[str, str, str]]) -> str:
    body = "".join(
        f'<tr><th scope="row"><code>{escape(name)}</code></th><td>{escape(kind)}</td>'
        f"<td>{escape(text)}</td></tr>"
        for name, kind, text in rows
    )
    return f'<div class="scroll"><table>{body}</table></div>'


def _paragraphs(text: str) -> str:
    return "".join(f'<p class="soft">{escape(part)}</p>' for part in text.split("\n\n") if part)
