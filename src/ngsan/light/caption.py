"""A caption, as prediction returns it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Caption:
    """A caption and what the model thinks of it."""

    text: str
    """The words with spaces between them."""

    words: tuple[int, ...]
    """Their ids."""

    log_probability: float
    """The model's, of the words and the end."""

    word_log_probabilities: tuple[float, ...]
    """Of each word, and at last of the end; a caption that was cut off has none of its end."""

    score: float
    """What it was ranked by."""

    attention: NDArray[np.float32] | None = None
    """(words, N) how much of each word's attention in the decoder's last layer, the mean of its
    heads, fell on each region; nothing falls on padding. None unless asked for."""
