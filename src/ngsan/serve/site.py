"""The page, its files, the example photographs and the description of the API."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ngsan.examples import EXAMPLES
from ngsan.serve.docs import STYLE, docs_page
from ngsan.serve.refusals import JsonResponse, Refusal
from ngsan.serve.schemas import ExamplePhotograph, problems

STATIC = Path(__file__).parent / "static"
"""The page's files."""

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
}
_PUBLIC = ["GET", "HEAD"]


@dataclass(frozen=True)
class Page:
    """A file, held in memory."""

    content: bytes
    """What is in it."""

    kind: str
    """Its content type."""

    tag: str
    """What changes when it does."""

    @classmethod
    def of(cls, content: bytes, ending: str) -> "Page":
        """Content with what is told of it."""
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, _TYPES[ending], tag)

    def answer(self, request: Request) -> Response:
        """The content, or that it has not changed."""
        headers = {"etag": self.tag, "cache-control": "no-cache"}
        known = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
        if self.tag in known or f"W/{self.tag}" in known:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.kind, headers=headers)


def read_pages(folder: Path = STATIC) -> dict[str, Page]:
    """The files of a folder by their path in it; only these are ever served, so no other can be."""
    return {name: Page.of(path.read_bytes(), path.suffix) for name, path in _files(folder)}


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in _TYPES and not path.name.startswith("."):
            yield path.relative_to(folder).as_posix(), path


def add_site_routes(app: FastAPI) -> None:
    """Adds the addresses to a server; the page of the API is made of its description."""
    pages = read_pages()
    photographs = {example.file: Page.of(example.path.read_bytes(), ".jpg") for example in EXAMPLES}
    style = Page.of(STYLE.read_bytes(), ".css")
    docs: list[Page] = []

    @app.api_route("/", methods=_PUBLIC, include_in_schema=False)
    async def index(request: Request) -> Response:
        return _find(pages, "index.html").answer(request)

    @app.api_route("/static/{path:path}", methods=_PUBLIC, include_in_schema=False)
    async def static(request: Request, path: str) -> Response:
        return _find(pages, path).answer(request)

    @app.api_route("/examples/{file}", methods=_PUBLIC, include_in_schema=False)
    async def example(request: Request, file: str) -> Response:
        return _find(photographs, file).answer(request)

    @app.api_route("/docs", methods=_PUBLIC, include_in_schema=False)
    async def documentation(request: Request) -> Response:
        if not docs:
            docs.append(Page.of(docs_page(app.openapi()).encode(), ".html"))
        return docs[0].answer(request)

    @app.api_route("/docs.css", methods=_PUBLIC, include_in_schema=False)
    async def documentation_style(request: Request) -> Response:
        return style.answer(request)

    @app.get(
        "/v1/examples",
        summary="Photographs to try",
        response_model=None,
        responses={
            200: {"model": list[ExamplePhotograph], "description": "The photographs."},
            **problems(400, 401, 503),
        },
    )
    async def examples() -> Response:
        """Photographs that come with the package, whose they are, and where they lie here."""
        return JsonResponse(
            [
                {
                    "file": one.file,
                    "title": Path(one.file).stem.replace("_", " ").capitalize(),
                    "credit": one.credit,
                    "url": f"/examples/{one.file}",
                }
                for one in EXAMPLES
            ]
        )


def _find(pages: dict[str, Page], name: str) -> Page:
    if name not in pages:
        raise Refusal(404, "there is nothing at this address; /docs tells what there is")
    return pages[name]
