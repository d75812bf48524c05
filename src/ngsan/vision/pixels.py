"""Pixels of every kind as RGB of 8 bits.

Shapes: `H` and `W` are the height and width of a picture.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_WHITES = {"I;16": (4095, 65535), "I": (255, 4095, 65535), "F": (1, 255, 65535)}
"""The values that may stand for white in pictures of more than 8 bits, by mode."""


_STRIP = 1 << 22
"""Pixels of a large picture that are converted at a time, about."""


def to_rgb(image: Image.Image, *, shrink: int = 1) -> Image.Image:
    """A decoded picture as RGB: itself if it is, and a new one otherwise.

    What is transparent becomes white. Grey of more than 8 bits is scaled, see `to_bytes`.

    Args:
        image: The picture.
        shrink: A whole number by which it is made smaller: each so many pixels in either direction
            become their mean. It is done strip by strip, so that a large picture is never in
            memory in several forms.
    """
    values = _range_of(image) if _deep_mode(image) in _WHITES else (0.0, 0.0)
    if shrink == 1:
        return _convert(image, values)
    width, height = image.size
    small = Image.new("RGB", (-(-width // shrink), -(-height // shrink)))
    for top, bottom in _strips(width, height, shrink):
        strip = image.crop((0, top, width, bottom))
        strip.info = image.info  # where a transparent colour is told
        small.paste(_convert(strip, values).reduce(shrink), (0, top // shrink))
    return small


def _strips(width: int, height: int, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """The first row of each strip of a picture, and the row behind its last."""
    rows = max(1, _STRIP // (width * multiple)) * multiple
    for top in range(0, height, rows):
        yield top, min(height, top + rows)


def _deep_mode(image: Image.Image) -> str:
    return "I;16" if image.mode.startswith("I;16") else image.mode


def _range_of(image: Image.Image) -> tuple[float, float]:
    """The least and the greatest value, without a copy of the whole picture."""
    lows, highs = [], []
    for top, bottom in _strips(*image.size):
        values = np.asarray(image.crop((0, top, image.width, bottom)), np.float32)
        values = np.nan_to_num(values, nan=0.0)
        lows.append(float(values.min()))
        highs.append(float(values.max()))
    return min(lows), max(highs)


def _convert(image: Image.Image, values: tuple[float, float]) -> Image.Image:
    """As RGB; `values` is the range of the whole picture, if it has more than 8 bits."""
    mode = _deep_mode(image)
    if mode in _WHITES:
        whole = _scaled(np.asarray(image), _WHITES[mode], *values)
        return Image.fromarray(whole).convert("RGB")
    if mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        if mode == "La":
            image = image.convert("LA")
        picture = image.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture).convert("RGB")
    return image if mode == "RGB" else image.convert("RGB")


def to_bytes(values: NDArray[Any], whites: tuple[int, ...]) -> NDArray[np.uint8]:
    """Values of any range as 0 to 255.

    Args:
        values: Numbers of any type; what is not a number becomes 0.
        whites: Values that may stand for white, ascending. The first that no value exceeds does;
            if there is none, or a value is negative, the least value becomes black and the
            greatest white.
    """
    found = np.nan_to_num(values.astype(np.float32), nan=0.0)
    return _scaled(values, whites, float(found.min()), float(found.max()))


def _scaled(
    values: NDArray[Any], whites: tuple[int, ...], low: float, high: float
) -> NDArray[np.uint8]:
    """See `to_bytes`; `low` and `high` are the range of the whole that the values are of."""
    values = np.nan_to_num(values.astype(np.float32), nan=0.0)
    fitting = [white for white in whites if high <= white]
    if low >= 0 and fitting:
        low, high = 0.0, float(fitting[0])
    # Halves, as the span of the largest floats would be more than a float can hold.
    span = np.float32(max(high / 2 - low / 2, float(np.finfo(np.float32).tiny)))
    return ((values / 2 - np.float32(low / 2)) / span * 255 + 0.5).astype(np.uint8)


def from_array(array: NDArray[Any]) -> Image.Image:
    """An array of pixels as a picture.

    Args:
        array: (H, W), (H, W, 1), (H, W, 3) or (H, W, 4): uint8, uint16, or floats from 0 to 1.

    Raises:
        ValueError: It has another shape, type or range.
    """
    shape = array.shape
    if not (array.ndim == 2 or (array.ndim == 3 and shape[2] in (1, 3, 4))) or not array.size:
        raise ValueError(
            f"its shape is {shape}: pixels are (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)"
        )
    if array.ndim == 3 and shape[2] == 1:
        array = array[:, :, 0]
    if np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 1):  # nor if they are not numbers
            raise ValueError(
                f"its values go from {low:g} to {high:g}: floats are from 0 to 1; give uint8 for "
                "0 to 255"
            )
        array = (array.astype(np.float32) * 255 + 0.5).astype(np.uint8)
    elif array.dtype == np.uint16:
        array = to_bytes(array, _WHITES["I;16"])
    elif array.dtype != np.uint8:
        raise ValueError(f"it is {array.dtype}: give uint8, uint16, or floats from 0 to 1")
    return Image.fromarray(np.ascontiguousarray(array))
