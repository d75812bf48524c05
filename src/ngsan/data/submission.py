"""Result files for COCO's captioning test server, checked before they are sent."""

import json
import re
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ngsan.data.captions import entry_fields
from ngsan.data.lines import is_unicode, shown
from ngsan.data.problems import Problems
from ngsan.data.results import read_image_ids

__all__ = ["IMAGES", "Submission", "check_submission", "is_submission"]

IMAGES = {"val2014": 40_504, "test2014": 40_775}
"""Number of images of each of the server's sets."""

_NAME = re.compile(r"captions_(?P<images>val2014|test2014)_(?P<algorithm>\S+)_results\.json")
_EXPECTED = "captions_{val2014,test2014}_ALGORITHM_results.json"


@dataclass(frozen=True)
class Submission:
    """What a check found."""

    problems: tuple[str, ...]
    """What the server would refuse or score wrongly, each with its count and an example."""

    warnings: tuple[str, ...]
    """What it would overlook."""

    checked: tuple[str, ...]
    """What was looked at, a line a file."""


def is_submission(name: str) -> bool:
    """Whether a file's name is one that the server takes."""
    return _NAME.fullmatch(name) is not None


def check_submission(path: str | Path, references: str | Path | None = None) -> Submission:
    """Checks a result file, or a zip archive of both, against what the server wants.

    Args:
        path: The file or the archive.
        references: A COCO file with the "images" that must be there: the annotations of val2014,
            or the image information of test2014. Without it their number is checked only. For
            an archive, the name must tell which of the two it is.

    Raises:
        ValueError: `references` cannot be read.
    """
    path = Path(path)
    wanted = None if references is None else frozenset(read_image_ids(references))
    of = _images_of(references)
    found = _Findings()
    if path.suffix.lower() == ".zip":
        if wanted is not None and of is None:
            raise ValueError(f"{references}: its name does not tell which of {', '.join(IMAGES)}")
        for name, data in _members(path, found):
            ids = wanted if _images_of(name) == of else None
            _check_file(name, data, ids, references, found)
    else:
        _check_file(path.name, path.read_bytes(), wanted, references, found)
    return Submission(
        found.lines(found.problems), found.lines(found.warnings), tuple(found.checked)
    )


class _Findings:
    """Problems of two kinds, and what was checked."""

    def __init__(self) -> None:
        self.problems = Problems(skip=True)
        self.warnings = Problems(skip=True)
        self.checked: list[str] = []

    @staticmethod
    def lines(problems: Problems) -> tuple[str, ...]:
        return tuple(
            f"{count:,} x {kind}, such as {problems.examples[kind][0]}"
            if count > 1
            else f"{kind}: {problems.examples[kind][0]}"
            for kind, count in problems.counts.items()
        )


def _images_of(name: str | Path | None) -> str | None:
    """Which of the server's sets the name of a file speaks of."""
    text = "" if name is None else Path(name).name
    return next((images for images in IMAGES if images in text), None)


def _members(path: Path, found: _Findings) -> Iterator[tuple[str, bytes]]:
    """The result files of an archive, which must hold both and nothing else."""
    seen: dict[str, str] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                match = _NAME.fullmatch(name)
                if match is None:
                    inner = PurePosixPath(name).name
                    wrong = "file not at the top" if _NAME.fullmatch(inner) else "unexpected file"
                    found.problems.report(wrong, path.name, f"{name}; expected {_EXPECTED}")
                    continue
                if match["images"] in seen:
                    message = f"{seen[match['images']]} and {name}"
                    found.problems.report("two files of one set", path.name, message)
                seen[match["images"]] = name
                yield name, archive.read(name)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError) as error:
        found.problems.report("broken archive", path.name, str(error))
        return
    for images in IMAGES.keys() - seen.keys():
        message = f"there is no captions_{images}_ALGORITHM_results.json in it"
        found.problems.report("missing file", path.name, message)
    if len({name.replace(images, "") for images, name in seen.items()}) > 1:
        message = " and ".join(seen.values())
        found.problems.report("algorithm named in two ways", path.name, message)


def _check_file(
    name: str,
    data: bytes,
    wanted: frozenset[str] | None,
    references: str | Path | None,
    found: _Findings,
) -> None:
    """Checks a result file, whose images must be those wanted if they are known."""
    match = _NAME.fullmatch(name)
    if match is None:
        found.problems.report("wrong file name", name, f"expected {_EXPECTED}")
    try:
        entries = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        found.problems.report("not JSON", name, str(error))
        return
    if not isinstance(entries, list):
        found.problems.report("not a list", name, f"expected a list, not {shown(entries)}")
        return
    ids = _check_entries(entries, name, found)
    if wanted is not None:
        _compare(ids, wanted, name, references, found)
        which = f"the images of {references}"
    elif match is not None:
        expected = IMAGES[match["images"]]
        if len(ids) != expected:
            message = f"{len(ids):,} images instead of {expected:,}"
            found.problems.report("wrong number of images", name, message)
        which = f"their number, {expected:,}"
    else:
        which = "not their number, as the name does not tell the set"
    found.checked.append(f"{name}: {len(entries):,} captions; types, doubles, {which}")


def _check_entries(entries: list[object], name: str, found: _Findings) -> set[str]:
    """Checks every entry; returns the images that have one."""
    first: dict[int, int] = {}
    for number, entry in enumerate(entries, start=1):
        where = f"{name}: entry {number}"
        fields = entry_fields(entry, ("image_id", "caption"), found.problems, where)
        if fields is None:
            continue
        identity, caption = fields["image_id"], fields["caption"]
        if not isinstance(caption, str):
            message = f"a caption must be a string, not {shown(caption)}"
            found.problems.report("wrong type", where, message)
        elif not caption.strip():
            found.problems.report("empty caption", where, f"image {shown(identity)}")
        elif not is_unicode(caption):
            found.problems.report("invalid Unicode", where, f"{shown(caption)}: half a character")
        if len(fields) > 2:
            more = ", ".join(shown(key) for key in fields if key not in ("image_id", "caption"))
            found.warnings.report("further keys", where, more)
        if not isinstance(identity, int) or isinstance(identity, bool):
            message = f"an image_id must be an integer, not {shown(identity)}"
            found.problems.report("wrong id", where, message)
        elif first.setdefault(identity, number) != number:
            message = f"image {identity} is in entry {first[identity]} already"
            found.problems.report("duplicate image", where, message)
    return set(map(str, first))


def _compare(
    ids: set[str],
    wanted: Collection[str],
    name: str,
    references: str | Path | None,
    found: _Findings,
) -> None:
    """Reports images that are missing and images that should not be there."""
    for kind, odd in (
        ("missing image", set(wanted) - ids),
        ("unknown image", ids - set(wanted)),
    ):
        for identity in sorted(odd, key=int if all(map(str.isdigit, odd)) else None):
            message = f"{identity}, compared with {references}"
            found.problems.report(kind, name, message)
