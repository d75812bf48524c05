"""A translator on the disk: a model folder with its word pieces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ngsan.config.translation import TranslatorConfig
from ngsan.models.build_translator import build_translator
from ngsan.models.folder import CONFIG, WEIGHTS, read_model, write_model
from ngsan.models.translator import Translator
from ngsan.models.weights import check_fit
from ngsan.text.subwords import Subwords

TASK = "translation"


@dataclass(frozen=True)
class TranslatorFile:
    """A translator alone, as its folder's `config.yaml` holds it without a run."""

    model: TranslatorConfig = field(default_factory=TranslatorConfig)
    """The translator."""


def save_translator(
    folder: str | Path,
    translator: Translator,
    config: TranslatorConfig,
    subwords: Subwords,
    *,
    run: Any = None,
    metrics: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    rounded: bool = False,
) -> None:
    """Writes a translator as a model folder.

    Args:
        folder: Where to.
        translator: The model.
        config: What it was built from.
        subwords: Its word pieces.
        run: A configuration with a field `model` to write in full; None for the model alone.
        metrics: Its scores, as JSON values.
        tensors: Weights to write in the place of the model's own.
        rounded: Whether large matrices are written in 8 bits, see `ngsan.models.rounded`.

    Raises:
        ValueError: The arguments do not belong together.
        OSError: A file could not be written.
    """
    if config.vocab_size != len(subwords):
        raise ValueError(
            f"the model has {config.vocab_size} word ids and the tokenizer {len(subwords)}: they "
            "do not belong together"
        )
    write_model(
        folder,
        translator.state_dict() if tensors is None else tensors,
        config,
        {"tokenizer": subwords},
        task=TASK,
        run=TranslatorFile(config) if run is None else run,
        metrics=metrics,
        rounded=rounded,
    )


def load_translator(folder: str | Path) -> tuple[Translator, TranslatorConfig, Subwords]:
    """Reads a translator, in evaluation mode on the CPU.

    Raises:
        ValueError: The folder is no such model, is damaged, or its files do not belong together.
    """
    stored = read_model(folder, TranslatorConfig, {"tokenizer": Subwords.load}, task=TASK)
    subwords: Subwords = stored.companions["tokenizer"]
    if stored.config.vocab_size != len(subwords):
        raise ValueError(
            f"{folder}: the model has {stored.config.vocab_size} word ids and its tokenizer "
            f"{len(subwords)}: they do not belong together"
        )
    translator = build_translator(stored.config)
    check_fit(translator.state_dict(), stored.tensors, f"{folder}: {WEIGHTS} does not fit {CONFIG}")
    translator.load_state_dict(stored.tensors)
    return translator.eval(), stored.config, subwords
