"""Requests with photographs: forms and JSON, read in memory, and photographs decoded.

Shapes: `S` side of the square that photographs are resized to.
"""

import asyncio
import base64
import binascii
import ctypes
import json
import logging
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from ngsan.app.errors import ApiError
from ngsan.app.options import option_fields
from ngsan.app.settings import ServeSettings
from ngsan.threads import WorkerThreads
from ngsan.vision.images import ImageError, open_picture, to_square

FORM, JSON = "multipart/form-data", "application/json"
"""The content types of requests with photographs."""

_PLAIN_ENCODINGS = (b"7bit", b"8bit", b"binary")
_MAX_NAME = 100
_JPEG = b"\xff\xd8"
_MANY_PIXELS = 10_000_000
_FULL_SIZE = threading.Lock()
"""Held while a picture is decoded at full size: fifty million pixels need a gigabyte for a moment,
so only one is decoded at a time."""

# It would log parts of a malformed request.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


@dataclass
class Upload:
    """The content of a request."""

    images: list[bytes] = field(default_factory=list)
    """Files of photographs, in their order."""

    options: dict[str, Any] = field(default_factory=dict)
    """The other fields by name."""

    from_form: bool = False
    """Whether the options are texts of a form, rather than values of JSON."""


@dataclass(frozen=True)
class DecodedPhoto:
    """A photograph as models take it."""

    pixels: NDArray[np.uint8]
    """(S, S, 3)."""

    width: int
    """Of the original photograph, upright."""

    height: int
    """Likewise."""


async def read_upload(request: Request, settings: ServeSettings, threads: WorkerThreads) -> Upload:
    """Reads a request with photographs, as a form or as JSON.

    The middleware limits its bytes and time.

    Raises:
        ApiError: It is neither, malformed, or has no photograph or too many.
    """
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "send the body without a content encoding")
    if kind == FORM:
        upload = await _read_form(request, content_type, settings)
    elif kind == JSON:
        upload = await threads.run(_read_json, await request.body())
    else:
        raise ApiError(415, f"send {FORM} with files named image, or {JSON}")
    if not upload.images:
        raise ApiError(422, "no photograph: send one or more as image")
    if len(upload.images) > settings.max_images:
        raise ApiError(
            422, f"{len(upload.images)} photographs are more than the limit {settings.max_images}"
        )
    return upload


async def decode_photos(
    images: Sequence[bytes], size: int, settings: ServeSettings, threads: WorkerThreads
) -> list[DecodedPhoto]:
    """Decodes photographs, a few at a time.

    Args:
        images: Their files.
        size: S.
        settings: The server's limits.
        threads: Where they are decoded.

    Raises:
        ApiError: One cannot be read; says which.
    """
    decoded = await asyncio.gather(
        *(threads.run(_decode, image, size, settings.max_pixels) for image in images)
    )
    photos: list[DecodedPhoto] = []
    for number, photo in enumerate(decoded, 1):
        if isinstance(photo, ImageError):
            place = f"photograph {number} of {len(images)}: " if len(images) > 1 else ""
            raise ApiError(422, f"{place}{str(photo).removeprefix('the image: ')}")
        photos.append(photo)
    return photos


def _decode(image: bytes, size: int, max_pixels: int) -> DecodedPhoto | ImageError:
    with nullcontext() if image.startswith(_JPEG) else _FULL_SIZE:
        try:
            # A large JPEG may be decoded at a fraction of its size, as `ngsan caption` does it.
            picture = open_picture(image, max_pixels=max_pixels, min_side=2 * size)
            pixels = to_square(picture.image, size)
            width, height = picture.size
            del picture
        except ImageError as error:
            return error
        if width * height > _MANY_PIXELS:  # of the file: what is left of it by now is small
            _release_memory()
        return DecodedPhoto(pixels, width, height)


def _release_memory() -> None:
    """Returns the memory of a large picture to the system, where the C library supports it."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class _FormReader:
    """Parses a form part by part.

    Note: The web framework would write large parts to files.
    """

    def __init__(self, content_type: str, *, max_parts: int) -> None:
        _, parameters = parse_options_header(content_type)
        boundary = parameters.get(b"boundary", b"")
        if not boundary:
            raise ApiError(400, "the content type of the form has no boundary")
        self.parts: list[tuple[str, bytearray]] = []
        self._max_parts, self._ended = max_parts, False
        self._header, self._value = bytearray(), bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_part_data": lambda data, start, end: self.parts[-1][1].extend(
                        memoryview(data)[start:end]
                    ),
                    "on_header_field": lambda data, start, end: self._header.extend(
                        data[start:end]
                    ),
                    "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_end,
                    "on_end": self._end,
                },
                max_header_count=8,
                max_header_size=2048,
            )
        except FormParserError as error:
            raise ApiError(400, f"malformed form: {error}") from None

    def feed(self, data: bytes) -> None:
        if self._ended or not data:  # what follows a form is ignored
            return
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise ApiError(400, f"malformed form: {error}") from None

    def close(self) -> list[tuple[str, bytearray]]:
        """Names and contents of the parts."""
        if not self._ended:
            raise ApiError(400, "the form ends too early")
        return self.parts

    def _begin(self) -> None:
        if len(self.parts) == self._max_parts:
            raise ApiError(422, f"the form has more than {self._max_parts} parts")
        self.parts.append(("", bytearray()))

    def _header_end(self) -> None:
        name, value = bytes(self._header).lower(), bytes(self._value).strip()
        self._header.clear()
        self._value.clear()
        if name == b"content-disposition":
            _, parameters = parse_options_header(value)
            field_name = parameters.get(b"name", b"")[:_MAX_NAME].decode("utf-8", "replace")
            self.parts[-1] = field_name, self.parts[-1][1]
        elif name == b"content-transfer-encoding" and value.lower() not in _PLAIN_ENCODINGS:
            raise ApiError(415, "send the parts of a form without a transfer encoding")

    def _headers_end(self) -> None:
        if not self.parts[-1][0]:
            raise ApiError(400, "a part of the form has no name")

    def _end(self) -> None:
        self._ended = True


async def _read_form(request: Request, content_type: str, settings: ServeSettings) -> Upload:
    fields = option_fields(settings, explain=True).model_fields
    max_parts = settings.max_images + len(fields)
    reader = _FormReader(content_type, max_parts=max_parts)
    async for data in request.stream():
        reader.feed(data)
    upload = Upload(from_form=True)
    for name, content in reader.close():
        if name == "image":
            upload.images.append(bytes(content))
        elif name in upload.options:
            raise ApiError(422, f"the form has {name!r} more than once")
        else:
            upload.options[name] = content.decode("utf-8", "replace")
    return upload


def _read_json(body: bytes) -> Upload:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, f"the body is not JSON: {reason}") from None
    if not isinstance(content, dict):
        raise ApiError(422, 'the body must be an object, such as {"image": "..."}')
    if "image" in content and "images" in content:
        raise ApiError(422, "send image or images, not both")
    given = content.pop("images", None)
    several = given is not None
    if several and not isinstance(given, list):
        raise ApiError(422, "images must be a list of files in base64")
    if "image" in content:
        given = [content.pop("image")]
    files = [
        _from_base64(f"images[{index}]" if several else "image", text)
        for index, text in enumerate(given or ())
    ]
    return Upload(files, content)


def _from_base64(name: str, text: Any) -> bytes:
    if not isinstance(text, str):
        raise ApiError(422, f"{name} must be a file in base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError(422, f"{name} is not base64: {error}") from None
