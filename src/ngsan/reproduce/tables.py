"""The paper's tables and figures: rows of runs, and the paper's own values where it prints them."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
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
from ngsan.reproduce import published
from ngsan.reproduce.published import Values

AFTER_SELF_CRITICAL = "Karpathy's test split after self-critical learning"
"""The data of the paper's values of image captions: stated for Table 6, and SAN has the same values
in all others."""

GIVEN = "given"
"""The boxes of regions as they are; see `DataConfig.boxes`."""

_SYSTEMS = f"{AFTER_SELF_CRITICAL}; c5 and c40 are CIDEr on COCO's test server (Table 5)"

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

    data: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the data's configuration to change in the recipe."""

    doubled: tuple[str, ...] = ()
    """Sizes of the model that are twice the recipe's."""

    def fits(self, model: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
        """Whether the configurations of a model and of its data have the keys of this row."""
        boxes = self.data.get("boxes", GIVEN) == data.get("boxes", GIVEN)
        return boxes and all(model.get(key) == value for key, value in self.model.items())


@dataclass(frozen=True)
class Table:
    """A table of the paper."""

    name: str
    """The name on the command line."""

    title: str
    place: str
    """Its number in the paper."""

    rows: tuple[Row, ...]
    published: Mapping[str, Values] = field(default_factory=dict)
    """All rows of the paper's table, with its values; also of systems that are not among `rows`."""

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

    phase: str = SELF_CRITICAL
    """The phase after which models are evaluated."""

    split: str = "test"
    """The evaluated split. Data without a test split use the validation split."""

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
    models: Mapping[str, Mapping[str, Any]], printed: Mapping[str, Values]
) -> tuple[Row, ...]:
    """Rows of labels and models, with the paper's values for these labels."""
    return tuple(Row(label, model, printed.get(label, {})) for label, model in models.items())


PRE_NORM = ", pre-norm"
"""The end of a label of a pre-norm model; without it, a model is post-norm."""


def _captioning(
    name: str,
    title: str,
    place: str,
    models: Mapping[str, Mapping[str, Any]],
    printed: Mapping[str, Values] | None = None,
    *,
    once: Collection[str] = (),
    against: Mapping[str, str] | None = None,
    contrasts: Sequence[tuple[str, str]] = (),
    **more: Any,
) -> tuple[Table, Table]:
    """A table of captioners after each phase: every model with post-norm and with pre-norm layers.

    Args:
        name: Its name after the self-critical phase; after cross-entropy the phase is appended.
        title: Its title.
        place: Its number in the paper.
        models: What each row changes in the model, by label; `boxes` is a key of the data.
        printed: The paper's values, by label.
        once: Labels of models for which the place of the norm makes no difference.
        against: The label that a label is compared with, if not the first.
        contrasts: Further pairs of labels to compare.
        more: See `Table`.
    """
    known, others = printed or {}, against or {}
    first = next(iter(models))
    rows = []
    for label, keys in models.items():
        model = keys if label in once else {**keys, "norm_place": "post"}
        rows.append(_row(label, model, known.get(label, {}), others.get(label, "")))
    for label, keys in models.items():
        if label not in once:
            base = _pre(others.get(label, first))
            model = {**keys, "norm_place": "pre"}
            rows.append(_row(_pre(label), model, known.get(label, {}), base))
    pairs = [*contrasts, *((_pre(label), _pre(other)) for label, other in contrasts)]
    pairs += [(label, _pre(first)) for label in once]
    more["contrasts"] = tuple(pairs)
    more.setdefault("paper_of", AFTER_SELF_CRITICAL if printed else "")
    more["published"] = known
    after = Table(name, title, place, tuple(rows), **more)
    before = dataclasses.replace(after, name=f"{name}-{CROSS_ENTROPY}", phase=CROSS_ENTROPY)
    return after, before


def _row(label: str, keys: Mapping[str, Any], paper: Values, against: str) -> Row:
    """A row of keys of the model, and of the data if there is `boxes`."""
    model = {key: value for key, value in keys.items() if key != "boxes"}
    data = {key: value for key, value in keys.items() if key == "boxes"}
    return Row(label, model, paper, against, data)


def _pre(label: str) -> str:
    """The label of a model with pre-norm layers."""
    model, comma, layers = label.partition(", L = ")
    return f"{model}{PRE_NORM}{comma}{layers}"


_PERMUTED = _named("g-san", boxes="permuted")

_DEPTHS = (1, 2, 4, 6)

_LAYERS = {
    f"{label}, L = {layers}": _named(model, layers=layers)
    for layers in _DEPTHS
    for label, model in (("SAN", "san"), ("N-SAN", "n-san"))
}

_NORMS = {
    "none (SAN)": _named("san"),
    "layer norm": _named("san", norm="layer"),
    "batch norm": _named("san", norm="batch"),
    "instance norm with affine": _named("san", norm="instance-affine"),
    "instance norm (N-SAN)": _named("n-san"),
}

_QUERY_KEY = {
    "neither (SAN)": _named("san"),
    "query (N-SAN)": _named("n-san"),
    "key": _named("n-san", norm_of="key"),
    "query and key": _named("n-san", norm_of="both"),
}

_GEOMETRY = {
    "none (SAN)": _named("san"),
    "absolute": _named("san", geometry="absolute"),
    "content-independent": _named("san", geometry="content-independent"),
    "key-dependent": _named("san", geometry="key"),
    "query-dependent (G-SAN)": _named("g-san"),
    "query-dependent, permuted boxes": _PERMUTED,
    "query-dependent, plain initialisation": _named("g-san", geometry_init="plain"),
    "query-dependent, signed": _named("g-san", signed_geometry=True),
    "relation network": _named("san", geometry="relation"),
    "content-independent + query + key": _named("san", geometry="content-independent+query+key"),
}

_MODELS = {
    "SAN": _named("san"),
    "N-SAN": _named("n-san"),
    "G-SAN": _named("g-san"),
    "G-SAN, permuted boxes": _PERMUTED,
    "NG-SAN": _named("ng-san"),
}

_OTHERS = {
    "SAN": _named("san"),
    "ORT": _named("san", geometry="relation"),
    "ORT with its box-scale bug": _named("san", geometry=PLUS_ONE),
    "Up-Down": _named("san", decoder="up-down"),
    "AoA": _named("san", decoder="aoa"),
    "MT": _named("san", decoder="mt", layers=6),
    "NG-SAN": _named("ng-san"),
}

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        *_captioning(
            "models",
            "The four models",
            "Table 6",
            _MODELS,
            published.SYSTEMS,
            paper_of=_SYSTEMS,
            contrasts=[("NG-SAN", "G-SAN"), ("G-SAN", "G-SAN, permuted boxes")],
        ),
        *_captioning(
            "geometry",
            "The geometric bias",
            "Table 4",
            _GEOMETRY,
            published.GEOMETRY,
            contrasts=[
                ("query-dependent (G-SAN)", f"query-dependent, {control}")
                for control in ("permuted boxes", "plain initialisation", "signed")
            ]
            + [("query-dependent (G-SAN)", "absolute")],
        ),
        *_captioning("norms", "The norm inside self-attention", "Table 2", _NORMS, published.NORMS),
        *_captioning("query-key", "What is normalised", "Table 3", _QUERY_KEY, published.QUERY_KEY),
        *_captioning(
            "layers",
            "SAN and N-SAN by the number of layers",
            "Table 1",
            _LAYERS,
            published.LAYERS,
            against={f"N-SAN, L = {layers}": f"SAN, L = {layers}" for layers in _DEPTHS},
            figure="layers",
        ),
        *_captioning(
            "others",
            "Other methods on the same features",
            "Table 6",
            _OTHERS,
            published.SYSTEMS,
            paper_of=_SYSTEMS,
            once=("Up-Down",),
        ),
        *_captioning(
            "curve",
            "One-layer SAN and N-SAN by epoch",
            "Figure 2",
            {label: {**_MODELS[label], "layers": 1} for label in ("SAN", "N-SAN")},
            figure="curves",
        ),
        *_captioning(
            "video",
            "Captions of clips",
            "Table 7",
            {
                "Transformer": {"norm": "none"},
                "Transformer + NSA": {"norm": "instance"},
                "VATEX LSTM": _named("san", decoder="lstm", positions="none"),
            },
            published.VIDEO,
            once=("VATEX LSTM",),
            paper_of="VATEX",
            recipe="vatex-nsa",
            unit="clips",
        ),
        Table(
            "translation",
            "Translation",
            "Table 8",
            (
                *_rows(
                    {
                        "Transformer": TRANSLATORS["transformer"],
                        "Transformer + NSA": TRANSLATORS["transformer-nsa"],
                    },
                    published.TRANSLATION,
                ),
                Row(
                    "Transformer-Big",
                    TRANSLATORS["transformer"] | {"dropout": 0.3},
                    published.TRANSLATION["Transformer-Big"],
                    doubled=("dim", "heads", "hidden_dim"),
                ),
            ),
            published=published.TRANSLATION,
            paper_of="WMT14's newstest2014, English to German",
            recipe="multi30k-nsa",
            phase=CROSS_ENTROPY,
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
                published.VQA,
            ),
            published=published.VQA,
            paper_of="all of VQA-v2; accuracy is that of test-std",
            compared_with="MCAN",
            recipe="mcan-gsa",
            phase=ANSWERING,
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
    (
        Row(
            "G-SAN, L = 1",
            _named("san", geometry="content-independent", layers=1, norm_place="post"),
        ),
    ),
)
"""The run whose bias is plotted."""

EXAMPLES = Table(
    "examples",
    "Captions of SAN and G-SAN where they state different relations",
    "Appendix",
    (
        Row("SAN", _named("san", norm_place="post")),
        Row("G-SAN", _named("g-san", norm_place="post")),
    ),
)
"""The runs whose captions are shown side by side; `models` has them, too."""

TABLES_OF_PAPER = tuple(
    name
    for stem in ("models", "geometry", "norms", "query-key", "layers", "curve", "others")
    for name in (stem, f"{stem}-{CROSS_ENTROPY}")
)
"""The names of the tables of image captions, by importance."""
