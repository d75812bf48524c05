"""JSON answers, and errors as one plain sentence."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ngsan.html import render

RETRY_SECONDS = 2
"""Value of Retry-After when the server is busy."""

_MAX_LENGTH = 400
"""Characters of an error message."""

_MESSAGES = {
    404: "Not found. See /docs for the addresses of this server.",
    405: "Method not allowed. See /docs for the methods of this address.",
}


class ApiError(HTTPException):
    """A request is answered with an error.

    Args:
        status: HTTP status.
        message: One sentence for the client.
    """

    def __init__(self, status: int, message: str) -> None:
        headers = {"retry-after": str(RETRY_SECONDS)} if status in (429, 503) else None
        super().__init__(status, as_sentence(message), headers)


class ClientDisconnected(ConnectionError):  # noqa: N818
    """The client closed the connection before it got an answer."""


class JsonResponse(Response):
    """An answer in JSON, with everything beyond ASCII escaped."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def as_sentence(text: str) -> str:
    """Text as one sentence: one line, limited length, a capital and a full stop.

    Names of options and fields at the beginning keep their case.
    """
    text = re.sub(r"\s+", " ", text).strip()
    text = text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}..."
    if not re.match(r"\S*_|\S*:", text):
        text = text[:1].upper() + text[1:]
    return f"{text}{'' if text.endswith(('.', '!', '?')) else '.'}"


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as an answer."""
    return JsonResponse({"error": message}, status, headers=dict(headers or {}))


async def handle_http_error(request: Request, error: Exception) -> Response:
    """Answers an `ApiError`, or an error of the web framework; with a page to browsers."""
    assert isinstance(error, HTTPException)
    status, message, headers = error.status_code, str(error.detail), dict(error.headers or {})
    if status == 405:  # the framework's error lists the methods of one route only
        headers = {"allow": ", ".join(_methods(request))}
    if not isinstance(error, ApiError):
        message = _MESSAGES.get(status, as_sentence(message))
    if "text/html" in request.headers.get("accept", ""):
        page = render("error.html.j2", title=f"Error {status}", message=message)
        return HTMLResponse(page, status, headers=headers)
    return error_response(status, message, headers)


async def handle_validation_error(_: Request, error: Exception) -> Response:
    """Answers a request with a wrong field; names the first."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return error_response(400, as_sentence(f"the body is not JSON: {first['ctx']['error']}"))
    problem = {**first, "loc": first["loc"][1:]}  # without "body" or "query"
    return error_response(422, as_sentence(first_problem([problem])))


def first_problem(errors: Sequence[Any]) -> str:
    """The first of the errors of pydantic: field and reason."""
    field = ".".join(str(part)[:50] for part in errors[0]["loc"])
    return f"{field or 'the body'}: {errors[0]['msg']}"


def _methods(request: Request) -> list[str]:
    """The methods that the address of a request allows."""
    path, found = request.url.path, set[str]()
    for route in request.app.routes:
        if isinstance(route, Route) and route.path_regex.match(path):
            found |= route.methods or set()
    return sorted(found)
