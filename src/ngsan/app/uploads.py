"""Requests with photographs: forms and JSON, read in memory, and photographs decoded.

Shapes: `S` side of the square that photographs are resized to.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from ngsan.app.clients import CLIENT
from ngsan.app.context import Context
from ngsan.app.errors import ApiError
from ngsan.app.json_upload import JsonReader
from ngsan.app.options import option_fields
from ngsan.app.settings import ServeSettings
from ngsan.vision.images import ImageError

FORM, JSON = "multipart/form-data", "application/json"
"""The content types of requests with photographs."""

_PLAIN_ENCODINGS = (b"7bit", b"8bit", b"binary")
_MAX_NAME = 100
_HEAVY_SECONDS = 1.0
"""What a client may use of late before its photographs are decoded with low priority."""

# It would log parts of a malformed request.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


@dataclass
class Upload:
    """The content of a request."""

    images: list[bytes | bytearray] = field(default_factory=list)
    """Files of photographs, in their order."""

    options: dict[str, Any] = field(default_factory=dict)
    """The other fields by name."""

    from_form: bool = False
    """Whether the options are texts of a form, rather than values of JSON."""


@dataclass(frozen=True)
class DecodedPhoto:
    """A photograph as models take it."""

    squares: tuple[NDArray[np.uint8], ...]
    """(S, S, 3) for each side that was asked for."""

    width: int
    """Of the original photograph, upright."""

    height: int
    """Likewise."""


async def read_upload(request: Request, settings: ServeSettings) -> Upload:
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
        upload = await _read_json(request, settings)
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
    images: Sequence[bytes | bytearray], sides: tuple[int, ...], context: Context
) -> list[DecodedPhoto]:
    """Decodes photographs, a few at a time.

    Args:
        images: Their files.
        sides: S of each square.
        context: Where and with what limits they are decoded.

    Raises:
        ApiError: One cannot be read; says which.
    """
    client = CLIENT.get()
    decoded = await asyncio.gather(
        *(context.decoders.run(_decode, image, sides, context, client) for image in images)
    )
    photos: list[DecodedPhoto] = []
    for number, photo in enumerate(decoded, 1):
        if isinstance(photo, ImageError):
            place = f"photograph {number} of {len(images)}: " if len(images) > 1 else ""
            raise ApiError(422, f"{place}{str(photo).removeprefix('the image: ')}")
        photos.append(photo)
    return photos


def _decode(
    image: bytes | bytearray, sides: tuple[int, ...], context: Context, client: str
) -> DecodedPhoto | ImageError:
    ledger = context.ledger
    with ledger.changed:
        low_priority = not ledger.is_alone(client) and ledger.spent(client) > _HEAVY_SECONDS
    with context.metrics.decoding.time():
        try:
            squares, (width, height) = context.decoding.squares(
                image, sides, max_pixels=context.settings.max_pixels, low_priority=low_priority
            )
        except ImageError as error:
            return error
    return DecodedPhoto(squares, width, height)


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
        self._delimiter, self._delimiters = b"\r\n--" + boundary, 0
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
        # Each costs the parser as much time as thousands of bytes, also where it ends no part.
        self._delimiters += data.count(self._delimiter)
        if self._delimiters > self._max_parts + 1:
            raise ApiError(
                422, f"the form has more than {self._max_parts} parts, or its boundary in them"
            )
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
            upload.images.append(content)
        elif name in upload.options:
            raise ApiError(422, f"the form has {name!r} more than once")
        else:
            upload.options[name] = content.decode("utf-8", "replace")
    return upload


async def _read_json(request: Request, settings: ServeSettings) -> Upload:
    reader = JsonReader(max_rest=settings.max_json_bytes, max_files=settings.max_images + 1)
    async for data in request.stream():
        reader.feed(data)
    content = reader.close()
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


def _from_base64(name: str, text: Any) -> bytes | bytearray:
    if isinstance(text, bytearray):  # it was decoded as it arrived
        return text
    if not isinstance(text, str):
        raise ApiError(422, f"{name} must be a file in base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError(422, f"{name} is not base64: {error}") from None
