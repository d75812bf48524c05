"""Before and after: captions of held-out pictures, their scores, and whether training helped."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ngsan.config import DecodingConfig
from ngsan.finetuning.reading import CaptionedPhoto
from ngsan.metrics.cider import Cider
from ngsan.metrics.scores import compare, intervals
from ngsan.predict.agreement import AGREEMENT, Agreement
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


def agree(
    start: Path,
    packed: Path,
    plain: Mapping[str, str],
    photos: Sequence[CaptionedPhoto],
    new_words: Collection[str],
    caption: Callable[[Path], Mapping[str, str]],
) -> tuple[Mapping[str, str], float]:
    """Decides whether captions of the new model should agree with the second eye, as the start's.

    Knowing no new word, the second eye speaks for the words that new ones replace. So it is kept,
    with all of its weight or a half, if held-out CIDEr rises and no fewer new words are written.

    Args:
        start: The folder of the model before.
        packed: The folder of the new one; the decision is written there.
        plain: Its captions without the second eye, by the picture's id.
        photos: The held-out pictures.
        new_words: Words that it has learned.
        caption: Captions the pictures with the model in a folder.

    Returns:
        The captions by the decision, and the weight of the second eye, 0 for none.
    """
    whole = Agreement.load(start / AGREEMENT)
    best, weight, chosen = plain, 0.0, None
    for share in (1.0, 0.5) if whole else ():
        assert whole is not None
        weaker = whole.scaled(share)
        weaker.save(packed / AGREEMENT)
        found = caption(packed)
        fewer = _count(found, new_words) < _count(plain, new_words)
        if not fewer and _cider(found, photos) > _cider(best, photos):
            best, weight, chosen = found, share, weaker
    (packed / AGREEMENT).unlink(missing_ok=True)
    if chosen is not None:
        chosen.save(packed / AGREEMENT)
    return best, weight


def _cider(captions: Mapping[str, str], photos: Sequence[CaptionedPhoto]) -> float:
    references = {photo.id: photo.captions for photo in photos if photo.id in captions}
    return score_results(captions, references, [Cider()]).values["CIDEr"]


def _count(captions: Mapping[str, str], words: Collection[str]) -> int:
    """How often some words occur."""
    return sum(word in words for text in captions.values() for word in text.split())
