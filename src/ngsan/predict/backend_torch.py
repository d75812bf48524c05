"""Captioning with PyTorch: one model, or several that vote on every word.

Shapes: `B` images, `N` regions, `M` captions of an image, `T` words.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ngsan.config import CaptionerConfig, DecodingConfig
from ngsan.models.captioner import CaptionerModel, PhotoEncoder
from ngsan.models.checkpoint import load_model
from ngsan.models.steps import CaptionerSteps
from ngsan.nn.attend import AttentionMaps
from ngsan.nn.geometry import check_boxes
from ngsan.nn.masks import check_mask
from ngsan.search import Ensemble, Sampling, Search, Written, build_search
from ngsan.search.sentences import score_sentences
from ngsan.text.vocabulary import BOUNDARY, Vocabulary
from ngsan.threads import check_threads, limit_torch_threads
from ngsan.vision.detector import load_detector
from ngsan.vision.regions import DetectedBoxes, first_boxes

_DEFAULT = DecodingConfig()

_KEPT = 4
"""Searches that are kept for the next batch of the same shapes."""


class TorchBackend:
    """Captioners on PyTorch; see `ngsan.predict.captioner.Backend`. Threads take turns."""

    def __init__(
        self,
        models: CaptionerModel | Sequence[CaptionerModel],
        vocabulary: Vocabulary,
        config: CaptionerConfig | None = None,
    ) -> None:
        """Checks that the models belong together.

        Args:
            models: A model, on the device where it runs, or several: their word probabilities are
                averaged. Their weights may change later, their modules may not.
            vocabulary: Their words.
            config: What the (first) model was built from, if known.
        """
        models = list(models) if isinstance(models, Sequence) else [models]
        if not models:
            raise ValueError("there must be at least one model")
        for model in models:
            size = model.decoder.embed.num_embeddings
            if size != len(vocabulary):
                raise ValueError(
                    f"the model has {size} word ids and the vocabulary {len(vocabulary)}: they do "
                    "not match"
                )
        encoder = models[0].encoder
        self.image_size = encoder.size if isinstance(encoder, PhotoEncoder) else None
        self.models, self.vocabulary, self.config = models, vocabulary, config
        self._modules = [list(model.modules()) for model in models]
        on_gpu = self.device.type == "cuda"
        self.batch_size = 64 if on_gpu else 8
        self.first_batch = 64 if on_gpu else 1  # on a GPU, every batch size is captured anew
        self._ready: dict[Any, tuple[list[CaptionerSteps], Search]] = {}
        self._latest: list[CaptionerSteps] = []
        self._turn = RLock()
        self._finder: DetectedBoxes | None = None

    @classmethod
    def open(
        cls,
        *folders: str | Path,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
        threads: int | None = None,
    ) -> "TorchBackend":
        """Loads a model, or several of one vocabulary.

        Args:
            *folders: Folders that `ngsan train` or `ngsan pack` wrote.
            device: Such as "cuda", or "auto" for a GPU if there is one.
            dtype: Precision of the weights; None for the saved one.
            threads: Number of CPU threads of the process; None chooses by the size of the model.

        Raises:
            ValueError: A folder holds no captioner, the models do not match, or the
                device cannot be used.
        """
        place = best_device(device)
        found = [load_model(folder, "captioning") for folder in folders]
        models, configs, companions = zip(*found, strict=True)
        vocabularies = [part["vocabulary"] for part in companions]
        for folder, vocabulary in zip(folders, vocabularies, strict=True):
            vocabularies[0].require_same(vocabulary, str(folder))
        if threads is not None:
            check_threads(threads)
            torch.set_num_threads(threads)
        else:
            limit_torch_threads(sum(p.numel() for model in models for p in model.parameters()))
        return cls([model.to(place, dtype) for model in models], vocabularies[0], configs[0])

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return self.models[0].decoder.embed.weight.device

    @property
    def region_multiple(self) -> int:
        """Regions are padded to a multiple of this, so that few shapes are captured on a GPU."""
        on_gpu = self.device.type == "cuda"
        return 8 if on_gpu and any(model.encoder.takes_regions for model in self.models) else 1

    def search_images(
        self,
        views: Sequence[NDArray[np.uint8]],
        *,
        decoding: DecodingConfig,
        attention: bool,
        first: int,
        evidence: NDArray[np.float32] | None = None,
    ) -> tuple[Written, NDArray[np.float32] | None]:
        """See `ngsan.predict.captioner.Backend`."""
        return self._found([*map(self._seen, views)], decoding, attention, first, evidence)

    def _seen(self, images: NDArray[np.uint8]) -> "_Regions":
        """Images as the inputs of a model of photographs; a `ValueError` for one of regions."""
        if self.image_size is None:
            raise ValueError("this model needs regions: pass features and boxes, not images")
        pixels = torch.from_numpy(np.ascontiguousarray(images)).to(self.device)
        boxes = self._object_boxes(images)
        return _Regions.of(pixels.permute(0, 3, 1, 2).contiguous(), boxes, None)

    def _object_boxes(self, images: NDArray[np.uint8]) -> NDArray[np.float32] | None:
        """The boxes of detected regions (B, R, 4), if the model has such; see `first_boxes`."""
        encoder = self.models[0].encoder
        if not (isinstance(encoder, PhotoEncoder) and encoder.objects):
            return None
        count = encoder.objects
        with self._turn:
            if self._finder is None:
                self._finder = DetectedBoxes(
                    load_detector(threads=torch.get_num_threads()),
                    "shipped",
                    min_regions=count,
                    max_regions=count,
                )
        found = [self._finder(Image.fromarray(image), "") for image in images]
        return first_boxes(found, count)

    def score_regions(
        self, features: Any, boxes: Any | None, mask: Any | None, words: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """See `ngsan.predict.captioner.Backend`."""
        return self._score(_Regions.of(features, boxes, mask), words)

    def score_images(
        self, images: NDArray[np.uint8], words: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """See `ngsan.predict.captioner.Backend`."""
        return self._score(self._seen(images), words)

    @torch.inference_mode()
    def _score(self, given: "_Regions", words: NDArray[np.int64]) -> NDArray[np.float64]:
        regions = given.checked().padded(self.region_multiple)
        with self._turn, self._eval_mode():
            steps = [CaptionerSteps(model, *regions) for model in self.models]
            return score_sentences(steps[0] if len(steps) == 1 else Ensemble(steps), words)

    def search_regions(
        self,
        features: Any,
        boxes: Any | None,
        mask: Any | None,
        *,
        decoding: DecodingConfig = _DEFAULT,
        attention: bool = False,
        first: int = 0,
    ) -> tuple[Written, NDArray[np.float32] | None]:
        """See `ngsan.predict.captioner.Backend`; of a model of photographs, features are pixels."""
        given = _Regions.of(features, boxes, mask)
        return self._found([given], decoding, attention, first, None)

    @torch.inference_mode()
    def _found(
        self,
        views: "Sequence[_Regions]",
        decoding: DecodingConfig,
        attention: bool,
        first: int,
        evidence: NDArray[np.float32] | None,
    ) -> tuple[Written, NDArray[np.float32] | None]:
        """Captions of one view of each image, or of several that vote, with attention."""
        with self._turn, self._eval_mode():
            found = self._search(views, decoding, first, evidence)
            written = found.to("cpu").check()
            maps = None
            if attention:  # to the first view
                each = [
                    _attention(model, found.words, steps).cpu()
                    for model, steps in zip(self.models, self._latest, strict=False)
                ]
                maps = torch.stack(each).mean(0).numpy()
                if (features := views[0].features).ndim == 3:  # some regions may be padding of ours
                    maps = maps[..., : features.shape[1]]
        arrays = written.words, written.word_log_probs, written.scores
        return Written.of(*(array.numpy() for array in arrays)), maps

    def search(
        self,
        features: Tensor | NDArray[Any],
        boxes: Tensor | NDArray[Any] | None = None,
        mask: Tensor | NDArray[Any] | None = None,
        *,
        decoding: DecodingConfig = _DEFAULT,
        first: int = 0,
    ) -> Written:
        """Like `search_regions`, but keeps the result on the device and does not check it."""
        return self._search([_Regions.of(features, boxes, mask)], decoding, first, None)

    @torch.inference_mode()
    def _search(
        self,
        views: "Sequence[_Regions]",
        decoding: DecodingConfig,
        first: int,
        evidence: NDArray[np.float32] | None,
    ) -> Written:
        views = [regions.checked().padded(self.region_multiple) for regions in views]
        with self._turn, self._eval_mode():
            search = self._prepare(views, decoding, evidence)
            if isinstance(search, Sampling):
                search.reseed(decoding.seed, torch.arange(first, first + len(views[0].features)))
            return search.run()

    def _prepare(
        self,
        views: "Sequence[_Regions]",
        decoding: DecodingConfig,
        evidence: NDArray[np.float32] | None,
    ) -> Search:
        """A search over the images; one of the last few is used again if the shapes are the same.

        So a step that was captured for a GPU serves all batches.
        """
        states = tuple(_state(*pair) for pair in zip(self.models, self._modules, strict=True))
        # A search can be seeded again, so the seed does not count.
        seedless = tuple(value for name, value in vars(decoding).items() if name != "seed")
        shapes = tuple(
            None if part is None else part.shape for regions in views for part in regions
        )
        key = (shapes, seedless, states, evidence is None)
        pairs = [(model, regions) for regions in views for model in self.models]
        if key in self._ready:
            steps, search = self._ready.pop(key)
            for old, (_, regions) in zip(steps, pairs, strict=True):
                old.load(*regions)
            if evidence is not None:
                search.see(evidence)
        else:
            while len(self._ready) >= _KEPT:
                del self._ready[next(iter(self._ready))]
            steps = [CaptionerSteps(model, *regions) for model, regions in pairs]
            whole = steps[0] if len(steps) == 1 else Ensemble(steps)
            search = build_search(whole, decoding, self.vocabulary, evidence=evidence)
        self._ready[key] = steps, search
        self._latest = steps
        return search

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        """Switches dropout off; afterwards each module is in the mode in which it was."""
        with ExitStack() as stack:
            for module in chain.from_iterable(self._modules):
                if module.training:
                    module.training = False
                    stack.callback(setattr, module, "training", True)
            yield


class _Regions(NamedTuple):
    """Inputs of the models."""

    features: Tensor
    boxes: Tensor | None
    mask: Tensor | None

    @classmethod
    def of(cls, features: Any, boxes: Any | None, mask: Any | None) -> "_Regions":
        """Arrays or tensors as tensors."""
        return cls(
            torch.as_tensor(features),
            None if boxes is None else torch.as_tensor(boxes),
            None if mask is None else torch.as_tensor(mask),
        )

    def checked(self) -> "_Regions":
        """Itself; a `ValueError` for a mask or boxes that do not fit."""
        check_mask(self.mask, self.features)
        if self.boxes is not None:
            check_boxes(self.boxes, self.mask)
        return self

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


def _state(model: CaptionerModel, modules: list[torch.nn.Module]) -> Hashable:
    """Changes when a search cannot be used again: weights of another type, or moved on a GPU."""
    weight = model.decoder.embed.weight
    if not weight.is_cuda:
        return weight.device, weight.dtype
    # Captured work reads them there. (Their methods would take as long as some words.)
    held = chain.from_iterable(
        chain(part._parameters.values(), part._buffers.values()) for part in modules
    )
    places = tuple(tensor.data_ptr() for tensor in held if tensor is not None)
    return weight.device, weight.dtype, places


def _attention(model: CaptionerModel, words: Tensor, steps: CaptionerSteps) -> Tensor:
    """(B, M, T, N) attention of given words, (B, M, T), over the regions, in the last layer."""
    maps: list[AttentionMaps] = []
    given = torch.cat((torch.full_like(words[..., :1], BOUNDARY), words[..., :-1]), -1)
    with torch.autocast(steps.device.type, enabled=False):
        model.decode(given, steps.encode(), steps.mask, record=maps)
    mean = maps[-1].weights.float().mean(1)  # (B, M T, N)
    return mean.reshape(*words.shape, mean.shape[-1])


def best_device(name: str = "auto") -> torch.device:
    """The device of a name; "auto" is a GPU if there is one.

    Raises:
        ValueError: This machine has no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device: {name!r} cannot be used: {reason}") from error
    return device
