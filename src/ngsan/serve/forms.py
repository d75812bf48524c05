"""Forms of several parts, read as they arrive and kept in memory alone."""

import logging
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ngsan.serve.refusals import Refusal

_PLAIN = (b"7bit", b"8bit", b"binary")
_NAME = 100

# It would write down what is odd about a request.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


@dataclass
class Part:
    """A part of a form."""

    name: str = ""
    """Its name."""

    content: bytearray = field(default_factory=bytearray)
    """What is in it."""


class FormReader:
    """Takes a form in pieces.

    Note: Not the form of the web framework, which writes large parts to files.
    """

    def __init__(self, content_type: str, *, most_parts: int) -> None:
        """Takes what the request says of its body.

        Args:
            content_type: The header of this name.
            most_parts: Parts that are accepted.

        Raises:
            Refusal: It names no boundary.
        """
        _, about = parse_options_header(content_type)
        boundary = about.get(b"boundary", b"")
        if not boundary:
            raise Refusal(400, "the form's content type names no boundary between its parts")
        self.parts: list[Part] = []
        self._most, self._ended = most_parts, False
        self._header, self._value = bytearray(), bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_part_data": self._data,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_end,
                    "on_end": self._end,
                },
                max_header_count=8,
                max_header_size=2048,
            )
        except FormParserError as error:
            raise Refusal(400, f"the form cannot be read: {error}") from None

    def feed(self, piece: bytes) -> None:
        """Takes a piece.

        Raises:
            Refusal: It is no form, or has too many parts.
        """
        if self._ended or not piece:  # what follows a form means nothing
            return
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise Refusal(400, f"the form cannot be read: {error}") from None

    def close(self) -> list[Part]:
        """The parts.

        Raises:
            Refusal: The form broke off.
        """
        if not self._ended:
            raise Refusal(400, "the form breaks off before its end")
        return self.parts

    def _begin(self) -> None:
        if len(self.parts) == self._most:
            raise Refusal(422, f"the form has more than {self._most} parts")
        self.parts.append(Part())

    def _data(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1].content += memoryview(data)[start:end]

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        name, value = bytes(self._header).lower(), bytes(self._value)
        self._header.clear()
        self._value.clear()
        if name == b"content-disposition":
            _, about = parse_options_header(value)
            self.parts[-1].name = about.get(b"name", b"")[:_NAME].decode("utf-8", "replace")
        elif name == b"content-transfer-encoding" and value.strip().lower() not in _PLAIN:
            raise Refusal(415, "parts of a form are taken as they are, without an encoding")

    def _headers_end(self) -> None:
        if not self.parts[-1].name:
            raise Refusal(400, "a part of the form has no name")

    def _end(self) -> None:
        self._ended = True
