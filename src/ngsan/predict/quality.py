"""How much work goes into the caption of a photograph.

"fast" is the captioner alone. "good" adds the second eye, with which captions then agree. "best"
also looks at the photograph mirrored and at its middle: the three views vote on every word.

Shapes: `S` side of the squares that the captioner takes.
"""

import numpy as np
from numpy.typing import NDArray

FAST, GOOD, BEST = QUALITIES = ("fast", "good", "best")

_MIDDLE = 0.85
"""Share of the width and height that the view of the middle shows."""


def whole_side(size: int) -> int:
    """The side of a square whose middle is S wide."""
    return size + 2 * round(size * (1 / _MIDDLE - 1) / 2)


def views_of(square: NDArray[np.uint8], whole: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """The views of a photograph, each (S, S, 3): upright, mirrored and its middle.

    Args:
        square: (S, S, 3).
        whole: The same photograph with the side `whole_side`.
    """
    cut = (len(whole) - len(square)) // 2
    middle = whole[cut : len(whole) - cut, cut : len(whole) - cut]
    return [square, square[:, ::-1], middle]


def check_quality(quality: str | None, *, agrees: bool) -> str:
    """A quality that is possible; None is the best usual one.

    Args:
        quality: Its name.
        agrees: Whether the model knows how to agree with the second eye.

    Raises:
        ValueError: There is no such quality, or the model lacks what it needs.
    """
    if quality is None:
        return GOOD if agrees else FAST
    if quality not in QUALITIES:
        raise ValueError(f"quality: {quality!r} is not one of {', '.join(QUALITIES)}")
    if quality != FAST and not agrees:
        raise ValueError(
            f"quality: {quality!r} needs a model with agreement.json, which 'ngsan fit agreement' "
            "writes"
        )
    return quality
