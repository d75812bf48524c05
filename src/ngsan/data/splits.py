"""Training, validation and test: names of splits, lists of ids, and random splits."""

import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ngsan.data.captions import SPLITS
from ngsan.data.ids import FILES
from ngsan.data.problems import Problems, image_id
from ngsan.data.text_files import numbered_lines

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
    """The standard name of a split: "validation", "valid" and "dev", in any case, are "val"."""
    split = _NAMES.get(name.strip().lower()) if isinstance(name, str) else None
    if split is None:
        raise ValueError(f"{name!r} is not a split; the splits are {', '.join(SPLITS)}")
    return split


def split_of_file(path: str | Path) -> str:
    """The split in a file's name, which must contain one of train, val (or dev) and test."""
    name = Path(path).name.lower()
    found = {_NAMES[word] for word in ("train", "val", "dev", "test") if word in name}
    if len(found) != 1:
        raise ValueError(f"{path}: its name has no split ({', '.join(SPLITS)}); pass --split")
    return found.pop()


def id_and_file(name: object, problems: Problems, where: str) -> tuple[str, str | None] | None:
    """The id of an image that is given by id, file name or path; and the file, if it is one.

    A name with the extension of an image or video is a file; its folders are not part of the id.
    None if the name was reported to `problems`.
    """
    if isinstance(name, str):
        file = PurePosixPath(name.strip().replace("\\", "/"))
        if file.suffix.lower() in FILES:
            identity = image_id(file.stem, problems, where)
            return None if identity is None else (identity, str(file))
    identity = image_id(name, problems, where)
    return None if identity is None else (identity, None)


def read_id_list(path: str | Path) -> dict[str, int]:
    """Reads a list with an image id or image file per line; empty lines are skipped.

    Returns:
        The line number of every id, in the order of the list.
    """
    lines: dict[str, int] = {}
    for line, text in numbered_lines(path):
        where = f"{path}:{line.number}"
        named = id_and_file(text, Problems(), where) if text.strip() else None
        if named is None:
            continue
        before = lines.setdefault(named[0], line.number)
        if before != line.number:
            raise ValueError(f"{where}: {named[0]} is already in line {before}")
    if not lines:
        raise ValueError(f"{path}: no ids")
    return lines


def read_split_lists(**paths: str | Path | None) -> dict[str, tuple[str, str]]:
    """Reads the id lists of splits, given by the split's name.

    Returns:
        The split of every id, and its place as `file:line`.
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
    """Assigns images to train, val and test at random.

    Images are ranked by the SHA-256 of "seed:id". The split therefore depends only on the seed and
    the set of ids, and few images change their split when a few are added.

    Args:
        ids: The images; duplicates are ignored.
        val: Share for validation, from 0 to below 1. It is rounded to whole images; a share above
            0 gives at least one of three or more images.
        test: Share for test, rounded in the same way. At least one image is left for training.
        seed: Seed of the split.

    Returns:
        The split of every id, in the order of the ids.
    """
    if not (val >= 0 and test >= 0 and val + test < 1):
        raise ValueError(f"shares of val ({val}) and test ({test}) must be >= 0 and sum below 1")
    order = list(dict.fromkeys(ids))
    least = 1 if len(order) >= 3 else 0
    vals, tests = (max(round(share * len(order)), least if share else 0) for share in (val, test))
    while vals + tests >= max(len(order), 1):
        vals, tests = (vals, tests - 1) if tests >= vals else (vals - 1, tests)

    def rank(identity: str) -> tuple[bytes, str]:
        return hashlib.sha256(f"{seed}:{identity}".encode()).digest(), identity

    ranked = sorted(order, key=rank)
    splits = dict.fromkeys(order, "train")
    splits.update(dict.fromkeys(ranked[:tests], "test"))
    splits.update(dict.fromkeys(ranked[tests : tests + vals], "val"))
    return splits
