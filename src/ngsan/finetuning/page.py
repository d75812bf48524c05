"""The page at the end: before and after, scores with intervals, new words, what to do next."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ngsan.atomic_io import write_text
from ngsan.data.sampler import random_keys
from ngsan.finetuning.job import Job
from ngsan.finetuning.judge import ScoreLine
from ngsan.html import data_uri, render
from ngsan.vision.decoding import shared_service
from ngsan.vision.images import ImageError

_CARDS = 24
_SIDE = 320
_WORDS = 200


@dataclass(frozen=True)
class Example:
    """A held-out picture."""

    path: Path
    before: str
    after: str
    references: tuple[str, ...]


def write_page(
    path: Path,
    *,
    model: str,
    improved: bool,
    scores: Sequence[ScoreLine],
    examples: Sequence[Example],
    second_eye: float,
    job: Job,
) -> None:
    """Writes the page.

    Args:
        path: The HTML file.
        model: The name of the model's folder.
        improved: Whether the trained model is kept.
        scores: Of the held-out pictures.
        examples: The held-out pictures; a random choice of them is shown.
        second_eye: See `ngsan.finetuning.run.Result`.
        job: What was learned from.
    """
    order = sorted(range(len(examples)), key=random_keys(len(examples), 0).tolist().__getitem__)
    chosen = [examples[place] for place in order[:_CARDS]]
    after = [word for one in examples for word in set(job.vocabulary.tokenize(one.after))]
    words = job.words.new[:_WORDS]
    page = render(
        "finetune.html.j2",
        model=model,
        improved=improved,
        scores=scores,
        second_eye=second_eye,
        certain=scores[0].difference[0] > 0,
        learned=len(job.train),
        captions=job.captions,
        held_out=len(examples),
        replayed=job.plan.replay,
        words=[(word, count, after.count(word)) for word, count in words],
        more_words=len(job.words.new) - len(words),
        rare=[word for word, _ in job.words.rare[:30]],
        rare_count=len(job.words.rare),
        new={word for word, _ in job.words.new},
        cards=[(one, _thumbnail(one.path)) for one in chosen],
        problems=job.problems,
        warnings=job.warnings,
    )
    write_text(path, page)


def _thumbnail(path: Path) -> str | None:
    """A picture as a data address; None if it cannot be read."""
    try:
        picture = shared_service().picture(path, min_side=_SIDE).image
    except ImageError:
        return None
    picture.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=80)
    return data_uri(content.getvalue(), "image/jpeg")
