"""Packs a captioner: one folder that PyTorch and ONNX Runtime open, from the same 8-bit weights.

The folder is a model folder, which `load_captioner` reads, and besides an export whose graphs have
no weights of their own: ONNX Runtime is given those of the model, see `ngsan.export.thin`.
"""

from dataclasses import dataclass
from pathlib import Path

import yaml

from ngsan import __version__
from ngsan.config import TrainConfig, from_dict
from ngsan.export.checking import ROUGH, check_export
from ngsan.export.graphs import write_graphs
from ngsan.export.placing import placed, refuse_foreign
from ngsan.export.thin import write_thin
from ngsan.export.tracing import OPSET
from ngsan.export.write import checksums, require_packages
from ngsan.light.manifest import BACKBONE, FILES, FORMAT, Manifest
from ngsan.light.weights import read_weights
from ngsan.models.folder import CONFIG, METRICS, SIGNATURE, WEIGHTS, read_metrics, read_task
from ngsan.models.rounded import settle_norms
from ngsan.models.saved_captioner import load_captioner, save_captioner

PACKED = (*FILES, WEIGHTS, CONFIG)
"""What a packed model has at least."""

BESIDES = (BACKBONE, METRICS, SIGNATURE)
"""What it may have besides."""


@dataclass(frozen=True)
class PackReport:
    """What packing wrote, and how well it agrees with PyTorch."""

    folder: Path
    """Where it is."""

    sizes: dict[str, int]
    """Bytes of each file."""

    difference: float
    """Largest difference of logits between PyTorch and ONNX Runtime, from the same weights."""

    captions: int
    """Captions of random images or regions that both wrote."""

    same: int
    """How many of them are alike."""

    @property
    def size(self) -> int:
        """Bytes of the folder."""
        return sum(self.sizes.values())


def pack_captioner(model_folder: str | Path, to: str | Path) -> PackReport:
    """Writes a model in 8 bits, with graphs for ONNX Runtime that share its weights.

    The folder appears whole and checked, or not at all.

    Args:
        model_folder: What `save_captioner` wrote.
        to: Where to; a packed model that is there is replaced, any other content is refused.

    Raises:
        ValueError: The model cannot be read, the target holds something else, a package is
            missing, or PyTorch and ONNX Runtime do not agree.
    """
    target = Path(to).resolve()
    refuse_foreign(target, "a packed model", PACKED, BESIDES)
    require_packages()
    captioner, config, vocabulary = load_captioner(model_folder)
    config.require_transformer("a packed model")
    metrics, task = read_metrics(model_folder), read_task(model_folder)
    settle_norms(captioner.float())
    with placed(target) as partial:
        save_captioner(
            partial,
            captioner,
            config,
            vocabulary,
            run=_run_of(Path(model_folder)),
            metrics=metrics,
            task=task,
            rounded=True,
        )
        rounded, _, _ = load_captioner(partial)
        inputs, outputs = write_graphs(rounded, config, partial)
        tensors = read_weights((partial / WEIGHTS).read_bytes())
        weights = {name: write_thin(partial / name, tensors) for name in inputs}
        manifest = Manifest(
            format=FORMAT,
            ngsan=__version__,
            opset=OPSET,
            vocabulary=vocabulary.signature,
            inputs=inputs,
            outputs=outputs,
            sha256=checksums(partial, (*inputs, WEIGHTS)),
            precision="int8",
            model=config,
            weights=weights,
        )
        manifest.save(partial)
        found = check_export(partial, rounded, tolerance=ROUGH)
        sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
    return PackReport(target, sizes, *found)


def _run_of(folder: Path) -> TrainConfig | None:
    """The configuration of the run that made a model, if its folder tells it."""
    told = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    return from_dict(TrainConfig, told) if set(told) > {"model"} else None
