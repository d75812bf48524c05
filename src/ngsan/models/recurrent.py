"""A recurrent decoder: a cell whose state has a fixed size, word by word.

Shapes: `B` images, `N` regions, `C` captions an image, `T` words, `D` model width, `V` vocabulary;
`W` captions an image that are written side by side.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ngsan.models.decoder import Decoder, by_caption
from ngsan.nn.attend import AttentionMaps
from ngsan.nn.cache import StateCache
from ngsan.nn.masks import Packing
from ngsan.nn.recurrent import Cell


class RecurrentReady(NamedTuple):
    """What the cell needs from the regions in every step."""

    kept: tuple[Tensor | None, ...]
    """Of `Cell.remember`; the first part is never None and has the images first."""

    def take(self, other: "RecurrentReady") -> None:
        """Copies the values of another of the same shapes, in place."""
        for mine, its in zip(self.kept, other.kept, strict=True):
            if mine is not None and its is not None:
                mine.copy_(its)


class RecurrentDecoder(Decoder):
    """Embedded words, a recurrent cell that attends to the regions, and scores of all words."""

    def __init__(
        self, cell: Cell, *, vocab_size: int = 9488, dim: int = 512, dropout: float = 0.1
    ) -> None:
        """Builds embedding and output around the cell.

        Args:
            cell: The recurrent cell.
            vocab_size: V.
            dim: D.
            dropout: Dropout of the embedded words and of the output's input.
        """
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.dropout = nn.Dropout(dropout)
        self.cell = cell
        self.output = nn.Linear(dim, vocab_size)

    def forward(
        self,
        words: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        *,
        packing: Packing | None = None,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """Scores the next words; see `EncoderDecoder.decode`.

        Raises:
            ValueError: `record` is given; attention maps are not kept from word to word.
        """
        if record is not None:
            raise ValueError(
                "only the Transformer decoder returns attention to the regions, not a recurrent "
                "one: request captions without attention"
            )
        captions = by_caption(words, memory.shape[0])
        x = self._unroll(self._embed(captions), self.make_ready(memory, mask))  # (B, C, T, D)
        if packing is not None:
            x = packing.pack(x)
        logits = self.logits(self.dropout(x))
        return logits if words.ndim == 3 or packing is not None else logits.squeeze(1)

    # The compiler would unroll the loop and compile the same cell for every word; where steps are
    # captured as a graph, Python costs nothing anyway.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _unroll(self, words: Tensor, ready: RecurrentReady) -> Tensor:
        """The cell's results for embedded words, (B, C, T, D) to (B, C, T, D)."""
        state = self._begin(words[:, :, 0])
        results = []
        for word in words.unbind(2):
            x, state = self.cell(word, state, ready.kept)
            results.append(x)
        return torch.stack(results, 2)

    def step(self, words: Tensor, cache: StateCache, ready: RecurrentReady) -> Tensor:
        """See `Decoder.step`."""
        x, state = self.cell(self._embed(words), cache.state, ready.kept)
        cache.write(state)
        return self.exact_logits(self.dropout(x))

    def make_ready(self, memory: Tensor, mask: Tensor | None = None) -> RecurrentReady:
        """See `Decoder.make_ready`."""
        return RecurrentReady(self.cell.remember(memory, mask))

    def make_cache(self, ready: RecurrentReady, width: int, max_length: int) -> StateCache:
        """See `Decoder.make_cache`; a state is as large for any number of words."""
        assert ready.kept[0] is not None
        weight = self.embed.weight
        shape = (len(ready.kept[0]), width, weight.shape[1])
        return StateCache(self._begin(weight.new_zeros(shape)))

    def _begin(self, like: Tensor) -> tuple[Tensor, ...]:
        """The state before the first word."""
        return tuple(torch.zeros_like(like) for _ in range(self.cell.state_vectors))

    def _embed(self, words: Tensor) -> Tensor:
        # Scaled as in the Transformer decoder, whose word vectors have the same initial length.
        embedded: Tensor = self.dropout(self.embed(words) * math.sqrt(self.embed.embedding_dim))
        return embedded
