"""Before and after: captions of held-out pictures, their scores, and whether training helped."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ngsan.config import DecodingConfig
from ngsan.finetuning.reading import CaptionedPhoto
from ngsan.metrics.scores import compare, intervals
from ngsan.predict.captioner import load
from ngsan.predict.evaluate import score_results

SHOWN = ("CIDEr", "BLEU-4", "ROUGE-L")
"""Scores that are reported; the first decides."""


@dataclass(frozen=True)
class ScoreLine:
    """A score before and after, with 95 % intervals."""

    name: str
    before: float
    before_interval: tuple[float, float]
    after: float
    after_interval: tuple[float, float]
    difference: tuple[float, float]
    """Interval of after minus before, on the same pictures."""


def caption_photos(
    model: Path,
    photos: Sequence[CaptionedPhoto],
    decoding: DecodingConfig,
    *,
    on_photo: Callable[[int], None],
    threads: int | None = None,
) -> dict[str, str]:
    """The caption of each picture, by its id; pictures that cannot be read have none."""
    captioner = load(model, threads=threads)
    captions: dict[str, str] = {}
    results = captioner.stream([photo.path for photo in photos], **vars(decoding))
    for number, (photo, result) in enumerate(zip(photos, results, strict=True), start=1):
        if result.caption is not None:
            captions[photo.id] = result.caption.text
        on_photo(number)
    return captions


def compare_captions(
    before: Mapping[str, str], after: Mapping[str, str], photos: Sequence[CaptionedPhoto]
) -> list[ScoreLine]:
    """The scores `SHOWN` of two models on the same pictures."""
    references = {photo.id: photo.captions for photo in photos if photo.id in after}
    old, new = (
        score_results({name: texts[name] for name in references}, references)
        for texts in (before, after)
    )
    of_old, of_new, differences = intervals(old), intervals(new), compare(new, old)
    return [
        ScoreLine(
            name,
            old.values[name],
            of_old[name],
            new.values[name],
            of_new[name],
            differences[name].interval,
        )
        for name in SHOWN
    ]
