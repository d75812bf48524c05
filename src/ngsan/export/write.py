"""Exports a captioner to ONNX, and lets nothing out that does not agree with PyTorch.

Shapes: `B` images, `N` regions, `W` captions an image, `T` words.
"""

import hashlib
import shutil
import uuid
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

from ngsan import __version__
from ngsan.config import CaptionerConfig
from ngsan.export.graphs import OPSET, write_graphs
from ngsan.export.manifest import DECODER, ENCODER, FILES, FORMAT, Manifest
from ngsan.export.runtime import OnnxModel
from ngsan.models.captioner import Captioner
from ngsan.models.saved import VOCABULARY, load_captioner
from ngsan.predict import Caption, Predictor, RegionModel, TorchModel
from ngsan.text.vocabulary import BOUNDARY, Vocabulary

TOLERANCE = 1e-3
"""Largest difference of logits from PyTorch's, as a share of the largest logit if that is above 1;
and of the scores of captions that rank equal."""


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
    """Precision of the model's weights on the disk, such as "float16"; the export has float32."""

    difference: float
    """Largest difference of logits between PyTorch and ONNX Runtime."""

    captions: int
    """Captions of random regions that both wrote alike."""


def export_captioner(model_folder: str | Path, to: str | Path) -> ExportReport:
    """Writes a captioner as ONNX graphs in single precision, and checks them against PyTorch.

    The folder appears whole and checked, or not at all.

    Args:
        model_folder: What `save_captioner` wrote.
        to: Where to; an export that is there is replaced, any other content is refused.

    Raises:
        ValueError: The model cannot be read, the target holds something else, a package is
            missing, or PyTorch and ONNX Runtime do not agree.
    """
    target = Path(to).resolve()
    _refuse_foreign(target)
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(package)
        except ImportError as error:
            raise ValueError(f"export needs {package}: pip install 'ngsan[onnx]'") from error
    captioner, config, vocabulary = load_captioner(model_folder)
    precision = str(captioner.decoder.embed.weight.dtype).removeprefix("torch.")
    captioner.float()
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    partial.mkdir(parents=True)
    try:
        _write(partial, captioner, config, vocabulary)
        difference, captions = check_export(partial, captioner)
        sizes = {name: (partial / name).stat().st_size for name in FILES}
        _put_in_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return ExportReport(target, sizes, OPSET, precision, difference, captions)


def check_export(folder: str | Path, captioner: Captioner) -> tuple[float, int]:
    """Compares an export with its captioner on random regions.

    Args:
        folder: The export.
        captioner: The model, in single precision.

    Returns:
        difference: The largest difference of logits.
        captions: The number of captions, by beam search, that are the same.

    Raises:
        ValueError: The two do not agree.
    """
    exported = OnnxModel(folder)
    ours = TorchModel(captioner)
    difference, largest, captions = 0.0, 1.0, 0
    for counts in ([36], [7, 3, 0, 1]):
        images = _random_regions(exported.config, counts)
        expected, found = (_random_words_scored(model, images) for model in (ours, exported))
        difference = max(difference, (expected - found).abs().max().item())
        largest = max(largest, expected.abs().max().item())
        if not difference <= TOLERANCE * largest:
            raise ValueError(
                f"the exported model does not agree with PyTorch: logits of up to {largest:.3g} "
                f"differ by {difference:.3g}"
            )
        captions += _same_captions(ours, exported, images)
    return difference, captions


def _same_captions(
    ours: RegionModel, exported: OnnxModel, images: tuple[Tensor, Tensor, Tensor]
) -> int:
    """How many captions the two write; a `ValueError` unless they are the same or rank equal."""
    expected, found = (
        Predictor(model, exported.vocabulary).caption(*images) for model in (ours, exported)
    )
    for (wanted, *_), (got, *_) in zip(expected, found, strict=True):
        if wanted.words != got.words and not _ranks_equal(wanted, got):
            raise ValueError(
                f"the exported model does not agree with PyTorch: it says {got.text!r} "
                f"({got.score:.4f}) in the place of {wanted.text!r} ({wanted.score:.4f})"
            )
    return len(expected)


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


def _write(
    folder: Path, captioner: Captioner, config: CaptionerConfig, vocabulary: Vocabulary
) -> None:
    inputs, outputs = write_graphs(captioner, config, folder)
    vocabulary.save(folder / VOCABULARY)
    Manifest(
        format=FORMAT,
        ngsan=__version__,
        opset=OPSET,
        vocabulary=vocabulary.signature,
        inputs=inputs,
        outputs=outputs,
        sha256={
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
            for name in (ENCODER, DECODER)
        },
        model=config,
    ).save(folder)


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
