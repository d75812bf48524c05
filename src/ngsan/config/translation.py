"""Translators: their shape, how they translate, and how they are trained."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from ngsan.config.checks import check_choice, check_range, check_types
from ngsan.config.files import from_dict
from ngsan.config.training import CrossEntropyConfig, MachineConfig, RateConfig

TRANSLATORS: dict[str, dict[str, str]] = {
    "transformer": {"norm": "none"},
    "transformer-nsa": {"norm": "instance"},
}
"""The paper's two models of translation (Section 4.3): what each sets in `TranslatorConfig`."""


@dataclass(frozen=True)
class TranslatorConfig:
    """The shape of a translator. The defaults are Transformer-Base with NSA, as for WMT14."""

    vocab_size: int = 32768
    """V, the word pieces that both languages share and the one boundary id that begins and ends a
    sentence; in training it is taken from the data."""

    dim: int = 512
    """D, the model's width."""

    heads: int = 8
    """H, attention heads; a divisor of dim."""

    hidden_dim: int = 2048
    """Inner width of the feed-forward networks."""

    layers: int = 6
    """L, layers of the encoder and also of the decoder."""

    dropout: float = 0.1
    """Dropout probability of embedded words and of sub-layers; 0.3 for small data."""

    attention_dropout: float = 0.0
    """Dropout probability of attention weights."""

    hidden_dropout: float = 0.0
    """Dropout probability inside the feed-forward networks."""

    norm: Literal["none", "instance", "instance-affine", "batch", "layer"] = "instance"
    """Norm of the queries inside the encoder's self-attention, over the real words of a sentence,
    Eq. 6-7 (NSA: instance; none is the plain Transformer)."""

    norm_place: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum, as in the original Transformer, or before each
    sub-layer."""

    backend: Literal["fused", "explicit"] = "fused"
    """How attention is computed; both give the same result, explicit spells the equations out."""

    def __post_init__(self) -> None:
        """Checks every value.

        Raises:
            ValueError: A value is of the wrong type or out of range; the message names the key.
        """
        check_types(self)
        check_range(self, "vocab_size", at_least=2)
        for name in ("dim", "heads", "hidden_dim", "layers"):
            check_range(self, name, at_least=1)
        for name in ("dropout", "attention_dropout", "hidden_dropout"):
            check_range(self, name, at_least=0, below=1)
        if self.dim % self.heads:
            raise ValueError(f"dim: {self.dim} does not divide into heads: {self.heads}")
        if self.dim % 2:
            raise ValueError(f"dim: {self.dim} must be even, for sinusoidal word positions")

    @classmethod
    def for_model(cls, model: str, **overrides: Any) -> "TranslatorConfig":
        """The configuration of a named model, with some keys changed.

        Args:
            model: "transformer" or "transformer-nsa".
            **overrides: Any keys of this class.
        """
        check_choice("model", model, tuple(TRANSLATORS))
        return from_dict(cls, {**TRANSLATORS[model], **overrides})

    def as_model(self, model: str) -> "TranslatorConfig":
        """This configuration with the norm of a named model."""
        check_choice("model", model, tuple(TRANSLATORS))
        return from_dict(TranslatorConfig, {**dataclasses.asdict(self), **TRANSLATORS[model]})


@dataclass(frozen=True)
class TranslatingConfig:
    """How translations are searched for. The defaults are fairseq's for WMT14 English-German."""

    beam: int = 4
    """Beam search: translations that are followed; 1 takes the most probable word at each step."""

    best: int = 1
    """Translations to return of each sentence, at most beam."""

    length_penalty: float = 0.6
    """Scores are log-probabilities divided by the length in word pieces, the end included, to this
    power, as in fairseq: 0 ranks by probability, higher values favour longer translations. (The
    formula of Google's translator, ((5 + length) / 6) to the power, is another one.)"""

    early_stopping: bool = False
    """Whether to stop at the first translations that end, as many as the beam is wide, as fairseq
    does, rather than when no better one can come."""

    ratio: float = 1.5
    """A translation may have this many times the word pieces of its sentence, rounded up to a
    multiple of 8,"""

    extra: int = 10
    """and so many more."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        for name in ("beam", "best", "extra"):
            check_range(self, name, at_least=1)
        check_range(self, "ratio", at_least=0)
        if self.best > self.beam:
            raise ValueError(f"best: {self.best} translations cannot come from beam: {self.beam}")


@dataclass(frozen=True)
class ParallelConfig:
    """What a translator learns from."""

    folder: str = ""
    """A folder of parallel text, as ngsan data parallel writes it."""

    train: str = "train"
    """The split that is learned from."""

    validation: str = "val"
    """The split that is validated on after each epoch."""

    shapes: int = 8
    """Most shapes of batches: sentences are put together with others of similar length. More of
    them have less padding; on a GPU, each takes a while to prepare."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        check_range(self, "shapes", at_least=1)
        if self.train == self.validation:
            raise ValueError(f"validation: {self.validation!r} is also what is learned from")


@dataclass(frozen=True)
class TranslationPhase(CrossEntropyConfig):
    """Learning to say what translators said. The defaults are fairseq's for WMT14."""

    epochs: int = 20
    """Passes over the training split."""

    batch_size: int = 25_000
    """Target words in a step, of all processes together, padding included."""

    rate: RateConfig = field(
        default_factory=lambda: RateConfig(shape="inverse-root", highest=7e-4, rise=0.75)
    )
    """The learning rate."""

    clip_value: float = 0.0
    """Every number of the gradient is cut to at most this, either way; 0 for no such cut."""

    average: int = 5
    """The weights after this many last epochs, 2 or more, are averaged, and the average is kept if
    it validates better than the phase's best epoch; 0 for no average."""

    label_smoothing: float = 0.1
    """Share of the probability spread over the whole vocabulary."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        super().__post_init__()
        check_range(self, "epochs", at_least=1)


@dataclass(frozen=True)
class TranslationValidation:
    """How good the model is after each epoch."""

    metric: Literal["BLEU", "log-probability"] = "BLEU"
    """What the best model is best in: BLEU as sacreBLEU computes it, or the mean log-probability
    of the words of the references."""

    decoding: TranslatingConfig = field(default_factory=TranslatingConfig)
    """How translations are searched for."""

    batch_size: int = 8_000
    """Source words, padding included, that are translated at a time."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        check_range(self, "batch_size", at_least=1)


@dataclass(frozen=True)
class TranslationRun:
    """A whole run of a translator."""

    task: Literal["translation"] = "translation"
    """What is learned."""

    model: TranslatorConfig = field(default_factory=TranslatorConfig)
    """The translator."""

    data: ParallelConfig = field(default_factory=ParallelConfig)
    """What it learns from."""

    cross_entropy: TranslationPhase = field(default_factory=TranslationPhase)
    """How it learns."""

    validation: TranslationValidation = field(default_factory=TranslationValidation)
    """How good the model is after each epoch."""

    machine: MachineConfig = field(default_factory=MachineConfig)
    """Where it runs."""

    initial: str = ""
    """A model's folder to begin with its weights; empty for random weights."""

    seed: int = 0
    """Seed of the weights, of the order of the sentences and of dropout."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_choice("task", self.task, ("translation",))
        check_range(self, "seed", at_least=0)


def multi30k_run(model: str = "transformer-nsa") -> TranslationRun:
    """A run on Multi30k, 29,000 pairs: a small model with much dropout.

    Its sizes are those of "Transformer-Tiny" of Wu et al. 2021 (Good for Misconceived Reasons),
    who find it better on Multi30k than larger ones.
    """
    return TranslationRun(
        model=TranslatorConfig.for_model(
            model,
            vocab_size=8000,
            dim=128,
            heads=4,
            hidden_dim=256,
            layers=4,
            dropout=0.3,
        ),
        data=ParallelConfig(shapes=4),
        cross_entropy=TranslationPhase(
            epochs=60,
            batch_size=4_096,
            rate=RateConfig(shape="inverse-root", highest=5e-3, rise=14.0),
            clip_norm=1.0,
            average=10,
        ),
    )
