"""Recurrent parts: cells of decoders, and LSTMs over frames or words.

Shapes: `B` images, `N` regions or frames, `C` or `W` captions per image, `T` words, `D` model
width.
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


def additive_mask(memory: Tensor, mask: Tensor | None) -> Tensor | None:
    """(B, N) to add to scores: 0 for regions, minus infinity for padding; None without a mask.

    An image without regions attends to its zero padding.
    """
    if mask is None:
        return None
    real = mask | ~mask.any(1, keepdim=True)
    return torch.zeros_like(real, dtype=memory.dtype).masked_fill(~real, -math.inf)


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
        seen = additive_mask(memory, mask)
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


class AttentiveCell(Cell):
    """The decoder of the VATEX baseline (Wang et al. 2019): an LSTM with attention to the frames.

    The last output of the LSTM, projected, scores each frame by a dot product. The LSTM reads the
    word and the mean of the frames, weighted by the softmax of the scores.
    """

    state_vectors = 2

    def __init__(self, dim: int = 512) -> None:
        super().__init__()
        self.of_hidden = nn.Linear(dim, dim, bias=False)
        self.lstm = nn.LSTMCell(2 * dim, dim)

    def remember(self, memory: Tensor, mask: Tensor | None = None) -> Kept:
        """See `Cell.remember`: frames and the additive mask."""
        memory = zero_padding(memory, mask)
        return memory, additive_mask(memory, mask)

    def forward(self, word: Tensor, state: State, kept: Kept) -> tuple[Tensor, State]:
        """See `Cell.forward`."""
        hidden, memory = state
        frames, seen = kept
        assert frames is not None
        scores = self.of_hidden(hidden) @ frames.transpose(1, 2)  # (B, W, N)
        if seen is not None:
            scores = scores + seen.unsqueeze(1)
        found = scores.softmax(-1) @ frames
        hidden, memory = lstm_step(self.lstm, torch.cat((word, found), -1), hidden, memory)
        return hidden, (hidden, memory)


class FrameReader(nn.Module):
    """Two LSTMs over the frames of a clip, one in each direction, D / 2 wide each.

    Padding changes nothing, wherever it is: each LSTM reads the real frames first.
    """

    def __init__(self, dim: int = 512, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.ahead = nn.LSTM(dim, dim // 2, batch_first=True)
        self.back = nn.LSTM(dim, dim // 2, batch_first=True)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        geometry: Tensor | None = None,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """(B, N, D) to (B, N, D), zero at padding.

        Args:
            x: (B, N, D) the frames in order.
            mask: (B, N) boolean, True = a real frame, or None.
            geometry: Ignored, as are the maps: there is no attention.
            record: Ignored.
        """
        if not x.shape[1]:
            return x
        if mask is None:
            ahead, back = self.ahead(x)[0], self.back(x.flip(1))[0].flip(1)
            read: Tensor = self.dropout(torch.cat((ahead, back), -1))
            return read
        place = mask.long().cumsum(1) - 1  # of a real frame among the real ones
        last = place[:, -1:]
        order = mask.long().argsort(dim=1, descending=True, stable=True)  # real frames first
        turned = order.gather(1, (last - torch.arange(x.shape[1], device=x.device)).clamp(min=0))
        ahead = _taken(self.ahead(_taken(x, order))[0], place.clamp(min=0))
        back = _taken(self.back(_taken(x, turned))[0], (last - place).clamp(min=0))
        return zero_padding(self.dropout(torch.cat((ahead, back), -1)), mask)


def _taken(x: Tensor, places: Tensor) -> Tensor:
    """The rows (B, N, D) of x at places (B, N)."""
    return x.gather(1, places.unsqueeze(2).expand(-1, -1, x.shape[2]))


class WordReader(nn.Module):
    """An LSTM over the words of each caption, in place of their positions (MT, Yu et al. 2019)."""

    def __init__(self, dim: int = 512, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Tensor) -> Tensor:
        """(B, C, T, D) to (B, C, T, D)."""
        read: Tensor = self.dropout(self.lstm(words.flatten(0, 1))[0])
        return read.view(words.shape)

    def step(self, word: Tensor, state: State) -> tuple[Tensor, State]:
        """One more word of each caption.

        Args:
            word: (B, W, D).
            state: Output and memory of the LSTM, (B, W, D) each; zeros before the first word.

        Returns:
            (B, W, D), and the new state.
        """
        hidden, memory = (part.flatten(0, 1).unsqueeze(0) for part in state)
        read, (hidden, memory) = self.lstm(word.flatten(0, 1).unsqueeze(1), (hidden, memory))
        new = hidden.view(word.shape), memory.view(word.shape)
        return self.dropout(read.view(word.shape)), new


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
