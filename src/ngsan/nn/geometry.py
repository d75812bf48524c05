"""Geometry of regions: relative features (Eq. 8), their embedding (Eq. 9), biases (Eq. 11-13).

Shapes: `B` images, `N` regions, `D` model width, `H` heads, `F` geometry features (4, or 6 when
signed), `G` width of the geometry embedding. Boxes are `cxcywh`: centre, width and height, in
any unit.
"""

import torch
from torch import Tensor, nn

from ngsan.nn.masks import check_mask
from ngsan.nn.positions import sinusoidal
from ngsan.nn.query_bias import embed_geometry, query_bias

SMALLEST_RATIO = 1e-3
"""Floor of the ratios under the logarithms of distance, whose true value is 0 on the diagonal."""

FARTHEST_OFFSET = 3.0
"""Where the offsets of the signed form are cut off, in widths or heights of the box."""

SMALLEST_GATE = 1e-6
"""Floor of the relation network's gate, whose logarithm is added to the scores."""

BIAS_TERMS = ("content-independent", "query", "key", "relation")
"""The terms of `GeometryBias`; any sum of them is written with `+`, as in "query+key"."""

# How relation networks (Hu et al. 2018) embed a number: scaled by 100, as sines and cosines, 16 in
# all, of wavelengths up to 1000 times the shortest. Absolute geometry takes the same scale.
_WAVES, _WAVE_SCALE, _WAVE_LONGEST = 16, 100.0, 1_000.0


def check_boxes(boxes: Tensor, mask: Tensor | None = None) -> None:
    """Raises a `ValueError` that names the first real box that is not finite or has no area.

    Reads values, so it waits for a device: call it where data enters, not in a training step.

    Args:
        boxes: (B, N, 4) `cxcywh`.
        mask: (B, N) boolean, True = real, or None.
    """
    if boxes.ndim != 3 or boxes.shape[-1] != 4:
        raise ValueError(f"boxes must be (images, regions, 4), not {tuple(boxes.shape)}")
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
    """Raises a `ValueError` unless boxes and mask are there and fit the features.

    Only shapes and types are read, so a device is never waited for.

    Args:
        features: (B, N, C).
        boxes: (B, N, 4), or None for none.
        mask: (B, N) boolean, True = a real region, or None.
        needs_boxes: Whether there must be boxes.
    """
    check_mask(mask, features)
    if boxes is None:
        if needs_boxes:
            raise ValueError("this model is geometry-aware: it needs the regions' boxes")
    elif boxes.shape != (*features.shape[:2], 4):
        raise ValueError(
            f"boxes of shape {tuple(boxes.shape)} do not fit features of shape "
            f"{tuple(features.shape)}: expected {(*features.shape[:2], 4)}"
        )


def _usable_boxes(boxes: Tensor, mask: Tensor | None) -> Tensor:
    """Boxes checked as far as is free of cost, in at least 32 bits, harmless at padding."""
    if boxes.ndim != 3 or boxes.shape[-1] != 4:
        raise ValueError(f"boxes must be (images, regions, 4), not {tuple(boxes.shape)}")
    if not boxes.is_floating_point():
        raise ValueError(f"boxes must be floating point, not {boxes.dtype}")
    check_mask(mask, boxes)
    if boxes.device.type == "cpu" and not torch.compiler.is_compiling():
        check_boxes(boxes, mask)
    boxes = boxes.to(torch.promote_types(boxes.dtype, torch.float32))
    return boxes if mask is None else boxes.masked_fill(~mask.unsqueeze(-1), 0.5)


def _refuse_pixels(boxes: Tensor, what: str) -> None:
    """Raises a `ValueError` if boxes on the CPU are surely not relative to the image."""
    on_cpu = boxes.device.type == "cpu" and not torch.compiler.is_compiling()
    if on_cpu and (boxes > 2).any():
        raise ValueError(
            f"{what} needs boxes relative to the image, from 0 to 1; the largest number here is "
            f"{boxes.max().item():g}: divide by the image's width and height"
        )


def relative_geometry(
    boxes: Tensor, mask: Tensor | None = None, *, signed: bool = False, plus_one: bool = False
) -> Tensor:
    """Relative geometry of every pair of regions (Eq. 8).

    f_ij = (log(|xi - xj| / wi), log(|yi - yj| / hi), log(wi / wj), log(hi / hj)). It is the same
    for boxes that are all shifted, or whose x and y are each rescaled.

    Note: the paper does not say what becomes of log 0, on the diagonal and for aligned boxes.
        We clamp the first two ratios at 1e-3. Widths and heights are taken as they are: the `+ 1`
        of public geometry-aware captioners belongs to pixel boxes and swamps relative ones; it
        can be had to compare with them.

    Note: Eq. 8 is blind to direction: a mirrored image has the same features. The signed form
        appends the offsets (xi - xj) / wi and (yi - yj) / hi themselves, which keep it, cut off
        at three widths or heights either way: farther off, the logarithms tell the distance.

    Args:
        boxes: (B, N, 4) `cxcywh`. On the CPU a box that is not finite or has no area is a
            `ValueError`; on a device call `check_boxes` where the data enters.
        mask: (B, N) boolean, True = real, or None. Padded boxes may hold anything.
        signed: Whether to append the two features that tell direction.
        plus_one: Whether 1 is added to widths and heights. Boxes must then be relative to the
            image: all seem to be one to two images wide.

    Returns:
        (B, N, N, 4), or (B, N, N, 6) when signed, in at least single precision; finite, unless
        a box is so small that a ratio overflows; at padding meaningless.
    """
    boxes = _usable_boxes(boxes, mask)
    centre, size = boxes[..., :2], boxes[..., 2:]
    if plus_one:
        _refuse_pixels(boxes, "geometry with 1 added to widths and heights")
        size = size + 1.0
    offset = (centre.unsqueeze(2) - centre.unsqueeze(1)) / size.unsqueeze(2)  # (B, N, N, 2)
    distance = offset.abs()
    features = [
        distance.clamp(min=SMALLEST_RATIO).log(),
        size.log().unsqueeze(2) - size.log().unsqueeze(1),
    ]
    if signed:
        features.append(offset.clamp(-FARTHEST_OFFSET, FARTHEST_OFFSET))
    return torch.cat(features, dim=-1)


class AbsoluteGeometry(nn.Module):
    """Sinusoidal embedding of each box, to be added to the encoder's input (paper, Table 4).

    Centre, width and height, relative to the image, each get a quarter of the components.
    """

    def __init__(self, dim: int = 512) -> None:
        """Makes the embedding.

        Args:
            dim: D, a multiple of 8.
        """
        super().__init__()
        if dim % 8:
            raise ValueError(f"absolute geometry needs a model width divisible by 8, not {dim}")
        self.dim = dim

    def forward(self, boxes: Tensor, mask: Tensor | None = None) -> Tensor:
        """Embeds.

        Args:
            boxes: (B, N, 4) `cxcywh` relative to the image.
            mask: (B, N) boolean, True = real, or None.

        Returns:
            (B, N, D)
        """
        boxes = _usable_boxes(boxes, mask)
        _refuse_pixels(boxes, "absolute geometry")
        waves = sinusoidal(boxes * _WAVE_SCALE, self.dim // 4, longest=_WAVE_LONGEST)
        return waves.flatten(-2)


class GeometryBias(nn.Module):
    """Geometric bias of the attention scores (Eq. 11-13): a named term or a sum of them.

    - `content-independent` (Eq. 11): ReLU(w . G_ij), one w a head;
    - `query` (Eq. 12, the paper's choice): Q'_i . G_ij, with Q' a projection of the layer's input;
    - `key` (Eq. 13): K'_j . G_ij, likewise;
    - `relation`: the baseline of relation networks (Hu et al. 2018). ReLU of a projection of the
      sinusoidally embedded geometry multiplies the attention weights; here its logarithm is added
      to the scores, which is the same after the softmax.

    G = ReLU(FC(f)) (Eq. 9) is shared by the heads and terms of a layer; Q' and K' have a part of
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
        """Makes the bias.

        Args:
            kind: A name of `BIAS_TERMS`, or several joined by `+`.
            dim: D, width of the layer's input.
            heads: H.
            width: G, width of the geometry embedding.
            signed: Whether the geometry is the signed form of `relative_geometry`.
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

    def begin(self) -> None:
        """Makes Q' and K' random constants, so that the bias begins independent of content.

        Note: the paper does not say how they begin. So the relations of the built-in scenes are
            learned sooner.
        """
        for projection in (self.query, self.key):
            if projection is not None:
                nn.init.zeros_(projection.weight)
                nn.init.normal_(projection.bias, std=self.width**-0.5)

    def forward(self, geometry: Tensor, x: Tensor) -> Tensor:
        """The bias of every head and pair.

        Args:
            geometry: (B, N, N, F) of `relative_geometry`.
            x: (B, N, D) the layer's input.

        Returns:
            (B, H, N, N)
        """
        if geometry.shape[-1] != self.features:
            raise ValueError(
                f"this bias reads {self.features} geometry features a pair, not "
                f"{geometry.shape[-1]}: signed={self.features == 6} in relative_geometry gives them"
            )
        if geometry.shape[:3] != (*x.shape[:2], x.shape[1]):
            raise ValueError(
                f"geometry of shape {tuple(geometry.shape)} does not fit elements of shape "
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
                biases.append(torch.einsum("bjhg,bijg->bhij", key, embedded))
        if self.relation is not None:
            waves = sinusoidal(geometry * _WAVE_SCALE, _WAVES, longest=_WAVE_LONGEST)
            waves = waves.flatten(-2).to(self.relation.weight.dtype)
            gate = self.relation(waves).relu().permute(0, 3, 1, 2)
            biases.append(gate.clamp(min=SMALLEST_GATE).log())
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
