"""Chooses how much the second eye counts: trial after trial, one parameter at a time.

Photographs are looked at once; a trial only repeats the search. What counts is CIDEr less CHAIR-i
plus the recall of objects, point for point.

Shapes: `B` images of a batch.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from ngsan.data.pictures import PictureStore
from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.cider import Cider
from ngsan.metrics.hallucination import Hallucination
from ngsan.metrics.scores import score_captions
from ngsan.predict.agreement import Agreement, Evidence
from ngsan.predict.backend_onnx import Encoded, OnnxBackend
from ngsan.predict.captioner import PHOTO_DECODING, Captioner
from ngsan.predict.second_eye import Sight
from ngsan.search import build_search
from ngsan.vision.decoding import shared_service

START = Agreement(
    keyword_weight=0.4,
    keyword_limit=3.0,
    absent_below=0.15,
    absent_weight=1.5,
    present_above=0.4,
    present_area=0.03,
    present_weight=1.5,
    count_weight=0.0,
    limit=6.0,
)
"""The first trial."""

GRID: Mapping[str, Sequence[float]] = {
    "absent_weight": (1.0, 2.0, 3.0),
    "absent_below": (0.15, 0.25),
    "present_weight": (1.0, 1.5, 2.5),
    "present_above": (0.3, 0.4, 0.5),
    "present_area": (0.03, 0.06, 0.12),
    "keyword_weight": (0.2, 0.4, 0.6),
    "count_weight": (0.0, 1.0, 2.0),
}
"""What is tried, parameter by parameter in this order."""

_BATCH = 25


@dataclass(frozen=True)
class Trial:
    """How captions are with an agreement."""

    cider: float
    chair_i: float
    recall: float
    """Share of the kinds of objects in references that captions name."""

    @property
    def worth(self) -> float:
        """What is compared."""
        return self.cider - self.chair_i + self.recall

    def __str__(self) -> str:
        """In one line."""
        return f"CIDEr {self.cider:.2f}, CHAIR-i {self.chair_i:.2f}, recall {self.recall:.1f}"


class Trials:
    """Photographs that were looked at, ready for searches; finished trials are kept in a file."""

    def __init__(
        self,
        captioner: Captioner,
        pictures: PictureStore,
        references: Mapping[str, Sequence[str]],
        objects: Mapping[str, Sequence[str]],
        *,
        kept: Path,
        on_image: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Looks at the photographs.

        Args:
            captioner: Of photographs, exported or packed.
            pictures: The photographs.
            references: Of each of them.
            objects: COCO's classes of their boxes.
            kept: File of the trials of a run that was stopped, with the same photographs.
            on_image: Called with the number of photographs seen.

        Raises:
            ValueError: The model is not exported, or the file is damaged.
        """
        if not isinstance(captioner.backend, OnnxBackend) or captioner.image_size is None:
            raise ValueError("--model: pass a model of photographs that is exported or packed")
        self._backend, self._references, self._objects = captioner.backend, references, objects
        self._kept, self._known = kept, _read_trials(kept)
        self._seen: list[tuple[Sequence[str], Encoded, list[Sight]]] = []
        eye, size = captioner.eye, captioner.image_size
        sides = tuple(dict.fromkeys((size, *eye.sides)))
        ids = list(references)
        for start in range(0, len(ids), _BATCH):
            images = ids[start : start + _BATCH]
            found = [shared_service().squares(pictures.read(one), sides) for one in images]
            squares = [{len(each): each for each in one.squares} for one in found]
            features = self._backend.describe(np.stack([each[size] for each in squares]))
            sights = [eye.look(each) for each in squares]
            self._seen.append((images, self._backend.encode(*features), sights))
            on_image(start + len(images))
        self._evidence = Evidence(eye, captioner.vocabulary)

    def __call__(self, agreement: Agreement | None) -> Trial:
        """Captions all photographs; None for the captioner alone."""
        key = json.dumps(None if agreement is None else asdict(agreement), sort_keys=True)
        if key not in self._known:
            trial = self._score(self._captions(agreement))
            self._known[key] = trial
            with self._kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"agreement": key, **asdict(trial)}) + "\n")
        return self._known[key]

    def _captions(self, agreement: Agreement | None) -> dict[str, str]:
        captions: dict[str, str] = {}
        vocabulary = self._backend.vocabulary
        for images, encoded, sights in self._seen:
            evidence = None if agreement is None else self._evidence(agreement, sights)
            steps = self._backend.steps(encoded)
            written = build_search(steps, PHOTO_DECODING, vocabulary, evidence=evidence).run()
            for place, image in enumerate(images):
                ids = written.words[place, 0, : int(written.lengths[place, 0])]
                captions[image] = " ".join(vocabulary.decode(ids.tolist()))
        return captions

    def _score(self, captions: Mapping[str, str]) -> Trial:
        tokenized = TokenizedCaptions.tokenize(captions, self._references)
        scores = score_captions(tokenized, [Cider(), Hallucination(self._objects)]).values
        return Trial(scores["CIDEr"], scores["CHAIR-i"], scores["object recall"])


def fit_agreement(
    trials: Callable[[Agreement | None], Trial],
    *,
    start: Agreement = START,
    rounds: int = 1,
    on_trial: Callable[[str, float, Trial], None] = lambda name, value, trial: None,
) -> tuple[Agreement, Trial]:
    """Changes one parameter after the other to the best of `GRID`.

    Args:
        trials: How captions are with an agreement.
        start: The first.
        rounds: How often each parameter is tried at most.
        on_trial: Called with each parameter, its value and what came of it.

    Returns:
        The best agreement and its trial.
    """
    best, found = start, trials(start)
    for _ in range(rounds):
        before = best
        for name, values in GRID.items():
            for value in values:
                tried = replace(best, **{name: value})
                trial = trials(tried)
                on_trial(name, value, trial)
                if trial.worth > found.worth:
                    best, found = tried, trial
        if best == before:
            break
    return best, found


def _read_trials(path: Path) -> dict[str, Trial]:
    """The trials of a run that was stopped."""
    if not path.is_file():
        return {}
    found = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            key = record.pop("agreement")
            found[key] = Trial(**record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: damaged: {error}; remove it to start again") from error
    return found
