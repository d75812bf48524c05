"""The studio's page and its files, the example photographs, and the page about the API."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ngsan.app.errors import ApiError, JsonResponse
from ngsan.app.schemas import ExamplePhotograph, answers
from ngsan.examples import EXAMPLES
from ngsan.html import render

STATIC = Path(__file__).parent / "static"
"""The files of the studio's page."""

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_METHODS = ["GET", "HEAD"]
_NOT_FOUND = "not found; see /docs for the addresses of this server"

_SERVER = "http://127.0.0.1:8080"
_SCENE = (
    '{"model": "ng-san", "signed": true, "objects": ['
    '{"shape": "ball", "colour": "red", "x": 0.3, "y": 0.5, "width": 0.2, "height": 0.2}, '
    '{"shape": "box", "colour": "blue", "x": 0.7, "y": 0.5, "width": 0.2, "height": 0.2}]}'
)
_EXAMPLES = {
    "post /v1/caption": f"curl -F image=@holiday.jpg -F num_return=3 {_SERVER}/v1/caption",
    "post /v1/explain": f"curl -F image=@holiday.jpg {_SERVER}/v1/explain",
    "post /v1/scene": f"curl --json '{_SCENE}' {_SERVER}/v1/scene",
    "get /v1/bias": f"curl '{_SERVER}/v1/bias?model=g-san-ci&head=0'",
    "get /v1/models": f"curl {_SERVER}/v1/models",
}


@dataclass(frozen=True)
class StaticFile:
    """A file, held in memory."""

    content: bytes
    content_type: str
    etag: str

    @classmethod
    def of(cls, content: bytes, suffix: str) -> "StaticFile":
        """Wraps content of a known kind."""
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, _TYPES[suffix], etag)

    def answer(self, request: Request) -> Response:
        """The content, or that it has not changed."""
        headers = {"etag": self.etag, "cache-control": "no-cache"}
        known = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
        if self.etag in known or f"W/{self.etag}" in known:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.content_type, headers=headers)


def read_files(folder: Path = STATIC) -> dict[str, StaticFile]:
    """The files of a folder by their path in it; no others are ever served."""
    return {
        path.relative_to(folder).as_posix(): StaticFile.of(path.read_bytes(), path.suffix)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in _TYPES and not path.name.startswith(".")
    }


def add_site_routes(app: FastAPI) -> None:
    """Adds the routes to a server; the page about the API is rendered from its description."""
    files = read_files()
    photos = {each.file: StaticFile.of(each.path.read_bytes(), ".jpg") for each in EXAMPLES}
    docs: list[StaticFile] = []

    @app.api_route("/", methods=_METHODS, include_in_schema=False)
    async def index(request: Request) -> Response:
        return _find(files, "index.html").answer(request)

    @app.api_route("/static/{path:path}", methods=_METHODS, include_in_schema=False)
    async def static(request: Request, path: str) -> Response:
        return _find(files, path).answer(request)

    @app.api_route("/examples/{file}", methods=_METHODS, include_in_schema=False)
    async def example(request: Request, file: str) -> Response:
        return _find(photos, file).answer(request)

    @app.api_route("/docs", methods=_METHODS, include_in_schema=False)
    async def api_docs(request: Request) -> Response:
        if not docs:
            docs.append(StaticFile.of(docs_page(app.openapi()).encode(), ".html"))
        return docs[0].answer(request)

    @app.get(
        "/v1/examples",
        summary="Photographs to try",
        response_model=None,
        responses=answers(list[ExamplePhotograph], "The photographs.", 400, 401, 503),
    )
    async def examples() -> Response:
        """The photographs in the package, with their authors and addresses."""
        return JsonResponse(
            [
                {
                    "file": each.file,
                    "title": Path(each.file).stem.replace("_", " ").capitalize(),
                    "credit": each.credit,
                    "url": f"/examples/{each.file}",
                }
                for each in EXAMPLES
            ]
        )


def _find(files: Mapping[str, StaticFile], name: str) -> StaticFile:
    if name not in files:
        raise ApiError(404, _NOT_FOUND)
    return files[name]


_Schema = Mapping[str, Any]


def docs_page(description: _Schema) -> str:
    """The page about the API.

    Args:
        description: The API in OpenAPI.
    """
    schemas = description.get("components", {}).get("schemas", {})
    routes = [
        {
            "method": method.upper(),
            "path": path,
            "summary": route.get("summary", ""),
            "paragraphs": route.get("description", "").split("\n\n"),
            "example": _EXAMPLES.get(f"{method} {path}"),
            "fields": list(_fields(route, schemas)),
            "answers": {
                key: each.get("description", "") for key, each in route["responses"].items()
            },
        }
        for path, methods in description["paths"].items()
        for method, route in methods.items()
    ]
    info = description["info"]
    paragraphs = info["description"].split("\n\n")
    return render("docs.html.j2", title=info["title"], paragraphs=paragraphs, routes=routes)


def _fields(route: _Schema, schemas: _Schema) -> Iterator[tuple[str, str, str]]:
    """Name, type and meaning of each field of a request."""
    parameters = route.get("parameters", ())
    for each in parameters:
        yield each["name"], _type(each["schema"], schemas), "required" * bool(each.get("required"))
    bodies = route.get("requestBody", {}).get("content", {})
    for kind, body in bodies.items():
        if len(bodies) > 1 and kind == "application/json":
            yield "image, images", "JSON: files in base64", "with the same options"
            continue
        schema = _resolve(body["schema"], schemas)
        required = schema.get("required", ())
        for name, value in schema.get("properties", {}).items():
            text = value.get("description", "required" * (name in required))
            yield name, _type(value, schemas), text


def _resolve(schema: _Schema, schemas: _Schema) -> _Schema:
    if "$ref" in schema:
        found: _Schema = schemas[schema["$ref"].rpartition("/")[2]]
        return found
    return schema


def _type(schema: _Schema, schemas: _Schema) -> str:
    """The type of a value, in words."""
    schema = _resolve(schema, schemas)
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("format") == "binary":
        return "file"
    kind = str(schema.get("type", "value"))
    if kind == "array":
        return f"list of: {_type(schema['items'], schemas)}"
    if kind == "object":
        keys = schema.get("properties", {})
        return ", ".join(f"{key} ({_type(value, schemas)})" for key, value in keys.items())
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    if low is None or high is None:
        return kind
    above = "above " if "exclusiveMinimum" in schema else ""
    return f"{kind}, {above}{_bound(low)} to {_bound(high)}"


def _bound(value: float) -> str:
    """A bound; those of whole numbers come as floats."""
    return f"{int(value):,}" if value == int(value) else f"{value:g}"
