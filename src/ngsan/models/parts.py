"""What the builders of all models share: layers of one shape, and how weights begin."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from ngsan.config import CaptionerConfig
from ngsan.config.answering import AnswererConfig
from ngsan.config.translation import TranslatorConfig
from ngsan.nn.attend import Backend
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.feedforward import FeedForward
from ngsan.nn.geometry import GeometryBias
from ngsan.nn.guided import GuidedLayer
from ngsan.nn.layers import DecoderLayer, EncoderLayer, NormPlace


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Makes the parts of a model, all of one shape."""

    dim: int
    """D, the model's width."""

    heads: int
    """H."""

    hidden_dim: int
    """Inner width of the feed-forward networks."""

    dropout: float
    """Dropout of the sub-layers' results."""

    attention_dropout: float
    """Dropout of the attention weights."""

    hidden_dropout: float
    """Dropout inside the feed-forward networks."""

    norm_place: NormPlace
    """Where the layer norm of a sub-layer stands."""

    backend: Backend
    """How attention is computed."""

    @classmethod
    def of(cls, config: CaptionerConfig | TranslatorConfig | AnswererConfig) -> "Parts":
        """For a model's configuration."""
        inner = {
            name: getattr(config, name, config.dropout)
            for name in ("attention_dropout", "hidden_dropout")
        }
        return cls(
            dim=config.dim,
            heads=config.heads,
            hidden_dim=config.hidden_dim,
            dropout=config.dropout,
            norm_place=config.norm_place,
            backend=config.backend,
            **inner,
        )

    def attention(self, **parts: Any) -> MultiHeadAttention:
        """An attention; the keywords are those of `MultiHeadAttention`."""
        return MultiHeadAttention(
            self.dim, self.heads, dropout=self.attention_dropout, backend=self.backend, **parts
        )

    def encoder_layer(self, attention: MultiHeadAttention) -> EncoderLayer:
        """A layer of an encoder around its attention."""
        return EncoderLayer(attention, self._feedforward(), self.dim, **self.around)

    def decoder_layer(self, own: MultiHeadAttention, cross: MultiHeadAttention) -> DecoderLayer:
        """A layer of a decoder around its attention to words and to what is written about."""
        return DecoderLayer(own, cross, self._feedforward(), self.dim, **self.around)

    def guided_layer(self, own: MultiHeadAttention, guided: MultiHeadAttention) -> GuidedLayer:
        """A layer that a question guides, around its attention to regions and to words."""
        return GuidedLayer(own, guided, self._feedforward(), self.dim, **self.around)

    @property
    def around(self) -> dict[str, Any]:
        """What a layer is told of its residual connections."""
        return {"dropout": self.dropout, "norm_place": self.norm_place}

    @property
    def final_norm(self) -> bool:
        """Whether a layer norm follows the last layer, as pre-norm layers need."""
        return self.norm_place == "pre"

    def _feedforward(self) -> FeedForward:
        return FeedForward(self.dim, self.hidden_dim, dropout=self.hidden_dropout)


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


def begin_glorot(model: nn.Module) -> None:
    """Glorot-uniform matrices, zero shifts, word vectors of unit length in expectation."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)


def begin_biases(model: nn.Module) -> None:
    """Lets every geometric bias begin independent of content; see `GeometryBias.begin`."""
    for module in model.modules():
        if isinstance(module, GeometryBias):
            module.begin()
