"""Turns a configuration into a translator."""

import dataclasses
from typing import Any

from torch import nn

from ngsan.config import from_dict
from ngsan.config.translation import TranslatorConfig
from ngsan.models.captioner import WordDecoder
from ngsan.models.parts import Parts, begin_glorot
from ngsan.models.translator import SentenceEncoder, Translator
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.normalize import build_norm


def build_translator(
    model: str | TranslatorConfig = "transformer-nsa", **overrides: Any
) -> Translator:
    """Builds a translator by name or configuration.

    Args:
        model: "transformer", "transformer-nsa", or a configuration.
        **overrides: Keys of `TranslatorConfig` to change, such as `vocab_size=10_000, layers=3`.

    Raises:
        ValueError: The model or a key is unknown, or a value is wrong.
    """
    if isinstance(model, TranslatorConfig):
        config = from_dict(TranslatorConfig, {**dataclasses.asdict(model), **overrides})
    else:
        config = TranslatorConfig.for_model(model, **overrides)
    parts = Parts.of(config)
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
    translator = Translator(encoder, decoder)
    begin_glorot(translator)
    _shrink_projections(translator)
    return translator


def _shrink_projections(translator: Translator) -> None:
    """Lets the three projections into attention begin as if they were one matrix, as in fairseq.

    That makes them smaller by the square root of two.
    """
    for module in translator.modules():
        if isinstance(module, MultiHeadAttention):
            for projection in (module.query, module.key, module.value):
                nn.init.xavier_uniform_(projection.weight, gain=2**-0.5)
