"""Turns a configuration into a model that answers questions."""

import dataclasses
from typing import Any

from ngsan.config.answering import AnswererConfig
from ngsan.config.files import from_dict
from ngsan.models.answerer import Answerer, GuidedRegions, QuestionEncoder
from ngsan.models.parts import Parts, begin_biases, geometry_bias
from ngsan.nn.guided import AttentionReduction


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
    begin_biases(answerer)  # all else as PyTorch has it, and MCAN
    return answerer


def _question(config: AnswererConfig) -> QuestionEncoder:
    parts = Parts.of(config)
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
    parts = Parts.of(config)
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
