"""Turns a configuration into a model."""

import dataclasses
from typing import Any

from ngsan.config import PLUS_ONE, CaptionerConfig, from_dict
from ngsan.models.captioner import Captioner, RegionEncoder, WordDecoder
from ngsan.models.decoder import Decoder
from ngsan.models.parts import Parts, begin_biases, begin_glorot, geometry_bias
from ngsan.models.photo import PhotoEncoder
from ngsan.nn.aoa import AoACell, RefiningLayer
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.geometry import AbsoluteGeometry
from ngsan.nn.layers import EncoderLayer
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
    begin_glorot(captioner)
    begin_biases(captioner)
    if config.backbone == "none":
        return captioner
    from ngsan.vision.backbone import build_backbone

    backbone = build_backbone(config.backbone, size=config.image_size, pretrained=False)
    return Captioner(PhotoEncoder(backbone, regions), decoder)


def _encoder(config: CaptionerConfig) -> RegionEncoder:
    parts = Parts.of(config)
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

    def layer() -> EncoderLayer | RefiningLayer:
        if config.decoder == "aoa":
            return RefiningLayer(attention(project=False), config.dim, **parts.around)
        return parts.encoder_layer(attention())

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
        final_norm=bool(layers) and parts.final_norm,
    )


def _decoder(config: CaptionerConfig) -> Decoder:
    parts = Parts.of(config)
    if config.decoder != "transformer":
        # Only now: it brings the compiler of PyTorch, which takes as long to import as all else.
        from ngsan.models.recurrent import RecurrentDecoder

        cell: Cell = UpDownCell(config.dim)
        if config.decoder == "aoa":
            cell = AoACell(parts.attention(project=False), config.dim)
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
    )
