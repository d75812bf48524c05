"""`ngsan evaluate`: runs a model on a split of a dataset, writes what it says and scores it."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ngsan.atomic_io import write_output
from ngsan.cli.output import check_outputs, open_console, progress_bar, say
from ngsan.cli.parser import DECODING, Command, Parser, decoding_of
from ngsan.cli.score import SCORE, listed_ids, metric_names, score_file
from ngsan.cli.score_outputs import print_translation_scores, write_translation_scores
from ngsan.config import DecodingConfig
from ngsan.data.captions import CAPTIONS, read_captions
from ngsan.data.results import check_submission, is_submission, write_results
from ngsan.data.splits import canonical_split
from ngsan.predict.captioner import Captioner, load
from ngsan.predict.quality import FAST
from ngsan.search import Constraints

if TYPE_CHECKING:
    from ngsan.config import AnswererConfig
    from ngsan.models import AnswererModel

_CAPTIONS_ONLY = (
    "ids", "images", "metrics", "quality", "report", "subset", "relations", "others", *DECODING
)  # fmt: skip

_NOT_RELATIONS = ("ids", "metrics", "scores", "report", "subset", "quality")


def _add_options(parser: Parser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="model folder, of weights or an export; several captioners, separated by commas, "
        "average their probabilities",
    )
    parser.option("data", required=True, help="dataset folder, or folder of parallel text")
    parser.option(
        "output",
        metavar="FILE",
        required=True,
        help="file of captions (COCO's result format), answers (VQA's) or translations to write; "
        "with --relations, of the scores as JSON",
    )
    parser.option(
        "split",
        help="split of the dataset (default: test; with --relations, all but train)",
    )
    parser.option(
        "images",
        help="for a model of photographs: folder of photographs, or of .tar files of them, named "
        "by image id",
    )
    parser.option(
        "ids",
        metavar="FILE",
        help="caption these images instead of a split, and do not score: a file with an id a "
        "line, or COCO's JSON with a list of images",
    )
    parser.option(
        "relations",
        metavar="FILE",
        help="score true and false sentences about images instead, as in Visual Spatial Reasoning: "
        "JSON lines with id, text, true and rel",
    )
    parser.option(
        "others",
        type=int,
        metavar="N",
        help="with --relations: other images whose mean is subtracted (default: 20)",
    )
    parser.option("scores", metavar="FILE", help="write the scores to this file, as JSON")
    parser.options("metrics", "report", "subset")
    parser.option(
        "batch-size",
        help="images (default: 50), questions (512) or subwords of sentences (4000) per batch",
    )
    parser.option("quality", help="of captions of photographs (default: fast)")
    parser.option("device", default="auto")
    parser.option("precision")
    parser.options(*DECODING)


def _run(options: argparse.Namespace) -> None:
    if options.split is not None or options.relations is None:
        options.split = canonical_split(options.split or "test")
    task = _task_of(options.model)
    target = Path(options.output)
    if task != "captioning":
        given = [name for name in _CAPTIONS_ONLY if getattr(options, name.replace("-", "_"))]
        if options.precision != "float32":
            given.append("precision")
        if given:
            raise ValueError(f"--{given[0]} applies to captioners; {options.model} is for {task}")
    if task != "translation" and target.suffix != ".json":
        raise ValueError(f"--output: {target} must be the name of a .json file")
    outputs = {"--scores": options.scores, "--report": options.report}
    check_outputs({"--output": options.output, **outputs})
    if task == "answering":
        _evaluate_answers(options)
    elif task == "translation":
        _evaluate_translations(options)
    else:
        _evaluate_captions(options)


def _task_of(model: str) -> str:
    """The task of a model; of several, whose words are averaged, each must be a captioner.

    Raises:
        ValueError: One of several is for another task.
    """
    from ngsan.models.checkpoint import read_task, require_task

    for folder in map(Path, model.split(",")):
        try:
            task = read_task(folder)
        except ValueError:
            continue  # an export, or a folder that cannot be opened
        if task != "captioning" and "," not in model:
            return task
        require_task(folder, "captioning")
    return "captioning"


def _evaluate_captions(options: argparse.Namespace) -> None:
    decoding = decoding_of(options, DecodingConfig())
    if options.relations is not None:
        _evaluate_relations(options, decoding)
        return
    if options.others is not None:
        raise ValueError("--others applies only to --relations")
    target, ids_file = Path(options.output), options.ids
    for name in ("metrics", "scores", "report", "subset"):
        if getattr(options, name) is not None and ids_file is not None:
            raise ValueError(f"--{name} does not apply to --ids, which is not scored")
    metric_names(options.metrics)
    ids = _split_ids(options.data, options.split) if ids_file is None else listed_ids(ids_file)
    if options.subset is not None and not set(listed_ids(options.subset)).intersection(ids):
        raise ValueError(f"--subset: no image of the split is in {options.subset}")
    model = _open(options.model, options.device, options.precision)
    Constraints.of(decoding, model.vocabulary)  # reports words that the model lacks at once
    console = open_console()
    with progress_bar(console, f"captioning {len(ids):,} images", len(ids)) as advance_to:
        captions = _captions(model, options, ids, decoding, advance_to)
    write_results(target, captions)
    say(console, f"wrote {len(captions):,} captions to {target}")
    ready = not is_submission(target.name) or _check_submission(target, ids_file)
    if ids_file is None:
        parser = SCORE.parser("ngsan evaluate")
        words = [options.output, "--references", options.data, "--split", options.split]
        chosen = {
            "output": options.scores,
            "metrics": options.metrics,
            "report": options.report,
            "subset": options.subset,
        }
        words += [f"--{name}={value}" for name, value in chosen.items() if value is not None]
        words += ["--quiet"] * options.quiet + ["--verbose"] * options.verbose
        score_file(parser.parse(words), options.output, options.data)
    if not ready:
        raise ValueError(f"{target} is not ready for the test server; see the problems")


def _evaluate_relations(options: argparse.Namespace, decoding: DecodingConfig) -> None:
    from ngsan.cli.evaluate_relations import evaluate_relations

    for name in _NOT_RELATIONS:
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} does not apply to --relations")
    if options.others is not None and options.others < 1:
        raise ValueError(f"--others: {options.others} must be at least 1")
    model = _open(options.model, options.device, options.precision)
    _check_images(model, options.images)
    evaluate_relations(model, options, decoding)


def _check_images(model: Captioner, images: str | None) -> None:
    if model.kind == "photos" and images is None:
        raise ValueError("a model of photographs needs them; pass --images DIR")
    if model.kind != "photos" and images is not None:
        raise ValueError("--images: a model of regions reads features from the dataset folder")


def _captions(
    model: Captioner,
    options: argparse.Namespace,
    ids: list[str],
    decoding: DecodingConfig,
    advance_to: Callable[[int], None],
) -> dict[str, str]:
    """The caption of each image, from its features or its pixels."""
    from ngsan.data.data_check import checked_features
    from ngsan.data.pictures import PictureStore
    from ngsan.data.store import FeatureStore
    from ngsan.predict.evaluate import caption_dataset

    _check_images(model, options.images)
    store = FeatureStore(options.data) if options.images is None else PictureStore(options.images)
    with checked_features(store):
        found = caption_dataset(
            model,
            store,
            ids,
            decoding=decoding,
            batch_size=options.batch_size,
            quality=options.quality or FAST,
            on_batch=advance_to,
        )
    return {image: caption.text for image, caption in found.items()}


def _check_submission(target: Path, images: str | None) -> bool:
    """Prints what the test server would reject; returns whether that is nothing."""
    console = open_console(results=True)
    listed = images if images is not None and Path(images).suffix == ".json" else None
    found = check_submission(target, listed)
    for line in (*found.warnings, *found.problems):
        say(console, f"the test server: {line}")
    if not found.problems:
        say(console, "the file is ready for the test server")
    return not found.problems


def _split_ids(data: str, split: str) -> list[str]:
    splits: dict[str, list[str]] = {}
    for record in read_captions(data):
        splits.setdefault(record.split, []).append(record.id)
    if split not in splits:
        known = ", ".join(f"{name} ({len(ids):,} images)" for name, ids in splits.items())
        raise ValueError(f"{Path(data) / CAPTIONS} has no split {split!r}, only {known}")
    return splits[split]


def _open(model: str, device: str, precision: str) -> Captioner:
    """Opens one model, or several of one vocabulary with weights for PyTorch."""
    import torch

    from ngsan.predict.backend_torch import TorchBackend, best_device
    from ngsan.predict.manifest import MANIFEST

    folders = [folder.strip() for folder in model.split(",")]
    if not all(folders):
        raise ValueError(f"MODEL: {model!r} has an empty name between its commas")
    exports = [folder for folder in folders if (Path(folder) / MANIFEST).is_file()]
    on_cpu = best_device(device).type == "cpu"
    if exports and len(folders) == 1 and precision == "float32" and on_cpu:
        return load(model)
    for folder in exports:
        if not (Path(folder) / "model.safetensors").is_file():
            raise ValueError(
                f"{folder} is an export, which runs alone, on the CPU and as it was exported: "
                "remove other models, --precision and --device"
            )
    captioner = Captioner(
        TorchBackend.open(*folders, device=device, dtype=getattr(torch, precision))
    )
    if captioner.kind == "photos" and (len(folders) > 1 or precision != "float32"):
        raise ValueError(
            f"{model}: a model of photographs cannot be averaged with others, and runs in the "
            "precision it was saved in"
        )
    return captioner


def _evaluate_answers(options: argparse.Namespace) -> None:
    from ngsan.data.data_check import checked_features
    from ngsan.data.question_set import QuestionSet
    from ngsan.metrics.vqa import score_answers
    from ngsan.models import load_model
    from ngsan.predict.backend_torch import best_device
    from ngsan.predict.evaluate import best_answers

    answerer, config, companions = load_model(options.model, "answering")
    console, sees = open_console(), config.regions != "none"
    questions = QuestionSet(
        options.data,
        options.split,
        max_length=config.max_length,
        regions=sees,
        answered=False,
        words=companions["vocabulary"],
        answers=companions["answers"],
    )
    if sees:
        _check_regions(answerer, config, questions)
    with checked_features(questions.store):
        answers = best_answers(
            answerer.float().to(best_device(options.device)),
            questions,
            batch_size=options.batch_size or 512,
        )
    rows = [{"question_id": _id(name), "answer": text} for name, text in answers.items()]
    write_output(options.output, json.dumps(rows, ensure_ascii=False) + "\n")
    say(console, f"wrote {len(answers):,} answers to {options.output}")
    unanswered = sum(not question.answers for question in questions.questions)
    if unanswered:
        say(console, f"not scored: {unanswered:,} of the questions have no reference answers")
        return
    scores = score_answers(answers, {question.id: question for question in questions.questions})
    types = {kind or "no type": value for kind, value in sorted(scores.by_answer_type.items())}
    values = {name: 100 * value for name, value in {"accuracy": scores.overall, **types}.items()}
    table = Table("questions")
    table.add_column("VQA accuracy", justify="right")
    for name, value in values.items():
        table.add_row("all" if name == "accuracy" else name, f"{value:.2f}")
    console = open_console(results=True)
    console.print(table)
    say(console, scores.signature)
    if options.scores is not None:
        content = values | {"signature": scores.signature}
        write_output(options.scores, json.dumps(content, indent=2) + "\n")


def _check_regions(answerer: "AnswererModel", config: "AnswererConfig", questions: Any) -> None:
    """Rejects regions from another source than those of the training data.

    The source of imported features is not known exactly: it names files, and those of another
    dataset have other names.
    """
    trained, found = config.features, questions.store.source
    extracted = all(source.startswith("extract ") for source in (trained, found))
    if questions.feature_dim != config.feature_dim or (extracted and trained != found):
        raise ValueError(
            f"the model was trained on regions of another source ({trained!r}, "
            f"{config.feature_dim} wide) than those of {questions.folder} ({found!r}, "
            f"{questions.feature_dim} wide)"
        )
    if answerer.needs_boxes and not questions.has_boxes:
        raise ValueError(f"the model needs boxes, and the features of {questions.folder} have none")


def _id(name: str) -> int | str:
    """The id of a question as VQA writes it, which is a number."""
    return int(name) if name.isascii() and name.isdigit() else name


def _evaluate_translations(options: argparse.Namespace) -> None:
    from ngsan.data.parallel.dataset import ParallelSplit
    from ngsan.metrics.translation import check_language, compound_bleu, sacre_bleu
    from ngsan.predict.translator import load_translator

    translator = load_translator(options.model, device=options.device)
    texts = ParallelSplit(options.data, options.split, verify=True)
    references = texts.texts("target")
    if texts.subwords().signature == translator.subwords.signature:
        sentences = [texts.sentence("source", place) for place in range(len(texts))]
    else:  # texts that were cut into pieces of their own, such as another test set
        sentences = translator.subwords.encode_all(texts.texts("source"))
    console = open_console()
    with progress_bar(console, "sentences", len(texts)) as advance_to:
        words = options.batch_size or 4000
        found = translator.translate_ids(sentences, words=words, on_group=advance_to)
        advance_to(len(texts))
    written = [str(best) for best in found]
    write_output(options.output, "".join(f"{text}\n" for text in written))
    say(console, f"wrote {len(written):,} translations to {options.output}")
    scores = [sacre_bleu(written, [references])]
    lacks = check_language(texts.language)
    if not lacks:
        scores.append(compound_bleu(written, references, language=texts.language))
    print_translation_scores(scores, lacks)
    if options.scores is not None:
        write_translation_scores(options.scores, scores)


EVALUATE = Command(
    """Run a model on a split of a dataset, write its output and score it. Captions are written in
    COCO's result format and scored against the dataset's references; a file name such as
    captions_test2014_ngsan_results.json is that of COCO's test server, and is checked. A question
    answerer writes VQA's result format and gets the official accuracy; a translator writes one
    sentence per line and gets BLEU. With --relations a captioner says which sentences about
    spatial relations are true.""",
    _add_options,
    _run,
    [
        "evaluate runs/mine --data mydata -o captions.json",
        "evaluate runs/a,runs/b --data mydata -o captions.json --beam 5 --scores scores.json",
        "evaluate runs/photo --data coco --images photos -o captions.json",
        "evaluate runs/photo --data coco --images photos --relations vsr.jsonl.gz -o scores.json",
        "evaluate runs/mcan --data vqa --split val -o answers.json",
    ],
)
