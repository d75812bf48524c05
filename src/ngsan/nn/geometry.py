"""Geometry of regions: relative features (Eq. 8), their embedding (Eq. 9), biases (Eq. 11-13).

The sinusoidal embedding of words, frames and boxes is here, too.

Shapes: `B` images, `N` regions, `D` model width, `H` heads, `F` geometry features (4, or 6 when
signed), `G` width of the geometry embedding. Boxes are `cxcywh`: centre, width and height, in
any unit.
"""

import math
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from ngsan.nn.masks import check_mask

if torch.version.cuda is not None and find_spec("triton") is not None:
    import ngsan.nn.query_bias_kernel as _kernel
else:
    _kernel = None  # type: ignore[assignment]

MIN_RATIO = 1e-3
"""Minimum of the distance ratios before the logarithm; they are 0 on the diagonal."""

MAX_OFFSET = 3.0
"""Maximum of the offsets in the signed form, in widths or heights of the box."""

MIN_GATE = 1e-6
"""Minimum of the relation network's gate before the logarithm."""

BIAS_TERMS = ("content-independent", "query", "key", "relation")
"""The terms of `GeometryBias`; a sum of terms is written with `+`, as in "query+key"."""

# Relation networks (Hu et al. 2018) scale a number by 100 and embed it in 16 sines and cosines,
# with wavelengths up to 1000 times the shortest. Absolute geometry uses the same scale.
_WAVES, _WAVE_SCALE, _WAVE_RATIO = 16, 100.0, 1_000.0


def sinusoidal(values: Tensor, width: int, *, max_ratio: float = 10_000.0) -> Tensor:
    """Embeds each number as sines and cosines of geometrically spaced wavelengths.

    Component 2k is sin(v / max_ratio^(2k/width)), component 2k+1 the cosine of the same angle
    (Vaswani et al. 2017, Section 3.5).

    Args:
        values: (...) any floating point tensor.
        width: Even number of components.
        max_ratio: Ratio of the longest wavelength to the shortest.

    Returns:
        (..., width)
    """
    if width <= 0 or width % 2:
        raise ValueError(f"the width of a sinusoidal embedding must be even, not {width}")
    exponents = torch.arange(0, width, 2, device=values.device, dtype=values.dtype) / width
    angles = values.unsqueeze(-1) * torch.exp(-math.log(max_ratio) * exponents)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


class FramePositions(nn.Module):
    """Sinusoidal embedding of the order of a clip's frames; has no parameters.

    Only real regions are counted, so padding has no effect, wherever it is.

    Args:
        cells: Number of consecutive regions per frame.
    """

    def __init__(self, cells: int = 1) -> None:
        super().__init__()
        if cells < 1:
            raise ValueError(f"cells: {cells} must be at least 1")
        self.cells = cells

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The embedding of each region's frame.

        Args:
            x: (B, N, D) the regions; only shape, type and device are used.
            mask: (B, N) boolean, True = a real region, or None.

        Returns:
            (B, N, D), or (N, D) without a mask.
        """
        # In single precision: half precision has no odd integers above 2048.
        if mask is None:
            places = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
        else:
            places = (mask.to(torch.float32).cumsum(1) - 1).clamp(min=0)
        if self.cells > 1:
            places = (places / self.cells).floor()
        return sinusoidal(places, x.shape[-1]).to(x.dtype)


def check_boxes(boxes: Tensor, mask: Tensor | None = None) -> None:
    """Raises a `ValueError` for the first real box that is not finite or has no area.

    Reads values, so it synchronises with a device: call it where data enters, not in a training
    step.

    Args:
        boxes: (B, N, 4) `cxcywh`.
        mask: (B, N) boolean, True = real, or None.
    """
    if boxes.ndim != 3 or boxes.shape[-1] != 4:
        raise ValueError(f"boxes must have shape (images, regions, 4), not {tuple(boxes.shape)}")
    check_mask(mask, boxes)
    bad = ~(boxes.isfinite().all(-1) & (boxes[..., 2:] > 0).all(-1))
    if mask is not None:
        bad = bad & mask
    if bad.any():
        image, region = bad.nonzero()[0].tolist()
        raise ValueError(
            f"box {region} of image {image} is {boxes[image, region].tolist()}: boxes are "
            "(cx, cy, w, h), finite, with a width and height above 0"
        )


def check_regions(
    features: Tensor, boxes: Tensor | None, mask: Tensor | None, *, needs_boxes: bool
) -> None:
    """Raises a `ValueError` unless boxes and mask match the features.

    Only shapes and types are read, so it never synchronises with a device.

    Args:
        features: (B, N, C).
        boxes: (B, N, 4), or None.
        mask: (B, N) boolean, True = a real region, or None.
        needs_boxes: Whether boxes are required.
    """
    check_mask(mask, features)
    if boxes is None:
        if needs_boxes:
            raise ValueError("this model is geometry-aware: it needs the regions' boxes")
    elif boxes.shape != (*features.shape[:2], 4):
        raise ValueError(
            f"boxes of shape {tuple(boxes.shape)} do not match features of shape "
            f"{tuple(features.shape)}: expected {(*features.shape[:2], 4)}"
        )


def _valid_boxes(boxes: Tensor, mask: Tensor | None) -> Tensor:
    """Checked boxes in at least 32 bits, with valid values at padding."""
    if boxes.ndim != 3 or boxes.shape[-1] != 4:
        raise ValueError(f"boxes must have shape (images, regions, 4), not {tuple(boxes.shape)}")
    if not boxes.is_floating_point():
        raise ValueError(f"boxes must be floating point, not {boxes.dtype}")
    check_mask(mask, boxes)
    if boxes.device.type == "cpu" and not torch.compiler.is_compiling():
        check_boxes(boxes, mask)
    boxes = boxes.to(torch.promote_types(boxes.dtype, torch.float32))
    return boxes if mask is None else boxes.masked_fill(~mask.unsqueeze(-1), 0.5)


def _reject_pixels(boxes: Tensor, what: str) -> None:
    """Raises a `ValueError` if boxes on the CPU are clearly in pixels."""
    on_cpu = boxes.device.type == "cpu" and not torch.compiler.is_compiling()
    if on_cpu and (boxes > 2).any():
        raise ValueError(
            f"{what} needs boxes relative to the image, from 0 to 1; the largest value here is "
            f"{boxes.max().item():g}: divide by the image's width and height"
        )


def relative_geometry(
    boxes: Tensor, mask: Tensor | None = None, *, signed: bool = False, plus_one: bool = False
) -> Tensor:
    """Relative geometry of every pair of regions (Eq. 8).

    f_ij = (log(|xi - xj| / wi), log(|yi - yj| / hi), log(wi / wj), log(hi / hj)). It does not
    change if all boxes are shifted, or if x and y are rescaled.

    Note: the paper does not define log 0, on the diagonal and for aligned boxes. We clamp the first
        two ratios at 1e-3. Widths and heights are used as they are. The `+ 1` of public
        geometry-aware captioners suits pixel boxes and dominates relative ones; `plus_one` is for
        comparison with them.

    Note: Eq. 8 has no direction: a mirrored image has the same features. The signed form appends
        the offsets (xi - xj) / wi and (yi - yj) / hi, clamped at three widths or heights; beyond
        that the logarithms give the distance.

    Args:
        boxes: (B, N, 4) `cxcywh`. On the CPU a box that is not finite or has no area is a
            `ValueError`; on a device call `check_boxes` where the data enters.
        mask: (B, N) boolean, True = real, or None. Padded boxes may have any values.
        signed: Whether to append the two features with direction.
        plus_one: Whether to add 1 to widths and heights; boxes must be relative to the image.

    Returns:
        (B, N, N, 4), or (B, N, N, 6) when signed, in at least single precision. Finite, unless a
        box is so small that a ratio overflows; arbitrary at padding.
    """
    boxes = _valid_boxes(boxes, mask)
    centre, size = boxes[..., :2], boxes[..., 2:]
    if plus_one:
        _reject_pixels(boxes, "geometry with 1 added to widths and heights")
        size = size + 1.0
    offset = (centre.unsqueeze(2) - centre.unsqueeze(1)) / size.unsqueeze(2)  # (B, N, N, 2)
    distance = offset.abs()
    features = [
        distance.clamp(min=MIN_RATIO).log(),
        size.log().unsqueeze(2) - size.log().unsqueeze(1),
    ]
    if signed:
        features.append(offset.clamp(-MAX_OFFSET, MAX_OFFSET))
    return torch.cat(features, dim=-1)


class AbsoluteGeometry(nn.Module):
    """Sinusoidal embedding of each box, added to the encoder's input (paper, Table 4).

    The centre's x and y, the width and the height each have a quarter of the components.

    Args:
        dim: D, a multiple of 8.
    """

    def __init__(self, dim: int = 512) -> None:
        super().__init__()
        if dim % 8:
            raise ValueError(f"absolute geometry needs a model width divisible by 8, not {dim}")
        self.dim = dim

    def forward(self, boxes: Tensor, mask: Tensor | None = None) -> Tensor:
        """The embedding (B, N, D) of boxes.

        Args:
            boxes: (B, N, 4) `cxcywh` relative to the image.
            mask: (B, N) boolean, True = real, or None.
        """
        boxes = _valid_boxes(boxes, mask)
        _reject_pixels(boxes, "absolute geometry")
        waves = sinusoidal(boxes * _WAVE_SCALE, self.dim // 4, max_ratio=_WAVE_RATIO)
        return waves.flatten(-2)


def embed_geometry(geometry: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """G = ReLU(FC(f)) (Eq. 9).

    Args:
        geometry: (B, N, N, F).
        weight: (G, F).
        bias: (G,).

    Returns:
        (B, N, N, G)
    """
    # Geometry stays in full precision up to here, also in half-precision models.
    return nn.functional.linear(geometry.to(weight.dtype), weight, bias).relu()


def query_bias(
    geometry: Tensor, weight: Tensor, bias: Tensor, query: Tensor, embedded: Tensor | None = None
) -> Tensor:
    """The query-dependent bias Q'_i . G_ij (Eq. 12) of every head and pair.

    G is the largest array of the encoder, and its products with eight heads are too small for a
    matrix library: in plain PyTorch this takes a tenth of a training step. On a GPU one kernel
    computes G where it is used and stores none of it.

    Args:
        geometry: (B, N, N, F) from `relative_geometry`; (1, N, N, F) if all images share it.
        weight: (G, F) of Eq. 9.
        bias: (G,) of Eq. 9.
        query: (B, N, H, G) Q' of each head.
        embedded: (B, N, N, G) from `embed_geometry` if available, or None.

    Returns:
        (B, H, N, N)
    """
    if (
        embedded is None
        and _kernel is not None
        and query.is_cuda
        and query.dtype in _kernel.DTYPES
        and weight.dtype == torch.float32
        and not geometry.requires_grad
        and len(geometry) == len(query)
    ):
        found: Tensor = _kernel.query_bias(geometry.float(), weight, bias, query)
        return found
    if embedded is None:
        embedded = embed_geometry(geometry, weight, bias)
    if embedded.shape[0] != query.shape[0]:  # one for all images
        return (query @ embedded.mT).transpose(1, 2)
    # With the heads last, matrices are aligned in memory for any number of regions.
    return torch.einsum("bijg,bihg->bijh", embedded, query).permute(0, 3, 1, 2)


class GeometryBias(nn.Module):
    """Geometric bias of the attention scores (Eq. 11-13): a named term or a sum of them.

    - `content-independent` (Eq. 11): ReLU(w . G_ij), one w per head;
    - `query` (Eq. 12, the paper's choice): Q'_i . G_ij, with Q' a projection of the layer's input;
    - `key` (Eq. 13): K'_j . G_ij, with K' a projection of the layer's input;
    - `relation`: the baseline of relation networks (Hu et al. 2018). The ReLU of a projection of
      the sinusoidally embedded geometry multiplies the attention weights. Here its logarithm is
      added to the scores, which is equal after the softmax.

    G = ReLU(FC(f)) (Eq. 9) is shared by the heads and terms of a layer. Q' and K' have a part of
    width G for each head.
    """

    def __init__(
        self,
        kind: str = "query",
        *,
        dim: int = 512,
        heads: int = 8,
        width: int = 64,
        signed: bool = False,
    ) -> None:
        """Creates the bias.

        Args:
            kind: A name from `BIAS_TERMS`, or several joined by `+`.
            dim: D, width of the layer's input.
            heads: H.
            width: G, width of the geometry embedding.
            signed: Whether the geometry is in the signed form of `relative_geometry`.
        """
        super().__init__()
        terms = bias_terms(kind)
        self.kind = kind
        self.dim = dim
        self.heads = heads
        self.width = width
        self.features = 6 if signed else 4
        self.embedding = nn.Linear(self.features, width) if set(terms) - {"relation"} else None
        self.content_independent = (
            nn.Linear(width, heads, bias=False) if "content-independent" in terms else None
        )
        self.query = nn.Linear(dim, heads * width) if "query" in terms else None
        self.key = nn.Linear(dim, heads * width) if "key" in terms else None
        self.relation = nn.Linear(self.features * _WAVES, heads) if "relation" in terms else None
        self._query_alone = not {"content-independent", "key"} & set(terms)

    def init_constant(self) -> None:
        """Initialises Q' and K' to random constants, so the bias starts independent of content.

        Note: the paper does not give the initialisation. With this one the relations of the
            built-in scenes are learned sooner.
        """
        for projection in (self.query, self.key):
            if projection is not None:
                nn.init.zeros_(projection.weight)
                nn.init.normal_(projection.bias, std=self.width**-0.5)

    def forward(self, geometry: Tensor, x: Tensor) -> Tensor:
        """The bias of every head and pair.

        Args:
            geometry: (B, N, N, F) from `relative_geometry`; (1, N, N, F) if all images share it.
            x: (B, N, D) the layer's input.

        Returns:
            (B, H, N, N)
        """
        if geometry.shape[-1] != self.features:
            raise ValueError(
                f"this bias needs {self.features} geometry features per pair, not "
                f"{geometry.shape[-1]}; call relative_geometry with signed={self.features == 6}"
            )
        images, regions = x.shape[:2]
        if geometry.shape[0] not in (images, 1) or geometry.shape[1:3] != (regions, regions):
            raise ValueError(
                f"geometry of shape {tuple(geometry.shape)} does not match elements of shape "
                f"{tuple(x.shape)}"
            )
        biases = []
        if self.embedding is not None:
            fc = (self.embedding.weight, self.embedding.bias)
            embedded = None if self._query_alone else embed_geometry(geometry, *fc)
            if self.content_independent is not None:
                biases.append(self.content_independent(embedded).relu().permute(0, 3, 1, 2))
            if self.query is not None:
                query = self.query(x).unflatten(-1, (self.heads, self.width))  # (B, N, H, G)
                biases.append(query_bias(geometry, *fc, query, embedded))
            if self.key is not None:
                key = self.key(x).unflatten(-1, (self.heads, self.width))
                assert embedded is not None
                each = embedded.expand(images, -1, -1, -1)
                biases.append(torch.einsum("bjhg,bijg->bhij", key, each))
        if self.relation is not None:
            waves = sinusoidal(geometry * _WAVE_SCALE, _WAVES, max_ratio=_WAVE_RATIO)
            waves = waves.flatten(-2).to(self.relation.weight.dtype)
            gate = self.relation(waves).relu().permute(0, 3, 1, 2)
            biases.append(gate.clamp(min=MIN_GATE).log())
        return torch.stack(biases).sum(0) if len(biases) > 1 else biases[0]


def bias_terms(kind: str) -> tuple[str, ...]:
    """The terms that a kind of bias such as "query+key" sums.

    Raises:
        ValueError: A term is unknown or named twice.
    """
    terms = tuple(term.strip() for term in kind.split("+"))
    for term in terms:
        if term not in BIAS_TERMS:
            raise ValueError(
                f"unknown geometric bias {term!r} in {kind!r}: one of {', '.join(BIAS_TERMS)}, "
                "or a sum of them joined by '+'"
            )
    if len(set(terms)) < len(terms):
        raise ValueError(f"geometric bias {kind!r} names a term twice")
    return terms
