"""The files of an export, and the one that says what belongs together.

An export is a folder of four files: `encoder.onnx` makes keys and values out of the regions of
images, `decoder.onnx` takes one more word of every caption, `vocabulary.json` has the words, and
`export.json` tells what the others must be.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from ngsan.config import CaptionerConfig, from_dict
from ngsan.text.vocabulary import Vocabulary

ENCODER = "encoder.onnx"
DECODER = "decoder.onnx"
MANIFEST = "export.json"
VOCABULARY = "vocabulary.json"

FILES = (MANIFEST, ENCODER, DECODER, VOCABULARY)
"""All that an export consists of."""

FORMAT = 1
"""Version of the files and of what goes into the graphs and comes out of them."""


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
    """What the captioner was built from."""

    def save(self, folder: Path) -> None:
        """Writes `export.json`."""
        text = json.dumps(dataclasses.asdict(self), indent=1)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Reads `export.json`.

        Raises:
            ValueError: A file is missing, or this one is damaged or of another format.
        """
        missing = [name for name in FILES if not (folder / name).is_file()]
        if missing:
            raise ValueError(f"{folder} is not an export: {' and '.join(missing)} missing")
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
        absent = [item.name for item in dataclasses.fields(cls) if item.name not in content]
        if absent:
            raise ValueError(f"{path}: {', '.join(absent)} missing; export again")
        if not isinstance(content["sha256"], dict):
            raise ValueError(f"{path}: sha256 must be by file; export again")
        try:
            return from_dict(cls, content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}; export again") from error

    def graph(self, path: Path) -> bytes:
        """The bytes of a graph.

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


def layer_names(what: str, layers: int) -> list[str]:
    """The names of a graph's keys, and then of its values, in every layer: `word_keys_0` etc."""
    return [f"{what}_{part}_{layer}" for part in ("keys", "values") for layer in range(layers)]
