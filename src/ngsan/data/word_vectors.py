"""Word vectors from a text file such as GloVe's, of which only the needed lines are kept.

Shapes: `V` words, `W` width of a vector.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngsan.data.compressed import open_bytes


def read_vectors(
    path: str | Path, words: Sequence[str], dim: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Reads the vectors of some words, a line at a time.

    Args:
        path: A text file with a word and its numbers a line, parted by spaces; a first line with
            the file's size, as word2vec has it, is passed over. Compressed if its name ends in
            .gz.
        words: The words.
        dim: W.

    Returns:
        The vectors, (V, W), zero for words that the file does not have, and which it has, (V,).

    Raises:
        ValueError: The file is of another width, damaged, or has none of the words; names the line.
    """
    if dim < 1:
        raise ValueError(f"dim: {dim} is not at least 1")
    vectors = np.zeros((len(words), dim), np.float32)
    found = np.zeros(len(words), bool)
    places = {word: place for place, word in enumerate(words)}
    for number, line in _lines(Path(path)):
        parts = line.rstrip("\r\n ").split(" ")
        if number == 1:
            if len(parts) == 2 and all(part.isdigit() for part in parts):
                continue
            _check_width(parts, dim, path)
        if len(parts) <= dim:
            if not line.strip():
                continue
            raise ValueError(
                f"{path}:{number}: a word and {dim} numbers should stand there, and {len(parts)} "
                "parts do: the file is damaged, or ends too early"
            )
        # Some files have words with spaces in them, so the numbers are counted from the end.
        place = places.get(" ".join(parts[:-dim]))
        if place is None or found[place]:
            continue
        try:
            vectors[place] = np.array(parts[-dim:], np.float32)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        if not np.isfinite(vectors[place]).all():
            raise ValueError(f"{path}:{number}: a number of {words[place]!r} is not finite")
        found[place] = True
    if not found.any():
        raise ValueError(f"{path} has a vector of none of {len(words)} words, such as {words[:3]}")
    return vectors, found


def _check_width(parts: list[str], dim: int, path: str | Path) -> None:
    numbers = 0
    for part in reversed(parts):
        try:
            float(part)
        except ValueError:
            break
        numbers += 1
    # The word itself may be a number.
    if numbers not in (dim, dim + 1) or len(parts) < dim + 1:
        raise ValueError(
            f"{path}:1: a word and {dim} numbers should stand there, and {numbers} numbers do; "
            f"set word_dim to the width of the file's vectors"
        )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            yield number, line.decode("utf-8", errors="replace")
