"""A captioner on the disk; `ngsan.models.folder` says what is in its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ngsan.config import CaptionerConfig, ModelConfig
from ngsan.models.build import build_captioner
from ngsan.models.captioner import Captioner
from ngsan.models.folder import CONFIG, WEIGHTS, companion_file, read_model, write_model
from ngsan.models.rounded import delicate_weights
from ngsan.models.weights import check_fit
from ngsan.text.vocabulary import Vocabulary

TASK = "captioning"
VOCABULARY = companion_file("vocabulary")


def save_captioner(
    folder: str | Path,
    captioner: Captioner,
    config: CaptionerConfig,
    vocabulary: Vocabulary,
    *,
    run: Any | None = None,
    metrics: Mapping[str, Any] | None = None,
    task: str = TASK,
    tensors: Mapping[str, Tensor] | None = None,
    rounded: bool = False,
) -> None:
    """Writes a captioner; a kill at any instant leaves the model that was there or this one.

    A model of another configuration or vocabulary is replaced in several steps; a kill among them
    may leave a folder that is refused, and never one that mixes the two.

    Args:
        folder: Where to; it is made if need be, and a model that is there is replaced. One process
            at a time may write to it.
        captioner: The model.
        config: What it was built from.
        vocabulary: Its words.
        run: The configuration of the whole run, a dataclass with a field `model`, to be written in
            place of the model's own; None when there is none.
        metrics: Its scores, as JSON values.
        task: What it was trained for.
        tensors: Weights to write in place of the captioner's, such as averaged ones.
        rounded: Whether large matrices are written in 8 bits, see `ngsan.models.rounded`.

    Raises:
        ValueError: The arguments do not belong together.
        OSError: A file could not be written, such as on a full disk.
    """
    if len(vocabulary) != config.vocab_size:
        raise ValueError(
            f"the vocabulary has {len(vocabulary)} ids, the model {config.vocab_size}: "
            "they do not belong together"
        )
    state = captioner.state_dict()
    if tensors is not None:
        check_fit(state, tensors, "tensors do not fit the captioner")
    weights = state if tensors is None else tensors
    write_model(
        folder,
        weights,
        config,
        {"vocabulary": vocabulary},
        task=task,
        run=ModelConfig(config) if run is None else run,
        metrics=metrics,
        rounded=rounded,
        delicate=delicate_weights(captioner),
    )


def load_captioner(folder: str | Path) -> tuple[Captioner, CaptionerConfig, Vocabulary]:
    """Reads a captioner that `save_captioner` wrote, in evaluation mode and in the saved precision.

    What was saved in 8 bits comes in single precision. Only the section `model` of `config.yaml`
    is read. `metrics.json` and `signature.json` may be missing or of the model before; see
    `ngsan.models.folder`.

    Raises:
        ValueError: The folder is no such model, is damaged, or its files do not belong together.
    """
    stored = read_model(folder, CaptionerConfig, {"vocabulary": Vocabulary.load}, task=TASK)
    config, vocabulary, tensors = stored.config, stored.companions["vocabulary"], stored.tensors
    captioner = build_captioner(config)
    check_fit(captioner.state_dict(), tensors, f"{folder}: {WEIGHTS} does not fit {CONFIG}")
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:
        captioner.to(dtypes.pop())
    captioner.load_state_dict(tensors)
    return captioner.eval(), config, vocabulary
