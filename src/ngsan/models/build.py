"""Builds models from their configurations."""

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from ngsan.config import (
    PLUS_ONE,
    RECURRENT,
    AnswererConfig,
    CaptionerConfig,
    TranslatorConfig,
    from_dict,
)
from ngsan.models.answerer import AnswererModel, GuidedRegions, QuestionEncoder
from ngsan.models.captioner import CaptionerModel, PhotoEncoder, RegionEncoder
from ngsan.models.decoder import Decoder, WordDecoder
from ngsan.models.translator import SentenceEncoder, TranslatorModel
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.geometry import AbsoluteGeometry, FramePositions, GeometryBias
from ngsan.nn.layers import (
    AttentionReduction,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    GuidedLayer,
)
from ngsan.nn.normalize import build_norm
from ngsan.nn.recurrent import (
    AoACell,
    AttentiveCell,
    Cell,
    FrameReader,
    RefiningLayer,
    UpDownCell,
    WordReader,
)

if TYPE_CHECKING:
    from ngsan.vision.grid import GridBackbone

Config = TypeVar("Config", CaptionerConfig, TranslatorConfig, AnswererConfig)


def build_model(config: Any) -> CaptionerModel | TranslatorModel | AnswererModel:
    """Builds the model of a configuration.

    Raises:
        ValueError: The configuration leaves a size to a dataset.
    """
    model: CaptionerModel | TranslatorModel | AnswererModel = _BUILDERS[type(config)](config)
    return model


def build_captioner(model: str | CaptionerConfig = "ng-san", **overrides: Any) -> CaptionerModel:
    """Builds a captioner by name or configuration.

    Args:
        model: "san", "n-san", "g-san", "ng-san", or a configuration.
        **overrides: Keys of `CaptionerConfig` to change, such as `vocab_size=9488, layers=4`.

    Raises:
        ValueError: The model or a key is unknown, or a value is wrong.
    """
    return _captioner(_config_of(CaptionerConfig, model, overrides))


def build_translator(
    model: str | TranslatorConfig = "transformer-nsa", **overrides: Any
) -> TranslatorModel:
    """Builds a translator by name or configuration.

    Args:
        model: "transformer", "transformer-nsa", or a configuration.
        **overrides: Keys of `TranslatorConfig` to change, such as `vocab_size=10_000, layers=3`.

    Raises:
        ValueError: The model or a key is unknown, or a value is wrong.
    """
    return _translator(_config_of(TranslatorConfig, model, overrides))


def build_answerer(model: str | AnswererConfig = "mcan-gsa", **overrides: Any) -> AnswererModel:
    """Builds an answerer by name or configuration.

    Args:
        model: "mcan", "mcan-gsa", "question-only", or a configuration.
        **overrides: Keys of `AnswererConfig` to change, such as `layers=2`.

    Raises:
        ValueError: The model or a key is unknown, or a value is wrong.
    """
    return _answerer(_config_of(AnswererConfig, model, overrides))


def _config_of(cls: type[Config], model: str | Config, overrides: dict[str, Any]) -> Config:
    if isinstance(model, str):
        return cls.for_model(model, **overrides)
    return from_dict(cls, {**dataclasses.asdict(model), **overrides})


def resolve_backbone(config: CaptionerConfig) -> CaptionerConfig:
    """A configuration with all that follows from its backbone: widths, image size, description.

    Raises:
        ValueError: The backbone is unknown, or cannot be had.
    """
    if config.backbone == "none" or config.is_resolved:
        return config
    with torch.device("meta"):
        backbone = _backbone(config)
    return dataclasses.replace(
        config,
        feature_dim=backbone.channels,
        image_size=backbone.size,
        backbone_config=backbone.description,
    )


def _backbone(config: CaptionerConfig) -> "GridBackbone":
    from ngsan.vision.backbone import build_backbone

    return build_backbone(
        config.backbone,
        size=config.image_size,
        pretrained=False,
        description=config.backbone_config,
    )


def _captioner(config: CaptionerConfig) -> CaptionerModel:
    config = resolve_backbone(config)
    regions, decoder = _region_encoder(config), _decoder(config)
    captioner = CaptionerModel(regions, decoder)
    init_glorot(captioner)
    init_biases(captioner, config.geometry_init)
    if config.backbone == "none":
        return captioner
    encoder = PhotoEncoder(_backbone(config), regions, objects=config.objects)
    return CaptionerModel(encoder, decoder)


def _region_encoder(config: CaptionerConfig) -> RegionEncoder:
    parts = Parts(config)
    terms = [term for term in config.geometry_terms if term != "absolute"]
    plus_one = terms == [PLUS_ONE]
    kind = "relation" if plus_one else "+".join(terms) or "none"

    def attention(**more: Any) -> MultiHeadAttention:
        of_query, of_key = config.norm_of != "key", config.norm_of != "query"
        return parts.attention(
            query_norm=build_norm(config.norm, config.dim) if of_query else None,
            key_norm=build_norm(config.norm, config.dim) if of_key else None,
            score_bias=geometry_bias(kind, config),
            **more,
        )

    def layer() -> EncoderLayer | RefiningLayer | FrameReader:
        if config.decoder == "lstm":
            return FrameReader(config.dim, dropout=config.dropout)
        if config.decoder == "aoa":
            return RefiningLayer(attention(project=False), config.dim, **parts.residual)
        return parts.encoder_layer(attention())

    layers = [layer() for _ in range(0 if config.decoder == "up-down" else config.layers)]
    has_residuals = not all(isinstance(layer, FrameReader) for layer in layers)
    return RegionEncoder(
        layers,
        feature_dim=config.feature_dim,
        dim=config.dim,
        dropout=config.dropout,
        absolute=AbsoluteGeometry(config.dim) if "absolute" in config.geometry_terms else None,
        positions=FramePositions(config.frame_cells) if config.positions != "none" else None,
        signed_geometry=config.signed_geometry,
        plus_one=plus_one,
        final_norm=has_residuals and parts.final_norm,
    )


def _decoder(config: CaptionerConfig) -> Decoder:
    parts = Parts(config)
    if config.decoder in RECURRENT:
        # Imported here, as it brings PyTorch's compiler, which takes long to import.
        from ngsan.models.recurrent import RecurrentDecoder

        cell: Cell = UpDownCell(config.dim)
        if config.decoder == "aoa":
            cell = AoACell(parts.attention(project=False), config.dim)
        elif config.decoder == "lstm":
            cell = AttentiveCell(config.dim)
        return RecurrentDecoder(
            cell, vocab_size=config.vocab_size, dim=config.dim, dropout=config.dropout
        )
    layers = [
        parts.decoder_layer(
            parts.attention(causal=True, query_norm=build_norm(config.decoder_norm, config.dim)),
            parts.attention(),
        )
        for _ in range(config.layers)
    ]
    return WordDecoder(
        layers,
        vocab_size=config.vocab_size,
        dim=config.dim,
        dropout=config.dropout,
        final_norm=parts.final_norm,
        reader=WordReader(config.dim, dropout=config.dropout) if config.decoder == "mt" else None,
    )


def _translator(config: TranslatorConfig) -> TranslatorModel:
    parts = Parts(config)
    encoder = SentenceEncoder(
        [
            parts.encoder_layer(parts.attention(query_norm=build_norm(config.norm, config.dim)))
            for _ in range(config.layers)
        ],
        dim=config.dim,
        final_norm=parts.final_norm,
    )
    decoder = WordDecoder(
        [
            parts.decoder_layer(parts.attention(causal=True), parts.attention())
            for _ in range(config.layers)
        ],
        vocab_size=config.vocab_size,
        dim=config.dim,
        dropout=config.dropout,
        final_norm=parts.final_norm,
        shared_output=True,
    )
    translator = TranslatorModel(encoder, decoder)
    init_glorot(translator)
    _shrink_projections(translator)
    return translator


def _shrink_projections(translator: TranslatorModel) -> None:
    """Initialises the three projections into attention as if they were one matrix, as in fairseq.

    That makes them smaller by the square root of two.
    """
    for module in translator.modules():
        if isinstance(module, MultiHeadAttention):
            for projection in (module.query, module.key, module.value):
                nn.init.xavier_uniform_(projection.weight, gain=2**-0.5)


def _answerer(config: AnswererConfig) -> AnswererModel:
    sizes = {"vocab_size": config.vocab_size, "answers": config.answers}
    if config.regions != "none":
        sizes["feature_dim"] = config.feature_dim
    for name, value in sizes.items():
        if not value:
            raise ValueError(f"{name}: 0 leaves it to a dataset; set a number to build a model")
    answerer = AnswererModel(
        _question(config),
        _reduction(config),
        _regions(config),
        flat_dim=config.flat_dim,
        answers=config.answers,
    )
    init_biases(answerer, config.geometry_init)  # all else as PyTorch initialises it, and MCAN
    return answerer


def _question(config: AnswererConfig) -> QuestionEncoder:
    parts = Parts(config)
    layers = [
        parts.encoder_layer(
            parts.attention(score_bias=geometry_bias(config.question_geometry, config))
        )
        for _ in range(config.layers)
    ]
    return QuestionEncoder(
        layers,
        vocab_size=config.vocab_size,
        word_dim=config.word_dim,
        dim=config.dim,
        signed_geometry=config.signed_geometry,
        final_norm=parts.final_norm,
    )


def _regions(config: AnswererConfig) -> GuidedRegions | None:
    if config.regions == "none":
        return None
    parts = Parts(config)
    layers = [
        parts.guided_layer(
            parts.attention(score_bias=geometry_bias(config.geometry, config)), parts.attention()
        )
        for _ in range(config.layers)
    ]
    return GuidedRegions(
        layers,
        _reduction(config),
        feature_dim=config.feature_dim,
        dim=config.dim,
        signed_geometry=config.signed_geometry,
        final_norm=parts.final_norm,
    )


def _reduction(config: AnswererConfig) -> AttentionReduction:
    return AttentionReduction(
        config.dim, hidden=config.flat_hidden_dim, out=config.flat_dim, dropout=config.dropout
    )


_BUILDERS: dict[type[Any], Any] = {
    CaptionerConfig: _captioner,
    TranslatorConfig: _translator,
    AnswererConfig: _answerer,
}


class Parts:
    """Makes the layers of a model, all of the shape that its configuration gives."""

    def __init__(self, config: CaptionerConfig | TranslatorConfig | AnswererConfig) -> None:
        self.config = config
        self.final_norm = config.norm_place == "pre"
        """Whether a layer norm follows the last layer."""
        self.residual: dict[str, Any] = {
            "dropout": config.dropout,
            "norm_place": config.norm_place,
        }
        """Arguments of a layer for its residual connections."""

    def attention(self, **parts: Any) -> MultiHeadAttention:
        """An attention; the keywords are those of `MultiHeadAttention`."""
        config = self.config
        dropout = getattr(config, "attention_dropout", config.dropout)
        return MultiHeadAttention(
            config.dim, config.heads, dropout=dropout, backend=config.backend, **parts
        )

    def encoder_layer(self, attention: MultiHeadAttention) -> EncoderLayer:
        """An encoder layer around its attention."""
        return EncoderLayer(attention, self._feedforward(), self.config.dim, **self.residual)

    def decoder_layer(self, own: MultiHeadAttention, cross: MultiHeadAttention) -> DecoderLayer:
        """A decoder layer around its attention to words and to the memory."""
        return DecoderLayer(own, cross, self._feedforward(), self.config.dim, **self.residual)

    def guided_layer(self, own: MultiHeadAttention, guided: MultiHeadAttention) -> GuidedLayer:
        """A guided layer around its attention to regions and to the question's words."""
        return GuidedLayer(own, guided, self._feedforward(), self.config.dim, **self.residual)

    def _feedforward(self) -> FeedForward:
        config = self.config
        dropout = getattr(config, "hidden_dropout", config.dropout)
        return FeedForward(config.dim, config.hidden_dim, dropout=dropout)


def geometry_bias(kind: str, config: CaptionerConfig | AnswererConfig) -> GeometryBias | None:
    """The geometric bias of a layer; None for the kind "none"."""
    if kind == "none":
        return None
    return GeometryBias(
        kind,
        dim=config.dim,
        heads=config.heads,
        width=config.geometry_dim,
        signed=config.signed_geometry,
    )


def init_glorot(model: nn.Module) -> None:
    """Glorot-uniform matrices, zero shifts, word vectors of unit length in expectation."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)


def init_biases(model: nn.Module, kind: str) -> None:
    """Initialises Q' and K' of every geometric bias.

    Args:
        model: The model, whose projections are initialised.
        kind: "constant" for a bias that starts independent of content, see
            `GeometryBias.init_constant`; "plain" keeps them as they are.
    """
    for module in model.modules():
        if isinstance(module, GeometryBias) and kind == "constant":
            module.init_constant()
