"""Models that answer questions about images: their shape, and how they are trained."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ngsan.config.checks import check_choice, check_range, check_types
from ngsan.config.data import SceneConfig
from ngsan.config.files import from_dict
from ngsan.config.training import MachineConfig, PhaseConfig, RateConfig

ANSWERERS: dict[str, dict[str, str]] = {
    "question-only": {"regions": "none", "geometry": "none"},
    "mcan": {"regions": "guided", "geometry": "none"},
    "mcan-gsa": {"regions": "guided", "geometry": "query"},
}
"""The models by name: what each sets in `AnswererConfig`."""

BIASES = ("content-independent", "query", "key", "relation")
"""What the geometries may sum with `+`; "none" stands alone."""


@dataclass(frozen=True)
class AnswererConfig:
    """The shape of MCAN (Yu et al. 2019), encoder-decoder. The defaults are MCAN+GSA's."""

    vocab_size: int = 0
    """Words of questions, padding and the unknown word included; 0 takes it from the dataset."""

    answers: int = 0
    """Answers to choose from; 0 takes it from the dataset."""

    feature_dim: int = 0
    """Width of a region's feature vector; 0 takes it from the dataset."""

    regions: Literal["guided", "none"] = "guided"
    """What is made of the image: `guided` is MCAN's decoder of regions that the question guides;
    `none` answers from the question alone, a baseline."""

    longest: int = 14
    """Words of a question that are read; what comes after them is cut off."""

    word_dim: int = 300
    """Width of a word's vector."""

    dim: int = 512
    """D, the model's width, and that of the LSTM over the words."""

    heads: int = 8
    """H, attention heads; a divisor of dim."""

    hidden_dim: int = 2048
    """Inner width of the feed-forward networks."""

    layers: int = 6
    """L, layers over the question and also over the regions."""

    flat_hidden_dim: int = 512
    """Inner width of the network that weighs elements for the attention reduction."""

    flat_dim: int = 1024
    """Width of question and image when each is reduced to one vector."""

    dropout: float = 0.1
    """Dropout probability of attention weights, sub-layers and the attention reduction."""

    geometry: str = "query"
    """Geometry in the self-attention of the regions: none, content-independent, query, key,
    relation, or a sum such as query+key (GSA: query, Eq. 12)."""

    question_geometry: str = "none"
    """The same in the self-attention of the question's words, whose places in the question are
    the geometry, in one dimension."""

    geometry_dim: int = 64
    """Width of the geometry embedding, Eq. 9."""

    signed_geometry: bool = False
    """Whether relative geometry also tells left from right and above from below, and in a question
    before from after, which Eq. 8 does not."""

    norm_place: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum, as in MCAN, or before each sub-layer."""

    backend: Literal["fused", "explicit"] = "fused"
    """How attention is computed; both give the same result, explicit spells the equations out."""

    features: str = ""
    """What made the regions, as their store says it; training takes it from the dataset. A model
    is only good for the same."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        for name in ("vocab_size", "answers", "feature_dim"):
            check_range(self, name, at_least=0)
        for name in (
            "longest",
            "word_dim",
            "dim",
            "heads",
            "hidden_dim",
            "layers",
            "flat_hidden_dim",
        ):
            check_range(self, name, at_least=1)
        check_range(self, "flat_dim", at_least=1)
        check_range(self, "geometry_dim", at_least=1)
        check_range(self, "dropout", at_least=0, below=1)
        if self.dim % self.heads:
            raise ValueError(f"dim: {self.dim} does not divide into heads: {self.heads}")
        for name in ("geometry", "question_geometry"):
            _check_terms(name, getattr(self, name))
        if self.regions == "none" and self.geometry != "none":
            raise ValueError(
                f"geometry: {self.geometry!r} is of regions, which regions: none leaves out; "
                "set geometry: none"
            )

    @classmethod
    def for_model(cls, model: str, **overrides: Any) -> "AnswererConfig":
        """The configuration of a named model, with some keys changed.

        Args:
            model: "mcan", "mcan-gsa" or "question-only".
            **overrides: Any keys of this class.
        """
        check_choice("model", model, tuple(ANSWERERS))
        return from_dict(cls, {**ANSWERERS[model], **overrides})


@dataclass(frozen=True)
class AnswerDataConfig:
    """The questions and what is taken of them."""

    folder: str = ""
    """The dataset folder, as `ngsan data questions` and `ngsan extract` make it."""

    scenes: SceneConfig | None = None
    """The built-in scenes, in the place of a folder; null for none."""

    train: str = "train"
    """The split to learn from."""

    validation: str = "val"
    """The split that tells after each epoch how good the model is."""

    vectors: str = ""
    """A text file of word vectors, such as GloVe's, model.word_dim wide, to begin with; empty to
    learn all of them."""

    skip_missing: bool = False
    """Whether to leave out questions about images without features rather than to refuse the
    dataset."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        if self.folder and self.scenes is not None:
            raise ValueError(f"folder: {self.folder!r} and scenes cannot both be learned from")
        if self.train == self.validation:
            raise ValueError(f"validation: {self.validation!r} is also what is learned from")


@dataclass(frozen=True)
class AnswerPhaseConfig(PhaseConfig):
    """Learning what people answered. The defaults are MCAN's."""

    epochs: int = 13
    """Passes over the training split."""

    batch_size: int = 64
    """Questions in a step, of all processes together."""

    rate: RateConfig = field(
        default_factory=lambda: RateConfig(
            highest=1e-4, rise=4.0, halve_after=10, halve_every=2, halve_to=0.2
        )
    )
    """The learning rate."""

    clip_value: float = 0.0
    """Every number of the gradient is cut to at most this, either way; 0 for no such cut."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        super().__post_init__()
        check_range(self, "epochs", at_least=1)


@dataclass(frozen=True)
class AnswerValidationConfig:
    """How good the model is after each epoch."""

    metric: Literal["accuracy"] = "accuracy"
    """What the best model is best in: the official accuracy of VQA."""

    batch_size: int = 512
    """Questions answered at a time."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        check_range(self, "batch_size", at_least=1)


@dataclass(frozen=True)
class AnswerRun:
    """A whole run of learning to answer."""

    task: Literal["answering"] = "answering"
    """What is learned."""

    model: AnswererConfig = field(default_factory=AnswererConfig)
    """The model."""

    data: AnswerDataConfig = field(default_factory=AnswerDataConfig)
    """What it learns from."""

    learning: AnswerPhaseConfig = field(default_factory=AnswerPhaseConfig)
    """The one phase of the run."""

    validation: AnswerValidationConfig = field(default_factory=AnswerValidationConfig)
    """How good the model is after each epoch."""

    machine: MachineConfig = field(default_factory=MachineConfig)
    """Where it runs."""

    seed: int = 0
    """Seed of the weights, of the order of the questions and of dropout."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_choice("task", self.task, ("answering",))
        check_range(self, "seed", at_least=0)


@dataclass(frozen=True)
class AnswererFile:
    """A model alone, as the folder of one that no run has made holds it."""

    model: AnswererConfig = field(default_factory=AnswererConfig)
    """The model."""


def question_run() -> AnswerRun:
    """A run on the built-in scenes: questions that only geometry answers, learned in seconds."""
    return AnswerRun(
        model=AnswererConfig(
            longest=8,
            word_dim=16,
            dim=32,
            heads=4,
            hidden_dim=64,
            layers=1,
            flat_hidden_dim=32,
            flat_dim=32,
            geometry_dim=16,
            dropout=0.0,
        ),
        data=AnswerDataConfig(scenes=SceneConfig(train=4000)),
        learning=AnswerPhaseConfig(
            epochs=4,
            batch_size=32,
            rate=RateConfig(shape="cosine", highest=3e-3, rise=0.3),
            clip_norm=1.0,
        ),
        machine=MachineConfig(threads=1, save_seconds=10.0),
    )


def _check_terms(name: str, value: str) -> None:
    if value == "none":
        return
    terms = [term.strip() for term in value.split("+")]
    for term in terms:
        check_choice(name, term, ("none", *BIASES))
    if len(set(terms)) < len(terms) or "none" in terms:
        raise ValueError(f"{name}: {value!r} names a term twice, or none beside others")
