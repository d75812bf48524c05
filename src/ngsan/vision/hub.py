"""Backbones of other libraries: image models of transformers (`hf:`) and timm (`timm:`) as grids.

The library says what the network looks like, which images it was made for and how their pixels are
normalised. That is the `description` of the backbone, JSON that a model folder keeps: a trained
model is built from it without asking a hub. Code that comes with a model on a hub is never run.

Shapes: `B` images, `S` side of an image, `G` cells of a side, `L` tokens, `C` channels.
"""

import inspect
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ngsan.vision.grid import GridBackbone


@dataclass(frozen=True)
class Description:
    """What a backbone is built from."""

    network: dict[str, Any]
    """What the library builds the network from."""

    size: int
    """S that the network was made for."""

    mean: Sequence[float]
    """Of each channel of the pixels, from 0 to 255."""

    deviation: Sequence[float]

    grid: int = 0
    """G for the images in use; 0 until it is known."""


class Library(Protocol):
    """How the models of a library are made and run."""

    package: str
    install: str
    """What `pip install` needs for it."""

    def describe(self, name: str) -> Description:
        """Asks the hub, or reads a local folder."""

    def create(self, described: Description, size: int) -> nn.Module:
        """The network for images of a side, with random weights."""

    def load(self, described: Description, size: int, name: str) -> tuple[nn.Module, set[str]]:
        """The same with the weights of a name, and the names of those that are not there."""

    def features(self, model: nn.Module, images: Tensor) -> Tensor:
        """A map (B, C, G, G), or tokens (B, L, C) of which the last are the cells, row by row."""

    def grid(self, model: nn.Module, length: int, size: int) -> int:
        """G of L tokens for images of side S."""


class Transformers:
    """Image models of transformers; of models of images and texts, the part that sees images."""

    package, install = "transformers", "ngsan[train]"

    def describe(self, name: str) -> Description:
        """See `Library.describe`; a `ValueError` if the model or its image processor is missing."""
        library = import_module("transformers")
        processors = import_module("transformers.image_processing_base")
        try:
            config = library.AutoConfig.from_pretrained(name, trust_remote_code=False)
            processor = processors.ImageProcessingMixin.get_image_processor_dict(name)[0]
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"hf:{name} cannot be opened by transformers: {reason}") from None
        config = getattr(config, "vision_config", config)
        network = {**config.to_diff_dict(), "model_type": config.model_type}
        for key in ("_name_or_path", "architectures", "dtype", "torch_dtype"):
            network.pop(key, None)
        factor = processor.get("rescale_factor", 1 / 255) if _does(processor, "rescale") else 1
        mean = processor.get("image_mean", 0.0) if _does(processor, "normalize") else 0.0
        deviation = processor.get("image_std", 1.0) if _does(processor, "normalize") else 1.0
        return Description(
            network,
            _side(processor, config),
            [value / factor for value in _each_channel(mean)],
            [value / factor for value in _each_channel(deviation)],
        )

    def create(self, described: Description, size: int) -> nn.Module:
        """See `Library.create`."""
        models = import_module("transformers").AutoModel
        made: nn.Module = models.from_config(self._config(described), trust_remote_code=False)
        return made

    def load(self, described: Description, size: int, name: str) -> tuple[nn.Module, set[str]]:
        """See `Library.load`."""
        library = import_module("transformers")
        with quiet(library.utils.logging):  # the part that reads texts is left out on purpose
            made, found = library.AutoModel.from_pretrained(
                name,
                config=self._config(described),
                dtype=torch.float32,
                trust_remote_code=False,
                output_loading_info=True,
            )
        return made, set(found["missing_keys"])

    def features(self, model: nn.Module, images: Tensor) -> Tensor:
        """See `Library.features`."""
        more = {}
        own = getattr(model.config, "image_size", None)
        resizable = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
        if resizable and own is not None and images.shape[-1] != _each_side(own):
            more = {"interpolate_pos_encoding": True}
        found: Tensor = model(pixel_values=images, **more).last_hidden_state
        return found

    def grid(self, model: nn.Module, length: int, size: int) -> int:
        """See `Library.grid`; other tokens, for classes or registers, come first."""
        config: Any = model.config
        patch = getattr(config, "patch_size", None)
        if patch is not None:
            stages = len(getattr(config, "depths", "1"))
            for stride in (_each_side(patch), _each_side(patch) * 2 ** (stages - 1)):
                if 0 < (size // stride) ** 2 <= length:
                    return size // stride
            return 0
        return math.isqrt(length)

    def _config(self, described: Description) -> Any:
        network = {**described.network}
        configs = import_module("transformers").AutoConfig
        return configs.for_model(network.pop("model_type"), **network)


class Timm:
    """Image models of timm."""

    package, install = "timm", "timm"

    def describe(self, name: str) -> Description:
        """See `Library.describe`."""
        library = import_module("timm")
        with torch.device("meta"):
            model = library.create_model(name, pretrained=False, num_classes=0)
        data = library.data.resolve_model_data_config(model)
        return Description(
            {"name": name, "fixed": bool(model.pretrained_cfg.get("fixed_input_size"))},
            int(data["input_size"][-1]),
            [255 * value for value in data["mean"]],
            [255 * value for value in data["std"]],
        )

    def create(self, described: Description, size: int) -> nn.Module:
        """See `Library.create`."""
        return self._make(described, size, pretrained=False)

    def load(self, described: Description, size: int, name: str) -> tuple[nn.Module, set[str]]:
        """See `Library.load`; timm itself rejects incomplete weights."""
        return self._make(described, size, pretrained=True), set()

    def features(self, model: nn.Module, images: Tensor) -> Tensor:
        """See `Library.features`."""
        found: Tensor = model.forward_features(images)  # type: ignore[operator]
        channels_last = found.ndim == 4 and getattr(model, "output_fmt", "NCHW") == "NHWC"
        return found.permute(0, 3, 1, 2) if channels_last else found

    def grid(self, model: nn.Module, length: int, size: int) -> int:
        """See `Library.grid`."""
        return math.isqrt(length - int(getattr(model, "num_prefix_tokens", 0)))

    def _make(self, described: Description, size: int, *, pretrained: bool) -> nn.Module:
        """A model; those made for one side get it, the others accept any."""
        create, name = import_module("timm").create_model, described.network["name"]
        options: dict[str, Any] = {"pretrained": pretrained, "num_classes": 0}
        if described.network.get("fixed"):
            options["img_size"] = size
        made: nn.Module = create(name, **options)
        return made


LIBRARIES: dict[str, Library] = {"hf": Transformers(), "timm": Timm()}
"""The libraries by the prefix of a backbone's name."""


class HubNetwork(nn.Module):
    """A model of another library as a `Network`."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        library: Library,
        *,
        channels: int,
        stride: int,
        grid: int,
    ) -> None:
        super().__init__()
        self.name, self.channels, self.stride = name, channels, stride
        self.model, self._library, self._grid = model, library, grid

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, S, S) to (B, C, G, G)."""
        found = self._library.features(self.model, images)
        if found.ndim == 4:
            return found
        cells = found[:, found.shape[1] - self._grid**2 :]  # (B, G G, C)
        return cells.transpose(1, 2).reshape(found.shape[0], -1, self._grid, self._grid)


def build_hub_backbone(
    name: str, *, size: int = 0, pretrained: bool = True, description: str = ""
) -> GridBackbone:
    """Builds a backbone of another library; see `ngsan.vision.backbone.build_backbone`.

    Parts that do not take part in the features of the cells, such as poolers, are removed.
    """
    prefix, _, title = name.partition(":")
    if prefix not in LIBRARIES or not title:
        raise ValueError(f"backbone: {name!r} is not hf:NAME or timm:NAME")
    library = LIBRARIES[prefix]
    _require(library)
    try:
        described = Description(**json.loads(description)) if description else None
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"backbone_config: {name} cannot be built from it: {error}") from None
    described = described or library.describe(title)
    size = size or described.size
    draft, found = _draft(name, library, described, size)
    if found.ndim == 4:
        channels, grid = found.shape[1], found.shape[2]
    else:
        channels, grid = found.shape[2], library.grid(draft, found.shape[1], size)
    if not grid or size % grid:
        raise ValueError(
            f"image_size: {name} cannot divide {size} pixels into equal cells; it was made for "
            f"{described.size}"
        )
    unused = _unused(draft, found)
    if pretrained:
        model, missing = library.load(described, size, title)
        if missing - unused:
            raise ValueError(f"{name} has no weights for {', '.join(sorted(missing - unused)[:3])}")
    else:
        model = library.create(described, size)
    _remove(model, unused)
    network = HubNetwork(name, model, library, channels=channels, stride=size // grid, grid=grid)
    return GridBackbone(
        network,
        size=size,
        mean=described.mean,
        deviation=described.deviation,
        description=json.dumps({**asdict(described), "grid": grid}, sort_keys=True),
    )


def _draft(
    name: str, library: Library, described: Description, size: int
) -> tuple[nn.Module, Tensor]:
    """The network and its output for one image, as shapes without numbers."""
    try:
        with torch.device("meta"):
            draft = library.create(described, size).eval()
            return draft, library.features(draft, torch.zeros(1, 3, size, size))
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        # It may be for something else than images, or its description may be damaged.
        raise ValueError(
            f"{name} cannot be used for images of {size} x {size}: {type(error).__name__}: {error}"
        ) from error


def _unused(model: nn.Module, found: Tensor) -> set[str]:
    """Names of the parameters that the output does not depend on."""
    trained = {name: part for name, part in model.named_parameters() if part.requires_grad}
    slopes = torch.autograd.grad(found.sum(), list(trained.values()), allow_unused=True)
    return {name for name, slope in zip(trained, slopes, strict=True) if slope is None}


def _remove(model: nn.Module, unused: set[str], where: str = "") -> None:
    """Replaces modules that have only unused parameters by ones that do nothing."""
    for name, part in model.named_children():
        path = f"{where}{name}."
        own = {f"{path}{key}" for key, _ in part.named_parameters()}
        if own and own <= unused:
            setattr(model, name, nn.Identity())
        else:
            _remove(part, unused, path)
    for name, _ in list(model.named_parameters(recurse=False)):
        if f"{where}{name}" in unused:
            model.register_parameter(name, None)


def _side(processor: dict[str, Any], config: Any) -> int:
    """S that an image processor makes, from its crop, else its size, else the network's."""
    for key, used in (("crop_size", _does(processor, "center_crop", False)), ("size", True)):
        size = processor.get(key)
        if used and size:
            sides = size.values() if isinstance(size, dict) else [size]
            return int(next(iter(sides)))
    return _each_side(getattr(config, "image_size", 224))


def _does(processor: dict[str, Any], what: str, default: bool = True) -> bool:
    return bool(processor.get(f"do_{what}", default))


def _each_channel(value: Any) -> list[float]:
    return [float(part) for part in value] if isinstance(value, (list, tuple)) else [float(value)]


def _each_side(value: Any) -> int:
    return int(value[0] if isinstance(value, (list, tuple)) else value)


def _require(library: Library) -> None:
    try:
        import_module(library.package)
    except ImportError:
        raise ValueError(
            f"this backbone needs {library.package}: pip install {library.install!r}"
        ) from None


@contextmanager
def quiet(log: Any) -> Iterator[None]:
    """Silences the progress bars and reports of transformers."""
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
