"""Compares an export with the captioner that it was made from.

Shapes: `B` images, `N` regions, `W` captions an image, `T` words.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from ngsan.config import CaptionerConfig
from ngsan.export.runtime import OnnxModel
from ngsan.models.captioner import Captioner
from ngsan.predict import Caption, Predictor, RegionModel, TorchModel
from ngsan.text.vocabulary import BOUNDARY

TOLERANCE = 1e-3
"""Largest difference of logits from PyTorch's, as a share of the largest logit if that is above 1;
and of the scores of captions that rank equal."""

ROUGH = 0.2
"""The same for logits in 8 bits."""

Given = tuple[Tensor, Tensor | None, Tensor | None]
"""Features, boxes and mask; or images, which need nothing besides."""


def check_export(
    folder: str | Path, captioner: Captioner, *, tolerance: float | None = None
) -> tuple[float, int, int]:
    """Compares an export with its captioner on random regions, or random images.

    Args:
        folder: The export.
        captioner: The model, in single precision.
        tolerance: Largest difference of logits, as a share of the largest logit; None for
            `TOLERANCE`, and then captions must be the same, too.

    Returns:
        difference: The largest difference of logits.
        captions: The number of captions, by beam search.
        same: How many of them are the same.

    Raises:
        ValueError: The two do not agree.
    """
    exported = OnnxModel(folder)
    ours = TorchModel(captioner)
    difference, largest, captions, same = 0.0, 1.0, 0, 0
    for images in _random_batches(exported.config):
        expected, found = (_random_words_scored(model, images) for model in (ours, exported))
        difference = max(difference, (expected - found).abs().max().item())
        largest = max(largest, expected.abs().max().item())
        if not difference <= (TOLERANCE if tolerance is None else tolerance) * largest:
            raise ValueError(
                f"the exported model does not agree with PyTorch: logits of up to {largest:.3g} "
                f"differ by {difference:.3g}"
            )
        wanted, got = (
            [best for best, *_ in Predictor(model, exported.vocabulary).caption(*images)]
            for model in (ours, exported)
        )
        captions += len(wanted)
        same += sum(a.words == b.words for a, b in zip(wanted, got, strict=True))
        if tolerance is None:
            _refuse_other_captions(wanted, got)
    return difference, captions, same


def _refuse_other_captions(wanted: list[Caption], got: list[Caption]) -> None:
    """Raises a `ValueError` unless captions are the same or rank equal."""
    for expected, found in zip(wanted, got, strict=True):
        if expected.words != found.words and not _ranks_equal(expected, found):
            raise ValueError(
                f"the exported model does not agree with PyTorch: it says {found.text!r} "
                f"({found.score:.4f}) in the place of {expected.text!r} ({expected.score:.4f})"
            )


def _ranks_equal(wanted: Caption, got: Caption) -> bool:
    """Whether two captions are so close that rounding may decide between them."""
    return abs(wanted.score - got.score) <= TOLERANCE


def _random_batches(config: CaptionerConfig) -> Iterator[Given]:
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
def _random_words_scored(model: RegionModel, images: Given) -> Tensor:
    """Logits along captions of random words that now and then go on from one another."""
    generator = torch.Generator().manual_seed(0)
    shape, longest = (len(images[0]), 3), 5
    steps = model.steps(*images)
    steps.start(shape[1], longest)
    words = torch.full(shape, BOUNDARY)
    logits = []
    for _ in range(longest):
        logits.append(steps.step(words).clone())
        words = torch.randint(model.vocab_size, shape, generator=generator)
        steps.reorder(torch.randint(shape[1], shape, generator=generator))
    return torch.stack(logits)
