"""What will be learned from: pictures, their parts, their words and the plan."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ngsan.data.problems import Problems
from ngsan.finetuning.plan import (
    HELD_OUT,
    MIN_HELD_OUT,
    MIN_PHOTOS,
    Plan,
    hold_out,
    make_plan,
)
from ngsan.finetuning.reading import CaptionedPhoto, read_photos
from ngsan.finetuning.replay import available
from ngsan.finetuning.words import WordReport, report_words
from ngsan.models.checkpoint import model_signature
from ngsan.predict.captioner import PHOTO_MODEL
from ngsan.predict.manifest import VOCABULARY
from ngsan.text.vocabulary import Vocabulary

_SHOWN = 5

FOREIGN = 0.4
"""Share of unknown words from which captions are probably in another language."""

_SPACES = 12
"""Mean letters of a word from which captions probably have no spaces between words."""


@dataclass(frozen=True)
class Job:
    """The data of a run."""

    model: Path
    train: list[CaptionedPhoto]
    held_out: list[CaptionedPhoto]
    vocabulary: Vocabulary
    words: WordReport
    plan: Plan
    problems: list[str]
    """Bad entries, by kind."""
    examples: list[str]
    """Bad entries with file and line: the first of each kind, and how many more."""

    @property
    def captions(self) -> int:
        """Captions to learn from."""
        return sum(len(photo.captions) for photo in self.train)

    @property
    def warnings(self) -> list[str]:
        """What the user should know beforehand."""
        found = []
        if self.words.unknown_share > FOREIGN:
            found.append(
                f"{100 * self.words.unknown_share:.0f} % of the words are unknown to the model: "
                "captions in another language are learned, too, but need a thousand pictures or "
                "more"
            )
        if len(self.train) < 100:
            found.append(
                f"{len(self.train)} pictures teach a style and a few words; 200 are advisable"
            )
        if self.plan.max_length > self.plan.decoding.max_length:
            found.append(
                f"captions have up to {self.plan.max_length} words: use --max-length "
                f"{self.plan.max_length} with ngsan caption"
            )
        if not self.plan.replay:
            found.append(
                "there are no ordinary pictures to replay for this model: it will forget some of "
                "what it knows"
            )
        return found

    @property
    def signature(self) -> str:
        """Changes with anything that decides the result."""
        pictures = [[photo.id, photo.captions] for photo in (*self.train, *self.held_out)]
        parts = [model_signature(self.model), len(self.train), pictures, asdict(self.plan)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]

    def without(self, bad: set[str]) -> "Job":
        """The job without pictures that cannot be read.

        Args:
            bad: Their ids.

        Raises:
            ValueError: Too few are left.
        """
        train, held_out = (
            [photo for photo in photos if photo.id not in bad]
            for photos in (self.train, self.held_out)
        )
        return _job(
            self.model,
            train,
            held_out,
            self.vocabulary,
            [*self.problems],
            self.examples,
            self.plan,
        )


def open_job(
    photos: str | Path,
    captions: str | Path | None,
    model: str | Path | None = None,
    *,
    replay: bool = True,
) -> Job:
    """Reads what is to be learned from.

    Args:
        photos: The folder of the pictures.
        captions: Their captions, see `read_photos`.
        model: The model to start from; None for the shipped one.
        replay: Whether ordinary pictures are replayed.

    Raises:
        ValueError: There are too few pictures with captions, or the model cannot be used.
    """
    folder = PHOTO_MODEL if model is None else Path(model)
    if not (folder / VOCABULARY).is_file():
        raise ValueError(f"{folder} is not a captioner: {VOCABULARY} is missing")
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    problems = Problems(skip=True)
    found = read_photos(photos, captions, problems)
    if len(found) < MIN_PHOTOS:
        raise _too_few(len(found))
    train, held_out = hold_out(found)
    examples = []
    for kind, count in problems.counts.items():
        examples += [f"skipped: {text}" for text in problems.examples[kind][:_SHOWN]]
        if count > _SHOWN:
            examples.append(f"skipped {count - _SHOWN:,} more: {kind}")
    pictures = available() if replay else 0
    return _job(folder, train, held_out, vocabulary, problems.summary(), examples, pictures)


def _job(
    model: Path,
    train: list[CaptionedPhoto],
    held_out: list[CaptionedPhoto],
    vocabulary: Vocabulary,
    problems: list[str],
    examples: list[str],
    plan: Plan | int,
) -> Job:
    if len(train) + len(held_out) < MIN_PHOTOS or len(held_out) < MIN_HELD_OUT:
        raise _too_few(len(train) + len(held_out))
    if isinstance(plan, int):
        lengths = _lengths(train, vocabulary)
        plan = make_plan(len(train), len(lengths), lengths, replay=plan)
    captions = {photo.id: photo.captions for photo in train}
    return Job(
        model,
        train,
        held_out,
        vocabulary,
        report_words(captions, vocabulary),
        plan,
        problems,
        examples,
    )


def _lengths(photos: Sequence[CaptionedPhoto], vocabulary: Vocabulary) -> list[int]:
    """Words of each caption."""
    words = [vocabulary.tokenize(text) for photo in photos for text in photo.captions]
    count = sum(map(len, words))
    if not count:
        raise ValueError("the captions have no words")
    if sum(len(word) for one in words for word in one) / count > _SPACES:
        raise ValueError(
            "the captions have no spaces between words, as in Chinese or Japanese: put spaces "
            "between the words first"
        )
    return [len(one) for one in words]


def _too_few(count: int) -> ValueError:
    least = MIN_PHOTOS - round(HELD_OUT * MIN_PHOTOS)
    return ValueError(
        f"{count} captioned picture{'' if count == 1 else 's'}: fine-tuning needs {MIN_PHOTOS} at "
        f"least ({least} to learn from and some to judge by), and 200 are advisable; with fewer, "
        "`ngsan caption` writes captions as the model is"
    )
