"""Turns a configuration into a model that answers questions."""

import dataclasses
from typing import Any

from torch import nn

from ngsan.config.answering import AnswererConfig
from ngsan.config.files import from_dict
from ngsan.models.answerer import Answerer, GuidedRegions, QuestionEncoder
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.feedforward import FeedForward
from ngsan.nn.geometry import GeometryBias
from ngsan.nn.guided import AttentionReduction, GuidedLayer
from ngsan.nn.layers import EncoderLayer


def build_answerer(model: str | AnswererConfig = "mcan-gsa", **overrides: Any) -> Answerer:
    """Builds a model by name or configuration.

    Args:
        model: "mcan", "mcan-gsa", "question-only", or a configuration.
        **overrides: Keys of `AnswererConfig` to change, such as `layers=2`.

    Raises:
        ValueError: The model or a key is unknown, or a value is wrong.
    """
    if isinstance(model, AnswererConfig):
        config = from_dict(AnswererConfig, {**dataclasses.asdict(model), **overrides})
    else:
        config = AnswererConfig.for_model(model, **overrides)
    sizes = {"vocab_size": config.vocab_size, "answers": config.answers}
    if config.regions != "none":
        sizes["feature_dim"] = config.feature_dim
    for name, value in sizes.items():
        if not value:
            raise ValueError(f"{name}: 0 leaves it to a dataset; give a number to build a model")
    answerer = Answerer(
        _question(config),
        _reduction(config),
        _regions(config),
        flat_dim=config.flat_dim,
        answers=config.answers,
    )
    _initialize(answerer)
    return answerer


def _question(config: AnswererConfig) -> QuestionEncoder:
    layers = [
        EncoderLayer(
            _attention(config, geometry=config.question_geometry),
            _feedforward(config),
            config.dim,
            dropout=config.dropout,
            norm_place=config.norm_place,
        )
        for _ in range(config.layers)
    ]
    return QuestionEncoder(
        layers,
        vocab_size=config.vocab_size,
        word_dim=config.word_dim,
        dim=config.dim,
        signed_geometry=config.signed_geometry,
        final_norm=config.norm_place == "pre",
    )


def _regions(config: AnswererConfig) -> GuidedRegions | None:
    if config.regions == "none":
        return None
    layers = [
        GuidedLayer(
            _attention(config, geometry=config.geometry),
            _attention(config),
            _feedforward(config),
            config.dim,
            dropout=config.dropout,
            norm_place=config.norm_place,
        )
        for _ in range(config.layers)
    ]
    return GuidedRegions(
        layers,
        _reduction(config),
        feature_dim=config.feature_dim,
        dim=config.dim,
        signed_geometry=config.signed_geometry,
        final_norm=config.norm_place == "pre",
    )


def _attention(config: AnswererConfig, *, geometry: str = "none") -> MultiHeadAttention:
    bias = None
    if geometry != "none":
        bias = GeometryBias(
            geometry,
            dim=config.dim,
            heads=config.heads,
            width=config.geometry_dim,
            signed=config.signed_geometry,
        )
    return MultiHeadAttention(
        config.dim, config.heads, score_bias=bias, dropout=config.dropout, backend=config.backend
    )


def _reduction(config: AnswererConfig) -> AttentionReduction:
    return AttentionReduction(
        config.dim, hidden=config.flat_hidden_dim, out=config.flat_dim, dropout=config.dropout
    )


def _feedforward(config: AnswererConfig) -> FeedForward:
    return FeedForward(config.dim, config.hidden_dim, dropout=config.dropout)


def _initialize(answerer: Answerer) -> None:
    """PyTorch's own beginnings, as in MCAN; a geometric bias begins independent of content.

    See `ngsan.models.build` for the reason.
    """
    for module in answerer.modules():
        if isinstance(module, GeometryBias):
            for projection in (module.query, module.key):
                if projection is not None:
                    nn.init.zeros_(projection.weight)
                    nn.init.normal_(projection.bias, std=module.width**-0.5)
