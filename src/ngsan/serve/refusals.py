"""Answers: JSON, and errors that are one plain sentence."""

import json
import re
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

RETRY_SECONDS = 2
"""What clients are told to wait when there is too much to do."""

_LONGEST = 400
"""Letters of an error's sentence."""

_SENTENCES = {
    404: "There is nothing at this address; /docs tells what there is.",
    405: "This address does not take that method; /docs tells which ones it takes.",
}


class Refusal(HTTPException):
    """A request is answered with an error."""

    def __init__(self, status: int, sentence: str) -> None:
        """Takes what to say.

        Args:
            status: Of HTTP.
            sentence: For the client; it begins with a capital letter and ends with a full stop.
        """
        headers = {"retry-after": str(RETRY_SECONDS)} if status in (429, 503) else None
        super().__init__(status, as_sentence(sentence), headers)


class ClientGoneError(ConnectionError):
    """Nobody waits for the answer any more."""


class JsonResponse(Response):
    """An answer in JSON. What is no text in UTF-8 goes out as an escape."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def as_sentence(text: str) -> str:
    """Text as one sentence: in one line, not too long, with a full stop, and with a capital.

    Names of options and places keep their letters.
    """
    text = re.sub(r"\s+", " ", text).strip()
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    if not re.match(r"\S*_|\S*:", text):
        text = text[:1].upper() + text[1:]
    return f"{text}{'' if text.endswith(('.', '!', '?')) else '.'}"


def problem(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as an answer."""
    return JsonResponse({"error": sentence}, status, headers=dict(headers or {}))


async def answer_refusal(request: Request, error: Exception) -> Response:
    """Of `Refusal`, and of what the web framework refuses itself."""
    assert isinstance(error, HTTPException)
    said = str(error.detail)
    if error.status_code == 405:  # of the framework, which names the methods of one route only
        return problem(405, _SENTENCES[405], {"allow": ", ".join(_methods(request))})
    if not isinstance(error, Refusal):
        said = _SENTENCES.get(error.status_code, as_sentence(said))
    return problem(error.status_code, said, error.headers)


async def answer_invalid(_: Request, error: Exception) -> Response:
    """Of a request whose parts are not what they should be; names the first of them."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    said = str(first["msg"])
    if first["type"] == "json_invalid":
        return problem(400, as_sentence(f"the body is no JSON: {first['ctx']['error']}"))
    return problem(422, as_sentence(f"{place}: {said}" if place else f"the body: {said}"))


def _methods(request: Request) -> list[str]:
    """The methods that the address of a request takes."""
    path, found = request.url.path, set[str]()
    for route in request.app.routes:
        if isinstance(route, Route) and route.path_regex.match(path):
            found |= route.methods or set()
    return sorted(found)
