"""What is in the paper's tables and figures: rows of runs, with the paper's values beside them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ngsan.config import MODELS, PLUS_ONE, reproduction_run, video_run
from ngsan.config.answering import ANSWERERS, AnswerRun
from ngsan.config.phases import ANSWERING, CROSS_ENTROPY, SELF_CRITICAL
from ngsan.config.translation import TRANSLATORS, multi30k_run
from ngsan.reproduce import paper

CAPTION_METRICS = ("BLEU-1", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE")
"""What a table shows unless it says otherwise, as far as all of its runs were measured by it."""


@dataclass(frozen=True)
class Row:
    """A model of a table."""

    label: str
    """As the table calls it."""

    model: Mapping[str, Any]
    """Keys of the model's configuration that differ from the recipe's."""

    paper: Mapping[str, float] = field(default_factory=dict)
    """The paper's values by metric, those that it prints."""

    def fits(self, model: Mapping[str, Any]) -> bool:
        """Whether a model's configuration has all that this row sets."""
        return all(model.get(key) == value for key, value in self.model.items())


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

    paper_of: str = ""
    """What the paper's values are of, where it prints any."""

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


def _rows(
    models: Mapping[str, Mapping[str, Any]], printed: Mapping[str, paper.Values] | None = None
) -> tuple[Row, ...]:
    """Rows of labels and models, with the paper's values of those labels that it has."""
    known = printed or {}
    return tuple(Row(label, model, known.get(label, {})) for label, model in models.items())


_LAYERS = {
    f"{label}, L = {layers}": _named(model, layers=layers)
    for layers in (1, 2, 4, 6)
    for label, model in (("SAN", "san"), ("N-SAN", "n-san"))
}

_MODELS = {
    "SAN": _named("san"),
    "N-SAN": _named("n-san"),
    "G-SAN": _named("g-san"),
    "NG-SAN": _named("ng-san"),
}

_OTHERS = {
    "SAN": _named("san"),
    "ORT": _named("san", geometry="relation"),
    "ORT with its box-scale bug": _named("san", geometry=PLUS_ONE),
    "Up-Down": _named("san", decoder="up-down"),
    "AoA": _named("san", decoder="aoa"),
    "NG-SAN": _named("ng-san"),
}

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table(
            "layers",
            "SAN and N-SAN by the number of layers",
            "Table 1",
            _rows(_LAYERS, paper.LAYERS),
            paper_of=paper.AFTER_SELF_CRITICAL,
            figure="layers",
        ),
        Table(
            "norms",
            "The norm inside self-attention",
            "Table 2",
            _rows(
                {
                    "none (SAN)": _named("san"),
                    "layer norm": _named("san", norm="layer"),
                    "batch norm": _named("san", norm="batch"),
                    "instance norm with affine": _named("san", norm="instance-affine"),
                    "instance norm (N-SAN)": _named("n-san"),
                },
                paper.NORMS,
            ),
            paper_of=paper.AFTER_SELF_CRITICAL,
        ),
        Table(
            "query-key",
            "What is normalised",
            "Table 3",
            _rows(
                {
                    "neither (SAN)": _named("san"),
                    "query (N-SAN)": _named("n-san"),
                    "key": _named("n-san", norm_of="key"),
                    "query and key": _named("n-san", norm_of="both"),
                },
                paper.QUERY_KEY,
            ),
            paper_of=paper.AFTER_SELF_CRITICAL,
        ),
        Table(
            "geometry",
            "The geometric bias",
            "Table 4",
            _rows(
                {
                    "none (SAN)": _named("san"),
                    "absolute": _named("san", geometry="absolute"),
                    "content-independent": _named("san", geometry="content-independent"),
                    "key-dependent": _named("san", geometry="key"),
                    "query-dependent (G-SAN)": _named("g-san"),
                    "relation network": _named("san", geometry="relation"),
                    "content-independent + query + key": _named(
                        "san", geometry="content-independent+query+key"
                    ),
                    "query-dependent, signed": _named("g-san", signed_geometry=True),
                },
                paper.GEOMETRY,
            ),
            paper_of=paper.AFTER_SELF_CRITICAL,
        ),
        Table(
            "models-cross-entropy",
            "The four models after cross-entropy",
            "Table 6",
            _rows(_MODELS),
            split="test",
        ),
        Table(
            "models",
            "The four models after self-critical learning",
            "Table 6",
            _rows(_MODELS, paper.MODELS),
            paper_of=paper.AFTER_SELF_CRITICAL,
            phase=SELF_CRITICAL,
            split="test",
        ),
        Table(
            "others",
            "Other methods on the same features",
            "Table 6",
            _rows(_OTHERS),
            split="test",
        ),
        Table(
            "others-self-critical",
            "Other methods on the same features after self-critical learning",
            "Table 6",
            _rows(_OTHERS, paper.MODELS),
            paper_of=paper.AFTER_SELF_CRITICAL,
            phase=SELF_CRITICAL,
            split="test",
        ),
        Table(
            "curve",
            "One-layer SAN and N-SAN by epoch",
            "Figure 3",
            _rows({label: {**_MODELS[label], "layers": 1} for label in ("SAN", "N-SAN")}),
            figure="curves",
        ),
        Table(
            "video",
            "Captions of clips",
            "Table 7",
            _rows(
                {"Transformer": {"norm": "none"}, "Transformer + NSA": {"norm": "instance"}},
                paper.VIDEO,
            ),
            paper_of="VATEX",
            recipe=video_run,
            split="test",
            unit="clips",
        ),
        Table(
            "translation",
            "Translation",
            "Table 8",
            _rows(
                {
                    "Transformer": TRANSLATORS["transformer"],
                    "Transformer + NSA": TRANSLATORS["transformer-nsa"],
                },
                paper.TRANSLATION,
            ),
            paper_of="WMT14's newstest2014, English to German, tokenised BLEU",
            recipe=multi30k_run,
            split="test",
            metrics=("BLEU", "tokenised BLEU"),
            metric="BLEU",
        ),
        Table(
            "vqa",
            "Answers to questions about images",
            "Table 9",
            _rows(
                {
                    "question only": ANSWERERS["question-only"],
                    "MCAN": ANSWERERS["mcan"],
                    "MCAN + GSA": ANSWERERS["mcan-gsa"],
                },
                paper.VQA,
            ),
            paper_of="all of VQA-v2, test-std",
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
