"""EfficientNet-Lite, the network, and the weights that were published for it.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (2019), in
its Lite variant: no squeeze-and-excitation, ReLU6 throughout, stem and head of fixed width.

Shapes: `B` images, `S` side of an image, `C` channels.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

STRIDE = 32
"""Pixels of the image for a cell of the last layer, each way."""

_STEM, _HEAD = 32, 1280


@dataclass(frozen=True)
class Stage:
    """Blocks in a row, of which the first may change the resolution."""

    blocks: int
    """How many, before the network's depth is applied."""

    kernel: int
    """Side of the depthwise kernels."""

    stride: int
    """Of the first block."""

    expansion: int
    """How many times as wide a block is inside."""

    channels: int
    """What comes out, before the network's width is applied."""


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)
"""The paper's Table 1, the same for all members of the family."""


@dataclass(frozen=True)
class Scale:
    """How a member of the family differs from the smallest."""

    width: float
    """Factor of the channels."""

    depth: float
    """Factor of the blocks of all stages but the first and the last."""


SCALES = {
    "efficientnet-lite0": Scale(1.0, 1.0),
    "efficientnet-lite1": Scale(1.0, 1.1),
    "efficientnet-lite2": Scale(1.1, 1.2),
    "efficientnet-lite3": Scale(1.2, 1.4),
    "efficientnet-lite4": Scale(1.4, 1.8),
}
"""The members of the family."""


class ConvNorm(nn.Module):
    """A convolution without bias, batch norm and, unless it is left out, ReLU6.

    Note: with a stride, zeros are put on as in the original: one row fewer before than behind, such
        that an even side is exactly halved. Sides are even wherever there is a stride, because
        those of the image are multiples of 32.
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
        """Builds it; `channels` is what goes in and what comes out."""
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
    """An inverted bottleneck: widen, look around in each channel, narrow; and add what came in."""

    def __init__(self, channels: tuple[int, int], stage: Stage, stride: int) -> None:
        """Builds it; `channels` is what goes in and what comes out."""
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
    """The layers up to the last block, or up to the head that the classifier averages."""

    def __init__(self, name: str, *, head: bool) -> None:
        """Builds a network with random weights.

        Args:
            name: A key of `SCALES`.
            head: Whether the 1 x 1 convolution to 1280 channels belongs to it.

        Raises:
            ValueError: There is no such network.
        """
        super().__init__()
        if name not in SCALES:
            raise ValueError(f"{name!r} is not one of {', '.join(SCALES)}")
        self.name = name
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


def from_published(network: EfficientNetLite, published: Mapping[str, Tensor]) -> None:
    """Loads weights under the names of the PyTorch conversion that is published.

    Args:
        network: Where to; the head is taken if it has one, the classifier never.
        published: The content of a file such as `efficientnet-lite2-9656183e.pth`.

    Raises:
        ValueError: A weight is missing or of another shape: they are another network's.
    """
    wanted = dict(_published_names(network))
    missing = [name for name in wanted.values() if name not in published]
    if missing:
        raise ValueError(f"these are not the weights of this network: there is no {missing[0]}")
    try:
        network.load_state_dict({ours: published[theirs] for ours, theirs in wanted.items()})
    except RuntimeError as error:
        raise ValueError(f"these are the weights of another network: {error}") from None


def fold_norms(network: nn.Module) -> None:
    """Puts every batch norm into the convolution before it, for speed; no training after that."""
    for part in list(network.modules()):
        if isinstance(part, ConvNorm) and isinstance(part.norm, nn.BatchNorm2d):
            part.conv = fuse_conv_bn_eval(part.conv.eval(), part.norm.eval())
            part.norm = nn.Identity()


def _published_names(network: EfficientNetLite) -> Iterator[tuple[str, str]]:
    """Our name of each weight, and the published one."""
    yield from _of_layer("stem", "_conv_stem", "_bn0")
    for number, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        ours, theirs = f"blocks.{number}", f"_blocks.{number}"
        # A norm is numbered by its place in the block of six layers, also where there is no
        # widening: the first block has no _bn0.
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
    """The nearest multiple of 8 that is no more than a tenth below."""
    wanted = channels * factor
    nearest = max(8, int(wanted + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * wanted else nearest
