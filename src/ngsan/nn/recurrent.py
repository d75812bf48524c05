"""Recurrent decoder cells: Up-Down and attention on attention (AoANet).

Shapes: `B` images, `N` regions, `W` captions per image, `D` model width.
"""

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ngsan.nn.attend import AttentionMaps
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.cache import Remembered
from ngsan.nn.layers import NormPlace, Residual
from ngsan.nn.masks import zero_padding

Kept = tuple[Tensor | None, ...]
"""Tensors that a cell computes once from the regions."""

State = tuple[Tensor, ...]
"""The state of the captions, vectors of (B, W, D) each."""


class Cell(nn.Module):
    """One step of a recurrent decoder that sees the regions."""

    state_vectors: int
    """Number of vectors in a state; they are zero before the first word."""

    @abstractmethod
    def remember(self, memory: Tensor, mask: Tensor | None = None) -> Kept:
        """Computes what every step needs from the regions.

        Args:
            memory: (B, N, D) the encoded regions.
            mask: (B, N) boolean, True = a real region, or None.
        """

    @abstractmethod
    def forward(self, word: Tensor, state: State, kept: Kept) -> tuple[Tensor, State]:
        """Reads one more word of each caption.

        Args:
            word: (B, W, D) embedding of the word.
            state: The previous state.
            kept: From `remember`.

        Returns:
            (B, W, D) features that predict the next word, and the new state.
        """


def mean_region(memory: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the real regions, (B, N, D) to (B, D); zeros if there are none."""
    total = zero_padding(memory, mask).sum(1)
    if mask is None:
        return total / max(1, memory.shape[1])
    return total / mask.sum(1, keepdim=True).clamp(min=1)


def lstm_step(cell: nn.LSTMCell, x: Tensor, hidden: Tensor, memory: Tensor) -> State:
    """One LSTM step of all captions: x (B, W, ...), hidden and memory (B, W, D) to new ones."""
    shape = hidden.shape
    new = cell(x.flatten(0, 1), (hidden.flatten(0, 1), memory.flatten(0, 1)))
    return new[0].view(shape), new[1].view(shape)


class UpDownCell(Cell):
    """Up-Down (Anderson et al. 2018): two LSTMs with additive attention between them.

    The first LSTM reads the word, the mean region and the last output of the second. Its output h
    scores each region v by w . tanh(V v + U h). The second LSTM reads h and the mean of the
    regions, weighted by the softmax of the scores.
    """

    state_vectors = 4

    def __init__(self, dim: int = 512) -> None:
        super().__init__()
        self.attention_lstm = nn.LSTMCell(3 * dim, dim)
        self.language_lstm = nn.LSTMCell(2 * dim, dim)
        self.of_region = nn.Linear(dim, dim, bias=False)
        self.of_hidden = nn.Linear(dim, dim, bias=False)
        self.score = nn.Linear(dim, 1, bias=False)

    def remember(self, memory: Tensor, mask: Tensor | None = None) -> Kept:
        """See `Cell.remember`: regions, their keys, their mean, and the additive mask."""
        memory = zero_padding(memory, mask)
        seen = None
        if mask is not None:
            # An image without regions attends to its zero padding.
            real = mask | ~mask.any(1, keepdim=True)
            seen = torch.zeros_like(real, dtype=memory.dtype).masked_fill(~real, -math.inf)
        return memory, self.of_region(memory), mean_region(memory, mask), seen

    def forward(self, word: Tensor, state: State, kept: Kept) -> tuple[Tensor, State]:
        """See `Cell.forward`."""
        asked, asked_memory, said, said_memory = state
        regions, keys, mean, seen = kept
        assert regions is not None
        assert keys is not None
        assert mean is not None
        x = torch.cat((said, mean.unsqueeze(1).expand_as(word), word), -1)
        asked, asked_memory = lstm_step(self.attention_lstm, x, asked, asked_memory)
        hidden = self.of_hidden(asked).unsqueeze(2) + keys.unsqueeze(1)  # (B, W, N, D)
        scores = self.score(hidden.tanh()).squeeze(-1)  # (B, W, N)
        if seen is not None:
            scores = scores + seen.unsqueeze(1)
        found = scores.softmax(-1) @ regions  # (B, W, D)
        x = torch.cat((found, asked), -1)
        said, said_memory = lstm_step(self.language_lstm, x, said, said_memory)
        return said, (asked, asked_memory, said, said_memory)


class AttentionGate(nn.Module):
    """sigmoid(A [v; q] + a) * (I [v; q] + i), where v is the attention's result for query q."""

    def __init__(self, dim: int = 512) -> None:
        super().__init__()
        self.dense = nn.Linear(2 * dim, 2 * dim)

    def forward(self, found: Tensor, query: Tensor) -> Tensor:
        """(..., D) and (..., D) to (..., D)."""
        return F.glu(self.dense(torch.cat((found, query), -1)), -1)


class RefiningLayer(nn.Module):
    """An encoder layer of AoANet: self-attention with a gate, without a feed-forward network.

    The heads of the attention are not joined by a dense layer.

    Note: the gate reads the layer's input, as in the authors' program, rather than its projection.
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        dim: int = 512,
        *,
        dropout: float = 0.1,
        norm_place: NormPlace = "post",
    ) -> None:
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
    """The decoder of AoANet (Huang et al. 2019): an LSTM with gated attention to the regions.

    The LSTM reads the word and the sum of the mean region and the last context. The context is the
    gated attention of the LSTM's output to the regions, and predicts the next word. The heads of
    the attention are not joined by a dense layer.
    """

    state_vectors = 3

    def __init__(self, attention: MultiHeadAttention, dim: int = 512) -> None:
        super().__init__()
        self.lstm = nn.LSTMCell(2 * dim, dim)
        self.attention = attention
        self.gate = AttentionGate(dim)

    def remember(self, memory: Tensor, mask: Tensor | None = None) -> Kept:
        """See `Cell.remember`: the regions' mean, keys and values, and the additive mask."""
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
