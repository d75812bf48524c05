"""Attention on attention: what was found is weighed by who asked (AoANet, Huang et al. 2019).

Shapes: `B` images, `N` regions, `W` captions an image, `D` model width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ngsan.nn.attend import AttentionMaps
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.cache import Remembered
from ngsan.nn.layers import NormPlace, Residual
from ngsan.nn.recurrent import Cell, Kept, State, lstm_step, mean_region


class AttentionGate(nn.Module):
    """sigmoid(A [v; q] + a) * (I [v; q] + i), with v what attention found for the query q."""

    def __init__(self, dim: int = 512) -> None:
        """Makes the two dense layers, as one.

        Args:
            dim: D.
        """
        super().__init__()
        self.dense = nn.Linear(2 * dim, 2 * dim)

    def forward(self, found: Tensor, query: Tensor) -> Tensor:
        """(..., D) and (..., D) to (..., D)."""
        return F.glu(self.dense(torch.cat((found, query), -1)), -1)


class RefiningLayer(nn.Module):
    """A layer of the encoder: self-attention with a gate, and no feed-forward network.

    Note: the gate reads the layer's input, as the authors' program has it, rather than its
        projection.
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        dim: int = 512,
        *,
        dropout: float = 0.1,
        norm_place: NormPlace = "post",
    ) -> None:
        """Takes the attention, whose heads no dense layer joins; see `Residual` for the rest."""
        super().__init__()
        self.attention = attention
        self.gate = AttentionGate(dim)
        self.residual = Residual(dim, dropout=dropout, place=norm_place)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        geometry: Tensor | None = None,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """(B, N, D) to (B, N, D); the keywords are those of `MultiHeadAttention.forward`."""

        def refine(y: Tensor) -> Tensor:
            found = self.attention(y, mask=mask, geometry=geometry, record=record)
            refined: Tensor = self.gate(found, y)
            return refined

        result: Tensor = self.residual(x, refine)
        return result


class AoACell(Cell):
    """An LSTM whose result asks the regions, with a gate; what comes of it is read with the next.

    The LSTM reads the word and the sum of the mean region and the last context; the context is the
    gated attention of the LSTM's result to the regions, and tells the next word.
    """

    state_vectors = 3

    def __init__(self, attention: MultiHeadAttention, dim: int = 512) -> None:
        """Makes the cell.

        Args:
            attention: To the regions, whose heads no dense layer joins.
            dim: D.
        """
        super().__init__()
        self.lstm = nn.LSTMCell(2 * dim, dim)
        self.attention = attention
        self.gate = AttentionGate(dim)

    def remember(self, memory: Tensor, mask: Tensor | None = None) -> Kept:
        """See `Cell.remember`: the regions' mean, keys and values, and which are to be seen."""
        return mean_region(memory, mask), *self.attention.remember(memory, mask)

    def forward(self, word: Tensor, state: State, kept: Kept) -> tuple[Tensor, State]:
        """See `Cell.forward`."""
        hidden, memory, context = state
        mean, key, value, view = kept
        assert mean is not None
        assert key is not None
        assert value is not None
        x = torch.cat((word, mean.unsqueeze(1) + context), -1)
        hidden, memory = lstm_step(self.lstm, x, hidden, memory)
        found = self.attention.recall(hidden, Remembered(key, value, view))
        context = self.gate(found, hidden)
        return context, (hidden, memory, context)
