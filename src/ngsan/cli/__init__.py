"""The commands, each imported when it is called."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ngsan.cli.parser import Command, Group

COMMANDS = {
    "answer": "answer questions about a photograph",
    "caption": "caption photographs and clips",
    "completion": "print a script that completes commands and options in your shell",
    "data": "import captions, questions, features and parallel text, or inspect a dataset",
    "demo": "caption the example photographs, or train models on built-in scenes",
    "describe": "print a model's configuration and parameter counts",
    "evaluate": "run a model on a split of a dataset and score the result",
    "export": "write a model as ONNX files, in 32 or 8 bits",
    "extract": "extract features from image files or clips",
    "pack": "write a model in 8 bits, for PyTorch and for ONNX Runtime",
    "fit": "learn keywords of photographs, on a CPU",
    "finetune": "learn from your own photographs and captions",
    "plot": "draw metrics by epoch, or a model's geometric bias",
    "reproduce": "rerun tables and figures of the paper",
    "score": "score captions or translations against references",
    "serve": "serve the studio: a web page and an HTTP API",
    "train": "train a captioner, a translator or a question answerer",
    "translate": "translate lines of text",
}


def find_command(name: str) -> "Command | Group":
    """Imports a command of the table."""
    module = {"pack": "export"}.get(name, name)
    found: Command | Group = getattr(import_module(f"ngsan.cli.{module}"), name.upper())
    return found
