"""CHAIR: objects that captions name and photographs do not show (Rohrbach et al. 2018).

An object is there if a box of the photograph or a reference caption names it. `ngsan.text.objects`
knows which words name COCO's 80 kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ngsan.metrics.captions import Floats, TokenizedCaptions
from ngsan.text.objects import CLASSES, find_objects


@dataclass(frozen=True)
class ImageObjects:
    """The objects of one caption."""

    named: tuple[str, ...]
    """Kinds that the caption names, in its order, with repetitions."""
    hallucinated: tuple[str, ...]
    """Those of them that are not there."""
    referred: frozenset[str]
    """Kinds that the references name."""


@dataclass(frozen=True)
class Chair:
    """CHAIR of a set of captions; the scores are from 0 to 100."""

    chair_i: float
    """Share of the named objects that are not there; 0 if none is named. Lower is better."""
    chair_s: float
    """Share of the captions that name such an object. Lower is better."""
    recall: float
    """Share of the kinds that references name which the captions name, too."""
    per_image: Mapping[str, ImageObjects]
    """By image id."""


class Hallucination:
    """CHAIR and the recall of objects, as a metric for `ngsan.metrics.scores`."""

    names: tuple[str, ...] = ("CHAIR-i", "CHAIR-s", "object recall")
    """Names of the scores."""
    signature: Mapping[str, str] = MappingProxyType(
        {"there": "boxes-and-references", "kinds": str(len(CLASSES))}
    )
    """What counts as being there, and how many kinds are known."""

    def __init__(self, objects: Mapping[str, Sequence[str]]) -> None:
        """Checks the objects.

        Args:
            objects: COCO's classes of the boxes of each image by id; an image without boxes may be
                missing.
        """
        for image, names in objects.items():
            if isinstance(names, str):
                raise ValueError(f"the objects of image {image!r} are one string; pass a list")
            if unknown := set(names) - set(CLASSES):
                raise ValueError(
                    f"image {image!r} has an object {min(unknown)!r}, which is not one of COCO's "
                    f"{len(CLASSES)} classes ({CLASSES[0]} to {CLASSES[-1]})"
                )
        self.objects = objects

    def find(self, captions: TokenizedCaptions) -> dict[str, ImageObjects]:
        """The objects of each image's caption, by id."""
        found = {}
        for image, words, references in zip(
            captions.ids, captions.hypotheses, captions.references, strict=True
        ):
            referred = frozenset(name for each in references for name in _named(each))
            there = referred.union(self.objects.get(image, ()))
            named = tuple(_named(words))
            wrong = tuple(name for name in named if name not in there)
            found[image] = ImageObjects(named, wrong, referred)
        return found

    def statistics(self, captions: TokenizedCaptions) -> Floats:
        """Statistics (images, 6), a numerator and a denominator for each score.

        Objects hallucinated and named; 1 if any is hallucinated, and 1; kinds of the references
        that the caption names, and all of them.
        """
        rows = [
            (
                len(image.hallucinated),
                len(image.named),
                bool(image.hallucinated),
                1,
                len(image.referred.intersection(image.named)),
                len(image.referred),
            )
            for image in self.find(captions).values()
        ]
        return np.array(rows, np.float64)

    def score(self, totals: Floats) -> Floats:
        """The scores (..., 3), from 0 to 1, of sums of statistics (..., 6)."""
        above, below = totals[..., ::2], totals[..., 1::2]
        return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def chair(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    objects: Mapping[str, Sequence[str]],
) -> Chair:
    """Computes CHAIR of captions as raw text.

    Args:
        captions: The caption of each image by id.
        references: Reference captions of the same images.
        objects: COCO's classes of the boxes of each image; an image without boxes may be missing.

    Raises:
        ValueError: Captions and references do not match, or a class is not one of COCO's 80.
    """
    metric = Hallucination(objects)
    tokenized = TokenizedCaptions.tokenize(captions, references)
    chair_i, chair_s, recall = 100 * metric.score(metric.statistics(tokenized).sum(0))
    return Chair(float(chair_i), float(chair_s), float(recall), metric.find(tokenized))


def _named(words: Iterable[str]) -> list[str]:
    return [mention.name for mention in find_objects(words)]
