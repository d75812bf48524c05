"""Exports a captioner to ONNX, and lets nothing out that does not agree with PyTorch.

In 8 bits, the matrices are rounded to whole numbers of -127 to 127 times a scale for each column,
and so are the vectors that meet them, as they come (ONNX Runtime's dynamic quantisation). A quarter
of the memory is then read for every word, which is most of the time on a CPU.

Shapes: `B` images, `N` regions, `W` captions an image, `T` words.
"""

import hashlib
import logging
import shutil
import uuid
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from ngsan import __version__
from ngsan.config import CaptionerConfig
from ngsan.export.graphs import OPSET, write_graphs
from ngsan.export.runtime import OnnxModel
from ngsan.light.manifest import DECODER, ENCODER, FILES, FORMAT, Manifest
from ngsan.models.captioner import Captioner
from ngsan.models.saved import VOCABULARY, load_captioner
from ngsan.predict import Caption, Predictor, RegionModel, TorchModel
from ngsan.text.vocabulary import BOUNDARY

TOLERANCE = 1e-3
"""Largest difference of logits from PyTorch's, as a share of the largest logit if that is above 1;
and of the scores of captions that rank equal."""

ROUGH = 0.2
"""The same for logits in 8 bits."""

Precision = Literal["float32", "int8"]


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote, and how well it agrees with PyTorch."""

    folder: Path
    """Where it is."""

    sizes: dict[str, int]
    """Bytes of each file."""

    opset: int
    """Version of the ONNX operators."""

    saved_precision: str
    """Precision of the model's weights on the disk, such as "float16"."""

    precision: Precision
    """Precision of the export's matrices."""

    difference: float
    """Largest difference of logits between PyTorch and ONNX Runtime."""

    captions: int
    """Captions of random regions that both wrote."""

    same: int
    """How many of them are alike; all, but in 8 bits."""


def export_captioner(
    model_folder: str | Path, to: str | Path, *, precision: Precision = "float32"
) -> ExportReport:
    """Writes a captioner as ONNX graphs, and checks them against PyTorch.

    The folder appears whole and checked, or not at all.

    Args:
        model_folder: What `save_captioner` wrote.
        to: Where to; an export that is there is replaced, any other content is refused.
        precision: "float32", or "int8" for a quarter of the size and more speed on a CPU, at the
            price of captions that may differ here and there.

    Raises:
        ValueError: The model cannot be read, the target holds something else, a package is
            missing, or PyTorch and ONNX Runtime do not agree.
    """
    if precision not in get_args(Precision):
        raise ValueError(f"precision: {precision!r} is not one of {', '.join(get_args(Precision))}")
    target = Path(to).resolve()
    _refuse_foreign(target)
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(package)
        except ImportError as error:
            raise ValueError(f"export needs {package}: pip install 'ngsan[onnx]'") from error
    captioner, config, vocabulary = load_captioner(model_folder)
    saved = str(captioner.decoder.embed.weight.dtype).removeprefix("torch.")
    captioner.float()
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    partial.mkdir(parents=True)
    try:
        inputs, outputs = write_graphs(captioner, config, partial)
        vocabulary.save(partial / VOCABULARY)
        manifest = Manifest(
            format=FORMAT,
            ngsan=__version__,
            opset=OPSET,
            vocabulary=vocabulary.signature,
            inputs=inputs,
            outputs=outputs,
            sha256=_checksums(partial),
            precision="float32",
            model=config,
        )
        manifest.save(partial)
        found = check_export(partial, captioner)
        if precision == "int8":
            _quantize(partial)
            replace(manifest, sha256=_checksums(partial), precision=precision).save(partial)
            found = check_export(partial, captioner, tolerance=ROUGH)
        sizes = {name: (partial / name).stat().st_size for name in FILES}
        _put_in_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return ExportReport(target, sizes, OPSET, saved, precision, *found)


def check_export(
    folder: str | Path, captioner: Captioner, *, tolerance: float | None = None
) -> tuple[float, int, int]:
    """Compares an export with its captioner on random regions.

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
    for counts in ([36], [7, 3, 0, 1]):
        images = _random_regions(exported.config, counts)
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


def _random_regions(config: CaptionerConfig, counts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Features, boxes and mask of images with so many regions each."""
    generator = torch.Generator().manual_seed(0)
    shape = (len(counts), max(counts))
    features = torch.randn(*shape, config.feature_dim, generator=generator).relu()
    boxes = 0.1 + 0.8 * torch.rand(*shape, 4, generator=generator)
    return features, boxes, torch.arange(shape[1]) < torch.tensor(counts).unsqueeze(1)


@torch.inference_mode()
def _random_words_scored(model: RegionModel, images: tuple[Tensor, Tensor, Tensor]) -> Tensor:
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


def _checksums(folder: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in (ENCODER, DECODER)
    }


def _quantize(folder: Path) -> None:
    """Rounds the matrices of the graphs to 8 bits, in place."""
    quantization = import_module("onnxruntime.quantization")
    rounded = folder / "rounded.onnx"
    logger = logging.getLogger()
    level = logger.level
    try:
        # It advises to simplify the graph beforehand, which these graphs do not need.
        logger.setLevel(logging.ERROR)
        for name in (ENCODER, DECODER):
            quantization.quantize_dynamic(
                folder / name,
                rounded,
                weight_type=quantization.QuantType.QInt8,
                per_channel=True,
            )
            rounded.replace(folder / name)
    finally:
        logger.setLevel(level)


def _refuse_foreign(target: Path) -> None:
    """Raises a `ValueError` unless there is nothing, an empty folder or an export and no more."""
    if not target.exists():
        return
    if not target.is_dir():
        raise ValueError(f"{target} is a file: an export is a folder")
    names = {path.name for path in target.iterdir()}
    foreign = sorted(names - set(FILES))
    if foreign or (names and names != set(FILES)):
        raise ValueError(
            f"{target} holds something else than an export "
            f"({', '.join(foreign or sorted(names))}): choose an empty or a new folder"
        )


def _put_in_place(partial: Path, target: Path) -> None:
    """Moves the new export to the target, and the old one out of the way first."""
    if not target.exists():
        partial.rename(target)
        return
    old = partial.with_suffix(".old")
    target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)
