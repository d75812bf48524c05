"""What a captioner of photographs looked at, as numbers and in few bytes.

Shapes: `L` layers, `H` heads, `N` cells, row by row, `T` words and the end of a caption.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ngsan.app.attention import AttentionModel, Floats, attention_shares
from ngsan.vision.images import to_square

LARGEST_BIAS = float(np.log(1000))
"""Larger biases are clipped: factors beyond a thousand look the same, and in 8 bits the small ones
would be lost."""


@dataclass(frozen=True)
class CaptionMaps:
    """A caption, and where the decoder looked while it wrote it."""

    words: tuple[str, ...]
    """The words."""

    probabilities: tuple[float, ...]
    """(T,) of each word after those before it, and at last of the end."""

    attention: Floats
    """(L, H, T, N) weights after the softmax; a row sums to one."""

    @property
    def text(self) -> str:
        """The words with spaces between them."""
        return " ".join(self.words)

    @property
    def probability(self) -> float:
        """Of the whole caption, its end included."""
        return float(np.prod(self.probabilities))


@dataclass(frozen=True)
class Explanation:
    """A photograph's captions, and the attention of its cells to each other."""

    captions: tuple[CaptionMaps, ...]
    """In the order in which they were given."""

    content: Floats
    """(L, H, N, N) the weights that the content scores alone would give, softmax(QK^T / sqrt(K));
    the row is the cell that attends."""

    geometry: Floats | None
    """(L, H, N, N) the geometric bias of Eq. 11-13, shifted in every row such that `weights` is
    `content` times its exponential; None without a bias."""

    weights: Floats
    """(L, H, N, N) the attention weights of the model."""

    inputs: Floats | None = None
    """(L, N, D) what each layer's bias computes Q' and K' from; None without a bias."""


class Explainer:
    """Shows what a captioner of photographs looks at. Several threads may use it."""

    def __init__(self, model: AttentionModel, image_size: int | None = None) -> None:
        """Wraps a model of photographs, whose images have `image_size` or what its config says."""
        if model.cell_boxes is None:
            raise ValueError(
                "this model captions regions, not photographs: the page needs a model with a "
                f"backbone, and its configuration says backbone: {model.config.backbone}"
            )
        self.model, self.config, self.vocabulary = model, model.config, model.vocabulary
        self.cell_boxes, self.size = model.cell_boxes, image_size or model.config.image_size
        rows, columns = (len(set(self.cell_boxes[:, axis].tolist())) for axis in (1, 0))
        self.grid = rows, columns

    @classmethod
    def open(cls, folder: str | Path, *, threads: int | None = None) -> "Explainer":
        """Opens a model of photographs; see `AttentionModel.open`.

        Raises:
            ValueError: The folder does not hold one.
        """
        try:
            return cls(AttentionModel.open(folder, threads=threads))
        except ValueError as error:
            text = str(error)
            raise ValueError(text if str(folder) in text else f"{folder}: {text}") from None

    def explain(self, image: Image.Image, captions: Sequence[str]) -> Explanation:
        """Computes the attention behind captions.

        Args:
            image: Upright and RGB, as `ngsan.vision.images.open_image` returns it.
            captions: One or more, their words with spaces between them.

        Raises:
            ValueError: A word is not in the vocabulary.
        """
        ids = [self.vocabulary.encode(text.split()) for text in captions]
        features = self.model.cell_features(to_square(image, self.size))
        found, written = {}, []
        for words, text in zip(ids, captions, strict=True):
            found = dict(self.model.maps(features, self.cell_boxes, words))
            probabilities = tuple(found["probabilities"].tolist())
            written.append(CaptionMaps(tuple(text.split()), probabilities, found["word_attention"]))
        content, geometry = attention_shares(found)
        return Explanation(tuple(written), content, geometry, found["weights"], found.get("inputs"))


@dataclass
class Blob:
    """Maps one after the other in one piece of memory, as rows of 8 bits with one scale each.

    A map begins with the scales of all rows as little-endian float32, followed by their numbers.
    """

    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    """Bytes so far, a multiple of four."""

    def put(self, rows: Floats, *, signed: bool = False) -> Mapping[str, Any]:
        """Stores a map, (..., N).

        Args:
            rows: The map.
            signed: Whether values may be negative.

        Returns:
            Its place, shape and sign, as JSON values.
        """
        scales, numbers = quantize_rows(rows, signed=signed)
        content = scales.astype("<f4").tobytes() + numbers.tobytes()
        content += bytes(-len(content) % 4)
        entry = {"at": self.size, "shape": list(rows.shape), "signed": signed}
        self.parts.append(content)
        self.size += len(content)
        return entry

    def base64(self) -> str:
        """All of it."""
        return base64.b64encode(b"".join(self.parts)).decode()


def quantize_rows(rows: Floats, *, signed: bool = False) -> tuple[Floats, NDArray[np.uint8]]:
    """Rounds rows to numbers of 8 bits.

    Args:
        rows: (..., N), not negative unless `signed`.
        signed: Whether values may be negative.

    Returns:
        scales: (...) the greatest magnitude of each row.
        numbers: (..., N) where 255 stands for the scale and 0 for zero, or if `signed` 255 for the
            scale, 128 for zero and 1 for minus the scale.
    """
    scales = np.abs(rows).max(-1).astype(np.float32)
    shares = rows / np.where(scales > 0, scales, 1)[..., None]
    if signed:
        return scales, (np.rint(shares * 127) + 128).astype(np.uint8)
    return scales, np.rint(shares * 255).astype(np.uint8)
