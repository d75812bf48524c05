"""The geometric bias of Eq. 11-13 in numpy, of pairs of regions and as surfaces over geometry.

Shapes: `N` regions, `D` model width, `H` heads, `F` geometry features (4, or 6 when signed), `G`
width of the geometry embedding, `S` steps of a surface's side.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ngsan.config import PLUS_ONE, CaptionerConfig

Floats: TypeAlias = NDArray[np.float32]
_Reals: TypeAlias = NDArray[np.floating[Any]]
Linear: TypeAlias = tuple[Floats, Floats | None]
"""Weight (out, in) and shift (out)."""

SMALLEST_RATIO = 1e-3
"""What stands for 0 under a logarithm, as in `ngsan.nn.geometry`."""

FARTHEST_OFFSET = 3.0
"""Where the offsets of the signed form are cut off, likewise."""

SMALLEST_GATE = 1e-6
"""Floor of the relation network's gate, likewise."""

RANGE = (0.0, 3.0)
"""What the surfaces of the paper's appendix go over."""

HELD = (0.5, 1.0, 2.0)
"""What the other two numbers are held at."""

_WAVES, _WAVE_SCALE, _WAVE_LONGEST = 16, 100.0, 1_000.0


@dataclass(frozen=True)
class Surfaces:
    """The bias of one head, or of the mean of the heads, over geometry."""

    kind: str
    """The model's geometry, such as "content-independent" or "query"."""

    range: tuple[float, float]
    """First and last value of the axes; the position's may be others, see `offsets`."""

    steps: int
    """S."""

    position: dict[str, list[list[float]]]
    """By dw = dh: (S, S) over dy (rows) and dx (columns)."""

    size: dict[str, list[list[float]]]
    """By dx = dy: (S, S) over dh (rows) and dw (columns)."""

    offsets: tuple[float, float] = RANGE
    """First and last value of the position's axes."""


def relative_features(boxes: Floats, *, signed: bool) -> Floats:
    """Eq. 8 of every pair of boxes: (N, 4) `cxcywh` to (N, N, F)."""
    centre, side = boxes[:, :2], boxes[:, 2:]
    offset = (centre[:, None] - centre[None]) / side[:, None]
    return _features(offset, side[:, None] / side[None], signed=signed)


def _features(offset: _Reals, ratio: _Reals, *, signed: bool) -> Floats:
    """(..., 2) offsets (xi - xj) / wi, (yi - yj) / hi and ratios wi / wj, hi / hj to (..., F)."""
    parts = [np.log(np.maximum(np.abs(offset), SMALLEST_RATIO)), np.log(ratio)]
    if signed:
        parts.append(np.clip(offset, -FARTHEST_OFFSET, FARTHEST_OFFSET))
    return np.concatenate(parts, -1).astype(np.float32)


def apply_linear(x: Floats, linear: Linear) -> Floats:
    """(..., in) to (..., out)."""
    weight, shift = linear
    made: Floats = x @ weight.T
    return made if shift is None else made + shift


@dataclass(frozen=True)
class Bias:
    """The weights of one layer's bias; see `ngsan.nn.geometry.GeometryBias`."""

    kind: str
    """The terms that it sums, joined by `+`."""

    heads: int
    """H."""

    signed: bool
    """Whether it reads the signed form of Eq. 8."""

    parts: Mapping[str, Linear]
    """By name: embedding, content_independent, query, key, relation, as far as it has them."""

    @classmethod
    def of(
        cls, state: Mapping[str, NDArray[Any]], config: CaptionerConfig, layer: int
    ) -> "Bias | None":
        """The bias of a layer of the encoder, from 0; None for a model without one.

        Args:
            state: The model's weights by name, in single precision.
            config: What it was built from.
            layer: Which layer.

        Raises:
            ValueError: There is no such layer.
        """
        if not 0 <= layer < config.layers:
            raise ValueError(f"layer: {layer} is not one of 0 to {config.layers - 1}")
        terms = [term for term in config.geometry_terms if term != "absolute"]
        if not terms:
            return None
        if PLUS_ONE in terms:
            raise ValueError(f"geometry: {PLUS_ONE} is not known to the bias without torch")
        at = f"{encoder_prefix(config)}layers.{layer}.attention.score_bias."
        names = ("embedding", "content_independent", "query", "key", "relation")
        parts = {name: read_linear(state, at + name) for name in names if has(state, at + name)}
        return cls("+".join(terms), config.heads, config.signed_geometry, parts)

    @property
    def width(self) -> int:
        """G."""
        return len(self.parts["embedding"][0])

    def project(self, x: Floats, name: str) -> Floats | None:
        """Q' or K' of regions: (N, D) to (N, H, G); None for a bias that has none.

        Args:
            x: The layer's input.
            name: "query" or "key".
        """
        if name not in self.parts:
            return None
        return apply_linear(x, self.parts[name]).reshape(len(x), self.heads, self.width)

    def constant(self, name: str) -> Floats | None:
        """(H, G) the part of Q' or K' that does not depend on content; None if it has none."""
        if name not in self.parts:
            return None
        shift = self.parts[name][1]
        assert shift is not None
        return shift.reshape(self.heads, self.width)

    def __call__(
        self, geometry: Floats, query: Floats | None = None, key: Floats | None = None
    ) -> Floats:
        """The bias of each head.

        Args:
            geometry: (..., F).
            query: (..., H, G) Q', broadcastable; of a bias that depends on the query.
            key: (..., H, G) K', likewise.

        Returns:
            (..., H)
        """
        total = np.zeros((*geometry.shape[:-1], self.heads), np.float32)
        if "embedding" in self.parts:
            embedded = np.maximum(apply_linear(geometry, self.parts["embedding"]), 0)
            if "content_independent" in self.parts:
                plain = apply_linear(embedded, self.parts["content_independent"])
                total += np.maximum(plain, 0)
            for name, of in (("query", query), ("key", key)):
                if name in self.parts:
                    if of is None:
                        raise ValueError(f"this bias depends on the {name}, which is not given")
                    total += (of @ embedded[..., None])[..., 0]
        if "relation" in self.parts:
            gate = np.maximum(apply_linear(_waves(geometry), self.parts["relation"]), SMALLEST_GATE)
            total += np.log(gate)
        return total

    def of_pairs(self, boxes: Floats, x: Floats) -> Floats:
        """The bias between the regions of an image.

        Args:
            boxes: (N, 4) `cxcywh`.
            x: (N, D) the layer's input.

        Returns:
            (H, N, N)
        """
        query, key = self.project(x, "query"), self.project(x, "key")
        found = self(
            relative_features(boxes, signed=self.signed),
            None if query is None else query[:, None],
            None if key is None else key[None],
        )
        return found.transpose(2, 0, 1)


def _waves(geometry: Floats) -> Floats:
    """Sinusoids of the features, as relation networks embed them: (..., F) to (..., F waves)."""
    angles = _WAVE_SCALE / _WAVE_LONGEST ** (np.arange(0, _WAVES, 2) / _WAVES)
    angle = geometry[..., None] * angles  # (..., F, waves / 2)
    pairs = np.stack((np.sin(angle), np.cos(angle)), -1)
    return pairs.reshape(*geometry.shape[:-1], -1).astype(np.float32)


def bias_surfaces(
    bias: Bias,
    *,
    head: int | None = 0,
    query: Floats | None = None,
    key: Floats | None = None,
    steps: int = 31,
    two_sided: bool = False,
) -> Surfaces:
    """The bias as a function of relative geometry: the two figures of the paper's appendix.

    The first has dx = |xi - xj| / wi and dy = |yi - yj| / hi as its axes at fixed dw = wi / wj =
    dh = hi / hj, the second dw and dh at fixed dx = dy. A zero counts as 1e-3.

    Note: With signed geometry the bias depends on the side, too. The surfaces are then those of
        another region on the right of and below the one that looks; two-sided ones have it in
        the middle and the other one anywhere, y downwards as in a picture.

    Args:
        bias: Of one layer.
        head: Which head, from 0, or None for the mean of the heads.
        query: (H, G) Q' of the region that looks; None for its constant part.
        key: (H, G) K' of the other region; None for its constant part.
        steps: Values of each axis.
        two_sided: Whether the position's axes go from -3 to 3: (xj - xi) / wi and (yj - yi) / hi.

    Raises:
        ValueError: There is no such head, or too few or too many steps.
    """
    if head is not None and not 0 <= head < bias.heads:
        raise ValueError(f"head: {head} is not one of 0 to {bias.heads - 1}")
    if not 2 <= steps <= 201:
        raise ValueError(f"steps: {steps} is not one of 2 to 201")
    query = bias.constant("query") if query is None else query
    key = bias.constant("key") if key is None else key

    def surface(x: _Reals, y: _Reals, width: _Reals, height: _Reals) -> list[list[float]]:
        x, y, width, height = np.broadcast_arrays(x, y, width, height)
        offset = -np.stack((x, y), -1)  # the other region's place seen from the one that looks
        ratio = np.stack((width, height), -1)
        found = bias(_features(offset, ratio, signed=bias.signed), query, key)  # (S, S, H)
        chosen = found.mean(-1) if head is None else found[..., head]
        rows: list[list[float]] = np.round(chosen.astype(np.float64), 6).tolist()
        return rows

    offsets = (-RANGE[1], RANGE[1]) if two_sided else RANGE
    places = np.linspace(*offsets, steps)
    ratios = np.maximum(np.linspace(*RANGE, steps), SMALLEST_RATIO)
    return Surfaces(
        kind=bias.kind,
        range=RANGE,
        steps=steps,
        position={
            f"{held:g}": surface(places[None], places[:, None], _held(held), _held(held))
            for held in HELD
        },
        size={
            f"{held:g}": surface(_held(held), _held(held), ratios[None], ratios[:, None])
            for held in HELD
        },
        offsets=offsets,
    )


def _held(value: float) -> _Reals:
    return np.full((1, 1), value)


def encoder_prefix(config: CaptionerConfig) -> str:
    """How the names of the encoder's weights begin."""
    return "encoder." if config.backbone == "none" else "encoder.regions."


def has(state: Mapping[str, NDArray[Any]], name: str) -> bool:
    """Whether a dense layer of this name is among the weights."""
    return f"{name}.weight" in state


def read_linear(state: Mapping[str, NDArray[Any]], name: str) -> Linear:
    """The weight and shift of a dense layer."""
    return state[f"{name}.weight"], state.get(f"{name}.bias")
