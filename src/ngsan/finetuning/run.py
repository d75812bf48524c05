"""Fine-tuning from beginning to end: a packed model that captions as the user's captions do.

What is computed is kept in a folder beside the output until the end, so that an interrupted run
resumes: the encoded pictures, the model with its new words, and the state of the training. The
encoded pictures stay for a later run with other captions.
"""

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ngsan.atomic_io import folder_lock, replace_folder, write_text
from ngsan.data.captions import VOCABULARY
from ngsan.data.dataset import CaptionDataset
from ngsan.export.write import pack_model
from ngsan.finetuning.data import write_data
from ngsan.finetuning.encoded import Start, top_of
from ngsan.finetuning.job import Job, open_job
from ngsan.finetuning.judge import ScoreLine, agree, caption_photos, compare_captions
from ngsan.finetuning.page import Example, write_page
from ngsan.finetuning.task import FinetuneTask
from ngsan.finetuning.words import add_words
from ngsan.models.checkpoint import save_model
from ngsan.predict.confidence import CONFIDENCE
from ngsan.train.run import train

REPORT = "finetune.json"
PAGE = "finetune.html"

_JOB = "job.json"
_START = "start"
_RUN = "run"
_PACKED = "packed"

Entry = Mapping[str, Any]
Listen = Callable[[Entry], None]


@dataclass(frozen=True)
class Result:
    """What came of it."""

    folder: Path
    """The model."""

    improved: bool
    """Whether the trained model is better; otherwise the folder has the model as it was."""

    scores: tuple[ScoreLine, ...]
    """Before and after, on the held-out pictures."""

    examples: tuple[Example, ...]
    """The held-out pictures."""

    new_words: tuple[str, ...]
    """Words that the model has learned."""

    second_eye: float
    """Share of its weight with which captions agree with the second eye; 0 for not at all."""

    page: Path
    """An HTML page that shows it all."""


def finetune(
    photos: str | Path,
    captions: str | Path | None = None,
    *,
    output: str | Path,
    model: str | Path | None = None,
    replay: bool = True,
    resume: bool = False,
    overwrite: bool = False,
    threads: int | None = None,
    listen: Listen = lambda entry: None,
) -> Result:
    """Makes a captioner of photographs that captions as some captions of the user's do.

    Args:
        photos: A folder of pictures.
        captions: Their captions: a CSV, JSON lines or JSON file, or a folder of `.txt` files; None
            if `metadata.csv`, `metadata.jsonl` or `.txt` files are among the pictures.
        output: The folder of the new model, which `ngsan.load` opens. `OUTPUT.work` beside it has
            what an interrupted run needs.
        model: The captioner to start from; None for the shipped one.
        replay: Whether ordinary pictures are mixed in, so that the model does not forget them.
        resume: Whether to continue an interrupted run.
        overwrite: Whether to replace a model, or an interrupted run.
        threads: CPU threads; None for one per core.
        listen: Receives what happens: entries of `ngsan.train.log`, and those with the event
            "progress", which have "what", "done" and "total".

    Raises:
        ValueError: There are too few pictures with captions, the model cannot be fine-tuned, or
            there is an interrupted run or another model.
        InterruptedRunError: Training was stopped by a signal.
    """
    job = open_job(photos, captions, model, replay=replay)
    return run_job(
        job,
        Path(output),
        resume=resume,
        overwrite=overwrite,
        threads=threads,
        listen=listen,
    )


def run_job(
    job: Job,
    output: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    threads: int | None = None,
    listen: Listen = lambda entry: None,
) -> Result:
    """Learns from what `open_job` read; see `finetune`."""
    work = output.with_name(output.name + ".work")
    _check_output(output, overwrite)
    work.mkdir(parents=True, exist_ok=True)
    with folder_lock(work / ".lock", "fine-tuning run in"):
        _claim(work, job, resume=resume, overwrite=overwrite)
        start = Start.load(job.model)
        job = write_data(work, job, start, threads, listen)
        _train(work, job, start, threads, listen)
        result = _finish(work, output, job, threads, listen)
        for name in (_START, _RUN):
            shutil.rmtree(work / name, ignore_errors=True)
        (work / _JOB).unlink()
    return result


def _check_output(output: Path, overwrite: bool) -> None:
    """Rejects a folder that is something else, or that is not to be replaced."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / REPORT).is_file():
        raise ValueError(f"{output} is not a model of ngsan finetune: choose another --output")
    if not overwrite:
        raise ValueError(
            f"{output} is finished: use it, pass --overwrite to replace it, or choose another "
            "--output"
        )


def _claim(work: Path, job: Job, *, resume: bool, overwrite: bool) -> None:
    """Makes the folder that of this run, or continues the run that is there."""
    path = work / _JOB
    found = json.loads(path.read_text("utf-8"))["signature"] if path.is_file() else None
    if found is not None and not overwrite:
        if not resume:
            raise ValueError(
                f"{work} holds an interrupted run: continue it with --resume, or start again with "
                "--overwrite"
            )
        if found != job.signature:
            raise ValueError(
                "the pictures, the captions, the model or the options are not those of the "
                f"interrupted run in {work}: start again with --overwrite; what was computed of "
                "pictures is kept"
            )
        return
    for name in (_START, _RUN):
        shutil.rmtree(work / name, ignore_errors=True)
    write_text(path, json.dumps({"signature": job.signature}) + "\n")


def _train(work: Path, job: Job, start: Start, threads: int | None, listen: Listen) -> None:
    """Adds the new words and trains; the best model is in the run's folder."""
    plan, folder = job.plan, work / _START
    data, held_out = (
        CaptionDataset(work, split, max_length=plan.max_length, captions_per_image=count)
        for split, count in (("train", plan.captions_per_image), ("val", None))
    )
    words = data.vocabulary
    config = dataclasses.replace(start.config, vocab_size=len(words))
    if not (folder / VOCABULARY).is_file():
        add_words(start.model, top_of(start.model, plan.layers), data, len(start.vocabulary))
        with replace_folder(folder) as partial_folder:
            save_model(partial_folder, start.model, config, {"vocabulary": words})
    # It announces the precision.
    logging.getLogger("lightning_fabric.utilities.rank_zero").setLevel(logging.WARNING)
    run = plan.config(config, str(folder.resolve()), bfloat16=_has_bfloat16(), threads=threads or 0)
    train(
        run,
        work / _RUN,
        resume=(work / _RUN).is_dir(),
        listen=listen,
        datasets=(data, held_out),
        opener=partial(FinetuneTask, layers=plan.layers, known=len(start.vocabulary)),
    )


def _has_bfloat16() -> bool:
    """Whether this CPU multiplies matrices in bfloat16, several times faster than in float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _finish(work: Path, output: Path, job: Job, threads: int | None, listen: Listen) -> Result:
    """Packs the trained model, or copies the start if that is better on held-out pictures."""
    packed = work / _PACKED
    shutil.rmtree(packed, ignore_errors=True)
    listen({"event": "note", "text": "packing the new model and judging it by held-out pictures"})
    pack_model(work / _RUN, packed)
    photos = job.held_out

    def captions_of(model: Path, what: str) -> dict[str, str]:
        def on_photo(done: int) -> None:
            listen({"event": "progress", "what": what, "done": done, "total": len(photos)})

        return caption_photos(model, photos, job.plan.decoding, on_photo=on_photo, threads=threads)

    before = captions_of(job.model, "captions before")
    words = {word for word, _ in job.words.new}
    after, second_eye = agree(
        job.model,
        packed,
        captions_of(packed, "captions after"),
        photos,
        words,
        partial(captions_of, what="captions with the second eye"),
    )
    scores = tuple(compare_captions(before, after, photos))
    improved = scores[0].after > scores[0].before
    result = Result(
        output,
        improved,
        scores,
        tuple(
            Example(photo.path, before[photo.id], after[photo.id], tuple(photo.captions))
            for photo in photos
            if photo.id in after
        ),
        tuple(word for word, _ in job.words.new) if improved else (),
        second_eye,
        output / PAGE,
    )
    _write(packed if improved else job.model, output, job, result)
    shutil.rmtree(packed)
    return result


def _write(source: Path, output: Path, job: Job, result: Result) -> None:
    """Writes the output folder: a packed model, the report and the page."""
    with replace_folder(output) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        if result.improved:
            (folder / CONFIDENCE).unlink(missing_ok=True)  # it was measured with the old model
        report = {
            "improved": result.improved,
            "pictures": {"learned": len(job.train), "held_out": len(job.held_out)},
            "captions": job.captions,
            "new_words": dict(job.words.new) if result.improved else {},
            "second_eye": result.second_eye,
            "scores": [asdict(line) for line in result.scores],
            "plan": asdict(job.plan),
            "problems": job.problems,
        }
        write_text(folder / REPORT, json.dumps(report, ensure_ascii=False, indent=1) + "\n")
        write_page(
            folder / PAGE,
            model=output.name,
            improved=result.improved,
            scores=result.scores,
            examples=result.examples,
            second_eye=result.second_eye,
            job=job,
        )
