"""The shapes of the models: captioner, translator, answerer."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal, Self

from ngsan.config.schema import check_choice, check_range, check_types, from_dict

MODELS: dict[str, dict[str, str]] = {
    "san": {"norm": "none", "geometry": "none"},
    "n-san": {"norm": "instance", "geometry": "none"},
    "g-san": {"norm": "none", "geometry": "query"},
    "ng-san": {"norm": "instance", "geometry": "query"},
}
"""The paper's four captioners: what each sets in `CaptionerConfig`."""

TRANSLATORS: dict[str, dict[str, str]] = {
    "transformer": {"norm": "none"},
    "transformer-nsa": {"norm": "instance"},
}
"""The paper's two translators (Table 8): what each sets in `TranslatorConfig`."""

ANSWERERS: dict[str, dict[str, str]] = {
    "question-only": {"regions": "none", "geometry": "none", "question_geometry": "none"},
    "mcan": {"regions": "guided", "geometry": "none", "question_geometry": "none"},
    "mcan-gsa": {"regions": "guided", "geometry": "query", "question_geometry": "query"},
}
"""The answerers by name: what each sets in `AnswererConfig`."""

PLUS_ONE = "relation-plus-one"
"""The term `relation` with 1 added to widths and heights, as in the program of the object relation
transformer (Herdade et al. 2019), whose boxes are relative to the image."""

_RELATIVE_TERMS = ("content-independent", "query", "key", "relation")

GEOMETRY_TERMS = ("absolute", *_RELATIVE_TERMS)
"""What `CaptionerConfig.geometry` may sum with `+`; "none" and `PLUS_ONE` stand alone."""


BACKBONES = ("none", "efficientnet-lite0", "efficientnet-lite2")
"""The backbones that need no other library, and none."""

HUBS = ("hf", "timm")
"""The libraries of other backbones, as prefixes of their names: transformers and timm."""

RECURRENT = ("up-down", "aoa", "lstm")
"""The values of `CaptionerConfig.decoder` without decoder layers: a cell reads word by word."""

_UNUSED = {
    "up-down": ("norm", "geometry", "decoder_norm"),
    "aoa": ("decoder_norm",),
    "lstm": ("norm", "geometry", "decoder_norm", "positions"),
}
"""Keys that must be none with these decoders."""

_STRIDE = 32
"""Side of a cell of our own backbones, in pixels."""

_MAX_LAYERS, _MAX_WIDTH, _MAX_ENTRIES, _MAX_SIDE = 256, 1 << 16, 1 << 24, 4096
"""Limits far beyond any real model: layers, widths, entries of a vocabulary, side of an image."""


@dataclass(frozen=True)
class _NamedModel:
    """The shape of a model some of whose keys are set by a model's name."""

    _named = MODELS

    @classmethod
    def for_model(cls, model: str, **overrides: Any) -> Self:
        """The configuration of a named model, such as "ng-san", with some keys changed."""
        check_choice("model", model, tuple(cls._named))
        return from_dict(cls, {**cls._named[model], **overrides})

    def as_model(self, model: str) -> Self:
        """This configuration with the keys that a model's name sets."""
        check_choice("model", model, tuple(self._named))
        own = dataclasses.asdict(self)
        return from_dict(type(self), {**own, **self._named[model]})


@dataclass(frozen=True)
class CaptionerConfig(_NamedModel):
    """The shape of a captioner of images or clips. The defaults are the paper's NG-SAN."""

    vocab_size: int = 9488
    """V, the words and the one boundary id that begins, ends and pads a caption; COCO: 9487 + 1.
    Training sets it from the data."""

    feature_dim: int = 2048
    """Width of a region's feature vector; of a cell, with a backbone. Training sets it from the
    data."""

    backbone: str = "none"
    """The network that turns pixels into regions: efficientnet-lite0, efficientnet-lite2, hf:NAME
    for an image model of transformers, timm:NAME for one of timm; none if regions are given."""

    backbone_config: str = ""
    """What a backbone of transformers or timm is built from, as JSON, so that nothing is looked up
    when the model is loaded. Training sets it."""

    image_size: int = 0
    """Backbone: side of the square that images are resized to, a multiple of 32, or of the patches
    of another backbone; 0 for the side it was made for (EfficientNet: 256). Training sets it."""

    objects: int = 0
    """Backbone: detected regions of each image that join the cells, as N boxes over which the cells
    are pooled. Training takes the first N boxes of each image in the dataset's features; for a box
    that is missing the whole image stands in. 0 for cells alone."""

    positions: Literal["none", "sinusoidal"] = "none"
    """Encoding of a region's frame in a clip: none for images, sinusoidal for clips."""

    frame_grid: int = 0
    """Clips as `ngsan extract --frames` makes them: every frame is a grid of N x N cells. Such a
    model captions video files. 0 for images, and where a frame is one vector (I3D)."""

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
    bug of a published program, for comparison."""

    geometry_dim: int = 64
    """Width of the geometry embedding, Eq. 9."""

    geometry_init: Literal["constant", "plain"] = "constant"
    """Initial Q' and K': a random constant for each head, independent of content, or like all
    other projections."""

    signed_geometry: bool = False
    """Whether relative geometry distinguishes left from right and above from below, unlike
    Eq. 8."""

    decoder: Literal["transformer", "mt", "up-down", "aoa", "lstm"] = "transformer"
    """The Transformer's decoder, or another one for comparison. mt: the Transformer's with an LSTM
    over the words in place of their positions (Yu et al. 2019); up-down: two LSTMs with attention
    to the regions, without encoder layers (Anderson et al. 2018); aoa: an LSTM and an encoder, both
    with attention on attention (Huang et al. 2019); lstm: an LSTM with attention, and LSTMs over
    the frames of a clip in both directions as encoder layers (Wang et al. 2019)."""

    decoder_norm: Literal["none", "instance", "instance-affine", "batch", "layer"] = "none"
    """Norm of the queries in the decoder's self-attention. Instance and batch norm are errors:
    they would see future words."""

    norm_place: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum, as in the original Transformer, or before each
    sub-layer."""

    backend: Literal["fused", "explicit"] = "fused"
    """How attention is computed; both give the same result, explicit spells the equations out."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.decoder_norm in ("instance", "instance-affine", "batch"):
            raise ValueError(
                f"decoder_norm: {self.decoder_norm!r} cannot be used in an autoregressive decoder: "
                "its statistics include future words. Use 'none' or 'layer'"
            )
        sizes = ("vocab_size", "feature_dim", "dim", "heads", "hidden_dim", "layers")
        check_range(self, *sizes, "geometry_dim", at_least=1)
        _check_limits(self, "feature_dim", "dim", "hidden_dim", "geometry_dim")
        self._check_backbone()
        check_range(self, "dropout", at_least=0, below=1)
        _check_heads(self)
        _check_even(self)
        self._check_frames()
        self._check_geometry()
        for name in _UNUSED.get(self.decoder, ()):
            if getattr(self, name) != "none":
                raise ValueError(
                    f"{name}: {getattr(self, name)!r} cannot be used with decoder: "
                    f"{self.decoder}; set {name} to none"
                )

    def _check_backbone(self) -> None:
        check_range(self, "image_size", at_least=0, at_most=_MAX_SIDE)
        check_range(self, "objects", at_least=0, at_most=_MAX_SIDE)
        if self.objects and self.backbone == "none":
            raise ValueError(
                f"objects: {self.objects} regions cannot join the cells of backbone: none; set "
                "objects to 0, as regions come from the dataset's features anyway"
            )
        library, _, name = self.backbone.partition(":")
        if library in HUBS and name:
            if self.backbone_config:
                _check_grid(self.backbone_config)
            return
        check_choice("backbone", self.backbone, (*BACKBONES, *(f"{hub}:NAME" for hub in HUBS)))
        if self.image_size % _STRIDE:
            raise ValueError(f"image_size: {self.image_size} is not a multiple of {_STRIDE}")
        if self.backbone_config:
            raise ValueError(f"backbone_config: {self.backbone} has none; leave it empty")

    def _check_geometry(self) -> None:
        if PLUS_ONE in self.geometry_terms and len(self.geometry_terms) > 1:
            raise ValueError(f"geometry: {self.geometry!r}: {PLUS_ONE} cannot be part of a sum")
        for term in self.geometry_terms:
            check_choice("geometry", term, (*GEOMETRY_TERMS, PLUS_ONE))
        if len(set(self.geometry_terms)) < len(self.geometry_terms):
            raise ValueError(f"geometry: {self.geometry!r} names a term twice")
        if "absolute" in self.geometry_terms and self.dim % 8:
            raise ValueError(f"dim: {self.dim} must be divisible by 8 for absolute geometry")

    def _check_frames(self) -> None:
        check_range(self, "frame_grid", at_least=0, at_most=_MAX_SIDE)
        if self.positions != "none" and self.backbone != "none":
            raise ValueError(
                f"positions: {self.positions!r} is for the frames of clips, and the backbone "
                f"{self.backbone} makes cells of one image; set one of the two to none"
            )
        if self.frame_grid and self.positions == "none" and self.decoder != "lstm":
            raise ValueError(
                f"frame_grid: {self.frame_grid} is for the frames of clips, whose order needs "
                "positions; set positions to sinusoidal"
            )

    def require_transformer(self, what: str) -> None:
        """Raises a `ValueError` for another decoder, which `what` does not support."""
        if self.decoder != "transformer":
            raise ValueError(
                f"decoder: {self.decoder!r}: {what} supports only models with the Transformer "
                "decoder"
            )

    def require_cells(self, what: str) -> None:
        """Raises a `ValueError` if detected regions join the cells, which `what` lacks."""
        if self.objects:
            raise ValueError(
                f"objects: {self.objects}: {what} does not support models with detected regions "
                "yet; run them with PyTorch"
            )

    @property
    def is_resolved(self) -> bool:
        """Whether nothing is left to the backbone; `ngsan.models.resolve_backbone` fills it in."""
        own = self.backbone in BACKBONES
        return self.backbone == "none" or bool(self.image_size and (own or self.backbone_config))

    @property
    def grid(self) -> int:
        """Cells of a side of the backbone's grid."""
        if self.backbone_config:
            return int(json.loads(self.backbone_config)["grid"])
        return self.image_size // _STRIDE

    @property
    def frame_cells(self) -> int:
        """Regions of a frame."""
        return max(1, self.frame_grid**2)

    @property
    def geometry_terms(self) -> tuple[str, ...]:
        """The terms that `geometry` sums; empty for "none"."""
        if self.geometry == "none":
            return ()
        return tuple(term.strip() for term in self.geometry.split("+"))

    @property
    def needs_relative_boxes(self) -> bool:
        """Whether boxes must be relative to the image rather than in any unit."""
        return bool({"absolute", PLUS_ONE} & set(self.geometry_terms))

    def as_model(self, model: str) -> "CaptionerConfig":
        """This configuration with the norm, geometry and decoder of a named model."""
        return super(CaptionerConfig, dataclasses.replace(self, decoder="transformer")).as_model(
            model
        )


@dataclass(frozen=True)
class TranslatorConfig(_NamedModel):
    """The shape of a translator. The defaults are Transformer-Base with NSA, as for WMT14."""

    _named = TRANSLATORS

    vocab_size: int = 32768
    """V, the subwords that both languages share and the one boundary id that begins and ends a
    sentence. Training sets it from the data."""

    dim: int = 512
    """D, the model's width."""

    heads: int = 8
    """H, attention heads; a divisor of dim."""

    hidden_dim: int = 2048
    """Inner width of the feed-forward networks."""

    layers: int = 6
    """L, layers of the encoder and also of the decoder."""

    dropout: float = 0.1
    """Dropout probability of embedded words and of sub-layers; 0.3 for small data."""

    attention_dropout: float = 0.0
    """Dropout probability of attention weights."""

    hidden_dropout: float = 0.0
    """Dropout probability inside the feed-forward networks."""

    norm: Literal["none", "instance", "instance-affine", "batch", "layer"] = "instance"
    """Norm of the queries inside the encoder's self-attention, over the real words of a sentence,
    Eq. 6-7 (NSA: instance; none is the plain Transformer)."""

    norm_place: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum, as in the original Transformer, or before each
    sub-layer."""

    backend: Literal["fused", "explicit"] = "fused"
    """How attention is computed; both give the same result, explicit spells the equations out."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "vocab_size", at_least=2)
        check_range(self, "dim", "heads", "hidden_dim", "layers", at_least=1)
        _check_limits(self, "dim", "hidden_dim")
        check_range(self, "dropout", "attention_dropout", "hidden_dropout", at_least=0, below=1)
        _check_heads(self)
        _check_even(self)


@dataclass(frozen=True)
class AnswererConfig(_NamedModel):
    """The shape of MCAN (Yu et al. 2019), encoder-decoder. The defaults are MCAN+GSA's."""

    _named = ANSWERERS

    vocab_size: int = 0
    """Words of questions, including padding and the unknown word; 0 takes it from the dataset."""

    answers: int = 0
    """Answers to choose from; 0 takes it from the dataset."""

    feature_dim: int = 0
    """Width of a region's feature vector; 0 takes it from the dataset."""

    regions: Literal["guided", "none"] = "guided"
    """How the image is used: `guided` is MCAN's decoder of regions, guided by the question;
    `none` answers from the question alone, a baseline."""

    max_length: int = 14
    """Words of a question; longer questions are cut off."""

    word_dim: int = 300
    """Width of a word's vector."""

    dim: int = 512
    """D, the model's width, and that of the LSTM over the words."""

    heads: int = 8
    """H, attention heads; a divisor of dim."""

    hidden_dim: int = 2048
    """Inner width of the feed-forward networks."""

    layers: int = 6
    """L, layers over the question and also over the regions."""

    flat_hidden_dim: int = 512
    """Inner width of the network that weighs elements for the attention reduction."""

    flat_dim: int = 1024
    """Width of question and image when each is reduced to one vector."""

    dropout: float = 0.1
    """Dropout probability of attention weights, sub-layers and the attention reduction."""

    geometry: str = "query"
    """Geometry in the self-attention of the regions: none, content-independent, query, key,
    relation, or a sum such as query+key (GSA: query, Eq. 12)."""

    question_geometry: str = "query"
    """The same in the self-attention of the question's words; the geometry is their positions in
    the question, in one dimension."""

    geometry_dim: int = 64
    """Width of the geometry embedding, Eq. 9."""

    geometry_init: Literal["constant", "plain"] = "constant"
    """Initial Q' and K': a random constant for each head, independent of content, or like all
    other projections."""

    signed_geometry: bool = False
    """Whether relative geometry distinguishes left from right, above from below, and before from
    after in a question, unlike Eq. 8."""

    norm_place: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum, as in MCAN, or before each sub-layer."""

    backend: Literal["fused", "explicit"] = "fused"
    """How attention is computed; both give the same result, explicit spells the equations out."""

    features: str = ""
    """The extractor of the regions, as their store names it; training sets it from the dataset.
    The model works only with features of the same extractor."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "vocab_size", "answers", "feature_dim", at_least=0)
        sizes = ("max_length", "word_dim", "dim", "heads", "hidden_dim", "layers")
        check_range(self, *sizes, "flat_hidden_dim", "flat_dim", "geometry_dim", at_least=1)
        widths = ("feature_dim", "word_dim", "dim", "hidden_dim", "flat_hidden_dim", "flat_dim")
        _check_limits(self, *widths, "geometry_dim", "max_length")
        check_range(self, "answers", at_most=_MAX_ENTRIES)
        check_range(self, "dropout", at_least=0, below=1)
        _check_heads(self)
        for name in ("geometry", "question_geometry"):
            value = getattr(self, name)
            terms = [] if value == "none" else [term.strip() for term in value.split("+")]
            for term in terms:
                check_choice(name, term, ("none", *_RELATIVE_TERMS))
            if len(set(terms)) < len(terms) or "none" in terms:
                raise ValueError(f"{name}: {value!r} names a term twice, or none beside others")
        if self.regions == "none" and self.geometry != "none":
            raise ValueError(
                f"geometry: {self.geometry!r} needs regions, and regions is none; "
                "set geometry: none"
            )


def _check_grid(text: str) -> None:
    """Raises a `ValueError` unless a backbone's configuration is JSON and says its grid."""
    try:
        grid = json.loads(text)["grid"]
    except (ValueError, TypeError, KeyError, RecursionError):
        grid = None
    if not isinstance(grid, int) or not 0 < grid <= _MAX_SIDE:
        raise ValueError("backbone_config: not what training wrote; leave it empty to set it anew")


def _check_limits(
    config: "CaptionerConfig | TranslatorConfig | AnswererConfig", *widths: str
) -> None:
    check_range(config, *widths, at_most=_MAX_WIDTH)
    check_range(config, "layers", at_most=_MAX_LAYERS)
    check_range(config, "vocab_size", at_most=_MAX_ENTRIES)


def _check_heads(config: "CaptionerConfig | TranslatorConfig | AnswererConfig") -> None:
    if config.dim % config.heads:
        raise ValueError(f"dim: {config.dim} does not divide into heads: {config.heads}")


def _check_even(config: "CaptionerConfig | TranslatorConfig") -> None:
    if config.dim % 2:
        raise ValueError(f"dim: {config.dim} must be even, for sinusoidal word positions")
