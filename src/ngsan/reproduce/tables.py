"""What is in the paper's tables and figures: rows of runs, and the paper's values that we know."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ngsan.config import MODELS, PLUS_ONE, reproduction_run, video_run
from ngsan.config.answering import ANSWERERS, AnswerRun
from ngsan.config.phases import ANSWERING, CROSS_ENTROPY, SELF_CRITICAL
from ngsan.config.translation import TRANSLATORS, multi30k_run

CAPTION_METRICS = ("BLEU-1", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr")
"""What a table shows unless it says otherwise."""


@dataclass(frozen=True)
class Row:
    """A model of a table."""

    label: str
    """As the table calls it."""

    model: Mapping[str, Any]
    """Keys of the model's configuration that differ from the recipe's."""

    paper: Mapping[str, float] = field(default_factory=dict)
    """The paper's values by metric, those that we know."""


@dataclass(frozen=True)
class Table:
    """A table of the paper."""

    name: str
    """As the command calls it."""

    title: str
    """What it shows."""

    place: str
    """Where the paper has it."""

    rows: tuple[Row, ...]
    """The models."""

    compared_with: str = ""
    """The row that the others are compared with; empty for the first."""

    recipe: Callable[[], Any] = reproduction_run
    """The run that the rows change; its key `task` says what is learned."""

    metric: str = "CIDEr"
    """What rows are compared by."""

    phase: str = CROSS_ENTROPY
    """After which phase models are measured."""

    split: str = "val"
    """On what they are measured: figures that serve to choose come from the validation split. Data
    without a test split give those of the validation split."""

    metrics: tuple[str, ...] = CAPTION_METRICS
    """What is shown."""

    unit: str = ""
    """What metrics are taken over, such as clips; empty for what the task takes them over."""

    figure: Literal["differences", "layers", "curves"] = "differences"
    """What is drawn of it: each row's difference from one of them, lines over the layers that the
    labels end with, or curves over the epochs."""

    def __post_init__(self) -> None:
        """Checks the labels and the metric."""
        labels = [row.label for row in self.rows]
        if len(set(labels)) < len(labels):
            raise ValueError(f"table {self.name}: two rows have the same label")
        if self.compared_with and self.compared_with not in labels:
            raise ValueError(f"table {self.name}: there is no row {self.compared_with!r}")
        if self.metric not in self.metrics:
            raise ValueError(f"table {self.name}: {self.metric} is not among its metrics")

    @property
    def task(self) -> str:
        """What is learned."""
        return str(self.recipe().task)


def _named(model: str, **more: Any) -> dict[str, Any]:
    return {**MODELS[model], **more}


_LAYERS = tuple(
    Row(f"{label}, L = {layers}", _named(model, layers=layers))
    for layers in (1, 2, 4, 6)
    for label, model in (("SAN", "san"), ("N-SAN", "n-san"))
)

_MODELS = {"SAN": "san", "N-SAN": "n-san", "G-SAN": "g-san", "NG-SAN": "ng-san"}

_PAPER_CIDER = {"SAN": 128.6, "N-SAN": 130.8, "G-SAN": 131.4, "NG-SAN": 132.1}
"""Karpathy's test split, after self-critical learning."""

_OTHERS = {
    "SAN": _named("san"),
    "ORT": _named("san", geometry="relation"),
    "ORT with its box-scale bug": _named("san", geometry=PLUS_ONE),
    "Up-Down": _named("san", decoder="up-down"),
    "AoA": _named("san", decoder="aoa"),
    "NG-SAN": _named("ng-san"),
}

_OTHERS_PAPER = {
    "SAN": {"CIDEr": _PAPER_CIDER["SAN"]},
    # What was published of ORT comes from its program.
    "ORT with its box-scale bug": {"CIDEr": 128.3},
    "Up-Down": {"CIDEr": 120.1},
    "AoA": {"CIDEr": 129.8},
    "NG-SAN": {"CIDEr": _PAPER_CIDER["NG-SAN"]},
}
"""As above."""

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table(
            "layers",
            "SAN and N-SAN by the number of layers",
            "Table 1",
            _LAYERS,
            figure="layers",
        ),
        Table(
            "norms",
            "The norm inside self-attention",
            "Table 2",
            (
                Row("none (SAN)", _named("san")),
                Row("layer norm", _named("san", norm="layer")),
                Row("batch norm", _named("san", norm="batch")),
                Row("instance norm with affine", _named("san", norm="instance-affine")),
                Row("instance norm (N-SAN)", _named("n-san")),
            ),
        ),
        Table(
            "query-key",
            "What is normalised",
            "Table 3",
            (
                Row("neither (SAN)", _named("san")),
                Row("query (N-SAN)", _named("n-san")),
                Row("key", _named("n-san", norm_of="key")),
                Row("query and key", _named("n-san", norm_of="both")),
            ),
        ),
        Table(
            "geometry",
            "The geometric bias",
            "Table 4",
            (
                Row("none (SAN)", _named("san")),
                Row("absolute", _named("san", geometry="absolute")),
                Row("content-independent", _named("san", geometry="content-independent")),
                Row("key-dependent", _named("san", geometry="key")),
                Row("query-dependent (G-SAN)", _named("g-san")),
                Row("relation network", _named("san", geometry="relation")),
                Row(
                    "content-independent + query + key",
                    _named("san", geometry="content-independent+query+key"),
                ),
                Row("query-dependent, signed", _named("g-san", signed_geometry=True)),
            ),
        ),
        Table(
            "models-cross-entropy",
            "The four models after cross-entropy",
            "Table 5",
            tuple(Row(label, _named(model)) for label, model in _MODELS.items()),
            split="test",
        ),
        Table(
            "models",
            "The four models after self-critical learning",
            "Table 5",
            tuple(
                Row(label, _named(model), {"CIDEr": _PAPER_CIDER[label]})
                for label, model in _MODELS.items()
            ),
            phase=SELF_CRITICAL,
            split="test",
        ),
        Table(
            "others",
            "Other methods on the same features",
            "Table 5",
            tuple(Row(label, model) for label, model in _OTHERS.items()),
            split="test",
        ),
        Table(
            "others-self-critical",
            "Other methods on the same features after self-critical learning",
            "Table 5",
            tuple(
                Row(label, model, _OTHERS_PAPER.get(label, {})) for label, model in _OTHERS.items()
            ),
            phase=SELF_CRITICAL,
            split="test",
        ),
        Table(
            "curve",
            "One-layer SAN and N-SAN by epoch",
            "Figure 3",
            tuple(Row(label, _named(_MODELS[label], layers=1)) for label in ("SAN", "N-SAN")),
            figure="curves",
        ),
        Table(
            "video",
            "Captions of clips",
            "Extension section",
            (
                Row("Transformer", {"norm": "none"}),
                Row("Transformer + NSA", {"norm": "instance"}),
            ),
            recipe=video_run,
            split="test",
            unit="clips",
        ),
        Table(
            "translation",
            "Translation",
            "Extension section",
            (
                Row("Transformer", TRANSLATORS["transformer"]),
                Row("Transformer + NSA", TRANSLATORS["transformer-nsa"]),
            ),
            recipe=multi30k_run,
            split="test",
            metrics=("BLEU", "tokenised BLEU"),
            metric="BLEU",
        ),
        Table(
            "vqa",
            "Answers to questions about images",
            "Extension section",
            (
                Row("question only", ANSWERERS["question-only"]),
                Row("MCAN", ANSWERERS["mcan"]),
                Row("MCAN + GSA", ANSWERERS["mcan-gsa"]),
            ),
            compared_with="MCAN",
            recipe=AnswerRun,
            phase=ANSWERING,
            split="test",
            metrics=("accuracy", "yes/no", "number", "other"),
            metric="accuracy",
        ),
    )
}
"""The tables by name."""

WEIGHTS = Table(
    "weights",
    "The geometric bias of a one-layer content-independent G-SAN",
    "Appendix",
    (Row("G-SAN, L = 1", _named("san", geometry="content-independent", layers=1)),),
)
"""The run whose bias is drawn."""

EXAMPLES = Table(
    "examples",
    "Captions of SAN and G-SAN where they tell different relations",
    "Appendix",
    (Row("SAN", _named("san")), Row("G-SAN", _named("g-san"))),
)
"""The runs whose captions stand side by side; `models-cross-entropy` has them, too."""
