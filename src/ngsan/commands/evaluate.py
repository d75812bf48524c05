"""`ngsan evaluate`: captions a split of a dataset, writes the captions and scores them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ngsan.commands import score
from ngsan.commands.command_line import progress_bar, run
from ngsan.commands.evaluate_answers import evaluate_answers
from ngsan.commands.evaluate_translations import evaluate_translations
from ngsan.commands.score_inputs import metric_names
from ngsan.commands.score_outputs import check_outputs
from ngsan.config import DecodingConfig
from ngsan.data.captions import CAPTIONS, read_captions
from ngsan.data.results import read_image_ids, write_results
from ngsan.data.splits import canonical_split, read_id_list
from ngsan.data.submission import check_submission, is_submission
from ngsan.light.photos import PhotoCaptioner
from ngsan.predict import Predictor, constraints_of

Precision = Literal["float32", "bfloat16", "float16"]

_DEFAULT = DecodingConfig()


def evaluate(
    model: str,
    data: str | None = None,
    to: str | None = None,
    split: str = "test",
    images: str | None = None,
    pictures: str | None = None,
    decoding: DecodingConfig = _DEFAULT,
    batch_size: int | None = None,
    device: str = "auto",
    precision: Precision = "float32",
    metrics: str | None = None,
    json: str | None = None,
    report: str | None = None,
) -> None:
    """Captions a split of a dataset with a model and scores the captions.

    They are written in COCO's result format and scored against the dataset's own. A model that
    answers questions answers those of the split instead: its answers are written in the format of
    VQA's results and scored by the official accuracy. A translator translates the split of a folder
    of parallel texts, and writes a sentence a line.

    Args:
        model: The model's folder, of weights or an export; several, joined by commas, vote on
            every word.
        data: The dataset folder.
        to: The file of captions to write. A name such as captions_test2014_ngsan_results.json is
            COCO's for its test server; such a file is checked.
        split: Which split is captioned and scored.
        images: Caption these images instead, and score nothing: a list of ids, one a line, or
            COCO's JSON with a list of images.
        pictures: For a model of photographs: a folder of pictures, or of .tar files of them, named
            by image id. Other models take the features that are in the dataset folder.
        decoding: How captions are written; of several for an image the first is kept.
        batch_size: Images in a batch, of features 50 unless told otherwise; captions do not
            depend on it, but for rounding.
        device: Where: auto, cpu, cuda, cuda:1.
        precision: Of the model's numbers.
        metrics: Score by these only, with commas between them, such as BLEU,CIDEr.
        json: Write the scores to this file, as one flat object.
        report: Write everything about the scores to this file, as JSON.
    """
    if data is None or to is None:
        raise ValueError("say which dataset to caption and where to: --data DIR --to FILE.json")
    split = canonical_split(split)
    task = _task_of(model)
    if task != "captioning":
        captions_only = {
            "images": images,
            "pictures": pictures,
            "metrics": metrics,
            "report": report,
            "decoding": None if decoding == _DEFAULT else decoding,
            "precision": None if precision == "float32" else precision,
        }
        for name, value in captions_only.items():
            if value is not None:
                raise ValueError(f"--{name} is for captioners, and {model} is for {task}")
    if task != "translation" and Path(to).suffix != ".json":
        raise ValueError(f"to: {to} must be the name of a .json file")
    target = Path(to)
    if task != "captioning":
        check_outputs({"--json": json}, [data, to])
        evaluated = evaluate_answers if task == "answering" else evaluate_translations
        evaluated(model, data, to, split, device=device, batch_size=batch_size, json_file=json)
        return
    _check_scoring(metrics, json, report, images, [data, to])
    ids = _ids(data, split) if images is None else _listed(images)
    opened = _open(model, device, precision)
    constraints_of(decoding, opened.vocabulary)  # words that the model lacks are found early
    console = Console()
    with progress_bar(console, f"captioning {len(ids):,} images", len(ids)) as advance:
        captions = _captions(opened, data, pictures, ids, decoding, batch_size, advance)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_results(target, captions)
    console.print(f"{len(captions):,} captions are in {to}", highlight=False)
    ready = not is_submission(target.name) or _check(console, target, images)
    if images is None:
        options = {"metrics": metrics, "json": json, "report": report}
        chosen = [f"--{name}={value}" for name, value in options.items() if value is not None]
        score.main([to, "--references", data, "--split", split, *chosen])
    if not ready:
        raise ValueError(f"{to} is not ready for the test server; see above")


def _task_of(model: str) -> str:
    """What a model is for; of several, which vote on the words of captions, each must caption.

    Raises:
        ValueError: One of several is for another task.
    """
    from ngsan.models.folder import read_task, require_task

    for folder in map(Path, model.split(",")):
        try:
            task = read_task(folder)
        except ValueError:
            continue  # an export, or none that can be opened
        if task != "captioning" and "," not in model:
            return task
        require_task(folder, "captioning")
    return "captioning"


def _captions(
    opened: Predictor | PhotoCaptioner,
    data: str,
    pictures: str | None,
    ids: list[str],
    decoding: DecodingConfig,
    batch_size: int | None,
    advance: Callable[[int], None],
) -> dict[str, str]:
    """The caption of each image, of its features or of its pixels."""
    from ngsan.data.pictures import PictureStore
    from ngsan.data.store import FeatureStore
    from ngsan.evaluate import caption_images, caption_pictures

    if isinstance(opened, PhotoCaptioner):
        if pictures is None:
            raise ValueError("this is a model of photographs: --pictures DIR says where they are")
        seen = caption_pictures(
            opened,
            PictureStore(pictures),
            ids,
            decoding=decoding,
            batch_size=batch_size,
            on_batch=advance,
        )
        return {image: caption.text for image, caption in seen.items()}
    if pictures is not None:
        raise ValueError("pictures: this is a model of regions, which are in the dataset folder")
    found = caption_images(
        opened,
        FeatureStore(data),
        ids,
        decoding=decoding,
        batch_size=50 if batch_size is None else batch_size,
        on_batch=advance,
    )
    return {image: best.text for image, (best, *_) in found.items()}


def _check(console: Console, target: Path, images: str | None) -> bool:
    """Tells what the test server would find wrong, and whether that is nothing."""
    listed = images if images is not None and Path(images).suffix == ".json" else None
    found = check_submission(target, listed)
    for line in (*found.warnings, *found.problems):
        console.print(f"the test server: {line}", markup=False, highlight=False)
    if not found.problems:
        console.print("the file is ready for the test server")
    return not found.problems


def _ids(data: str, split: str) -> list[str]:
    """The images of a split."""
    splits: dict[str, list[str]] = {}
    for record in read_captions(data):
        splits.setdefault(record.split, []).append(record.id)
    if split not in splits:
        known = ", ".join(f"{name} ({len(ids):,} images)" for name, ids in splits.items())
        raise ValueError(f"{Path(data) / CAPTIONS} has no split {split!r}, only {known}")
    return splits[split]


def _listed(images: str) -> list[str]:
    ids = read_image_ids(images) if Path(images).suffix == ".json" else list(read_id_list(images))
    if not ids:
        raise ValueError(f"images: {images} names no image")
    return ids


def _check_scoring(
    metrics: str | None,
    json: str | None,
    report: str | None,
    images: str | None,
    others: list[str | None],
) -> None:
    """Finds out before hours of captioning that the scores cannot be made or written."""
    for name, value in (("metrics", metrics), ("json", json), ("report", report)):
        if value is not None and images is not None:
            raise ValueError(f"{name}: chosen images are not scored, so --{name} has no use")
    metric_names(metrics)
    check_outputs({"--json": json, "--report": report}, others)


def _open(model: str, device: str, precision: Precision) -> Predictor | PhotoCaptioner:
    """Opens one model, or several of one vocabulary; those of photographs are on their own."""
    import torch

    from ngsan.export.loading import load, load_predictor
    from ngsan.light.clips import ClipCaptioner
    from ngsan.predict import TorchModel, best_device

    folders = [folder.strip() for folder in model.split(",")]
    if not all(folders):
        raise ValueError(f"model: {model!r} has an empty name between its commas")
    opened: list[Any] = [load(folder) for folder in folders]
    # What a dataset holds of clips are features, and no files to look at.
    opened = [
        load_predictor(folder) if isinstance(one, ClipCaptioner) else one
        for folder, one in zip(folders, opened, strict=True)
    ]
    if any(isinstance(one, PhotoCaptioner) for one in opened):
        if len(opened) > 1 or precision != "float32":
            raise ValueError(
                f"model: {model}: a model of photographs does not vote with others, and has the "
                "precision it was saved with"
            )
        place = best_device(device)
        photos: PhotoCaptioner = (
            opened[0] if place.type == "cpu" else load(model, device=str(place))
        )
        return photos
    for folder, predictor in zip(folders, opened, strict=True):
        opened[0].vocabulary.require_same(predictor.vocabulary, folder)
        for part in predictor.models:
            if isinstance(part, TorchModel):
                part.captioner.to(best_device(device), getattr(torch, precision))
            elif precision != "float32" or device not in ("auto", "cpu"):
                raise ValueError(
                    f"{folder} is an export, which runs on the CPU and as it was exported: "
                    "leave out --precision and --device"
                )
    return Predictor([part for one in opened for part in one.models], opened[0].vocabulary)


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    run(evaluate, arguments, "evaluate")
