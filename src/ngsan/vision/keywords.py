"""Keywords of photographs, from an eye that no caption has trained.

A network with ImageNet weights looks at the photograph, and two layers on its pooled features give
the log-odds of each word of a list: how large a share of the people who describe such a photograph
uses the word. Forms of a word together are a keyword, and its confidence is the
calibrated probability that at least one of five people uses it.

Needs only NumPy and ONNX Runtime.

Shapes: `B` images, `S` side of an image, `P` pooled vectors of an image, `C` their width, `D`
inputs of the layers, `H` hidden units, `W` words, `K` keywords.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

KEYWORD_MODEL = Path(__file__).parents[1] / "shipped" / "keywords"
"""The keywords that come with the package."""

EYE, LAYERS, WORDS = "eye.onnx", "layers.safetensors", "words.json"
"""The files of a folder of keywords: the network, the layers, and what their numbers mean."""

LIMIT = 10
"""Default limit of the keywords of a photograph."""

FORMAT = 1
"""Version of the files."""

_LEVELS, _SCALE = 127, ".scale"


class Keyword(NamedTuple):
    """A word that people would use for a photograph."""

    word: str
    confidence: float
    """Probability that at least one of five people uses the word or another form of it."""

    def as_record(self) -> dict[str, Any]:
        """As in JSON."""
        return {"word": self.word, "confidence": round(self.confidence, 4)}


class Eye:
    """The network, in ONNX Runtime; several threads may use it.

    Attributes:
        size: S.
        vectors: P.
        width: C.
        signature: Identifies the network.
    """

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        """Opens the graph.

        Args:
            path: The file.
            threads: Threads of ONNX Runtime; None for one per core.

        Raises:
            ValueError: The file is missing or damaged.
        """
        runtime: Any = import_module("onnxruntime")
        state: Any = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
        content = _read(path)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        # A thread that waits for the next image must not keep a core busy.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # In a server, graphs share their memory; see ngsan.app.memory.
        options.add_session_config_entry("session.use_env_allocators", "1")
        try:
            self._session = runtime.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
        except (state.Fail, state.InvalidProtobuf, state.InvalidGraph) as error:
            raise ValueError(f"{path}: ONNX Runtime cannot open it: {error}") from error
        self.size = int(self._session.get_inputs()[0].shape[1])
        self.vectors, self.width = self._session.get_outputs()[0].shape[1:]
        self.signature = hashlib.sha256(content).hexdigest()

    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The pooled features (B, P, C) of images (B, S, S, 3), one image at a time.

        Raises:
            ValueError: The images have another shape or type.
        """
        if images.dtype != np.uint8 or images.shape[1:] != (self.size, self.size, 3):
            raise ValueError(
                f"images must be (images, {self.size}, {self.size}, 3) uint8, not {images.shape} "
                f"{images.dtype}"
            )
        found = np.empty((len(images), self.vectors, self.width), np.float32)
        for image, place in zip(images, found, strict=True):  # together they are no faster
            place[:] = self._session.run(["features"], {"images": image[None]})[0][0]
        return found


@dataclass(frozen=True)
class Layers:
    """From pooled features to the log-odds of words: standardization, a hidden layer, the output.

    Each field is a tensor of the file, in single precision; matrices are there in 8 bits with a
    scale for each row.
    """

    mean: NDArray[np.float32]
    """(D,) of the inputs in training."""
    deviation: NDArray[np.float32]
    """(D,) their standard deviations."""
    hidden: NDArray[np.float32]
    """(H, D)."""
    hidden_bias: NDArray[np.float32]
    """(H,)."""
    output: NDArray[np.float32]
    """(W, H)."""
    bias: NDArray[np.float32]
    """(W,)."""
    prior: NDArray[np.float32]
    """(W,) log-odds of each word for a photograph of which nothing is known."""

    def __call__(self, features: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """The log-odds (B, W) of pooled features (B, P, C)."""
        inputs = (layer_inputs(features) - self.mean) / self.deviation
        hidden = np.maximum(inputs @ self.hidden.T + self.hidden_bias, 0)
        found: NDArray[np.float32] = hidden @ self.output.T + self.bias
        return found

    def save(self, path: Path) -> None:
        """Writes the file."""
        from safetensors.numpy import save_file

        tensors = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if value.ndim == 2:
                scale = np.abs(value).max(1) / _LEVELS
                scale[scale == 0] = 1
                tensors[item.name + _SCALE] = scale
                value = np.rint(value / scale[:, None]).astype(np.int8)
            tensors[item.name] = value
        save_file(tensors, path)

    @classmethod
    def load(cls, content: bytes) -> "Layers":
        """Reads the content of a file; raises a `ValueError` if it is damaged."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            tensors = load(content)
            for name in [name for name in tensors if name + _SCALE in tensors]:
                tensors[name] = tensors[name] * tensors.pop(name + _SCALE)[:, None]
            return cls(**tensors)
        except (SafetensorError, TypeError, ValueError) as error:
            raise ValueError(f"damaged: {error}") from error


@dataclass(frozen=True)
class Words:
    """What the outputs of the layers mean."""

    words: Sequence[str]
    """The words, in the order of the outputs."""

    keywords: Mapping[str, Sequence[int]]
    """The forms of each keyword, as places in `words`."""

    calibration: tuple[float, float]
    """Factor and summand that turn the log-odds of a keyword's forms into its own."""

    photographs: int
    """Photographs that the layers were trained on."""

    sha256: Mapping[str, str]
    """Of the other files."""

    format: int = FORMAT

    def save(self, folder: Path) -> None:
        """Writes the file."""
        text = json.dumps(asdict(self), ensure_ascii=False, indent=None)
        (folder / WORDS).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Words":
        """Reads the file; raises a `ValueError` if it is missing, damaged or of another format."""
        path = folder / WORDS
        try:
            content = json.loads(_read(path))
            if content["format"] != FORMAT:
                raise ValueError(f"its format {content['format']!r} is not supported")
            found = cls(**content)
            places = sorted({place for forms in found.keywords.values() for place in forms})
            if places and not 0 <= places[0] <= places[-1] < len(found.words):
                raise ValueError("a keyword has a form that is not among the words")
            return found
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: damaged: {error}") from error


class KeywordModel:
    """The eye and the layers; several threads may use it.

    Attributes:
        size: S.
        words: (W) the words.
        places: The place of each word among them.
        prior: (W,) log-odds of each word for a photograph of which nothing is known.
        keywords: (K) the keywords.
    """

    def __init__(self, eye: Eye, layers: Layers, meaning: Words) -> None:
        """Puts the parts together.

        Args:
            eye: The network.
            layers: From its features to words.
            meaning: Of the layers' outputs.
        """
        self.eye, self.size, self.layers = eye, eye.size, layers
        self.words, self.prior = tuple(meaning.words), layers.prior
        self.places = {word: place for place, word in enumerate(self.words)}
        self.keywords = tuple(meaning.keywords)
        self.forms = [list(forms) for forms in meaning.keywords.values()]
        self._calibration = meaning.calibration

    def logits(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The log-odds (B, W) of the words for photographs (B, S, S, 3).

        Those of a word are above its `prior` if the photograph speaks for it.
        """
        return self.layers(self.eye.features(pixels))

    def confidences(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """The probabilities (B, K) of the keywords."""
        factor, summand = self._calibration
        log_odds = factor * keyword_log_odds(logits, self.forms) + summand
        found: NDArray[np.float64] = np.exp(-np.logaddexp(0, -log_odds))
        return found

    def rank(self, confidences: NDArray[np.float64], limit: int = LIMIT) -> list[Keyword]:
        """The most probable keywords of one image, best first.

        Args:
            confidences: (K,).
            limit: The most that are returned.
        """
        if limit < 1:
            raise ValueError(f"limit: {limit} must be at least 1")
        best = np.argsort(-confidences, kind="stable")[:limit]
        return [Keyword(self.keywords[place], float(confidences[place])) for place in best]


def layer_inputs(features: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """What the layers read (B, D) of pooled features (B, P, C): mean and maximum of an image."""
    half = features.shape[1] // 2
    mean = features[:, :half].mean(1, dtype=np.float32)
    return np.concatenate((mean, features[:, half:].max(1)), 1, dtype=np.float32)


def keyword_log_odds(
    logits: NDArray[np.float32], forms: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """The log-odds (B, K) that any form of a keyword is used, as if they were independent.

    Args:
        logits: (B, W).
        forms: The places of each keyword's forms.
    """
    starts = np.cumsum([0, *(len(places) for places in forms[:-1])])
    # log(1 - p) of every word, and of every keyword its sum over the forms.
    absent = -np.logaddexp(0, logits[:, np.concatenate(forms)].astype(np.float64))
    none = np.add.reduceat(absent, starts, axis=1)
    found: NDArray[np.float64] = np.log(-np.expm1(none)) - none
    return found


def load_keywords(folder: str | Path | None = None, *, threads: int | None = None) -> KeywordModel:
    """Opens keywords.

    Args:
        folder: What `ngsan fit keywords` wrote; None for what comes with the package.
        threads: Threads of ONNX Runtime; None for one per core.

    Raises:
        ValueError: A file is missing, damaged or from another folder.
    """
    folder = KEYWORD_MODEL if folder is None else Path(folder)
    meaning = Words.load(folder)
    for name in (EYE, LAYERS):
        if hashlib.sha256(_read(folder / name)).hexdigest() != meaning.sha256.get(name):
            raise ValueError(f"{folder / name} is damaged or from another folder")
    layers = Layers.load(_read(folder / LAYERS))
    return KeywordModel(Eye(folder / EYE, threads=threads), layers, meaning)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"{path}: file not found")
    return path.read_bytes()
