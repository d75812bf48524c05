"""The shape of a captioner."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from ngsan.config.checks import check_choice, check_range, check_types
from ngsan.config.files import from_dict

MODELS: dict[str, dict[str, str]] = {
    "san": {"norm": "none", "geometry": "none"},
    "n-san": {"norm": "instance", "geometry": "none"},
    "g-san": {"norm": "none", "geometry": "query"},
    "ng-san": {"norm": "instance", "geometry": "query"},
}
"""The paper's four models: what each sets in `CaptionerConfig`."""

GEOMETRY_TERMS = ("absolute", "content-independent", "query", "key", "relation")
"""What `CaptionerConfig.geometry` may sum with `+`; "none" and `PLUS_ONE` stand alone."""

PLUS_ONE = "relation-plus-one"
"""The term `relation` with 1 added to widths and heights, as in the program of the object relation
transformer (Herdade et al. 2019), whose boxes are relative to the image."""


@dataclass(frozen=True)
class CaptionerConfig:
    """The shape of an image captioner. The defaults are the paper's NG-SAN."""

    vocab_size: int = 9488
    """V, the words and the one boundary id that begins, ends and pads a caption; COCO: 9487 + 1.
    In training it is taken from the data, whatever is said here."""

    feature_dim: int = 2048
    """Width of a region's feature vector; of a cell, with a backbone. In training it is taken from
    the data."""

    backbone: Literal["none", "efficientnet-lite0", "efficientnet-lite2"] = "none"
    """What makes regions of an image's pixels; none for regions that are given."""

    image_size: int = 256
    """Backbone: side of the square that images are squashed to, a multiple of 32."""

    positions: Literal["none", "sinusoidal"] = "none"
    """What is added to the regions for their frame's place in a clip: none, as an image's have no
    order, or sinusoidal."""

    frame_grid: int = 0
    """Clips as `ngsan extract --frames` makes them: every frame is a grid of so many cells by so
    many. Such a model captions video files. 0 for images, and where a frame is one vector (I3D)."""

    dim: int = 512
    """D, the model's width."""

    heads: int = 8
    """H, attention heads; a divisor of dim."""

    hidden_dim: int = 2048
    """Inner width of the feed-forward networks."""

    layers: int = 4
    """L, layers of the encoder and also of the decoder (paper: 1, 2, 4 or 6)."""

    dropout: float = 0.1
    """Dropout probability of inputs, attention weights and sub-layers."""

    norm: Literal["none", "instance", "instance-affine", "batch", "layer"] = "instance"
    """Norm inside the encoder's self-attention, Eq. 6-7 (NSA: instance)."""

    norm_of: Literal["query", "key", "both"] = "query"
    """What that norm is applied to."""

    geometry: str = "query"
    """Geometry of the encoder: none, absolute, content-independent, query, key, relation, or a
    sum such as query+key (GSA: query, Eq. 12); relation-plus-one is relation with the box-scale
    bug of a published program, to compare with it."""

    geometry_dim: int = 64
    """Width of the geometry embedding, Eq. 9."""

    signed_geometry: bool = False
    """Whether relative geometry also tells left from right and above from below, which Eq. 8
    does not."""

    decoder: Literal["transformer", "up-down", "aoa"] = "transformer"
    """What writes: the Transformer's decoder, or a recurrent one to compare with. up-down: two
    LSTMs with attention to the regions, which no encoder layers refine (Anderson et al. 2018);
    aoa: an LSTM and an encoder, both with attention on attention (Huang et al. 2019)."""

    decoder_norm: Literal["none", "instance", "instance-affine", "batch", "layer"] = "none"
    """Norm of the queries in the decoder's self-attention. Instance and batch norm are refused:
    they would see the words still to be written."""

    norm_place: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum, as in the original Transformer, or before each
    sub-layer."""

    backend: Literal["fused", "explicit"] = "fused"
    """How attention is computed; both give the same result, explicit spells the equations out."""

    def __post_init__(self) -> None:
        """Checks every value.

        Raises:
            ValueError: A value is of the wrong type or out of range; the message names the key.
        """
        check_types(self)
        if self.decoder_norm in ("instance", "instance-affine", "batch"):
            raise ValueError(
                f"decoder_norm: {self.decoder_norm!r} cannot be used in an autoregressive decoder: "
                "its statistics take in the words that are still to be written. "
                "Use 'none' or 'layer'"
            )
        for name in ("vocab_size", "feature_dim", "dim", "heads", "hidden_dim", "layers"):
            check_range(self, name, at_least=1)
        check_range(self, "geometry_dim", at_least=1)
        check_range(self, "image_size", at_least=32)
        if self.image_size % 32:
            raise ValueError(f"image_size: {self.image_size} is not a multiple of 32")
        self._check_frames()
        check_range(self, "dropout", at_least=0, below=1)
        if self.dim % self.heads:
            raise ValueError(f"dim: {self.dim} does not divide into heads: {self.heads}")
        if self.dim % 2:
            raise ValueError(f"dim: {self.dim} must be even, for sinusoidal word positions")
        self._check_geometry()
        self._check_decoder()

    def _check_geometry(self) -> None:
        if PLUS_ONE in self.geometry_terms and len(self.geometry_terms) > 1:
            raise ValueError(f"geometry: {self.geometry!r}: {PLUS_ONE} cannot be part of a sum")
        for term in self.geometry_terms:
            check_choice("geometry", term, (*GEOMETRY_TERMS, PLUS_ONE))
        if len(set(self.geometry_terms)) < len(self.geometry_terms):
            raise ValueError(f"geometry: {self.geometry!r} names a term twice")
        if "absolute" in self.geometry_terms and self.dim % 8:
            raise ValueError(f"dim: {self.dim} must be divisible by 8 for absolute geometry")

    def _check_decoder(self) -> None:
        unused = {"up-down": ("norm", "geometry", "decoder_norm"), "aoa": ("decoder_norm",)}
        for name in unused.get(self.decoder, ()):
            if getattr(self, name) != "none":
                raise ValueError(
                    f"{name}: {getattr(self, name)!r} has no place in a model with decoder: "
                    f"{self.decoder}: set {name} to none"
                )

    def require_transformer(self, what: str) -> None:
        """Raises a `ValueError` if the decoder is a recurrent one, which not everything knows.

        Args:
            what: What knows the Transformer's alone, as the subject of a sentence.
        """
        if self.decoder != "transformer":
            raise ValueError(
                f"decoder: {self.decoder!r}: {what} knows models with the Transformer decoder only"
            )

    def _check_frames(self) -> None:
        check_range(self, "frame_grid", at_least=0)
        if self.positions != "none" and self.backbone != "none":
            raise ValueError(
                f"positions: {self.positions!r} is for the frames of clips, and the backbone "
                f"{self.backbone} makes cells of one picture: set one of the two to none"
            )
        if self.frame_grid and self.positions == "none":
            raise ValueError(
                f"frame_grid: {self.frame_grid} is for the frames of clips, whose order positions "
                "tell: set positions to sinusoidal"
            )

    @property
    def frame_cells(self) -> int:
        """Regions of a frame."""
        return max(1, self.frame_grid**2)

    @property
    def geometry_terms(self) -> tuple[str, ...]:
        """The terms that `geometry` sums; none for "none"."""
        if self.geometry == "none":
            return ()
        return tuple(term.strip() for term in self.geometry.split("+"))

    @property
    def needs_relative_boxes(self) -> bool:
        """Whether boxes must be relative to the image rather than in any unit."""
        return bool({"absolute", PLUS_ONE} & set(self.geometry_terms))

    @classmethod
    def for_model(cls, model: str, **overrides: Any) -> "CaptionerConfig":
        """The configuration of a named model, with some keys changed.

        Args:
            model: "san", "n-san", "g-san" or "ng-san".
            **overrides: Any keys of this class.
        """
        check_choice("model", model, tuple(MODELS))
        return from_dict(cls, {**MODELS[model], **overrides})

    def as_model(self, model: str) -> "CaptionerConfig":
        """This configuration with the norm, geometry and decoder of a named model."""
        check_choice("model", model, tuple(MODELS))
        own = {**dataclasses.asdict(self), "decoder": "transformer"}
        return from_dict(CaptionerConfig, {**own, **MODELS[model]})


@dataclass(frozen=True)
class ModelConfig:
    """A model alone, as the files of `configs/image` hold it."""

    model: CaptionerConfig = field(default_factory=CaptionerConfig)
    """The captioner."""
