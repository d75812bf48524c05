"""Files that may be compressed: a name that ends in .gz says so."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast


@contextmanager
def open_bytes(path: str | Path) -> Iterator[IO[bytes]]:
    """Opens a file to be read.

    Raises:
        ValueError: While it is read: it is not compressed, damaged, or cut off; names the file.
    """
    path = Path(path)
    if path.suffix.lower() != ".gz":
        with path.open("rb") as file:
            yield file
        return
    try:
        with gzip.open(path, "rb") as packed:
            yield cast("IO[bytes]", packed)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: damaged or no gzip file: {error}") from error
