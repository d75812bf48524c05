"""A captioner as a search sees it: one word after the other, for the images it has been given.

Shapes: `B` images, `N` regions, `W` captions an image, `V` vocabulary, `D` model width.
"""

from torch import Tensor

from ngsan.models.captioner import Captioner
from ngsan.nn.cache import WordCache


class CaptionerSteps:
    """The step protocol of `ngsan.decoding`, over preallocated buffers.

    Keys and values of the regions are computed once an image. Other images of the same shape can
    be loaded into the same buffers, so that a captured step serves them, too.
    """

    def __init__(self, captioner: Captioner, memory: Tensor, mask: Tensor | None = None) -> None:
        """Takes the images.

        Args:
            captioner: The model, in evaluation mode.
            memory: (B, N, D) of `captioner.encode`.
            mask: (B, N) boolean as given to `encode`, or None.
        """
        self.decoder = captioner.decoder
        self.images = memory.shape[0]
        self.vocab_size = self.decoder.embed.num_embeddings
        self.device = memory.device
        self._shape = memory.shape
        self._mask = None if mask is None else mask.clone()
        self._memory = self.decoder.remember(memory, mask)
        self._cache: WordCache | None = None
        self._positions = memory.new_zeros(0)

    def load(self, memory: Tensor, mask: Tensor | None = None) -> None:
        """Puts other images in the place of these.

        Args:
            memory: (B, N, D), the same shape as before.
            mask: (B, N), or None if it was None before.
        """
        if memory.shape != self._shape or (mask is None) != (self._mask is None):
            raise ValueError(
                f"the buffers are for images of shape {tuple(self._shape)} "
                f"{'without' if self._mask is None else 'with'} a mask, not {tuple(memory.shape)}"
            )
        if mask is not None and self._mask is not None:
            self._mask.copy_(mask)
        for old, new in zip(self._memory, self.decoder.remember(memory, mask), strict=True):
            for buffer, values in zip(old, new, strict=True):
                buffer.copy_(values)

    def start(self, width: int, longest: int) -> None:
        """Begins `width` captions of at most `longest` words for every image."""
        cache = self._cache
        if cache is None or (cache.width, cache.longest) != (width, longest):
            keys = self._memory[0][0]
            self._cache = WordCache(
                layers=len(self._memory),
                images=self.images,
                width=width,
                longest=longest,
                heads=keys.shape[1],
                head_dim=keys.shape[3],
                device=self.device,
                dtype=keys.dtype,
            )
            self._positions = self.decoder.positions(longest)
        else:
            cache.clear()

    def step(self, words: Tensor) -> Tensor:
        """Takes the next word of each caption, (B, W), and scores the word after it, (B, W, V)."""
        assert self._cache is not None, "start comes first"
        return self.decoder.step(words, self._cache, self._positions, self._memory, self._mask)

    def reorder(self, parents: Tensor) -> None:
        """Caption w of an image goes on from what caption `parents[w]` was, (B, W)."""
        assert self._cache is not None, "start comes first"
        self._cache.reorder(parents)
