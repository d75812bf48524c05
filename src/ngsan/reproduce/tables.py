"""The paper's tables and figures: rows of runs, and the paper's own values where it prints them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from ngsan.config import (
    ANSWERERS,
    ANSWERING,
    CROSS_ENTROPY,
    MODELS,
    PLUS_ONE,
    SELF_CRITICAL,
    TRANSLATORS,
    read_recipe,
)

AFTER_SELF_CRITICAL = "Karpathy's test split after self-critical learning"
"""The data of the paper's values of image captions: stated for Table 6, and SAN has the same values
in all others."""

Values = Mapping[str, float]


def _captions(bleu: float, meteor: float, rouge: float, cider: float) -> Values:
    return {"BLEU-4": bleu, "METEOR": meteor, "ROUGE-L": rouge, "CIDEr": cider}


_SAN = _captions(38.4, 28.6, 58.4, 128.6)
_N_SAN = _captions(39.3, 29.1, 58.9, 130.8)
_G_SAN = _captions(39.3, 29.2, 59.0, 131.4)
_NG_SAN = _captions(39.9, 29.3, 59.2, 132.1)

PAPER_LAYERS: Mapping[str, Values] = {
    "SAN, L = 1": _captions(36.8, 28.0, 57.6, 123.4),
    "N-SAN, L = 1": _captions(38.2, 28.6, 58.2, 127.2),
    "SAN, L = 2": _captions(38.2, 28.5, 58.3, 127.1),
    "N-SAN, L = 2": _captions(38.9, 28.9, 58.6, 129.7),
    "SAN, L = 4": _SAN,
    "N-SAN, L = 4": _N_SAN,
    "SAN, L = 6": _captions(38.6, 28.6, 58.5, 128.8),
    "N-SAN, L = 6": _captions(39.3, 29.2, 59.1, 131.1),
}
"""Table 1."""

PAPER_NORMS: Mapping[str, Values] = {
    "none (SAN)": _SAN,
    "layer norm": _captions(38.5, 28.6, 58.3, 128.2),
    "batch norm": _captions(38.8, 28.9, 58.7, 129.4),
    "instance norm with affine": _captions(39.4, 29.2, 59.0, 130.7),
    "instance norm (N-SAN)": _N_SAN,
}
"""Table 2."""

PAPER_QUERY_KEY: Mapping[str, Values] = {
    "neither (SAN)": _SAN,
    "query (N-SAN)": _N_SAN,
    "key": _captions(39.2, 29.0, 58.8, 130.1),
    "query and key": _captions(39.4, 29.1, 58.8, 130.7),
}
"""Table 3."""

PAPER_GEOMETRY: Mapping[str, Values] = {
    "none (SAN)": _SAN,
    "absolute": _captions(38.3, 28.5, 58.4, 128.4),
    "content-independent": _captions(39.2, 29.1, 58.9, 131.0),
    "key-dependent": _captions(38.9, 29.0, 58.8, 129.5),
    "query-dependent (G-SAN)": _G_SAN,
}
"""Table 4."""

PAPER_MODELS: Mapping[str, Values] = {
    "SAN": _SAN,
    "N-SAN": _N_SAN,
    "G-SAN": _G_SAN,
    "NG-SAN": _NG_SAN,
    "Up-Down": _captions(36.3, 27.7, 56.9, 120.1),
    # The published values of ORT come from its program.
    "ORT with its box-scale bug": _captions(38.6, 28.7, 58.4, 128.3),
    "AoA": _captions(38.9, 29.2, 58.8, 129.8),
}
"""Table 6."""

PAPER_VIDEO: Mapping[str, Values] = {
    "Transformer": _captions(30.6, 22.3, 48.4, 53.4),
    "Transformer + NSA": _captions(31.0, 22.7, 49.0, 57.1),
}
"""Table 7."""

PAPER_TRANSLATION: Mapping[str, Values] = {
    "Transformer": {"tokenised BLEU": 27.56},
    "Transformer + NSA": {"tokenised BLEU": 27.92},
}
"""Table 8."""

PAPER_VQA: Mapping[str, Values] = {
    "MCAN": {"accuracy": 70.83},
    "MCAN + GSA": {"accuracy": 71.28},
}
"""Table 9, whose other column, test-dev, has 70.54 and 70.76."""

CAPTION_METRICS = ("BLEU-1", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE")
"""The default metrics of a table; those that some of its runs lack are omitted."""


@dataclass(frozen=True)
class Row:
    """A model of a table."""

    label: str
    model: Mapping[str, Any]
    """Keys of the model's configuration to change in the recipe."""

    paper: Mapping[str, float] = field(default_factory=dict)
    """The paper's values by metric."""

    against: str = ""
    """The row it is compared with; empty for the table's."""

    def fits(self, model: Mapping[str, Any]) -> bool:
        """Whether a model's configuration has the keys of this row."""
        return all(model.get(key) == value for key, value in self.model.items())


@dataclass(frozen=True)
class Table:
    """A table of the paper."""

    name: str
    """The name on the command line."""

    title: str
    place: str
    """Its number in the paper."""

    rows: tuple[Row, ...]
    paper_of: str = ""
    """The data of the paper's values, if it prints any."""

    compared_with: str = ""
    """The row that the others are compared with; empty for the first."""

    contrasts: tuple[tuple[str, str], ...] = ()
    """Further pairs of rows to compare: the first less the second."""

    recipe: str = "reproduce"
    """The recipe that the rows change."""

    metric: str = "CIDEr"
    """The metric that compares the rows."""

    phase: str = CROSS_ENTROPY
    """The phase after which models are evaluated."""

    split: str = "val"
    """The evaluated split: the validation split for model selection. Data without a test split use
    the validation split."""

    metrics: tuple[str, ...] = CAPTION_METRICS
    unit: str = ""
    """What metrics are averaged over, such as clips; empty for the task's own unit."""

    figure: Literal["differences", "layers", "curves"] = "differences"
    """Its plot: each row's difference from one of them, lines over the layers that the labels end
    with, or curves over the epochs."""

    def __post_init__(self) -> None:
        labels = [row.label for row in self.rows]
        if len(set(labels)) < len(labels):
            raise ValueError(f"table {self.name}: two rows have the same label")
        compared = {self.compared_with, *(row.against for row in self.rows)}
        compared.update(label for pair in self.contrasts for label in pair)
        if unknown := compared - {"", *labels}:
            raise ValueError(f"table {self.name}: it has no row {min(unknown)!r}")
        if self.metric not in self.metrics:
            raise ValueError(f"table {self.name}: {self.metric} is not among its metrics")

    @property
    def base(self) -> Any:
        """The run that the rows change."""
        return _read(self.recipe)

    @property
    def task(self) -> str:
        """The kind of model."""
        return str(self.base.task)


_read = cache(read_recipe)


def _named(model: str, **more: Any) -> dict[str, Any]:
    return {**MODELS[model], **more}


def _rows(
    models: Mapping[str, Mapping[str, Any]],
    printed: Mapping[str, Values] | None = None,
    against: Mapping[str, str] | None = None,
) -> tuple[Row, ...]:
    """Rows of labels and models, with the paper's values and the rows to compare with."""
    known, others = printed or {}, against or {}
    return tuple(
        Row(label, model, known.get(label, {}), others.get(label, ""))
        for label, model in models.items()
    )


_DEPTHS = (1, 2, 4, 6)

_LAYERS = {
    f"{label}, L = {layers}": _named(model, layers=layers)
    for layers in _DEPTHS
    for label, model in (("SAN", "san"), ("N-SAN", "n-san"))
}

_MODELS = {
    "SAN": _named("san"),
    "N-SAN": _named("n-san"),
    "G-SAN": _named("g-san"),
    "NG-SAN": _named("ng-san"),
}

_NG_LESS_G = (("NG-SAN", "G-SAN"),)

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
            _rows(
                _LAYERS,
                PAPER_LAYERS,
                against={f"N-SAN, L = {layers}": f"SAN, L = {layers}" for layers in _DEPTHS},
            ),
            paper_of=AFTER_SELF_CRITICAL,
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
                PAPER_NORMS,
            ),
            paper_of=AFTER_SELF_CRITICAL,
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
                PAPER_QUERY_KEY,
            ),
            paper_of=AFTER_SELF_CRITICAL,
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
                PAPER_GEOMETRY,
            ),
            paper_of=AFTER_SELF_CRITICAL,
            contrasts=(("query-dependent (G-SAN)", "absolute"),),
        ),
        Table(
            "models-cross-entropy",
            "The four models after cross-entropy",
            "Table 6",
            _rows(_MODELS),
            contrasts=_NG_LESS_G,
            split="test",
        ),
        Table(
            "models",
            "The four models after self-critical learning",
            "Table 6",
            _rows(_MODELS, PAPER_MODELS),
            paper_of=AFTER_SELF_CRITICAL,
            contrasts=_NG_LESS_G,
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
            _rows(_OTHERS, PAPER_MODELS),
            paper_of=AFTER_SELF_CRITICAL,
            phase=SELF_CRITICAL,
            split="test",
        ),
        Table(
            "curve",
            "One-layer SAN and N-SAN by epoch",
            "Figure 2",
            _rows({label: {**_MODELS[label], "layers": 1} for label in ("SAN", "N-SAN")}),
            figure="curves",
        ),
        Table(
            "video",
            "Captions of clips",
            "Table 7",
            _rows(
                {"Transformer": {"norm": "none"}, "Transformer + NSA": {"norm": "instance"}},
                PAPER_VIDEO,
            ),
            paper_of="VATEX",
            recipe="vatex-nsa",
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
                PAPER_TRANSLATION,
            ),
            paper_of="WMT14's newstest2014, English to German, tokenised BLEU",
            recipe="multi30k-nsa",
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
                    "MCAN + GSA on regions": {
                        **ANSWERERS["mcan-gsa"],
                        "question_geometry": "none",
                    },
                    "MCAN + GSA": ANSWERERS["mcan-gsa"],
                },
                PAPER_VQA,
            ),
            paper_of="all of VQA-v2, test-std",
            compared_with="MCAN",
            recipe="mcan-gsa",
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
"""The run whose bias is plotted."""

EXAMPLES = Table(
    "examples",
    "Captions of SAN and G-SAN where they state different relations",
    "Appendix",
    (Row("SAN", _named("san")), Row("G-SAN", _named("g-san"))),
)
"""The runs whose captions are shown side by side; `models-cross-entropy` has them, too."""
