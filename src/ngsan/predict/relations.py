"""Asks a captioner whether sentences about images are true.

The score of a sentence is its log-probability for its image less the mean for other images, so that
common sentences have no advantage.

Shapes: `B` images, `R` sentences an image, `T` words.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ngsan.data.batch import pad_regions
from ngsan.data.pictures import PictureStore
from ngsan.data.relations import Claim
from ngsan.data.store import FeatureStore
from ngsan.metrics.relations import Estimate, Floats, auc, estimate_auc, estimate_share
from ngsan.predict.captioner import Captioner, Pixels
from ngsan.search.sentences import pad_sentences
from ngsan.text.relations import with_opposite
from ngsan.text.vocabulary import UNKNOWN, Vocabulary
from ngsan.vision.decoding import shared_service
from ngsan.vision.images import ImageError

OTHERS = 20
"""Other images that a sentence is scored on."""

_ROWS = 32
"""Sentences of an image that are scored together."""


@dataclass(frozen=True)
class Scored:
    """A sentence with its score."""

    claim: Claim
    score: float
    opposite: float | None
    """The score of the sentence with the opposite relation, for true sentences that have one whose
    words are known."""


@dataclass(frozen=True)
class RelationScores:
    """What a captioner knows about relations."""

    sentences: Sequence[Scored]
    auc: Estimate
    """The probability that a true sentence scores higher than a false one."""

    pairs: Estimate
    """The share of the true sentences that score higher than with the opposite relation."""

    by_relation: dict[str, tuple[float, int]]
    """AUC and number of sentences of each relation with true and false ones."""

    unknown: Counter[str]
    """Words that the model does not know, with the number of sentences that have them."""

    unscored: int
    """Sentences with such words."""


def score_relations(
    captioner: Captioner,
    store: FeatureStore | PictureStore,
    claims: Sequence[Claim],
    *,
    others: int = OTHERS,
    seed: int = 0,
    on_part: Callable[[float], None] = lambda share: None,
) -> RelationScores:
    """Scores sentences about images.

    Args:
        captioner: Of regions for a `FeatureStore`, of photographs for a `PictureStore`.
        store: The features or the pictures of the images.
        claims: The sentences.
        others: Other images that a sentence is scored on: the same for all sentences, drawn from
            those of the sentences.
        seed: Seed of the draw.
        on_part: Called with the share that is done.

    Raises:
        ValueError: There are too few images, or one cannot be read.
    """
    vocabulary = captioner.vocabulary
    known, unknown = _known(claims, vocabulary)
    images = sorted({claim.image for claim in known})
    if len(images) <= others:
        raise ValueError(
            f"others: {others} other images are too many; {len(images)} images have sentences "
            "that can be scored"
        )
    texts = [_texts(claim, vocabulary) for claim in known]
    ids = {text: vocabulary.encode(vocabulary.tokenize(text)) for text in chain(*texts)}
    score = _Scorer(captioner, store)
    sentences = list(ids.values())
    parts = [sentences[start : start + _ROWS] for start in range(0, len(sentences), _ROWS)]
    steps = len(images) + len(parts) * (others + 1)
    own = _own(score, known, texts, ids, images, lambda done: on_part(done / steps))
    drawn = np.random.default_rng(seed).choice(len(images), others + 1, replace=False)
    chosen = [images[place] for place in drawn]
    found: list[Floats] = []  # (B,) by sentence
    for done, part in enumerate(parts, start=1):
        words = pad_sentences([part])
        found += [*score(chosen, np.repeat(words, len(chosen), axis=0)).T]
        on_part((len(images) + done * len(chosen)) / steps)
    elsewhere = dict(zip(ids, found, strict=True))
    scored = []
    for claim, mine in zip(known, texts, strict=True):
        # One more than needed was drawn, as the image itself may be among them.
        rows = [row for row, image in enumerate(chosen) if image != claim.image][:others]
        each = [own[claim.image, text] - float(elsewhere[text][rows].mean()) for text in mine]
        scored.append(Scored(claim, each[0], each[1] if len(each) > 1 else None))
    return _summary(scored, unknown, len(claims) - len(known))


def _known(claims: Sequence[Claim], vocabulary: Vocabulary) -> tuple[list[Claim], Counter[str]]:
    """The sentences whose words are all known, and the unknown words of the others."""
    known, unknown = [], Counter[str]()
    for claim in claims:
        lacking = {word for word in vocabulary.tokenize(claim.text) if not _has(vocabulary, word)}
        unknown.update(lacking)
        if not lacking:
            known.append(claim)
    return known, unknown


def _has(vocabulary: Vocabulary, word: str) -> bool:
    return word in vocabulary and word != UNKNOWN


def _texts(claim: Claim, vocabulary: Vocabulary) -> list[str]:
    """The sentence, and that with the opposite relation if it is false and known."""
    other = with_opposite(claim.text, claim.relation) if claim.true else None
    if other is None or not all(_has(vocabulary, word) for word in vocabulary.tokenize(other)):
        return [claim.text]
    return [claim.text, other]


class _Scorer:
    """Scores sentences on images of a store."""

    def __init__(self, captioner: Captioner, store: FeatureStore | PictureStore) -> None:
        self._backend, self._store, self._side = captioner.backend, store, captioner.image_size

    def __call__(self, images: Sequence[str], words: NDArray[np.int64]) -> Floats:
        """(B, R) log-probabilities of words (B, R, T)."""
        if isinstance(self._store, FeatureStore):
            tensors = pad_regions([self._store[image] for image in images])
            return self._backend.score_regions(*tensors, words)
        return self._backend.score_images(np.stack([*map(self._square, images)]), words)

    def _square(self, image: str) -> Pixels:
        assert isinstance(self._store, PictureStore)
        assert self._side is not None
        try:
            return shared_service().squares(self._store.read(image), (self._side,)).squares[0]
        except ImageError as error:
            raise ValueError(f"image {image!r}: {error}") from error


def _own(
    score: _Scorer,
    claims: Sequence[Claim],
    texts: Sequence[Sequence[str]],
    ids: dict[str, list[int]],
    images: Sequence[str],
    on_image: Callable[[int], None],
) -> dict[tuple[str, str], float]:
    """The log-probability of each sentence for its own image, by image and sentence."""
    of_image: dict[str, list[str]] = {image: [] for image in images}
    for claim, mine in zip(claims, texts, strict=True):
        of_image[claim.image] += [text for text in mine if text not in of_image[claim.image]]
    found = {}
    for done, (image, mine) in enumerate(of_image.items(), start=1):
        row = score([image], pad_sentences([[ids[text] for text in mine]]))[0]
        found.update({(image, text): float(value) for text, value in zip(mine, row, strict=True)})
        on_image(done)
    return found


def _summary(scored: Sequence[Scored], unknown: Counter[str], unscored: int) -> RelationScores:
    scores = np.array([one.score for one in scored])
    true = np.array([one.claim.true for one in scored], np.bool_)
    images = [one.claim.image for one in scored]
    by_relation = {}
    for relation in sorted({one.claim.relation for one in scored}):
        mine = np.array([one.claim.relation == relation for one in scored])
        if true[mine].any() and not true[mine].all():
            by_relation[relation] = auc(scores[mine], true[mine]), int(mine.sum())
    paired = [one for one in scored if one.opposite is not None]
    # A tie counts half.
    right = [0.5 + 0.5 * np.sign(one.score - (one.opposite or 0.0)) for one in paired]
    return RelationScores(
        sentences=scored,
        auc=estimate_auc(scores, true, images),
        pairs=estimate_share(np.array(right), [one.claim.image for one in paired]),
        by_relation=by_relation,
        unknown=unknown,
        unscored=unscored,
    )
