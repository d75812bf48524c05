"""The captioner: an export, its words and a search put together.

Shapes: `B` images, `N` regions.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.config import DecodingConfig
from ngsan.light.caption import Caption
from ngsan.light.constraints import Constraints
from ngsan.light.model import LightModel
from ngsan.light.search import Beam, Search, Steps
from ngsan.light.walks import Greedy, Sampling
from ngsan.text.vocabulary import Vocabulary

_DEFAULT = DecodingConfig()


class LightCaptioner:
    """Writes captions with an exported model. Several threads may call it."""

    def __init__(self, model: LightModel) -> None:
        """Takes the model."""
        self.model = model
        self.vocabulary = model.vocabulary

    @classmethod
    def open(cls, folder: str | Path, *, threads: int | None = None) -> "LightCaptioner":
        """Opens an export or a packed model.

        Args:
            folder: What `ngsan export` or `ngsan pack` wrote.
            threads: Threads of ONNX Runtime; None for one a core.

        Raises:
            ValueError: Something is missing or damaged, or ONNX Runtime cannot open it.
        """
        return cls(LightModel(folder, threads=threads))

    def caption(
        self,
        features: NDArray[Any],
        boxes: NDArray[Any] | None = None,
        mask: NDArray[Any] | None = None,
        *,
        decoding: DecodingConfig = _DEFAULT,
        attention: bool = False,
        first: int = 0,
    ) -> list[list[Caption]]:
        """Writes the captions of a batch of images.

        Args:
            features: (B, N, feature_dim); of a model of pixels, what `LightModel.describe` makes.
            boxes: (B, N, 4) `cxcywh`, or None for models without geometry.
            mask: (B, N) boolean, True = a real region, or None.
            decoding: How; without groups and required words.
            attention: Whether captions carry the attention of their words.
            first: Number of the first image, of which sampled words depend rather than of its
                place in the batch.

        Returns:
            For each image its captions, the best first or in the order of sampling; fewer than
            asked for where constraints have left no more, but at least one.

        Raises:
            ValueError: The arrays do not fit the model or each other, `decoding` asks for what
                only the search with torch can do or for words that the model does not have, or an
                image has no caption that meets the constraints.
        """
        features = np.asarray(features)
        boxes = None if boxes is None else np.asarray(boxes)
        mask = None if mask is None else np.asarray(mask)
        encoded = self.model.encode(features, boxes, mask)
        steps = self.model.steps(encoded)
        written = build_search(steps, decoding, self.vocabulary, first=first).run()
        written.check()
        maps = None
        if attention and encoded.images:
            maps = self.model.attention(written.words, encoded)
        return written.captions(self.vocabulary, maps)


def build_search(
    steps: Steps, decoding: DecodingConfig, vocabulary: Vocabulary, *, first: int = 0
) -> Search:
    """Turns a configuration into a search.

    Args:
        steps: The model with its images.
        decoding: How captions are to be written.
        vocabulary: The model's words.
        first: Number of the first image, for sampling.

    Raises:
        ValueError: A word is not in the vocabulary, the constraints cannot be met, or only the
            search with torch can do this.
    """
    constraints, longest = Constraints.of(decoding, vocabulary), decoding.longest
    if decoding.method == "greedy":
        return Greedy(steps, longest=longest, constraints=constraints)
    if decoding.method == "sample":
        return Sampling(
            steps,
            samples=decoding.samples,
            temperature=decoding.temperature,
            top_k=decoding.top_k,
            top_p=decoding.top_p,
            seed=decoding.seed,
            first=first,
            longest=longest,
            constraints=constraints,
        )
    if decoding.groups > 1:
        raise ValueError(
            f"groups: {decoding.groups} are not known to the search without torch; "
            "use the torch search (ngsan.predict)"
        )
    return Beam(
        steps,
        beam=decoding.beam,
        best=decoding.best,
        length_penalty=decoding.length_penalty,
        early_stopping=decoding.early_stopping,
        longest=longest,
        constraints=constraints,
    )
