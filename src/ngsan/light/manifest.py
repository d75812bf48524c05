"""The files of an export, and the one that says what belongs together.

An export is a folder of four files: `encoder.onnx` makes keys and values out of the regions of
images, `decoder.onnx` takes one more word of every caption, `vocabulary.json` has the words, and
`export.json` tells what the others must be. A model of pixels has `backbone.onnx` besides, which
makes the regions. A packed model has graphs without weights, which are in `model.safetensors`.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.config import CaptionerConfig, from_dict
from ngsan.light.weights import WEIGHTS, Made
from ngsan.text.vocabulary import Vocabulary

BACKBONE = "backbone.onnx"
ENCODER = "encoder.onnx"
DECODER = "decoder.onnx"
MANIFEST = "export.json"
VOCABULARY = "vocabulary.json"

FILES = (MANIFEST, ENCODER, DECODER, VOCABULARY)
"""All that an export of a model of regions consists of."""

FORMAT = 1
"""Version of the files and of what goes into the graphs and comes out of them."""

_STRIDE = 32
"""Pixels of a cell, each way."""


@dataclass(frozen=True)
class Manifest:
    """What `export.json` says."""

    format: int
    """`FORMAT` when it was written."""

    ngsan: str
    """Version of ngsan that wrote it."""

    opset: int
    """Version of the ONNX operators."""

    vocabulary: str
    """Signature of the vocabulary."""

    inputs: dict[str, list[str]]
    """Names of what each graph takes, in order, by file."""

    outputs: dict[str, list[str]]
    """Names of what each graph returns, in order, by file."""

    sha256: dict[str, str]
    """SHA-256 of each graph, by file."""

    precision: str
    """Of the matrices: "float32" or "int8"."""

    model: CaptionerConfig
    """What the captioner was built from. With a backbone it takes images of `image_size`, whose
    cells have the boxes of `cell_boxes`."""

    weights: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Of a packed model: by file and by name of a weight of the graph the fields of a `Made`."""

    seal: str = ""
    """SHA-256 of all the rest; "" in exports of before there was one, which are not packed."""

    @property
    def graphs(self) -> tuple[str, ...]:
        """The files that are graphs."""
        return (ENCODER, DECODER) if self.model.backbone == "none" else (BACKBONE, ENCODER, DECODER)

    @property
    def files(self) -> tuple[str, ...]:
        """All files that belong to it and are read with it."""
        return (MANIFEST, *self.graphs, VOCABULARY, *([WEIGHTS] if self.weights else []))

    def save(self, folder: Path) -> None:
        """Writes `export.json`, sealed."""
        content = dataclasses.asdict(self)
        text = json.dumps({**content, "seal": _seal(content)}, indent=1)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    def made(self, graph: str) -> dict[str, Made]:
        """How each weight of a packed graph is made, by name.

        Raises:
            ValueError: It does not say it as it should.
        """
        return {name: from_dict(Made, how) for name, how in self.weights.get(graph, {}).items()}

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Reads `export.json`.

        Raises:
            ValueError: A file is missing, or this one is damaged or of another format.
        """
        _require(folder, FILES)
        path = folder / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path}: damaged: {error}; export again") from error
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise ValueError(
                f"{path}: format {found!r} is not known here, only {FORMAT}; export again"
            )
        later = ("weights", "seal")  # which older exports have not
        known = [item.name for item in dataclasses.fields(cls)]
        absent = [name for name in known if name not in content and name not in later]
        if absent:
            raise ValueError(f"{path}: {', '.join(absent)} missing; export again")
        if not isinstance(content["sha256"], dict):
            raise ValueError(f"{path}: sha256 must be by file; export again")
        try:
            found = from_dict(cls, content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}; export again") from error
        if (found.seal or found.weights) and found.seal != _seal(content):
            raise ValueError(f"{path}: damaged: its content is not what its seal says")
        _require(folder, found.files)
        return found

    def content(self, path: Path) -> bytes:
        """The bytes of a graph or of the weights.

        Raises:
            ValueError: They are not those that were exported.
        """
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.sha256.get(path.name):
            raise ValueError(
                f"{path} is damaged or from another export: its SHA-256 is not the one in "
                f"{MANIFEST}; export again"
            )
        return content

    def words(self, path: Path) -> Vocabulary:
        """The vocabulary.

        Raises:
            ValueError: It is not the one that was exported.
        """
        vocabulary = Vocabulary.load(path)
        if (vocabulary.signature, len(vocabulary)) != (self.vocabulary, self.model.vocab_size):
            raise ValueError(
                f"{path} ({vocabulary.signature}, {len(vocabulary)} ids) is not the vocabulary of "
                f"the export ({self.vocabulary}, {self.model.vocab_size} ids)"
            )
        return vocabulary


def _seal(content: dict[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _require(folder: Path, files: tuple[str, ...]) -> None:
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} is not an export: {' and '.join(missing)} missing")


def cell_boxes(image_size: int) -> NDArray[np.float32]:
    """(N, 4) the cells of an image, row by row: `cxcywh`, relative to the image.

    The same as `GridBackbone.cell_boxes`, without torch.
    """
    side = image_size // _STRIDE
    centres = (np.arange(side, dtype=np.float32) + 0.5) / side
    y, x = np.meshgrid(centres, centres, indexing="ij")
    sides = np.full(side * side, 1 / side)
    return np.stack((x.ravel(), y.ravel(), sides, sides), 1).astype(np.float32)


def layer_names(what: str, layers: int) -> list[str]:
    """The names of a graph's keys, and then of its values, in every layer: `word_keys_0` etc."""
    return [f"{what}_{part}_{layer}" for part in ("keys", "values") for layer in range(layers)]
