"""What the readers of features share: places in a source, folders, and the way into the store."""

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from ngsan.data.ids import id_of_file
from ngsan.data.importers.region_boxes import BadRegionsError
from ngsan.data.problems import Problems
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter

Position: TypeAlias = dict[str, Any]
"""The place of an image in its source, as JSON holds it. `file` names the file, `line`, `row` or
`key` the place within; `done` is how much of the source is read at this point, in the unit of the
reader's total. A reader that gets it as `start` goes on with the next image."""

SKIPPED = "skipped"
"""Where a position keeps the count of each kind of problem up to it."""

Item: TypeAlias = tuple[Position, str, Regions]
"""What a reader yields: place, image id and regions."""


def place(position: Position, image_id: str | None = None) -> str:
    """A position in words, for messages: "trainval.tsv, line 3, image 391895"."""
    parts = [str(position["file"])]
    parts += [f"{name} {position[name]}" for name in ("line", "row", "key") if name in position]
    if image_id is not None:
        parts.append(f"image {image_id}")
    return ", ".join(parts)


def list_files(
    folder: str | Path, suffixes: Collection[str], *, leave_out: str | Path | None = None
) -> list[str]:
    """The files of a folder and the folders within it, sorted by name.

    Args:
        folder: Where to look.
        suffixes: Endings that count, such as ".npz".
        leave_out: A folder within that does not count.

    Returns:
        Names relative to `folder`, with forward slashes. Hidden files are left out.

    Raises:
        ValueError: There is no such folder, or none of its files counts.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    without = None if leave_out is None else Path(leave_out).resolve()
    found = (
        path
        for path in folder.rglob("*")
        if path.suffix in suffixes
        and not path.name.startswith(".")
        and (without is None or without not in path.resolve().parents)
    )
    names = sorted(path.relative_to(folder).as_posix() for path in found)
    if not names:
        raise ValueError(f"{folder}: no file here ends in {' or '.join(sorted(suffixes))}")
    return names


def read_folder(
    names: Iterable[str],
    load: Callable[[str, str], Regions],
    *,
    start: Position | None,
    problems: Problems,
    name_id: Callable[[str], str] = id_of_file,
) -> Iterator[Item]:
    """Reads a folder of one file an image.

    Args:
        names: The files' names, sorted.
        load: Makes the regions of a file from its name and image id; may raise `BadRegionsError`.
        start: The position of the last image that is read already.
        problems: Where bad files are reported.
        name_id: Makes the image id of a file's name.

    Yields:
        Position, image id and regions.
    """
    for done, name in enumerate(names, start=1):
        if start is not None and name <= start["file"]:
            continue
        position: Position = {"file": name, "done": done}
        try:
            image_id = name_id(name)
        except ValueError as error:
            problems.report("bad image id", place(position), str(error))
            continue
        try:
            regions = load(name, image_id)
        except BadRegionsError as bad:
            problems.report(bad.kind, place(position, image_id), str(bad))
            continue
        yield position, image_id, regions


def import_features(
    items: Iterable[Item],
    writer: StoreWriter,
    problems: Problems,
    on_item: Callable[[Position], None] | None = None,
) -> int:
    """Puts what a reader yields into the store.

    Args:
        items: From a reader that was started at `writer.position`.
        writer: The open store.
        problems: Where images are reported that the store refuses.
        on_item: Called with the position after each image, to show progress.

    Returns:
        How many images were added.

    Raises:
        ValueError: An image is bad and bad ones are not to be skipped.
    """
    added = 0
    width = None
    for position, image_id, regions in items:
        try:
            if image_id in writer:
                raise BadRegionsError("duplicate id", "an image of this id came before")
            # What was skipped on the way is kept with the position, for an import that goes on.
            skipped = {SKIPPED: dict(problems.counts)} if problems.counts else {}
            writer.add(image_id, regions, position={**position, **skipped})
            width = regions.features.shape[1]
            added += 1
        except BadRegionsError as bad:
            problems.report(bad.kind, place(position, image_id), str(bad))
        except ValueError as error:
            changed = width is not None and regions.features.shape[1] != width
            kind = "feature width changes" if changed else "refused by the store"
            problems.report(kind, place(position, image_id), str(error))
        if on_item is not None:
            on_item(position)
    return added
