"""Turns a configuration into a model."""

import dataclasses
from typing import Any

from torch import nn

from ngsan.config import PLUS_ONE, CaptionerConfig, from_dict
from ngsan.models.captioner import Captioner, RegionEncoder, WordDecoder
from ngsan.models.decoder import Decoder
from ngsan.models.photo import PhotoEncoder
from ngsan.models.recurrent import RecurrentDecoder
from ngsan.nn.aoa import AoACell, RefiningLayer
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.feedforward import FeedForward
from ngsan.nn.geometry import AbsoluteGeometry, GeometryBias
from ngsan.nn.layers import DecoderLayer, EncoderLayer
from ngsan.nn.normalize import build_norm
from ngsan.nn.positions import FramePositions
from ngsan.nn.recurrent import Cell
from ngsan.nn.up_down import UpDownCell


def build_captioner(model: str | CaptionerConfig = "ng-san", **overrides: Any) -> Captioner:
    """Builds a captioner by name or configuration.

    Args:
        model: "san", "n-san", "g-san", "ng-san", or a configuration.
        **overrides: Keys of `CaptionerConfig` to change, such as `vocab_size=9488, layers=4`.

    Raises:
        ValueError: The model or a key is unknown, or a value is wrong.
    """
    if isinstance(model, CaptionerConfig):
        config = from_dict(CaptionerConfig, {**dataclasses.asdict(model), **overrides})
    else:
        config = CaptionerConfig.for_model(model, **overrides)
    regions, decoder = _encoder(config), _decoder(config)
    captioner = Captioner(regions, decoder)
    _initialize(captioner)
    if config.backbone == "none":
        return captioner
    from ngsan.vision.backbone import build_backbone

    backbone = build_backbone(config.backbone, size=config.image_size, pretrained=False)
    return Captioner(PhotoEncoder(backbone, regions), decoder)


def _encoder(config: CaptionerConfig) -> RegionEncoder:
    bias_kind = "+".join(term for term in config.geometry_terms if term != "absolute")
    plus_one = bias_kind == PLUS_ONE
    if plus_one:
        bias_kind = "relation"

    def bias() -> GeometryBias | None:
        if not bias_kind:
            return None
        return GeometryBias(
            bias_kind,
            dim=config.dim,
            heads=config.heads,
            width=config.geometry_dim,
            signed=config.signed_geometry,
        )

    def attention(**parts: Any) -> MultiHeadAttention:
        of_query, of_key = config.norm_of != "key", config.norm_of != "query"
        return MultiHeadAttention(
            config.dim,
            config.heads,
            query_norm=build_norm(config.norm, config.dim) if of_query else None,
            key_norm=build_norm(config.norm, config.dim) if of_key else None,
            score_bias=bias(),
            dropout=config.dropout,
            backend=config.backend,
            **parts,
        )

    def layer() -> EncoderLayer | RefiningLayer:
        around: Any = {"dropout": config.dropout, "norm_place": config.norm_place}
        if config.decoder == "aoa":
            return RefiningLayer(attention(project=False), config.dim, **around)
        return EncoderLayer(attention(), _feedforward(config), config.dim, **around)

    layers = [layer() for _ in range(0 if config.decoder == "up-down" else config.layers)]
    return RegionEncoder(
        layers,
        feature_dim=config.feature_dim,
        dim=config.dim,
        dropout=config.dropout,
        absolute=AbsoluteGeometry(config.dim) if "absolute" in config.geometry_terms else None,
        positions=FramePositions(config.frame_cells) if config.positions != "none" else None,
        signed_geometry=config.signed_geometry,
        plus_one=plus_one,
        final_norm=bool(layers) and config.norm_place == "pre",
    )


def _decoder(config: CaptionerConfig) -> Decoder:
    def attention(**parts: Any) -> MultiHeadAttention:
        return MultiHeadAttention(
            config.dim, config.heads, dropout=config.dropout, backend=config.backend, **parts
        )

    if config.decoder != "transformer":
        cell: Cell = UpDownCell(config.dim)
        if config.decoder == "aoa":
            cell = AoACell(attention(project=False), config.dim)
        return RecurrentDecoder(
            cell, vocab_size=config.vocab_size, dim=config.dim, dropout=config.dropout
        )
    layers = [
        DecoderLayer(
            attention(causal=True, query_norm=build_norm(config.decoder_norm, config.dim)),
            attention(),
            _feedforward(config),
            config.dim,
            dropout=config.dropout,
            norm_place=config.norm_place,
        )
        for _ in range(config.layers)
    ]
    return WordDecoder(
        layers,
        vocab_size=config.vocab_size,
        dim=config.dim,
        dropout=config.dropout,
        final_norm=config.norm_place == "pre",
    )


def _feedforward(config: CaptionerConfig) -> FeedForward:
    return FeedForward(config.dim, config.hidden_dim, dropout=config.dropout)


def _initialize(captioner: Captioner) -> None:
    """Glorot-uniform matrices, zero shifts, word vectors of unit length in expectation.

    Note: Q' and K' of a geometric bias begin as random constants, so the bias begins independent
        of content. The relations of the built-in scenes are then learned sooner.
    """
    for module in captioner.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
    for module in captioner.modules():
        if isinstance(module, GeometryBias):
            for projection in (module.query, module.key):
                if projection is not None:
                    nn.init.zeros_(projection.weight)
                    nn.init.normal_(projection.bias, std=module.width**-0.5)
