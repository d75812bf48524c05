"""Up-Down: an LSTM that attends to the regions, and an LSTM that writes (Anderson et al. 2018).

Shapes: `B` images, `N` regions, `W` captions an image, `D` model width.
"""

import math

import torch
from torch import Tensor, nn

from ngsan.nn.masks import zero_padding
from ngsan.nn.recurrent import Cell, Kept, State, lstm_step, mean_region


class UpDownCell(Cell):
    """Two LSTMs with additive attention between them.

    The first reads the word, the mean region and what the second said last; its result h asks each
    region v for a score w . tanh(V v + U h); the second reads the regions' mean by the softmax of
    the scores, and h.
    """

    state_vectors = 4

    def __init__(self, dim: int = 512) -> None:
        """Makes the cell.

        Args:
            dim: D, of words, regions, states and of the attention's hidden layer.
        """
        super().__init__()
        self.attention_lstm = nn.LSTMCell(3 * dim, dim)
        self.language_lstm = nn.LSTMCell(2 * dim, dim)
        self.of_region = nn.Linear(dim, dim, bias=False)
        self.of_hidden = nn.Linear(dim, dim, bias=False)
        self.score = nn.Linear(dim, 1, bias=False)

    def remember(self, memory: Tensor, mask: Tensor | None = None) -> Kept:
        """See `Cell.remember`: regions, what attention sees of them, their mean, and which are."""
        memory = zero_padding(memory, mask)
        seen = None
        if mask is not None:
            # An image without regions attends to its padding, which is zero.
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
