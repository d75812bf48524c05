"""`ngsan caption`: captions of photographs and clips, printed as they come or written to a file.

Neither torch nor the packages of the other command lines are imported, which take longer than a
photograph does.
"""

import argparse
import glob
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ngsan.commands.caption_output import CaptionOutput, line, warn
from ngsan.config import DecodingConfig
from ngsan.durable import make_folder
from ngsan.export.loading import SHIPPED, load_clips, load_photos
from ngsan.light.photos import PHOTO_DECODING, PhotoCaption, PhotoResult
from ngsan.vision.clips import FRAMES, MOST_TAKEN, find_clips, is_clip
from ngsan.vision.images import find_images

DESCRIPTION = """Writes a caption for each photograph (JPEG, PNG, WebP, GIF, BMP or TIFF) and for
each clip: a video, or a moving GIF, PNG or WebP, that is named itself. A folder is one of
photographs, and with --clip one of clips or of a clip's frames. What cannot be read is reported and
the rest goes on; the exit status is then 1. The clip model that ships knows moving shapes only."""

_SAMPLING = ("temperature", "top_k", "top_p", "seed")
_SEARCHING = ("beam", "n_best", "length_penalty")


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    options = _parser().parse_args(arguments)
    decoding = _decoding(options)
    found, empty = _find(options.images, options.clip)
    paths = [path for path, _ in found]
    _check_frames(options, any(moves for _, moves in found))
    targets = {name: getattr(options, name) for name in ("json", "csv", "explain")}
    _check_targets({name: to for name, to in targets.items() if to is not None}, paths)
    if options.explain is not None:
        _check_explain(SHIPPED if options.model is None else Path(options.model))
    streams = _open(options, decoding, found)
    several = max(decoding.best, decoding.samples) > 1
    output = CaptionOutput(paths, several=several, to_json=options.json, to_csv=options.csv)
    captions: list[tuple[Path, PhotoCaption]] = []
    try:
        for path, moves in found:
            result = next(streams[moves])
            if result.caption is None:
                output.report(path, str(result.problem).removeprefix(f"{path}: "))
            else:
                output.add(path, result.caption)
                captions.append((path, result.caption))
    finally:  # also after Ctrl-C
        output.close()
    if options.explain is not None and captions:
        _explain(options, captions, output)
    failed = len(paths) - len(captions)
    if failed:
        warn(f"{failed:,} of {len(paths):,} files could not be read")
    if failed or empty:
        sys.exit(1)


def _open(
    options: argparse.Namespace, decoding: DecodingConfig, found: Sequence[tuple[Path, bool]]
) -> dict[bool, Iterator[PhotoResult]]:
    """What comes of the photographs, under False, and of the clips, under True."""
    photos = [path for path, moves in found if not moves]
    clips = [path for path, moves in found if moves]
    how = {"device": options.device, "threads": options.threads}
    streams: dict[bool, Iterator[PhotoResult]] = {}
    if photos:
        captioner = load_photos(options.model, **how)
        streams[False] = captioner.stream(photos, decoding=decoding, batch_size=options.batch_size)
    if clips:
        frames = options.frames or FRAMES
        streams[True] = load_clips(options.model, **how).stream(
            clips, frames=frames, decoding=decoding
        )
    return streams


def _check_frames(options: argparse.Namespace, clips: bool) -> None:
    """Finds out before the work what has no use for what was found.

    Raises:
        ValueError: Options do not go together with clips or with photographs.
    """
    if clips and options.explain is not None:
        raise ValueError("--explain: the page is about photographs, and there are clips among them")
    if options.frames is not None and not clips:
        raise ValueError("--frames has a use with clips only; for folders of them: --clip")
    if options.frames is not None and options.frames > MOST_TAKEN:
        raise ValueError(f"--frames: {options.frames} is more than {MOST_TAKEN}")


def _check_explain(model: Path) -> None:
    """Finds out before the work that the page could not be made: it is PyTorch's."""
    if find_spec("torch") is None:
        raise ValueError("--explain needs PyTorch: pip install torch")
    if model.is_dir() and not (model / "config.yaml").is_file():
        raise ValueError(
            f"--explain: {model} has no weights for PyTorch; name the model that it was made from"
        )


def _explain(
    options: argparse.Namespace,
    captions: Sequence[tuple[Path, PhotoCaption]],
    output: CaptionOutput,
) -> None:
    """Writes the page about the captions that were written."""
    from ngsan.explain import write_page  # imports torch

    page = Path(options.explain)
    model = SHIPPED if options.model is None else Path(options.model)
    written = [[best.text, *(other.text for other in best.others)] for _, best in captions]
    paths = [path for path, _ in captions]
    write_page(model, paths, page, captions=written, on_image=output.count_explained)
    output.tell(f"the page is {page}")


def _find(given: Sequence[str], clip: bool | None) -> tuple[list[tuple[Path, bool]], int]:
    """The files that the words of a command line mean, and how many words mean none.

    Args:
        given: The words.
        clip: Whether everything is a clip, or nothing; None for what moves and is named itself.

    Returns:
        Each file or folder and whether it is a clip, and the number of words without any.
    """
    found: list[tuple[Path, bool]] = []
    empty = []
    for word in given:
        named = [word] if word != "-" else _listed()
        if clip:
            own = [(path, True) for path in find_clips(_matches(named))]
        else:
            # What is in a folder is not asked whether it moves: a folder is one of photographs.
            sure = clip is None
            own = [
                (path, sure and not Path(one).is_dir() and is_clip(path))
                for one in named
                for path in find_images([one])
            ]
        found += own
        if not own:
            empty.append("the list on standard input" if word == "-" else word)
    kind = "clips" if clip else "images"
    hint = "" if clip else _hint(empty)
    if not found:
        raise ValueError(f"there are no {kind} in {', '.join(map(line, empty))}{hint}")
    for word in empty:
        warn(f"{word}: there are no {kind} in it{_hint([word]) if not clip else ''}")
    return found, len(empty)


def _matches(words: Sequence[str]) -> list[str]:
    """Words of which patterns are replaced by what they match."""
    matched: list[str] = []
    for word in words:
        is_pattern = glob.has_magic(word) and not os.path.lexists(word)
        # Not Path.glob, which takes no absolute pattern.
        matched += (is_pattern and sorted(glob.glob(word, recursive=True))) or [word]  # noqa: PTH207
    return matched


def _hint(words: Sequence[str]) -> str:
    folders = [word for word in words if Path(word).is_dir()]
    return "; for its clips: --clip" if next(find_clips(folders), None) else ""


def _listed() -> list[str]:
    """The paths on standard input: one a line, or with zeros between them as `find -print0` does.

    Bytes are read, as names need not be text of any encoding.
    """
    if sys.stdin is None:
        raise ValueError("-: standard input is closed, and a list of paths was to come from it")
    content = sys.stdin.buffer.read()
    names = content.split(b"\0") if b"\0" in content else content.splitlines()
    return [os.fsdecode(name) for name in names if name]


def _check_targets(targets: dict[str, str], paths: Sequence[Path]) -> None:
    """Finds out before the work that its result could not be written."""
    if len({Path(to).absolute() for to in targets.values()}) < len(targets):
        raise ValueError(f"{' and '.join(f'--{name}' for name in targets)} must be different files")
    if targets.get("explain") == "-":
        raise ValueError("--explain: name a file such as captions.html")
    for name, file in {name: Path(to) for name, to in targets.items() if to != "-"}.items():
        if file.is_dir():
            raise ValueError(f"--{name}: {file} is a folder: name a file")
        if file.is_file() and any(path.is_file() and path.samefile(file) for path in paths):
            raise ValueError(f"--{name}: {file} is one of the images, and would be overwritten")
        make_folder(file.parent)
        if not os.access(file.parent, os.W_OK):
            raise ValueError(f"--{name}: {file.parent} may not be written to")


def _decoding(options: argparse.Namespace) -> DecodingConfig:
    """How captions are to be written.

    Raises:
        ValueError: Options do not go together, or a value is out of range.
    """
    sampled = options.sample is not None
    for name in _SEARCHING if sampled else _SAMPLING:
        if getattr(options, name) is not None:
            why = "has no use with --sample" if sampled else "has a use with --sample only"
            raise ValueError(f"--{name.replace('_', '-')} {why}")
    keys: dict[str, Any] = {
        "longest": options.longest,
        "fewest": options.fewest,
        "no_repeat": options.no_repeat,
        "no_bad_ending": not options.bad_ending,
        "forbid": None if options.forbid is None else options.forbid.lower(),
        "prefix": None if options.prefix is None else options.prefix.lower(),
        **{name: getattr(options, name) for name in _SAMPLING},
        "length_penalty": options.length_penalty,
    }
    if sampled:
        keys |= {"method": "sample", "samples": options.sample}
    else:
        best = options.n_best or 1
        beam = options.beam or max(PHOTO_DECODING.beam, best)
        if best > beam:
            raise ValueError(f"--n-best {best} captions cannot come from --beam {beam}: widen it")
        keys |= {"beam": beam, "best": best}
    given = {name: value for name, value in keys.items() if value is not None}
    return replace(PHOTO_DECODING, **given)


def _at_least_one(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


_BEAM, _LONGEST, _ONCE = PHOTO_DECODING.beam, PHOTO_DECODING.longest, PHOTO_DECODING.no_repeat
_OPTIONS: tuple[tuple[str, type | Callable[[str], int], str, str], ...] = (
    ("json", str, "FILE", "write a list of objects to a file, - for standard output"),
    ("csv", str, "FILE", "write image, caption, score and error; - likewise"),
    ("explain", str, "FILE", "write an HTML page that shows where the model looked"),
    ("model", str, "DIR", "the model's folder; without it, the model that ships"),
    ("device", str, "NAME", "let PyTorch run it, such as on cuda; auto for a GPU if there is one"),
    ("threads", _at_least_one, "N", "threads of ONNX Runtime; without it, one a core"),
    ("batch-size", _at_least_one, "N", "images that the model is given at a time"),
    ("frames", _at_least_one, "N", f"frames that are taken of each clip ({FRAMES})"),
    ("beam", _at_least_one, "N", f"captions that are followed ({_BEAM})"),
    ("n-best", _at_least_one, "N", "captions of each image, the best first (1)"),
    ("length-penalty", float, "X", "above 0 for longer captions (0)"),
    ("sample", _at_least_one, "N", "draw so many captions of each image instead"),
    ("temperature", float, "X", "sampling: above 1 more varied (1)"),
    ("top-k", int, "N", "sampling: among so many words; 0 for all (0)"),
    ("top-p", float, "X", "sampling: among the words that hold this share (1)"),
    ("seed", int, "N", "sampling: seed of the random numbers (0)"),
    ("longest", int, "N", f"most words of a caption ({_LONGEST})"),
    ("fewest", int, "N", "fewest words of a caption (0)"),
    ("no-repeat", int, "N", f"so many words in a row occur only once; 0 for no rule ({_ONCE})"),
    ("prefix", str, "TEXT", "words that every caption begins with"),
    ("forbid", str, "WORDS", "words that may not occur, with spaces between them"),
)
"""Name, kind, what stands for the value, and help; defaults are those of the decoding."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ngsan caption", description=DESCRIPTION, allow_abbrev=False
    )
    images = "files, folders, patterns such as 'photos/**/*.jpg', or - for a list of paths"
    parser.add_argument("images", metavar="PATH", nargs="+", help=images)
    for name, kind, value, text in _OPTIONS:
        parser.add_argument(f"--{name}", type=kind, metavar=value, help=text)
    parser.add_argument(
        "--clip",
        action=argparse.BooleanOptionalAction,
        help="whether everything is a clip, also a folder of frames; by default what moves is",
    )
    parser.add_argument(
        "--bad-ending",
        action=argparse.BooleanOptionalAction,
        default=False,
        help='whether captions may end with words such as "a" or "of"; by default not',
    )
    return parser
