"""What a captioner of photographs looked at, as numbers.

Shapes: `L` layers, `H` heads, `N` cells, row by row, `T` words and the end of a caption.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ngsan.config import CaptionerConfig, DecodingConfig
from ngsan.models import Captioner
from ngsan.models.photo import PhotoEncoder
from ngsan.models.saved_captioner import load_captioner
from ngsan.nn.attend import AttentionMaps
from ngsan.predict import Predictor
from ngsan.text.vocabulary import BOUNDARY, Vocabulary
from ngsan.vision.images import to_square

_DEFAULT = DecodingConfig()

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Said:
    """A caption, and where the decoder looked while it wrote it."""

    words: tuple[str, ...]
    """The words."""

    probabilities: tuple[float, ...]
    """The model's, of each word after those before it, and at last of the end: T of them."""

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
class Explained:
    """A photograph's captions, and the attention of its cells to each other."""

    captions: tuple[Said, ...]
    """The best first."""

    content: Floats
    """(L, H, N, N) the weights that the content scores alone would give, a softmax of
    QK^T / sqrt(K); the row is the cell that attends."""

    geometry: Floats | None
    """(L, H, N, N) the geometric bias of Eq. 11-13, shifted in every row, which no softmax
    notices, such that `weights` is `content` times its exponential; None without a bias."""

    weights: Floats
    """(L, H, N, N) the weights of both together, those that the model used."""


class Explainer:
    """Captions photographs and keeps what was looked at."""

    def __init__(
        self, captioner: Captioner, config: CaptionerConfig, vocabulary: Vocabulary
    ) -> None:
        """Takes a captioner of photographs.

        Args:
            captioner: The model; it is left in evaluation mode and in single precision.
            config: What it was built from.
            vocabulary: Its words.

        Raises:
            ValueError: The captioner is one of given regions, or has a recurrent decoder.
        """
        if not isinstance(captioner.encoder, PhotoEncoder):
            raise ValueError(
                "this model takes regions that are given, not photographs: a page needs a model "
                f"with a backbone, and its configuration says backbone: {config.backbone}"
            )
        config.require_transformer("a page")
        self.captioner = captioner.float().eval()
        self.config, self.vocabulary = config, vocabulary
        self.size = captioner.encoder.size
        boxes = captioner.encoder.boxes.tolist()
        self.grid = len({box[1] for box in boxes}), len({box[0] for box in boxes})
        """Rows and columns of cells."""
        self._predictor = Predictor(self.captioner, vocabulary)

    @classmethod
    def open(cls, folder: str | Path) -> "Explainer":
        """Reads the model of a folder.

        Raises:
            ValueError: The folder is no model, or one of given regions.
        """
        captioner, config, vocabulary = load_captioner(folder)
        try:
            return cls(captioner, config, vocabulary)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None

    @torch.inference_mode()
    def explain(
        self,
        image: Image.Image,
        *,
        decoding: DecodingConfig = _DEFAULT,
        number: int = 0,
        said: Sequence[str] = (),
    ) -> Explained:
        """Captions a photograph.

        Args:
            image: Upright and RGB, as `ngsan.vision.images.open_image` returns it.
            decoding: How captions are written.
            number: The image's number, of which sampled words depend.
            said: Captions that were written already, their words with spaces between them; they
                are explained in place of new ones.

        Raises:
            ValueError: A word of `said` is not in the vocabulary.
        """
        pixels = torch.from_numpy(to_square(image, self.size)).permute(2, 0, 1)[None]
        if said:
            captions = [self.vocabulary.encode(text.split()) for text in said]
        else:
            found = self._predictor.caption(pixels, decoding=decoding, first=number)
            captions = [list(caption.words) for caption in found[0]]
        maps: list[AttentionMaps] = []
        memory = self.captioner.encode(pixels, record=maps)
        content = torch.cat([each.content for each in maps]).softmax(-1)
        weights = torch.cat([each.weights for each in maps])
        biases = [each.bias for each in maps if each.bias is not None]
        geometry = None
        if biases:
            bias = torch.cat(biases)
            # Minus the logarithm of what the softmax divides by once content is in it already.
            geometry = bias - (content.log() + bias).logsumexp(-1, keepdim=True)
        return Explained(
            captions=tuple(self._read(words, memory) for words in captions),
            content=content.numpy(),
            geometry=None if geometry is None else geometry.numpy(),
            weights=weights.numpy(),
        )

    def _read(self, words: Sequence[int], memory: Tensor) -> Said:
        """Goes through a caption once more, word by word."""
        given = torch.tensor([[BOUNDARY, *words]])
        wanted = torch.tensor([*words, BOUNDARY])
        maps: list[AttentionMaps] = []
        logits = self.captioner.decode(given, memory, record=maps)[0]
        probabilities = logits.softmax(-1).gather(-1, wanted[:, None])[:, 0]
        return Said(
            words=tuple(self.vocabulary.decode(words)),
            probabilities=tuple(probabilities.tolist()),
            attention=torch.cat([each.weights for each in maps]).numpy(),
        )
