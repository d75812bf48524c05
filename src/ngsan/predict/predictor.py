"""The predictor: models, vocabulary and searches put together.

Shapes: `B` images, `N` regions, `M` captions an image, `T` words.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ngsan.config import DecodingConfig
from ngsan.decoding import Ensemble, Sampling, Search, Written
from ngsan.light.caption import Caption
from ngsan.models.captioner import Captioner
from ngsan.nn.geometry import check_boxes
from ngsan.nn.masks import check_mask
from ngsan.predict.models import RegionModel, TorchModel
from ngsan.predict.searches import build_search
from ngsan.text.vocabulary import Vocabulary

_DEFAULT = DecodingConfig()
_KEPT = 4


class Predictor:
    """Writes captions with one model, or with several that vote on every word.

    Several threads may call it; they take turns.
    """

    def __init__(
        self,
        models: Captioner | RegionModel | Sequence[Captioner | RegionModel],
        vocabulary: Vocabulary,
    ) -> None:
        """Takes the models.

        Args:
            models: A captioner, or several of one vocabulary: their word probabilities are
                averaged.
            vocabulary: Their words.
        """
        several = list(models) if isinstance(models, Sequence) else [models]
        if not several:
            raise ValueError("there must be at least one model")
        self.models: list[RegionModel] = [
            TorchModel(model) if isinstance(model, Captioner) else model for model in several
        ]
        self.vocabulary = vocabulary
        for model in self.models:
            if model.vocab_size != len(vocabulary):
                raise ValueError(
                    f"the model has {model.vocab_size} word ids and the vocabulary "
                    f"{len(vocabulary)}: they do not belong together"
                )
        self._ready: dict[Any, tuple[list[Any], Search]] = {}
        self._latest: list[Any] = []
        self._turn = RLock()

    @torch.inference_mode()
    def caption(
        self,
        features: Tensor | NDArray[Any],
        boxes: Tensor | NDArray[Any] | None = None,
        mask: Tensor | NDArray[Any] | None = None,
        *,
        decoding: DecodingConfig = _DEFAULT,
        attention: bool = False,
        first: int = 0,
    ) -> list[list[Caption]]:
        """Writes the captions of a batch of images.

        Args:
            features: (B, N, feature_dim), a tensor or an array, as are the others.
            boxes: (B, N, 4) `cxcywh`, or None for models without geometry.
            mask: (B, N) boolean, True = a real region, or None.
            decoding: How.
            attention: Whether captions carry the attention of their words.
            first: Number of the first image, of which sampled words depend rather than of its
                place in the batch.

        Returns:
            For each image its captions, the best first or in the order of sampling; fewer than
            asked for where constraints have left no more, but at least one.
        """
        with self._turn, self._at_rest():
            found = self.search(features, boxes, mask, decoding=decoding, first=first)
            written = found.to("cpu").check()
            maps = None
            if attention:
                pairs = zip(self.models, self._latest, strict=True)
                each = [model.attention(found.words, steps).cpu() for model, steps in pairs]
                maps = torch.stack(each).mean(0).numpy()
                if features.ndim == 3:  # regions, and not pixels: without those that were padded
                    maps = maps[..., : features.shape[1]]
        return self._captions(written, maps)

    @torch.inference_mode()
    def search(
        self,
        features: Tensor | NDArray[Any],
        boxes: Tensor | NDArray[Any] | None = None,
        mask: Tensor | NDArray[Any] | None = None,
        *,
        decoding: DecodingConfig = _DEFAULT,
        first: int = 0,
    ) -> Written:
        """Like `caption`, but leaves the result on the device, and impossible captions in it."""
        regions = _Regions.of(features, boxes, mask)
        check_mask(regions.mask, regions.features)
        if regions.boxes is not None:
            check_boxes(regions.boxes, regions.mask)
        regions = regions.padded(max(model.multiple for model in self.models))
        with self._turn, self._at_rest():
            search = self._prepare(regions, decoding)
            if isinstance(search, Sampling):
                search.reseed(decoding.seed, torch.arange(first, first + len(features)))
            return search.run()

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        with ExitStack() as stack:
            for model in self.models:
                stack.enter_context(model.at_rest())
            yield

    def _prepare(self, regions: "_Regions", decoding: DecodingConfig) -> Search:
        """A search over the images; one of the last few is used again if the shapes are the same.

        So a step that was captured for a GPU serves all batches.
        """
        states = tuple(model.state for model in self.models)
        # A search can be seeded again, so the seed does not count.
        seedless = tuple(value for name, value in vars(decoding).items() if name != "seed")
        key = (*(None if part is None else part.shape for part in regions), seedless, states)
        if key in self._ready:
            steps, search = self._ready.pop(key)
            for model, old in zip(self.models, steps, strict=True):
                model.reload(old, *regions)
        else:
            while len(self._ready) >= _KEPT:
                del self._ready[next(iter(self._ready))]
            steps = [model.steps(*regions) for model in self.models]
            whole = steps[0] if len(steps) == 1 else Ensemble(steps)
            search = build_search(whole, decoding, self.vocabulary)
        self._ready[key] = steps, search
        self._latest = steps
        return search

    def _captions(self, written: Written, maps: NDArray[np.float32] | None) -> list[list[Caption]]:
        words, lengths = written.words.tolist(), written.lengths.tolist()
        word_log_probs, ended = written.word_log_probs.tolist(), written.ended.tolist()
        log_probs, scores = written.log_probs.tolist(), written.scores.tolist()
        captions: list[list[Caption]] = []
        for image in range(len(words)):
            captions.append([])
            for rank, score in enumerate(scores[image]):
                if score == -float("inf"):
                    continue  # fewer captions than asked for meet the constraints
                length = lengths[image][rank]
                ids = words[image][rank][:length]
                captions[-1].append(
                    Caption(
                        text=" ".join(self.vocabulary.decode(ids)),
                        words=tuple(ids),
                        log_probability=log_probs[image][rank],
                        word_log_probabilities=tuple(
                            word_log_probs[image][rank][: length + ended[image][rank]]
                        ),
                        score=score,
                        attention=None if maps is None else maps[image, rank, :length],
                    )
                )
        return captions


class _Regions(NamedTuple):
    """What the models are given."""

    features: Tensor
    boxes: Tensor | None
    mask: Tensor | None

    @classmethod
    def of(
        cls,
        features: Tensor | NDArray[Any],
        boxes: Tensor | NDArray[Any] | None,
        mask: Tensor | NDArray[Any] | None,
    ) -> "_Regions":
        """Makes tensors of arrays."""
        return cls(
            torch.as_tensor(features),
            None if boxes is None else torch.as_tensor(boxes),
            None if mask is None else torch.as_tensor(mask),
        )

    def padded(self, multiple: int) -> "_Regions":
        """With padding up to a multiple of regions; it changes nothing but the shape."""
        features, boxes, mask = self
        more = -features.shape[1] % multiple
        if not more:
            return self
        if mask is None:
            mask = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
        return _Regions(
            F.pad(features, (0, 0, 0, more)),
            None if boxes is None else F.pad(boxes, (0, 0, 0, more)),
            F.pad(mask, (0, more)),
        )


def caption_regions(
    captioner: Captioner,
    vocabulary: Vocabulary,
    features: Tensor,
    boxes: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    decoding: DecodingConfig = _DEFAULT,
) -> list[str]:
    """The best caption of each image; see `Predictor.caption`."""
    predictor = Predictor(captioner, vocabulary)
    captions = predictor.caption(features, boxes, mask, decoding=decoding)
    return [best.text for best, *_ in captions]
