"""JSON with photographs in base64, read piece by piece: only the decoded files are held.

A long string becomes a file as it arrives and leaves a mark in the rest of the text, which is
parsed at the end. So what is parsed is short, whatever was sent.
"""

import binascii
import json
import re
import secrets
from typing import Any

from ngsan.app.errors import ApiError

_LONG = 3000
"""Bytes of a string above which it is taken for a file."""

_PLAIN = re.compile(rb'(?:[^"]++|"[^"\\]{0,%d}+")*+' % _LONG)
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_ESCAPE_LENGTH = 6


class JsonReader:
    """Reads a JSON object with files in base64.

    Args:
        max_rest: Bytes of the text besides long strings.
        max_files: Number of long strings.
    """

    def __init__(self, *, max_rest: int, max_files: int) -> None:
        self._max_rest, self._max_files = max_rest, max_files
        self._mark = secrets.token_hex(8)
        self._rest, self._files = bytearray(), list[bytearray]()
        self._text = bytearray()
        """The beginning of a string, or in a long one what is not decoded yet."""
        self._in_string = self._is_long = self._after_backslash = False

    def feed(self, data: bytes) -> None:
        """Reads a piece of the text.

        Raises:
            ApiError: It is too long, or not base64.
        """
        place = 0
        while place < len(data):
            if self._in_string:
                place = self._read_string(data, place)
                continue
            found = _PLAIN.match(data, place)
            end = found.end() if found else place
            self._in_string = end < len(data)
            self._add(data[place : end + self._in_string])
            place = end + self._in_string

    def close(self) -> dict[str, Any]:
        """The object, with bytes in place of long strings.

        Raises:
            ApiError: It is not JSON, or not an object.
        """
        if self._in_string:
            raise ApiError(400, "the body is not JSON: a text does not end")
        try:
            content = json.loads(self._rest)
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise ApiError(400, f"the body is not JSON: {reason}") from None
        if not isinstance(content, dict):
            raise ApiError(422, 'the body must be an object, such as {"image": "..."}')
        if isinstance(content.get("images"), list):
            content["images"] = [self._with_file(value) for value in content["images"]]
        return {name: self._with_file(value) for name, value in content.items()}

    def _with_file(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith(self._mark):
            return self._files[int(value.removeprefix(self._mark))]
        return value

    def _add(self, text: bytes) -> None:
        self._rest += text
        if len(self._rest) > self._max_rest:
            raise ApiError(
                413, f"more than {self._max_rest:,} bytes of JSON besides the photographs"
            )

    def _read_string(self, data: bytes, place: int) -> int:
        """Reads to the end of a string, or of the data; returns where that is."""
        found = _STRING.match(data, place + self._after_backslash)
        end = found.end() if found else place
        self._after_backslash = False
        self._text += data[place:end]
        if end < len(data) and data[end : end + 1] == b'"':
            self._end_string()
            return end + 1
        if end < len(data):  # a backslash, whose other half comes with the next piece
            self._text += b"\\"
            self._after_backslash = True
        if self._is_long or len(self._text) > _LONG:
            self._begin_file()
            self._decode(final=False)
        return len(data)

    def _begin_file(self) -> None:
        if not self._is_long:
            if len(self._files) == self._max_files:
                raise ApiError(422, f"more than {self._max_files} long texts")
            self._files.append(bytearray())
            self._is_long = True

    def _end_string(self) -> None:
        if self._is_long or len(self._text) > _LONG:
            self._begin_file()
            self._decode(final=True)
            self._add(f'{self._mark}{len(self._files) - 1}"'.encode())
        else:
            self._add(bytes(self._text) + b'"')
        self._text.clear()
        self._in_string = self._is_long = False

    def _decode(self, *, final: bool) -> None:
        """Decodes what is there of a long string, as far as its groups of four are complete."""
        text, kept = bytes(self._text), b""
        if not final and (cut := _ESCAPE.search(text[-_ESCAPE_LENGTH:])):
            kept = cut[0]
            text = text[: -len(kept)]
        try:
            if b"\\" in text:
                text = json.loads(b'"' + text + b'"').encode()
            end = len(text)
            if not final:
                padding = text.find(b"=")
                end = (end if padding < 0 else padding) // 4 * 4
                if len(text) - end > _LONG:
                    raise ValueError("text follows its end")
            self._files[-1] += binascii.a2b_base64(text[:end], strict_mode=True)
        except ValueError as error:
            raise ApiError(422, f"a photograph is not base64: {error}") from None
        self._text[:] = text[end:] + kept
