"""`ngsan fit`: learns, on a CPU, what helps a captioner: keywords, agreement and confidence."""

import argparse
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ngsan.cli.output import note, open_console, progress_bar
from ngsan.cli.parser import Command, Group, Parser, positive

if TYPE_CHECKING:
    from ngsan.data.pictures import PictureStore


def _keyword_options(parser: Parser) -> None:
    parser.add_argument(
        "folders",
        metavar="DIR",
        nargs="+",
        help="folders of photographs that are named by their ids; the first is used first",
    )
    parser.option("data", required=True)
    parser.option(
        "photographs",
        type=positive,
        metavar="N",
        default=60_000,
        help="photographs to use, those of val included",
    )
    parser.option("features", metavar="DIR", required=True, help="folder to keep the features in")
    parser.option("output", metavar="DIR", required=True)
    parser.options("threads")


def _fit_keywords(options: argparse.Namespace) -> None:
    from ngsan.data.captions import read_captions
    from ngsan.export.eye import write_eye
    from ngsan.fit.features import extract_features, ordered_files
    from ngsan.fit.keywords import fit_keywords
    from ngsan.vision.keywords import EYE, Eye

    work = Path(options.features)
    work.mkdir(parents=True, exist_ok=True)
    if not (work / EYE).is_file():
        write_eye(work / EYE)
    splits = {record.id: record.split for record in read_captions(options.data)}
    files = dict(islice(ordered_files(options.folders, splits).items(), options.photographs))
    console = open_console()
    with progress_bar(console, "looking at photographs", len(files)) as advance_to:
        for done in extract_features(files, Eye(work / EYE, threads=options.threads), work):
            advance_to(done)
    report = fit_keywords(options.data, work, Path(options.output))
    shares = ", ".join(f"{100 * share:.1f} % of {n}" for n, share in report.precision.items())
    note(
        f"right on {report.photographs:,} other photographs: {shares}; calibration error "
        f"{100 * report.error:.1f} %"
    )
    note(f"wrote {options.output}")


def _agreement_options(parser: Parser) -> None:
    _confidence_options(parser)
    parser.option(
        "trials",
        metavar="FILE",
        required=True,
        help="file that keeps finished trials; a run that was stopped resumes from it",
    )


def _fit_agreement(options: argparse.Namespace) -> None:
    from ngsan.data.pictures import PictureStore
    from ngsan.fit.agreement import Trial, Trials, fit_agreement
    from ngsan.predict.captioner import load

    pictures = PictureStore(options.folder)
    references, objects = _annotated(options, pictures)
    captioner = load(options.model, threads=options.threads)
    console, kept = open_console(), Path(options.trials)
    with progress_bar(console, "looking at photographs", len(references)) as advance_to:
        trials = Trials(captioner, pictures, references, objects, kept=kept, on_image=advance_to)
    note(f"the captioner alone: {trials(None)}")

    def tell(name: str, value: float, trial: Trial) -> None:
        note(f"{name} {value:g}: {trial}")

    agreement, trial = fit_agreement(trials, on_trial=tell)
    agreement.save(Path(options.output))
    note(f"the best: {trial}; wrote {options.output}")


def _annotated(
    options: argparse.Namespace, pictures: "PictureStore"
) -> tuple[dict[str, tuple[str, ...]], dict[str, list[str]]]:
    """References of the photographs of a split that have boxes, and the objects of all boxes."""
    from ngsan.data.boxes import read_object_names
    from ngsan.data.captions import read_captions

    objects = read_object_names(options.boxes)
    references = {
        record.id: tuple(record.captions)
        for record in read_captions(options.data)
        if record.split == options.split and record.id in objects and record.id in pictures
    }
    if not references:
        raise ValueError(
            f"{options.folder} has no photograph of split {options.split!r} with boxes"
        )
    return references, objects


def _confidence_options(parser: Parser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", help="folder of photographs that are named by their ids"
    )
    parser.option("data", required=True)
    parser.option(
        "boxes",
        metavar="FILE",
        required=True,
        help="objects of the photographs to learn from, as for ngsan score",
    )
    parser.option("split", default="val")
    parser.options("model", "threads")
    parser.option("output", metavar="FILE", required=True)


def _fit_confidence(options: argparse.Namespace) -> None:
    from ngsan.data.boxes import read_object_names
    from ngsan.data.captions import read_captions
    from ngsan.data.pictures import PictureStore
    from ngsan.fit.confidence import fit_confidence, right_captions
    from ngsan.predict.captioner import PHOTO_DECODING, load
    from ngsan.predict.confidence import save_formulas
    from ngsan.predict.evaluate import caption_dataset
    from ngsan.predict.quality import FAST, QUALITIES

    objects = read_object_names(options.boxes)
    references = {
        record.id: record.captions
        for record in read_captions(options.data)
        if record.split == options.split
    }
    pictures = PictureStore(options.folder)
    chosen = [image for image in references if image in objects and image in pictures]
    captioner = load(options.model, threads=options.threads)
    console, formulas = open_console(), {}
    qualities = (FAST,) if captioner.agreement is None else QUALITIES
    for quality in qualities:
        with progress_bar(console, f"captioning, {quality}", len(chosen)) as advance_to:
            captions = caption_dataset(
                captioner,
                pictures,
                chosen,
                decoding=PHOTO_DECODING,
                quality=quality,
                on_batch=advance_to,
            )
        texts = {image: caption.text for image, caption in captions.items()}
        right = right_captions(texts, references, objects)
        clues = [caption.clues for caption in captions.values()]
        formulas[quality] = fit_confidence(clues, [right[image] for image in captions])
        note(f"{quality}: {formulas[quality].report}")
    save_formulas(Path(options.output), formulas)
    note(f"wrote {options.output}")


FIT = Group(
    "Learns what helps a captioner, from photographs and captions, on a CPU.",
    {
        "keywords": Command(
            """Learn which words people use for a photograph, from features of a network that no
            caption has trained. A run that was stopped resumes when it is started again.""",
            _keyword_options,
            _fit_keywords,
            ["fit keywords val2017 train2017 --data coco --features features -o keywords"],
        ),
        "agreement": Command(
            """Choose how much objects and keywords count when captions are written, by CIDEr less
            CHAIR-i plus the recall of objects. Use photographs that neither the captioner nor the
            detector was trained on. A run that was stopped resumes when it is started again.""",
            _agreement_options,
            _fit_agreement,
            [
                "fit agreement val2017 --data coco --boxes boxes.json --trials trials.jsonl "
                "-o runs/mine/agreement.json"
            ],
        ),
        "confidence": Command(
            """Learn how probable it is that a caption is right: that it names no object that is not
            there, and has a CIDEr of at least 60. Use photographs that neither the captioner nor
            the detector was trained on.""",
            _confidence_options,
            _fit_confidence,
            ["fit confidence val2017 --data coco --boxes boxes.json -o runs/mine/confidence.json"],
        ),
    },
)
