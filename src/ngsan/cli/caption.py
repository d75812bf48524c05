"""`ngsan caption`: captions of photographs and clips, printed as they come or written to a file.

Neither torch nor rich is imported: they take longer to import than a photograph takes.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ngsan.cli.output import (
    Record,
    RecordWriter,
    check_outputs,
    columns,
    line,
    note,
    warn,
)
from ngsan.cli.parser import (
    DECODING,
    TORCH_DEVICE,
    Command,
    Parser,
    decoding_of,
    is_quiet,
    number,
)
from ngsan.config import DecodingConfig
from ngsan.predict.captioner import PHOTO_DECODING, PHOTO_MODEL, Caption, Captioner, Result, load
from ngsan.vision.clips import FRAMES, MAX_SAMPLED, find_clips, is_clip
from ngsan.vision.decoding import shared_service
from ngsan.vision.images import ImageError, find_images, is_folder
from ngsan.vision.patterns import expand, is_pattern

if TYPE_CHECKING:
    from ngsan.app.maps import Explainer

_MAX_NAME = 40
"""Terminal columns for names; the captions of longer names stand further right."""

_SEEN = {"objects": "label", "keywords": "word"}
"""What else is found in photographs: options, also methods of `Captioner`, and what names one."""


def _add_options(parser: Parser) -> None:
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="files, folders, patterns such as 'photos/**/*.jpg', or - for a list of paths on "
        "standard input",
    )
    parser.options("model", "output", "format", "page")
    parser.option("device", help=TORCH_DEVICE)
    parser.options("threads", "batch-size")
    parser.option("frames", help=f"frames taken from each clip (default: {FRAMES})")
    parser.add_argument(
        "--clip",
        action=argparse.BooleanOptionalAction,
        help="treat every path as a clip, also a folder of frames; or none of them",
    )
    parser.add_argument(
        "--objects", action="store_true", help="also find objects in photographs, with boxes"
    )
    parser.add_argument(
        "--detector",
        metavar="NAME",
        help="detector of the objects: hf:NAME of transformers or torchvision:NAME (default: the "
        "one that comes with the package)",
    )
    parser.add_argument(
        "--keywords", action="store_true", help="also find words that people use for photographs"
    )
    parser.options("quality")
    parser.add_argument(
        "--min-confidence",
        type=_probability,
        metavar="P",
        help="leave out captions that are right with a lower probability than this; they stay in "
        'JSON, with "confident": false',
    )
    parser.options(*DECODING)


def _probability(text: str) -> float:
    if not 0 <= (value := number(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0 to 1")
    return value


def run(options: argparse.Namespace) -> int:
    """Captions the files; returns 1 if some could not be read."""
    decoding = decoding_of(options, PHOTO_DECODING)
    found, empty = _find(options.paths, options.clip)
    paths = [path for path, _ in found]
    _check_frames(options, any(moves for _, moves in found))
    check_outputs({"--output": options.output, "--page": options.page}, paths)
    if options.page == "-":
        raise ValueError("--page: pass a file such as captions.html")
    shared_service().start()  # while the model is loaded
    explainer = None
    if options.page is not None:
        from ngsan.app.maps import Explainer

        explainer = Explainer.open(options.model or PHOTO_MODEL, threads=options.threads)
    captioner, streams = _open(options, decoding, found)
    seen = [name for name in _SEEN if getattr(options, name)]
    marked = [] if options.min_confidence is None else ["confident"]
    text = _Lines(paths, options.output)
    writer = RecordWriter(
        options.output,
        options.format,
        text=text,
        fields=("image", "caption", "score", "confidence", *marked, "error", *seen),
        rows=_rows,
    )
    counts = not is_quiet() and sys.stderr is not None and sys.stderr.isatty() and writer.path
    captions: list[tuple[Path, Caption, Record]] = []
    unsure = 0
    try:
        for path, moves in found:
            result = next(streams[moves])
            if result.caption is None:
                problem = str(result.error).removeprefix(f"{path}: ")
                warn(f"{path}: {problem}")
                writer.add({"image": str(path), "error": problem})
            else:
                record = _record(path, result.caption, several=decoding.num_return > 1)
                if options.min_confidence is not None:
                    _mark(record, options.min_confidence)
                    unsure += not record["confident"]
                for name in seen:
                    record[name] = _look(captioner, name, path, result.caption)
                writer.add(record)
                captions.append((path, result.caption, record))
            if counts:
                done = f"\r{writer.count:,} of {len(paths):,} images"
                print(done, end="", file=sys.stderr, flush=True)
    finally:  # also after Ctrl-C
        if counts:
            print(file=sys.stderr)
        writer.close() if writer.count else writer.discard()
    if unsure:
        note(f"{unsure:,} of {len(paths):,} captions are below --min-confidence")
    if explainer is not None and captions:
        _write_page(explainer, Path(options.page), captions)
    failed = len(paths) - len(captions)
    if failed:
        warn(f"{failed:,} of {len(paths):,} files could not be read")
    return 1 if failed or empty else 0


def _record(path: Path, caption: Caption, *, several: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"image": str(path), **_scores(caption)}
    if several:
        record["others"] = [_scores(other) for other in caption.others]
    return record


def _look(
    captioner: Captioner | None, name: str, path: Path, caption: Caption
) -> list[dict[str, Any]]:
    """The objects or keywords of a photograph; the second eye may have seen it already."""
    assert captioner is not None  # as there are photographs only
    found = getattr(caption, name)
    if found is None or (name == "objects" and captioner.detector is not captioner.eye.detector):
        found = getattr(captioner, name)(path)
    return [one.as_record() for one in found]


def _mark(record: Record, min_confidence: float) -> None:
    """Marks the captions of a record as confident or not."""
    for one in (record, *record.get("others", ())):
        if "confidence" not in one:
            raise ValueError(
                "--min-confidence: this model does not tell how probable it is that a caption is "
                "right; 'ngsan fit confidence' learns that for a model of photographs"
            )
        one["confident"] = one["confidence"] >= min_confidence


def _rows(record: Record) -> list[Record]:
    """A row for each caption of an image."""
    named = {**record, **{name: _named(record[name], what) for name, what in _in(record)}}
    return [named, *({**named, **one} for one in record.get("others", ()))]


def _in(record: Record) -> list[tuple[str, str]]:
    """The entries of `_SEEN` that a record has."""
    return [(name, what) for name, what in _SEEN.items() if name in record]


def _named(found: Iterable[Record], what: str) -> str:
    return ", ".join(f"{one[what]} {one['confidence']:.0%}" for one in found)


def _scores(caption: Caption) -> dict[str, Any]:
    found: dict[str, Any] = {
        "caption": caption.text,
        "score": round(caption.score, 6),
        "log_probability": round(caption.log_probability, 6),
    }
    if caption.confidence is not None:
        found["confidence"] = round(caption.confidence, 4)
    return found


class _Lines:
    """Records as lines of a name and a caption: in columns on a terminal, else with a tab."""

    def __init__(self, paths: Iterable[Path], output: str | None) -> None:
        self._width = -1
        if output is None and sys.stdout is not None and sys.stdout.isatty():
            widths = (columns(line(str(path))) for path in paths)
            self._width = max((width for width in widths if width <= _MAX_NAME), default=0)

    def __call__(self, record: Record) -> str:
        if "caption" not in record:
            return ""
        name, lines = line(record["image"]), []
        for one in (record, *record.get("others", ())):
            if not one.get("confident", True):
                continue
            gap = "\t" if self._width < 0 else " " * (max(0, self._width - columns(name)) + 2)
            lines.append(f"{name}{gap}{one['caption']}\n")
            name = name if self._width < 0 else ""
        for name, what in _in(record):
            if lines:
                lines[0] = lines[0].removesuffix("\n") + f"\t{_named(record[name], what)}\n"
        return "".join(lines)


def _open(
    options: argparse.Namespace, decoding: DecodingConfig, found: Sequence[tuple[Path, bool]]
) -> tuple[Captioner | None, dict[bool, Iterator[Result]]]:
    """The captioner of photographs, and the captions of photographs (False) and clips (True)."""
    photos = [path for path, moves in found if not moves]
    clips = [path for path, moves in found if moves]
    captioner, streams = None, dict[bool, Iterator[Result]]()
    if photos:
        captioner = _load(options, options.model, ("photos", "regions"))
        if captioner.kind == "regions":
            if options.quality is not None:
                raise ValueError("--quality applies only to models of photographs")
            streams[False] = _stream_regions(captioner, Path(options.model), photos, decoding)
        else:
            size, quality = options.batch_size, options.quality
            streams[False] = captioner.stream(
                photos, batch_size=size, quality=quality, **vars(decoding)
            )
    if clips:
        mover = _load(options, options.model or "clips", ("clips",))
        streams[True] = mover.stream(clips, frames=options.frames, **vars(decoding))
    return captioner, streams


def _stream_regions(
    captioner: Captioner, model: Path, photos: Sequence[Path], decoding: DecodingConfig
) -> Iterator[Result]:
    """Captions photographs with a model of regions, by what made the features of its data."""
    from ngsan.cli.extract import source_of_model

    source = source_of_model(model)
    for index, path in enumerate(photos):
        try:
            image = shared_service().picture(path, min_side=source.min_side).image
            (regions,) = source.regions([image], [path.stem])
        except ValueError as error:
            yield Result(index, None, ImageError(str(error)))
            continue
        boxes = None if regions.boxes is None else regions.boxes[None].copy()
        features = regions.features[None].astype(np.float32)
        (caption,) = captioner.caption_regions(features, boxes, first=index, **vars(decoding))
        yield Result(index, caption)


def _load(options: argparse.Namespace, model: str | None, kinds: Sequence[str]) -> Captioner:
    more = {} if options.detector is None else {"detector": options.detector}
    captioner = load(model, device=options.device, threads=options.threads, **more)
    if captioner.kind not in kinds:
        raise ValueError(f"--model: {model} is a model of {captioner.kind} and not of {kinds[0]}")
    return captioner


def _check_frames(options: argparse.Namespace, clips: bool) -> None:
    """Raises a `ValueError` if options do not go together with clips or with photographs."""
    if clips and options.page is not None:
        raise ValueError("--page shows photographs only, and there are clips among the inputs")
    for name in _SEEN:
        if clips and getattr(options, name):
            raise ValueError(
                f"--{name} applies only to photographs, and there are clips among them"
            )
    if clips and options.quality is not None:
        raise ValueError("--quality applies only to photographs, and there are clips among them")
    if options.detector is not None and not options.objects:
        raise ValueError("--detector applies only with --objects")
    if options.frames is not None and not clips:
        raise ValueError("--frames applies only to clips; use --clip for folders of them")
    if options.frames is not None and options.frames > MAX_SAMPLED:
        raise ValueError(f"--frames: {options.frames} is more than {MAX_SAMPLED}")


def _write_page(
    explainer: "Explainer", page: Path, captions: Sequence[tuple[Path, Caption, Record]]
) -> None:
    """Writes the page about the captions."""
    from ngsan.app.explain import write_page

    def count(done: int) -> None:
        if not is_quiet() and sys.stderr is not None and sys.stderr.isatty():
            end = "\n" if done == len(captions) else ""
            text = f"\r{done:,} of {len(captions):,} explained"
            print(text, end=end, file=sys.stderr, flush=True)

    written = [[best.text, *(other.text for other in best.others)] for _, best, _ in captions]
    objects = [record["objects"] for *_, record in captions if "objects" in record]
    paths = [path for path, *_ in captions]
    write_page(
        explainer,
        paths,
        page,
        written,
        objects=objects or None,
        remarks=[_remark(record) for *_, record in captions],
        on_image=count,
    )
    note(f"wrote {page}")


def _remark(record: Record) -> str:
    """What a page says about a caption besides its objects."""
    parts = []
    if "confidence" in record:
        parts.append(f"The caption is right with a probability of {record['confidence']:.0%}.")
    if "keywords" in record:
        parts.append(f"Keywords: {_named(record['keywords'], _SEEN['keywords'])}.")
    return " ".join(parts)


def _find(given: Sequence[str], clip: bool | None) -> tuple[list[tuple[Path, bool]], int]:
    """The files that the paths of a command line mean, and how many paths mean none.

    Args:
        given: The paths.
        clip: Whether everything is a clip, or nothing; None for files that move and are named
            themselves.

    Returns:
        Each file or folder and whether it is a clip, and the number of paths without any.
    """
    found: list[tuple[Path, bool]] = []
    empty = []
    for word in given:
        named = _listed() if word == "-" else [word] if word else []  # "" would be this folder
        if clip:
            own = [(path, True) for path in find_clips(_matches(named))]
        else:
            # Files in a folder are photographs, whether they move or not.
            own = [
                (path, clip is None and not is_folder(Path(one)) and is_clip(path))
                for one in named
                for path in find_images([one])
            ]
        found += own
        if not own:
            empty.append("the list on standard input" if word == "-" else word)
    kind = "clips" if clip else "images"
    hint = "" if clip else _hint(empty)
    if not found:
        names = ", ".join(line(word) or "''" for word in empty)
        raise ValueError(f"no {kind} in {names}{hint}")
    for word in empty:
        warn(f"{word}: no {kind} in it{_hint([word]) if not clip else ''}")
    return found, len(empty)


def _matches(words: Sequence[str]) -> list[str]:
    """The words, with patterns replaced by what they match."""
    matched: list[str] = []
    for word in words:
        found, unread = expand(word) if is_pattern(word) else ([], [])
        matched += map(str, (*found, *unread)) if found or unread else [word]
    return matched


def _hint(words: Sequence[str]) -> str:
    folders = [word for word in words if word and is_folder(Path(word))]
    return "; use --clip for the clips in it" if next(find_clips(folders), None) else ""


def _listed() -> list[str]:
    """The paths on standard input: one a line, or separated by zeros as `find -print0` does.

    Bytes are read, as names need not be text in any encoding.
    """
    if sys.stdin is None:
        raise ValueError("-: standard input is closed; it should hold a list of paths")
    content = sys.stdin.buffer.read()
    names = content.split(b"\0") if b"\0" in content else content.splitlines()
    return [os.fsdecode(name) for name in names if name]


CAPTION = Command(
    """Caption photographs (JPEG, PNG, WebP, GIF, BMP or TIFF) and clips (a video, or a moving GIF,
    PNG or WebP that is named itself). In a folder, every image file is a photograph; --clip reads
    clips, and folders of frames. A file that cannot be read is reported, the others are captioned,
    and the exit status is 1.""",
    _add_options,
    run,
    [
        "caption photos",
        "caption photos -o captions.json --page captions.html",
        "caption cat.jpg --num-return 3 --beam 5",
        "caption cat.jpg --objects --keywords --format json",
        "caption clip.mp4 --model runs/mine",
    ],
)
