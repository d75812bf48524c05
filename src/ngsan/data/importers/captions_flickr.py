"""Flickr8k and Flickr30k: token files, and the published lists of images for each split.

A token file has a caption a line, with the image's file and the caption's number before it:

    1000268201_693b08cb0e.jpg#0	A child in a pink dress is climbing up a set of stairs .

Note: the published Flickr8k.token.txt has captions of "2258277193_586949ec62.jpg.1", which is no
    image, and of images that stand in none of the published lists. Both are left out and
    counted, since the data is known to be so.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ngsan.data.captions import ImageCaptions, caption_text
from ngsan.data.lines import numbered_lines, shown
from ngsan.data.problems import Problems
from ngsan.data.splits import id_and_file, random_split, read_split_lists

_LINE = re.compile(r"(?P<name>[^\t]*)#(?P<number>[0-9]{1,9})[ ]*\t(?P<caption>.*)", re.DOTALL)
_COPY = re.compile(r".*\.jpg\.[0-9]+")


@dataclass(slots=True)
class _Image:
    file: str
    captions: list[str] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)


def flickr_captions(
    path: str | Path,
    *,
    train_list: str | Path | None = None,
    val_list: str | Path | None = None,
    test_list: str | Path | None = None,
    val: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    problems: Problems,
) -> Iterator[ImageCaptions]:
    """Reads a token file, whose captions are all held in memory.

    Args:
        path: The token file, as Flickr8k.token.txt or results_20130124.token.
        train_list: Flickr_8k.trainImages.txt or another list with an image file a line.
        val_list: Flickr_8k.devImages.txt, likewise.
        test_list: Flickr_8k.testImages.txt, likewise. Without any list the split is random.
        val: Share of a random split for validation.
        test: Share of a random split for test.
        seed: Of the random split.
        problems: Takes what is wrong with the file, images that are in no list, and images of a
            list that have no captions.

    Yields:
        The images in the order of the file.

    Raises:
        ValueError: An image is in two lists.
    """
    listed = read_split_lists(train=train_list, val=val_list, test=test_list)
    images = _read_tokens(path, problems)
    if listed:
        splits = {identity: split for identity, (split, _) in listed.items()}
    else:
        splits = random_split(images, val=val, test=test, seed=seed)
    for identity, (number, image) in images.items():
        if identity not in splits:
            message = f"{image.file} is in none of the lists"
            problems.leave_out("in no list", f"{path}:{number}", message)
        elif image.captions:
            yield ImageCaptions(identity, splits[identity], tuple(image.captions), image.file)
        else:
            message = f"{image.file} has no caption that can be used"
            problems.report("image without captions", f"{path}:{number}", message)
    for identity, (_, where) in listed.items():
        if identity not in images:
            problems.report("image without captions", where, f"{identity} does not occur in {path}")


def _read_tokens(path: str | Path, problems: Problems) -> dict[str, tuple[int, _Image]]:
    """The images of a token file, each with the line where it comes first."""
    images: dict[str, tuple[int, _Image]] = {}
    wrong_names: set[str] = set()
    for number, _, text, _ in numbered_lines(path, problems):
        if not text.strip():
            continue
        where = f"{path}:{number}"
        match = _LINE.fullmatch(text)
        if not match or not match["name"].strip():
            message = f"expected 'file.jpg#0', a tab and the caption, not {shown(text)}"
            problems.report("broken line", where, message)
            continue
        named = id_and_file(match["name"], problems, where)
        if named is None:
            continue
        identity, file = named
        if file is None:
            if identity not in wrong_names:
                wrong_names.add(identity)
                take_note = problems.leave_out if _COPY.fullmatch(identity) else problems.report
                take_note("not an image", where, f"{identity!r} is no name of an image file")
            continue
        _, image = images.setdefault(identity, (number, _Image(file)))
        where = f"{where} (image {identity})"
        if int(match["number"]) in image.numbers:
            message = f"the image has a caption number {match['number']} already"
            problems.report("duplicate caption", where, message)
            continue
        image.numbers.add(int(match["number"]))
        caption = caption_text(match["caption"], problems, where)
        if caption is not None:
            image.captions.append(caption)
    if not images:
        raise ValueError(f"{path}: there is no caption in it: not a token file of Flickr")
    return images
