"""A model on the disk: a folder with its configuration, its weights and its vocabulary."""

import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from ngsan.config import CaptionerConfig, ModelConfig, read_yaml, to_yaml
from ngsan.models.build import build_captioner
from ngsan.models.captioner import Captioner
from ngsan.text.vocabulary import Vocabulary

CONFIG = "config.yaml"
WEIGHTS = "model.safetensors"
VOCABULARY = "vocabulary.json"


def save_captioner(
    folder: str | Path, captioner: Captioner, config: CaptionerConfig, vocabulary: Vocabulary
) -> None:
    """Writes a captioner; each file appears whole or not at all, the weights last.

    Args:
        folder: Where to; it is made if need be, and a model that is there is replaced.
        captioner: The model.
        config: What it was built from.
        vocabulary: Its words.
    """
    if len(vocabulary) != config.vocab_size:
        raise ValueError(
            f"the vocabulary has {len(vocabulary)} ids, the model {config.vocab_size}: "
            "they do not belong together"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / WEIGHTS
    weights.unlink(missing_ok=True)  # a half-written model must not look like one
    partial = folder / f"{CONFIG}.partial"
    partial.write_text(to_yaml(ModelConfig(config)), encoding="utf-8")
    partial.replace(folder / CONFIG)
    vocabulary.save(folder / VOCABULARY)
    partial = weights.with_name(WEIGHTS + ".partial")
    tensors = {name: tensor.contiguous() for name, tensor in captioner.state_dict().items()}
    save_file(tensors, partial, metadata={"format": "pt", "vocabulary": vocabulary.signature})
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(weights)


def load_captioner(folder: str | Path) -> tuple[Captioner, CaptionerConfig, Vocabulary]:
    """Reads a captioner that `save_captioner` wrote, in evaluation mode and in the saved precision.

    Raises:
        ValueError: The folder is no such model, or its files do not belong together.
    """
    folder = Path(folder)
    missing = [name for name in (CONFIG, VOCABULARY, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} is not a model: {' and '.join(missing)} missing")
    config = read_yaml(ModelConfig, folder / CONFIG).model
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    if len(vocabulary) != config.vocab_size:
        raise ValueError(
            f"{folder}: {VOCABULARY} has {len(vocabulary)} ids and {CONFIG} says vocab_size: "
            f"{config.vocab_size}: they do not belong together"
        )
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            trained_with = (file.metadata() or {}).get("vocabulary")
        tensors = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{folder / WEIGHTS}: damaged or no weights: {error}") from error
    if trained_with != vocabulary.signature:
        raise ValueError(
            f"{folder}: {WEIGHTS} belongs to vocabulary {trained_with}, and {VOCABULARY} is "
            f"{vocabulary.signature}: they do not belong together"
        )
    captioner = build_captioner(config)
    expected = {name: tuple(tensor.shape) for name, tensor in captioner.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        wrong = sorted(set(expected.items()) ^ set(found.items()))[0][0]
        raise ValueError(
            f"{folder}: {WEIGHTS} does not fit {CONFIG}: {wrong} is {found.get(wrong, 'absent')}, "
            f"expected {expected.get(wrong, 'nothing of that name')}"
        )
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:
        captioner.to(dtypes.pop())
    captioner.load_state_dict(tensors)
    return captioner.eval(), config, vocabulary
