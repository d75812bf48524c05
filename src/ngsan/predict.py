"""From regions to captions: the whole face of a trained model.

Shapes: `B` images, `N` regions, `M` captions an image, `T` words.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ngsan.config import DecodingConfig
from ngsan.decoding import Beam, Constraints, Ensemble, Greedy, Sampling, Search, StepModel, Written
from ngsan.models.captioner import Captioner
from ngsan.models.steps import CaptionerSteps
from ngsan.nn.attend import AttentionMaps
from ngsan.nn.geometry import check_boxes
from ngsan.nn.masks import check_mask
from ngsan.text.endings import BAD_ENDINGS
from ngsan.text.vocabulary import BOUNDARY, UNKNOWN, Vocabulary

_DEFAULT = DecodingConfig()
_KEPT = 4


@dataclass(frozen=True)
class Caption:
    """A caption and what the model thinks of it."""

    text: str
    """The words with spaces between them."""

    words: tuple[int, ...]
    """Their ids."""

    log_probability: float
    """The model's, of the words and the end."""

    word_log_probabilities: tuple[float, ...]
    """Of each word, and at last of the end; a caption that was cut off has none of its end."""

    score: float
    """What it was ranked by."""

    attention: NDArray[np.float32] | None = None
    """(words, N) how much of each word's attention in the decoder's last layer, the mean of its
    heads, fell on each region; the rows of padding sum to nothing. None unless asked for."""


class RegionModel(Protocol):
    """A captioner as prediction sees it: PyTorch's, or one that has been exported."""

    vocab_size: int

    @property
    def state(self) -> Hashable:
        """Changes when images must be made ready anew rather than reloaded."""

    def steps(self, features: Tensor, boxes: Tensor | None, mask: Tensor | None) -> StepModel:
        """The images made ready for a search."""

    def reload(
        self, steps: Any, features: Tensor, boxes: Tensor | None, mask: Tensor | None
    ) -> None:
        """Puts other images of the same shapes in the place of those that `steps` made ready."""

    def attention(self, words: Tensor, steps: Any) -> Tensor:
        """(B, M, T, N) attention of given words, (B, M, T), over the regions."""


class TorchModel:
    """A `Captioner` for prediction."""

    def __init__(self, captioner: Captioner) -> None:
        """Takes the model; it is put in evaluation mode."""
        self.captioner = captioner.eval()
        self.vocab_size = captioner.decoder.embed.num_embeddings

    @property
    def state(self) -> Hashable:
        """See `RegionModel.state`: weights that have moved, or are of another type."""
        weight = self.captioner.encoder.embed.weight
        return weight.device, weight.dtype, weight.data_ptr()

    def steps(self, features: Tensor, boxes: Tensor | None, mask: Tensor | None) -> CaptionerSteps:
        """See `RegionModel.steps`."""
        self._settle()
        return CaptionerSteps(self.captioner, features, boxes, mask)

    def reload(
        self, steps: CaptionerSteps, features: Tensor, boxes: Tensor | None, mask: Tensor | None
    ) -> None:
        """See `RegionModel.reload`."""
        self._settle()
        steps.load(features, boxes, mask)

    def attention(self, words: Tensor, steps: CaptionerSteps) -> Tensor:
        """See `RegionModel.attention`."""
        maps: list[AttentionMaps] = []
        given = torch.cat((torch.full_like(words[..., :1], BOUNDARY), words[..., :-1]), -1)
        self.captioner.decode(given, steps.encode(), steps.mask, record=maps)
        mean = maps[-1].weights.float().mean(1)  # (B, M T, N)
        return mean.reshape(*words.shape, mean.shape[-1])

    def _settle(self) -> None:
        if self.captioner.training:  # it has been trained since the last captions
            self.captioner.eval()


class Predictor:
    """Writes captions with one model, or with several that vote on every word."""

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

    @torch.inference_mode()
    def caption(
        self,
        features: Tensor,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        decoding: DecodingConfig = _DEFAULT,
        attention: bool = False,
        first: int = 0,
    ) -> list[list[Caption]]:
        """Writes the captions of a batch of images.

        Args:
            features: (B, N, feature_dim).
            boxes: (B, N, 4) `cxcywh`, or None for models without geometry.
            mask: (B, N) boolean, True = a real region, or None.
            decoding: How.
            attention: Whether captions carry the attention of their words.
            first: Number of the first image, of which sampled words depend rather than of its
                place in the batch.

        Returns:
            For each image its captions, the best first.
        """
        found = self.search(features, boxes, mask, decoding=decoding, first=first)
        written = found.to("cpu").check()
        maps = None
        if attention:
            pairs = zip(self.models, self._latest, strict=True)
            each = [model.attention(found.words, steps).cpu() for model, steps in pairs]
            maps = torch.stack(each).mean(0).numpy()
        return self._captions(written, maps)

    @torch.inference_mode()
    def search(
        self,
        features: Tensor,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        decoding: DecodingConfig = _DEFAULT,
        first: int = 0,
    ) -> Written:
        """Like `caption`, but leaves the result on the device, and impossible captions in it."""
        check_mask(mask, features)
        if boxes is not None:
            check_boxes(boxes, mask)
        search = self._prepare(features, boxes, mask, decoding)
        if isinstance(search, Sampling):
            keys = torch.arange(first, first + len(features))
            search.reseed(decoding.seed, keys)
        return search.run()

    def _prepare(
        self,
        features: Tensor,
        boxes: Tensor | None,
        mask: Tensor | None,
        decoding: DecodingConfig,
    ) -> Search:
        """A search over the images; one of the last few is used again if the shapes are the same.

        So a step that was captured for a GPU serves all batches.
        """
        states = tuple(model.state for model in self.models)
        key = (features.shape, boxes is None, mask is None, decoding, states)
        if key in self._ready:
            steps, search = self._ready.pop(key)
            for model, old in zip(self.models, steps, strict=True):
                model.reload(old, features, boxes, mask)
        else:
            steps = [model.steps(features, boxes, mask) for model in self.models]
            whole = steps[0] if len(steps) == 1 else Ensemble(steps)
            search = build_search(whole, decoding, self.vocabulary)
            while len(self._ready) >= _KEPT:
                del self._ready[next(iter(self._ready))]
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


def build_search(model: StepModel, decoding: DecodingConfig, vocabulary: Vocabulary) -> Search:
    """Turns a configuration into a search.

    Args:
        model: The model with its images.
        decoding: How captions are to be written.
        vocabulary: The model's words.

    Raises:
        ValueError: A word is not in the vocabulary, or the constraints cannot be met.
    """
    shared: dict[str, Any] = {
        "longest": decoding.longest,
        "boundary": BOUNDARY,
        "constraints": constraints_of(decoding, vocabulary),
    }
    if decoding.method == "greedy":
        return Greedy(model, **shared)
    if decoding.method == "sample":
        return Sampling(
            model,
            samples=decoding.samples,
            temperature=decoding.temperature,
            top_k=decoding.top_k,
            top_p=decoding.top_p,
            seed=decoding.seed,
            **shared,
        )
    return Beam(
        model,
        beam=decoding.beam,
        best=decoding.best,
        length_penalty=decoding.length_penalty,
        early_stopping=decoding.early_stopping,
        groups=decoding.groups,
        diversity=decoding.diversity,
        **shared,
    )


def constraints_of(decoding: DecodingConfig, vocabulary: Vocabulary) -> Constraints:
    """The conditions of a configuration, in word ids.

    Raises:
        ValueError: A word is not in the vocabulary; names it and the key.
    """

    def ids(key: str, text: str) -> list[int]:
        words = text.split()
        for word in words:
            if word not in vocabulary:
                raise ValueError(f"{key}: {word!r} is not a word of the model")
            if word == UNKNOWN and key != "forbid" and not decoding.unknown:
                raise ValueError(f"{key}: {word!r} may not be written unless unknown is true")
        return vocabulary.encode(words)

    both = set(decoding.forbid.split()) & set(decoding.require.split())
    if both:
        raise ValueError(f"{min(both)!r} is in both forbid and require")
    unknown = [] if decoding.unknown or UNKNOWN not in vocabulary else [UNKNOWN]
    endings = [word for word in sorted(BAD_ENDINGS) if word in vocabulary]
    return Constraints(
        fewest=decoding.fewest,
        forbidden=[*vocabulary.encode(unknown), *ids("forbid", decoding.forbid)],
        required=ids("require", decoding.require),
        prefix=ids("prefix", decoding.prefix),
        bad_endings=vocabulary.encode(endings) if decoding.no_bad_ending else [],
        no_repeat=decoding.no_repeat,
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
