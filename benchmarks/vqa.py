"""Trains and scores MCAN, MCAN+GSA and the baselines on VQA; needs no package of the command line.

    python benchmarks/vqa.py prepare --questions FILES... --images DIRS... --data DATA
    python benchmarks/vqa.py pack --data DATA --images DIRS... --to DIR [--mib 45]
    python benchmarks/vqa.py run --data DATA --runs RUNS [--seeds 0 1 2] [--set model.layers=3]
    python benchmarks/vqa.py report --data DATA --runs RUNS

`prepare` imports the questions and describes the images that they ask about, and no others, with
the backbone of the captioner that ships; without --images it imports the questions alone. Images
are pictures or .tar files of them, named by id. `pack` writes the images that are asked about into
.tar files of bounded size, to be carried to another machine. `run` trains every model with every
seed; a run that has ended is not repeated, and one that was stopped goes on. `report` scores all of
them and the answer priors on the validation and the test split, and writes report.json. `--tiny` in
place of `--data` takes built-in scenes and small models.
"""

import argparse
import dataclasses
import io
import json
import statistics
import tarfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from ngsan.config import from_dict
from ngsan.config.answering import ANSWERERS, AnswerRun, question_run
from ngsan.data.importers.questions_vqa import vqa_questions
from ngsan.data.pictures import PictureStore
from ngsan.data.problems import Problems
from ngsan.data.question_set import QuestionSet
from ngsan.data.questions import (
    ANSWERS,
    WORDS,
    Question,
    count_answers,
    count_words,
    read_questions,
    write_questions,
)
from ngsan.data.store_writer import StoreWriter
from ngsan.data.synthetic.asking import write_question_scenes
from ngsan.metrics.vqa import VqaScores, score_answers
from ngsan.models.photo_source import photo_source
from ngsan.models.saved_answerer import load_answerer
from ngsan.predict import best_device
from ngsan.predict.answers import PHOTO_MODEL
from ngsan.text.answers import graded_answers
from ngsan.train.answer_validation import best_answers
from ngsan.train.run import train
from ngsan.vision.images import open_picture

CONFIGS = Path(__file__).parents[1] / "configs" / "vqa"
TINY = {"train": 400, "val": 100, "test": 100}
_BATCH = 256


def prepare(options: argparse.Namespace) -> None:
    """Imports questions and describes their images."""
    data = Path(options.data)
    if not (data / ANSWERS).is_file():
        records = vqa_questions(options.questions, problems=Problems())
        print(write_questions(data, records, overwrite=True), flush=True)
        learned = [asked for asked in read_questions(data) if asked.split == "train"]
        count_words(learned, more_than=options.words_more_than).save(data / WORDS)
        count_answers(learned, more_than=options.answers_more_than).save(data / ANSWERS)
    if not options.images:
        return
    wanted = sorted({asked.image for asked in read_questions(data)})
    stores = [PictureStore(folder) for folder in options.images]
    source = photo_source(options.photo_model, best_device(options.device))
    started, done, lost = time.perf_counter(), 0, []
    text = f"extract {source.signature}"
    with StoreWriter(data, source=text) as writer, ThreadPoolExecutor(options.workers) as pool:
        left = [image for image in wanted if image not in writer]
        for start in range(0, len(left), _BATCH):
            batch = left[start : start + _BATCH]
            found = {
                image: store for image in batch for store in reversed(stores) if image in store
            }
            lost += [image for image in batch if image not in found]
            files = [store.read(image) for image, store in found.items()]
            pictures = pool.map(open_picture, files)
            squares = list(pool.map(source.prepare, (picture.image for picture in pictures)))
            for image, regions in zip(
                found, source.regions(squares) if squares else (), strict=True
            ):
                writer.add(image, regions)
            done += len(found)
            if start % (16 * _BATCH) == 0:
                rate = done / (time.perf_counter() - started)
                print(f"{done:,} of {len(left):,} images, {rate:,.0f} a second", flush=True)
    print(f"{done:,} images described, {len(lost):,} have no picture {lost[:5]}", flush=True)


def pack(options: argparse.Namespace) -> None:
    """Writes the images that are asked about into tar files."""
    wanted = sorted({asked.image for asked in read_questions(options.data)})
    stores = [PictureStore(folder) for folder in options.images]
    options.to.mkdir(parents=True, exist_ok=True)
    groups: list[list[str]] = []
    filled, lost = 0, 0
    for image in wanted:
        size = next((len(store.read(image)) for store in stores if image in store), 0)
        lost += not size
        need = 512 + -(-size // 512) * 512
        if not groups or filled + need + 10_240 > options.mib * 2**20:
            groups.append([])
            filled = 0
        if size:
            groups[-1].append(image)
            filled += need
    for number, group in enumerate(groups):
        with tarfile.open(options.to / f"{number:03d}.tar", "w") as archive:
            for image in group:
                content = next(store.read(image) for store in stores if image in store)
                about = tarfile.TarInfo(f"{image}.jpg")
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
    print(f"{len(wanted) - lost:,} of {len(wanted):,} images in {len(groups)} files")


def configured(name: str, seed: int, options: argparse.Namespace) -> AnswerRun:
    """The run of a model with a seed."""
    if options.tiny:
        values = dataclasses.asdict(question_run())
        values["model"] |= ANSWERERS[name]
        values["data"] |= {"scenes": None}
        values["learning"] |= {"epochs": 1}
    else:
        path = CONFIGS / f"{name.replace('-', '_')}.yaml"
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    for change in options.set:
        key, _, value = change.partition("=")
        *sections, last = key.split(".")
        place = values
        for section in sections:
            place = place[section]
        place[last] = yaml.safe_load(value)
    values["seed"] = seed
    values["data"]["folder"] = str(options.data)
    values["machine"]["device"] = options.device
    return from_dict(AnswerRun, values)


def run(options: argparse.Namespace) -> None:
    """Trains every model with every seed."""
    for seed in options.seeds:
        for name in options.models:
            output = Path(options.runs) / f"{name}-{seed}"
            if (output / "ended").exists():
                continue

            def listen(entry: dict[str, Any], name: str = name, seed: int = seed) -> None:
                if entry["event"] in ("epoch", "end", "start"):
                    print(name, seed, json.dumps(entry), flush=True)

            train(configured(name, seed, options), output, resume=True, listen=listen)
            (output / "ended").write_text("")


def priors(data: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Answers without a look at the image: the most frequent of all, and of the question's type.

    Yields:
        The prior's name, and the answer to every question by its id.
    """
    overall: Counter[str] = Counter()
    by_type: dict[str, Counter[str]] = defaultdict(Counter)
    asked = list(read_questions(data))
    for question in asked:
        if question.split == "train":
            best = next(iter(graded_answers(question.answers)))
            overall[best] += 1
            by_type[question.question_type][best] += 1
    first = overall.most_common(1)[0][0]
    yield "prior", {question.id: first for question in asked}
    yield (
        "prior-by-type",
        {
            question.id: by_type[question.question_type].most_common(1)[0][0]
            if question.question_type in by_type
            else first
            for question in asked
        },
    )


def report(options: argparse.Namespace) -> None:
    """Scores everything on the validation and the test split."""
    data, runs = Path(options.data), Path(options.runs)
    splits = {
        split: {asked.id: asked for asked in read_questions(data) if asked.split == split}
        for split in ("val", "test")
    }
    splits = {split: asked for split, asked in splits.items() if asked}
    found: dict[str, Any] = {"priors": {}, "models": {}}
    for name, given in priors(data):
        found["priors"][name] = {
            split: _plain(score_answers({key: given[key] for key in asked}, asked))
            for split, asked in splits.items()
        }
    for name in options.models:
        folders = [runs / f"{name}-{seed}" for seed in options.seeds]
        folders = [folder for folder in folders if (folder / "ended").exists()]
        scores = {
            split: [_plain(_score(folder, data, split, asked, options)) for folder in folders]
            for split, asked in splits.items()
        }
        if folders:
            found["models"][name] = {split: _spread(rows) for split, rows in scores.items()}
    text = json.dumps(found, indent=1)
    (runs / "report.json").write_text(text + "\n", encoding="utf-8")
    print(text)


def _score(
    folder: Path, data: Path, split: str, asked: dict[str, Question], options: argparse.Namespace
) -> VqaScores:
    saved, device = load_answerer(folder), best_device(options.device)
    questions = QuestionSet(
        data,
        split,
        longest=saved.config.longest,
        regions=saved.config.regions != "none",
        words=saved.words,
        answers=saved.answers,
        skip_missing=True,
    )
    places = np.arange(len(questions))
    model = saved.answerer.to(device)
    given = best_answers(model, questions, questions, places, torch.device(device))
    return score_answers(given, {name: asked[name] for name in given})


def _plain(scores: VqaScores) -> dict[str, float]:
    found = {"accuracy": scores.overall, **scores.by_answer_type}
    return {name: round(100 * value, 3) for name, value in found.items()}


def _spread(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Mean, sample deviation and single values of each score."""
    return {
        name: {
            "mean": round(statistics.mean(row[name] for row in rows), 3),
            "deviation": round(statistics.stdev(row[name] for row in rows), 3)
            if len(rows) > 1
            else None,
            "values": [row[name] for row in rows],
        }
        for name in rows[0]
    }


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("prepare", "pack", "run", "report"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--questions", nargs="+", default=[])
    parser.add_argument("--images", nargs="+", default=[])
    parser.add_argument("--to", type=Path)
    parser.add_argument("--mib", type=float, default=45)
    parser.add_argument("--photo-model", type=Path, default=PHOTO_MODEL)
    parser.add_argument("--words-more-than", type=int, default=0)
    parser.add_argument("--answers-more-than", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=list(ANSWERERS), choices=list(ANSWERERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.tiny:
        options.data = options.runs / "scenes"
        if not (options.data / ANSWERS).is_file():
            write_question_scenes(options.data, TINY)
    if options.data is None or (options.what in ("run", "report") and options.runs is None):
        parser.error("--data and --runs say where things are")
    {"prepare": prepare, "pack": pack, "run": run, "report": report}[options.what](options)


if __name__ == "__main__":
    main()
