"""A model that answers questions on the disk; see `ngsan.models.folder`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ngsan.config.answering import AnswererConfig, AnswererFile
from ngsan.models.answerer import Answerer
from ngsan.models.build_answerer import build_answerer
from ngsan.models.folder import CONFIG, WEIGHTS, Stored, read_model, write_model
from ngsan.models.weights import check_fit
from ngsan.text.vocabulary import Vocabulary

TASK = "answering"


class SavedAnswerer(NamedTuple):
    """A model and what belongs to it."""

    answerer: Answerer
    """The model, in evaluation mode."""

    config: AnswererConfig
    """What it was built from."""

    words: Vocabulary
    """The words of questions."""

    answers: Vocabulary
    """The answers to choose from."""


def save_answerer(
    folder: str | Path,
    tensors: Mapping[str, Tensor],
    config: AnswererConfig,
    words: Vocabulary,
    answers: Vocabulary,
    *,
    run: Any | None = None,
    metrics: Mapping[str, Any] | None = None,
    rounded: bool = False,
) -> None:
    """Writes a model.

    Args:
        folder: Where to; see `write_model`.
        tensors: Its weights.
        config: What it was built from.
        words: The words of questions.
        answers: The answers to choose from.
        run: The configuration of the whole run, with `config` as its field `model`; None when
            there is none.
        metrics: Its scores, as JSON values.
        rounded: Whether large matrices are written in 8 bits.

    Raises:
        ValueError: The arguments do not belong together.
    """
    sizes = (len(words), len(answers.words))
    if sizes != (config.vocab_size, config.answers):
        raise ValueError(
            f"there are {sizes[0]} words and {sizes[1]} answers, and the model has "
            f"{config.vocab_size} and {config.answers}: they do not belong together"
        )
    write_model(
        folder,
        tensors,
        config,
        {"vocabulary": words, "answers": answers},
        task=TASK,
        run=AnswererFile(config) if run is None else run,
        metrics=metrics,
        rounded=rounded,
    )


def read_answerer(folder: str | Path) -> Stored[AnswererConfig]:
    """Reads what `save_answerer` wrote.

    Raises:
        ValueError: The folder is no such model, is damaged, or its files do not belong together.
    """
    loaders = {"vocabulary": Vocabulary.load, "answers": Vocabulary.load}
    return read_model(folder, AnswererConfig, loaders, task=TASK)


def load_answerer(folder: str | Path) -> SavedAnswerer:
    """Reads a model, in evaluation mode and in single precision.

    Raises:
        ValueError: As in `read_answerer`, or the weights do not fit the configuration.
    """
    stored = read_answerer(folder)
    answerer = build_answerer(stored.config)
    check_fit(answerer.state_dict(), stored.tensors, f"{folder}: {WEIGHTS} does not fit {CONFIG}")
    answerer.load_state_dict(stored.tensors)
    words, answers = stored.companions["vocabulary"], stored.companions["answers"]
    return SavedAnswerer(answerer.float().eval(), stored.config, words, answers)
