"""What a request with photographs brings: files and options, and the files as pictures.

Shapes: `S` side of the square that photographs are squashed to.
"""

import asyncio
import base64
import binascii
import ctypes
import json
import math
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from ngsan.serve.forms import FormReader
from ngsan.serve.options import options
from ngsan.serve.refusals import Refusal
from ngsan.serve.settings import ServeSettings
from ngsan.serve.threads import Threads
from ngsan.vision.images import ImageError, open_picture, to_square

FORM, JSON = "multipart/form-data", "application/json"
"""The kinds of bodies that are taken."""


_JPEG = b"\xff\xd8"
_WHOLE = threading.Lock()
"""Held while a picture is decoded as a whole: fifty million pixels take a gigabyte for a moment, so
there must not be two of them."""

_MANY_PIXELS = 10_000_000


@dataclass
class Sent:
    """The content of a request."""

    images: list[bytes] = field(default_factory=list)
    """Files of photographs, in their order."""

    options: dict[str, Any] = field(default_factory=dict)
    """The rest by name."""

    texts: bool = False
    """Whether the options are texts of a form, and not values of JSON."""


@dataclass(frozen=True)
class Square:
    """A photograph as models take it."""

    pixels: NDArray[np.uint8]
    """(S, S, 3)."""

    width: int
    """Of the whole photograph, upright."""

    height: int
    """Of the whole photograph, upright."""


async def read_sent(request: Request, settings: ServeSettings, threads: Threads) -> Sent:
    """Reads a request with photographs, as a form or as JSON.

    How many bytes and how long it may take is seen to before they come here.

    Args:
        request: The request.
        settings: The server's limits.
        threads: Where JSON is read, which may be large.

    Raises:
        Refusal: It is neither, broken, or has no photograph or too many.
    """
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "send the body as it is, without a content encoding")
    if kind == FORM:
        sent = await _read_form(request, content_type, settings)
    elif kind == JSON:
        body = await request.body()
        sent = await threads.do(_read_json, body)
    else:
        raise Refusal(415, f"send {FORM} with files named image, or {JSON}")
    if not sent.images:
        raise Refusal(422, "there is no photograph: send one or more as image")
    if len(sent.images) > settings.most_images:
        raise Refusal(
            422, f"{len(sent.images)} photographs are more than {settings.most_images}: send fewer"
        )
    return sent


async def read_squares(
    images: Sequence[bytes], size: int, settings: ServeSettings, threads: Threads
) -> list[Square]:
    """Decodes photographs, a few at a time.

    Args:
        images: Their files.
        size: S.
        settings: The server's limits.
        threads: Where it is done.

    Raises:
        Refusal: One cannot be read; says which.
    """
    read = await asyncio.gather(
        *(threads.do(_decode, image, size, settings.most_pixels) for image in images)
    )
    found: list[Square] = []
    for number, made in enumerate(read, 1):
        if isinstance(made, ImageError):
            place = f"photograph {number} of {len(images)}: " if len(images) > 1 else ""
            raise Refusal(422, f"{place}{str(made).removeprefix('the image: ')}")
        found.append(made)
    return found


def _decode(image: bytes, size: int, most_pixels: int) -> Square | ImageError:
    with nullcontext() if image.startswith(_JPEG) else _WHOLE:
        try:
            # A large JPEG may be decoded at a fraction of its size, as `ngsan caption` does it.
            picture = open_picture(image, most_pixels=most_pixels, near=2 * size)
            made, held = to_square(picture.image, size), math.prod(picture.image.size)
            width, height = picture.size
            del picture
        except ImageError as error:
            return error
        if held > _MANY_PIXELS:
            _give_memory_back()
        return Square(made, width, height)


def _give_memory_back() -> None:
    """Lets the system have what a large picture took, where the C library can be told to."""
    with suppress(OSError, AttributeError, TypeError):  # it is one of another kind
        ctypes.CDLL(None).malloc_trim(0)


async def _read_form(request: Request, content_type: str, settings: ServeSettings) -> Sent:
    most = settings.most_images + len(options(settings)) + 1
    reader = FormReader(content_type, most_parts=most)
    async for piece in request.stream():
        reader.feed(piece)
    sent = Sent(texts=True)
    for part in reader.close():
        if part.name == "image":
            sent.images.append(bytes(part.content))
        elif part.name in sent.options:
            raise Refusal(422, f"the form has {part.name!r} more than once")
        else:
            sent.options[part.name] = part.content.decode("utf-8", "replace")
    return sent


def _read_json(body: bytes) -> Sent:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Refusal(400, f"the body is no JSON: {said}") from None
    if not isinstance(content, dict):
        raise Refusal(422, 'the body must be an object, such as {"image": "..."}')
    if "image" in content and "images" in content:
        raise Refusal(422, "give image or images, not both")
    given = content.pop("images", None)
    several = given is not None
    if several and not isinstance(given, list):
        raise Refusal(422, "images must be a list of files in base64")
    if "image" in content:
        given = [content.pop("image")]
    files = [
        _from_base64(f"images[{place}]" if several else "image", text)
        for place, text in enumerate(given or ())
    ]
    return Sent(files, content)


def _from_base64(name: str, text: Any) -> bytes:
    if not isinstance(text, str):
        raise Refusal(422, f"{name} must be a file in base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(422, f"{name} is no base64: {error}") from None
