"""Large JSON files, an array's item at a time, so that memory does not grow with the file."""

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from ngsan.data.compressed import open_bytes

_CHUNK = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")
_NEAR_END = 16
"""At least as many characters as a literal or an escape has that the window's end cut in two."""


def stream_items(path: str | Path, *, chunk: int = _CHUNK) -> Iterator[tuple[str, int, Any]]:
    """Reads the items of the arrays of a JSON file, one after the other.

    The file holds an array, or an object some of whose members are arrays.

    Args:
        path: The file, in UTF-8; compressed if its name ends in .gz.
        chunk: Bytes to read at a time.

    Yields:
        The array's key ("" for a file that is an array), the item's number from 1, and the item.
        Members that are no arrays are read and left out; an array without items yields nothing.

    Raises:
        ValueError: It is not JSON, damaged, or ends too early; names the file and the byte.
    """
    with open_bytes(path) as file:
        reader = _Reader(file, str(path), chunk)
        opening = reader.take("[{")
        if opening == "[":
            yield from _items(reader, "")
        elif reader.peek() == "}":
            reader.take("}")
        else:
            yield from _members(reader)
        if reader.peek():
            reader.fail("there is more text after the end of the JSON")


def _members(reader: "_Reader") -> Iterator[tuple[str, int, Any]]:
    closing = ","
    while closing == ",":
        if reader.peek() != '"':
            reader.fail("expected a key in double quotes")
        key = reader.value()
        reader.take(":")
        if reader.peek() == "[":
            reader.take("[")
            yield from _items(reader, key)
        else:
            reader.value()
        closing = reader.take(",}")


def _items(reader: "_Reader", key: str) -> Iterator[tuple[str, int, Any]]:
    if reader.peek() == "]":
        reader.take("]")
        return
    number, closing = 0, ","
    while closing == ",":
        number += 1
        yield key, number, reader.value()
        closing = reader.take(",]")


class _Reader:
    """A window on the text of a JSON file that moves on as values are taken from it."""

    def __init__(self, file: IO[bytes], name: str, chunk: int) -> None:
        self._file, self._name, self._chunk = file, name, chunk
        self._decode = codecs.getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder()
        self._text, self._at = "", 0
        self._bytes = 0  # in front of the window
        self._read = 0
        self._ended = False
        self._more()
        if self._text.startswith("\ufeff"):
            self._at = 1

    def fail(self, message: str) -> NoReturn:
        """Stops at the current place."""
        self._fail(self._at, message)

    def peek(self) -> str:
        """The next character that is no white space; "" at the end of the file."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._more()

    def take(self, expected: str) -> str:
        """Takes the next character, which must be one of the expected."""
        character = self.peek()
        if not character:
            self.fail(f"the file ends too early, where {' or '.join(expected)} should follow")
        if character not in expected:
            self.fail(f"expected {' or '.join(expected)}, not {character!a}")
        self._at += 1
        return character

    def value(self) -> Any:
        """Takes the next value, reading on for as long as it is incomplete."""
        self.peek()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                open_string = error.msg.startswith("Unterminated")
                if not open_string and error.pos < len(self._text) - _NEAR_END:
                    self._fail(error.pos, error.msg)
                if self._ended:
                    if open_string or not self._text[error.pos :].strip():
                        self._fail(len(self._text), f"the file ends too early: {error.msg}")
                    self._fail(error.pos, error.msg)
            except RecursionError:
                self.fail("nested too deeply")
            except ValueError as error:  # such as an integer of more digits than Python takes
                self.fail(str(error))
            else:
                # A number at the end of the window may go on behind it, as in `1` or `1e+`.
                if self._ended or len(self._text) - end > len("e+"):
                    self._at = end
                    return value
            self._more()

    def _more(self) -> None:
        """Drops what was taken and reads on, by as much again as there is."""
        self._bytes += len(self._text[: self._at].encode("utf-8"))
        kept = self._text[self._at :]
        data = self._file.read(max(self._chunk, len(kept)))
        self._ended = not data
        try:
            self._text = kept + self._decode.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            # The decoder's bytes are those of a character that the last read cut off, then `data`.
            byte = self._read + len(data) - len(error.object) + error.start
            raise ValueError(f"{self._name}: byte {byte}: invalid UTF-8: {error.reason}") from error
        self._read += len(data)
        self._at = 0

    def _fail(self, position: int, message: str) -> NoReturn:
        byte = self._bytes + len(self._text[:position].encode("utf-8"))
        raise ValueError(f"{self._name}: byte {byte}: broken JSON: {message}")
