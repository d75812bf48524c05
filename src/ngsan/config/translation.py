"""The shape of a translator."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from ngsan.config.checks import check_choice, check_range, check_types
from ngsan.config.files import from_dict

TRANSLATORS: dict[str, dict[str, str]] = {
    "transformer": {"norm": "none"},
    "transformer-nsa": {"norm": "instance"},
}
"""The paper's two models of translation (Section 4.3): what each sets in `TranslatorConfig`."""


@dataclass(frozen=True)
class TranslatorConfig:
    """The shape of a translator. The defaults are Transformer-Base with NSA, as for WMT14."""

    vocab_size: int = 32768
    """V, the word pieces that both languages share and the one boundary id that begins and ends a
    sentence; in training it is taken from the data."""

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
        """Checks every value.

        Raises:
            ValueError: A value is of the wrong type or out of range; the message names the key.
        """
        check_types(self)
        check_range(self, "vocab_size", at_least=2)
        for name in ("dim", "heads", "hidden_dim", "layers"):
            check_range(self, name, at_least=1)
        for name in ("dropout", "attention_dropout", "hidden_dropout"):
            check_range(self, name, at_least=0, below=1)
        if self.dim % self.heads:
            raise ValueError(f"dim: {self.dim} does not divide into heads: {self.heads}")
        if self.dim % 2:
            raise ValueError(f"dim: {self.dim} must be even, for sinusoidal word positions")

    @classmethod
    def for_model(cls, model: str, **overrides: Any) -> "TranslatorConfig":
        """The configuration of a named model, with some keys changed.

        Args:
            model: "transformer" or "transformer-nsa".
            **overrides: Any keys of this class.
        """
        check_choice("model", model, tuple(TRANSLATORS))
        return from_dict(cls, {**TRANSLATORS[model], **overrides})

    def as_model(self, model: str) -> "TranslatorConfig":
        """This configuration with the norm of a named model."""
        check_choice("model", model, tuple(TRANSLATORS))
        return from_dict(TranslatorConfig, {**dataclasses.asdict(self), **TRANSLATORS[model]})
