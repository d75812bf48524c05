"""Which images are for training, validation and test: lists of ids, and random splits."""

import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ngsan.data.captions import SPLITS, image_id
from ngsan.data.ids import FILES
from ngsan.data.lines import numbered_lines
from ngsan.data.problems import Problems

_NAMES = {
    "train": "train",
    "training": "train",
    "restval": "train",  # Karpathy's: images of val2014 that are neither for validation nor test
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def canonical_split(name: object) -> str:
    """The split that a name stands for, in any case: "validation", "valid" and "dev" are "val".

    Raises:
        ValueError: It stands for none.
    """
    split = _NAMES.get(name.strip().lower()) if isinstance(name, str) else None
    if split is None:
        raise ValueError(f"{name!r} is no split; the splits are {', '.join(SPLITS)}")
    return split


def split_of_file(path: str | Path) -> str:
    """The split that a file's name tells: train, val (or dev) or test must occur in it.

    Raises:
        ValueError: None or more than one does.
    """
    name = Path(path).name.lower()
    found = {_NAMES[word] for word in ("train", "val", "dev", "test") if word in name}
    if len(found) != 1:
        raise ValueError(
            f"{path}: its name does not tell a split ({', '.join(SPLITS)}); say which it is"
        )
    return found.pop()


def id_and_file(name: object, problems: Problems, where: str) -> tuple[str, str | None] | None:
    """The id of an image that is named by its id or by its file, and the file if it is one.

    A name with a known extension of images or videos is a file; the folders before it count
    neither for the id nor against it.

    Args:
        name: An id, a file name or a path.
        problems: Takes a name that cannot be one.
        where: Where the name stands.

    Returns:
        Id and file, or None when the name was reported.
    """
    if isinstance(name, str):
        file = PurePosixPath(name.strip().replace("\\", "/"))
        if file.suffix.lower() in FILES:
            identity = image_id(file.stem, problems, where)
            return None if identity is None else (identity, str(file))
    identity = image_id(name, problems, where)
    return None if identity is None else (identity, None)


def read_id_list(path: str | Path) -> dict[str, int]:
    """Reads a list with an image id or an image file a line; empty lines are passed over.

    Returns:
        The line of every id, in the order of the list.

    Raises:
        ValueError: The list is empty, holds an id twice, or is not UTF-8; names the line.
    """
    lines: dict[str, int] = {}
    for number, _, text, _ in numbered_lines(path):
        named = id_and_file(text, Problems(), f"{path}:{number}") if text.strip() else None
        if named is None:
            continue
        identity, _ = named
        before = lines.setdefault(identity, number)
        if before != number:
            raise ValueError(f"{path}:{number}: {identity} stands in line {before} already")
    if not lines:
        raise ValueError(f"{path}: there is no id in it")
    return lines


def read_split_lists(**paths: str | Path | None) -> dict[str, tuple[str, str]]:
    """Reads the id lists of several splits.

    Args:
        **paths: The list of a split by the split's name; None: there is none.

    Returns:
        The split of every id and where it stands, as `file:line`.

    Raises:
        ValueError: An id is in two lists.
    """
    splits: dict[str, tuple[str, str]] = {}
    for split, path in paths.items():
        for identity, line in read_id_list(path).items() if path is not None else ():
            where = f"{path}:{line}"
            if identity in splits:
                other, before = splits[identity]
                raise ValueError(f"{where}: {identity} is for {split}, but for {other} in {before}")
            splits[identity] = split, where
    return splits


def random_split(
    ids: Iterable[str], *, val: float = 0.1, test: float = 0.1, seed: int = 0
) -> dict[str, str]:
    """Deals images out at random to train, val and test.

    The images are ranked by the SHA-256 of "seed:id"; the first are for test, the next for
    validation and the rest for training. So the split depends on the seed and on which ids there
    are, but not on their order, the machine or the version of Python, and few images change their
    split when a few are added.

    Args:
        ids: The images; the same id counts once.
        val: Share for validation, at least 0 and below 1. It is rounded to whole images; a share
            above 0 gives at least one of three or more images.
        test: Share for test, likewise. At least one image is left for training.
        seed: Another number deals anew.

    Returns:
        The split of every id, in the order of the ids.

    Raises:
        ValueError: The shares leave nothing for training.
    """
    if not (val >= 0 and test >= 0 and val + test < 1):
        raise ValueError(f"shares of val ({val}) and test ({test}) must be >= 0 and sum below 1")
    order = list(dict.fromkeys(ids))
    least = 1 if len(order) >= 3 else 0
    vals, tests = (max(round(share * len(order)), least if share else 0) for share in (val, test))
    while vals + tests >= max(len(order), 1):
        vals, tests = (vals, tests - 1) if tests >= vals else (vals - 1, tests)
    ranked = sorted(order, key=lambda identity: _rank(identity, seed))
    splits = dict.fromkeys(order, "train")
    splits.update(dict.fromkeys(ranked[:tests], "test"))
    splits.update(dict.fromkeys(ranked[tests : tests + vals], "val"))
    return splits


def _rank(identity: str, seed: int) -> tuple[bytes, str]:
    return hashlib.sha256(f"{seed}:{identity}".encode()).digest(), identity
