"""Compares an export with the model that it was made from.

Shapes: `B` images, `N` regions, `W` captions of an image, `T` words.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ngsan.config import CaptionerConfig, TranslationDecodingConfig
from ngsan.models.answerer import AnswererModel
from ngsan.models.captioner import CaptionerModel
from ngsan.models.steps import CaptionerSteps
from ngsan.models.translator import TranslatorModel
from ngsan.predict.answerer import OnnxAnswerer, TorchAnswerer
from ngsan.predict.backend_onnx import OnnxBackend
from ngsan.predict.captioner import Caption, Captioner
from ngsan.predict.translator import OnnxTranslator, TorchTranslator, Translator
from ngsan.text.vocabulary import BOUNDARY

TOLERANCE = 1e-3
"""Largest difference of logits, as a share of the largest logit if that is above 1."""

TIE = 1e-3
"""Largest difference of scores of two texts that rank equal, so that rounding may choose."""

ROUGH = 0.2
"""The same for logits in 8 bits."""

Inputs = tuple[Tensor, Tensor | None, Tensor | None]
"""Features, boxes and mask; or images (B, 3, S, S) alone."""


def check_export(
    folder: str | Path, model: nn.Module, *, tolerance: float | None = None
) -> tuple[float, int, int]:
    """Compares an export with its model on random inputs.

    Args:
        folder: The export.
        model: The captioner, translator or answerer, in single precision.
        tolerance: Largest difference of logits, as a share of the largest logit; None for
            `TOLERANCE`, and then the texts must be the same, too.

    Returns:
        difference: The largest difference of logits.
        texts: The number of captions by beam search, of translations, or of best answers.
        same: How many of them are the same.

    Raises:
        ValueError: The two do not agree.
    """
    check = _Check(tolerance)
    if isinstance(model, CaptionerModel):
        _check_captioner(Path(folder), model, check)
    elif isinstance(model, TranslatorModel):
        _check_translator(Path(folder), model, check)
    else:
        assert isinstance(model, AnswererModel)
        _check_answerer(Path(folder), model, check)
    return check.difference, check.texts, check.same


class _Check:
    """Collects differences between two runs of a model."""

    def __init__(self, tolerance: float | None) -> None:
        self.difference, self.texts, self.same = 0.0, 0, 0
        self._tolerance, self._largest = tolerance, 1.0

    def logits(self, expected: Tensor, found: Tensor) -> None:
        """Compares logits; raises a `ValueError` where they differ by too much."""
        self.difference = max(self.difference, (expected - found).abs().max().item())
        self._largest = max(self._largest, expected.abs().max().item())
        share = TOLERANCE if self._tolerance is None else self._tolerance
        if not self.difference <= share * self._largest:
            raise ValueError(
                f"the exported model does not agree with PyTorch: logits of up to "
                f"{self._largest:.3g} differ by {self.difference:.3g}"
            )

    def text(self, expected: tuple[Any, str, float], found: tuple[Any, str, float]) -> None:
        """Compares ids, text and score; other ids must rank equal unless logits are rough."""
        self.texts += 1
        self.same += expected[0] == found[0]
        close = abs(expected[2] - found[2]) <= TIE
        if self._tolerance is None and expected[0] != found[0] and not close:
            raise ValueError(
                f"the exported model does not agree with PyTorch: it writes {found[1]!r} "
                f"({found[2]:.4f}) instead of {expected[1]!r} ({expected[2]:.4f})"
            )


def _check_captioner(folder: Path, model: CaptionerModel, check: _Check) -> None:
    exported = OnnxBackend(folder)
    captioners = Captioner.from_model(model, exported.vocabulary), Captioner(exported)
    for inputs in _random_batches(exported.config):
        logits = torch_logits(model, inputs), onnx_logits(exported, inputs)
        check.logits(*map(torch.from_numpy, logits))
        for a, b in zip(*(_captions(one, inputs) for one in captioners), strict=True):
            check.text((a.ids, a.text, a.score), (b.ids, b.text, b.score))


def _captions(captioner: Captioner, inputs: Inputs) -> list[Caption]:
    if captioner.kind == "regions":
        return captioner.caption_regions(*inputs)
    pixels = inputs[0].permute(0, 2, 3, 1).contiguous().numpy()
    return captioner.caption_pixels(pixels, no_repeat_ngram=0, no_bad_ending=False)


def _check_translator(folder: Path, translator: TranslatorModel, check: _Check) -> None:
    exported = OnnxTranslator(folder)
    translators = [
        Translator(backend, exported.subwords)
        for backend in (TorchTranslator(translator), exported)
    ]
    generator = np.random.default_rng(0)
    sentences = [
        generator.integers(1, exported.vocab_size, length).tolist() for length in (1, 7, 3, 12, 20)
    ]
    decoding = TranslationDecodingConfig(max_length_ratio=1.0, max_length_extra=1)
    wanted, got = (one.translate_ids(sentences, decoding=decoding) for one in translators)
    for a, b in zip(wanted, got, strict=True):
        # Translations are scored word by word, so their scores stand for the logits.
        if a.pieces == b.pieces:
            check.logits(torch.tensor(a.log_probability), torch.tensor(b.log_probability))
        check.text((a.pieces, a.text, a.score), (b.pieces, b.text, b.score))


def _check_answerer(folder: Path, answerer: AnswererModel, check: _Check) -> None:
    exported = OnnxAnswerer(folder)
    config = exported.config
    ours = TorchAnswerer(answerer, config, exported.words, exported.answers)
    generator = np.random.default_rng(0)
    for questions, regions in ((3, 36), (1, 7)):
        words = generator.integers(1, config.vocab_size, (questions, config.max_length))
        words[0, min(3, config.max_length) :] = BOUNDARY
        shape = (questions, regions, config.feature_dim)
        features = np.maximum(generator.standard_normal(shape, np.float32), 0)
        boxes = 0.1 + 0.8 * generator.random((questions, regions, 4), np.float32)
        wanted, got = (model.score(words, features, boxes) for model in (ours, exported))
        for a, b in zip(wanted, got, strict=True):
            if a is not None and b is not None:
                check.logits(torch.from_numpy(a), torch.from_numpy(b))
        for a, b in zip(wanted.logits, got.logits, strict=True):
            best = (int(row.argmax()) for row in (a, b))
            check.text(*((place, exported.answers.words[place], float(a[place])) for place in best))


def _random_batches(config: CaptionerConfig) -> Iterator[Inputs]:
    """Five images in two batches, with features of regions or as they are."""
    generator = torch.Generator().manual_seed(0)
    for counts in ([36], [7, 3, 0, 1]):
        shape = (len(counts), max(counts))
        if config.backbone != "none":
            yield _random_images(len(counts), config.image_size, generator), None, None
            continue
        features = torch.randn(*shape, config.feature_dim, generator=generator).relu()
        boxes = 0.1 + 0.8 * torch.rand(*shape, 4, generator=generator)
        yield features, boxes, torch.arange(shape[1]) < torch.tensor(counts).unsqueeze(1)


def _random_images(count: int, size: int, generator: torch.Generator) -> Tensor:
    """(count, 3, size, size) bytes: noise at several scales, as there is in photographs."""
    image = torch.zeros(count, 3, size, size)
    for side in (2, 8, 32):
        noise = torch.rand(count, 3, side, side, generator=generator)
        image += torch.nn.functional.interpolate(noise, (size, size), mode="bilinear")
    return (image * (255 / 3)).to(torch.uint8)


@torch.inference_mode()
def torch_logits(
    model: CaptionerModel, inputs: Inputs, width: int = 3, max_length: int = 5
) -> np.ndarray[Any, Any]:
    """(T, B, W, V) logits along captions of random words with random parents."""
    steps, logits = CaptionerSteps(model, *inputs), list[Tensor]()
    steps.start(width, max_length)
    for words, parents in _random_walk(len(inputs[0]), steps.vocab_size, width, max_length):
        logits.append(steps.step(words, parents).clone())
    return torch.stack(logits).float().numpy()


def onnx_logits(
    model: OnnxBackend, inputs: Inputs, width: int = 3, max_length: int = 5
) -> np.ndarray[Any, Any]:
    """The same of an export."""
    features, boxes, mask = (None if part is None else part.numpy() for part in inputs)
    assert features is not None
    if model.image_size is not None:
        features, boxes = model.describe(np.ascontiguousarray(features.transpose(0, 2, 3, 1)))
    steps = model.steps(model.encode(features, boxes, mask))
    steps.start(width, max_length)
    walk = _random_walk(len(features), steps.vocab_size, width, max_length)
    return np.stack([steps.step(words.numpy(), parents.numpy()) for words, parents in walk])


def _random_walk(
    images: int, vocab_size: int, width: int, max_length: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Words, the boundary at first, and the captions that they continue, (B, W) each."""
    generator = torch.Generator().manual_seed(0)
    shape = (images, width)
    words = parents = torch.full(shape, BOUNDARY)
    for _ in range(max_length):
        yield words, parents
        words = torch.randint(vocab_size, shape, generator=generator)
        parents = torch.randint(width, shape, generator=generator)
