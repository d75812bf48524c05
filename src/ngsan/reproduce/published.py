"""The values that the paper prints, by table, row and metric.

Rows that we train have the labels of `ngsan.reproduce.tables`. The others are systems with other
architectures and inputs, which are listed only.
"""

from collections.abc import Mapping

Values = Mapping[str, float]

MILLIONS = "M"
"""The key of a system's trained parameters, in millions."""


_COLUMNS = (
    MILLIONS,
    "BLEU-4",
    "METEOR",
    "ROUGE-L",
    "CIDEr",
    "SPICE",
    "c5",
    "c40",
    "tokenised BLEU",
    "test-dev accuracy",
    "accuracy",
)
"""All columns, in their order; c5 and c40 are CIDEr of COCO's test server."""


def _captions(
    bleu: float,
    meteor: float,
    rouge: float,
    cider: float,
    spice: float | None = None,
    *,
    millions: float | None = None,
    server: tuple[float, float] | None = None,
) -> Values:
    """A row of captions.

    Args:
        bleu: BLEU-4; METEOR, ROUGE-L, CIDEr and SPICE follow.
        meteor: METEOR.
        rouge: ROUGE-L.
        cider: CIDEr.
        spice: SPICE, if it is printed.
        millions: Parameters, if they are.
        server: CIDEr of COCO's test server with 5 and with 40 references.
    """
    values = (millions, bleu, meteor, rouge, cider, spice, *(server or ()))
    found = zip(_COLUMNS, values, strict=False)
    return {name: value for name, value in found if value is not None}


_SAN = _captions(38.4, 28.6, 58.4, 128.6, 22.6, millions=40.2)
_N_SAN = _captions(39.3, 29.1, 58.9, 130.8, 23.0, millions=40.2)
_G_SAN = _captions(39.3, 29.2, 59.0, 131.4, 23.0, millions=41.5)

LAYERS: Mapping[str, Values] = {
    "SAN, L = 1": _captions(36.8, 28.0, 57.6, 123.4, 21.8, millions=18.1),
    "N-SAN, L = 1": _captions(38.2, 28.6, 58.2, 127.2, 22.2, millions=18.1),
    "SAN, L = 2": _captions(38.2, 28.5, 58.3, 127.1, 22.3, millions=25.5),
    "N-SAN, L = 2": _captions(38.9, 28.9, 58.6, 129.7, 22.6, millions=25.5),
    "SAN, L = 4": _SAN,
    "N-SAN, L = 4": _N_SAN,
    "SAN, L = 6": _captions(38.6, 28.6, 58.5, 128.8, 22.5, millions=54.9),
    "N-SAN, L = 6": _captions(39.3, 29.2, 59.1, 131.1, 23.0, millions=54.9),
}
"""Table 1."""

NORMS: Mapping[str, Values] = {
    "none (SAN)": _SAN,
    "layer norm": _captions(38.5, 28.6, 58.3, 128.2, 22.5),
    "batch norm": _captions(38.8, 28.9, 58.7, 129.4, 22.8),
    "instance norm with affine": _captions(39.4, 29.2, 59.0, 130.7, 23.0),
    "instance norm (N-SAN)": _N_SAN,
}
"""Table 2."""

QUERY_KEY: Mapping[str, Values] = {
    "neither (SAN)": _SAN,
    "query (N-SAN)": _N_SAN,
    "key": _captions(39.2, 29.0, 58.8, 130.1, 22.8),
    "query and key": _captions(39.4, 29.1, 58.8, 130.7, 23.1),
}
"""Table 3."""

GEOMETRY: Mapping[str, Values] = {
    "none (SAN)": _SAN,
    "absolute": _captions(38.3, 28.5, 58.4, 128.4, 22.6),
    "content-independent": _captions(39.2, 29.1, 58.9, 131.0, 22.9),
    "key-dependent": _captions(38.9, 29.0, 58.8, 129.5, 22.8),
    "query-dependent (G-SAN)": _G_SAN,
}
"""Table 4."""

SYSTEMS: Mapping[str, Values] = {
    "Up-Down": _captions(36.3, 27.7, 56.9, 120.1, 21.4, server=(117.9, 120.5)),
    "CAVP": _captions(38.6, 28.3, 58.5, 126.3, 21.6, server=(121.6, 123.8)),
    "SGAE": _captions(39.0, 28.4, 58.9, 129.1, 22.2, server=(122.7, 125.5)),
    "VSUA": _captions(38.4, 28.5, 58.4, 128.6, 22.0, server=(123.1, 125.5)),
    # The published values of ORT come from its program.
    "ORT with its box-scale bug": _captions(38.6, 28.7, 58.4, 128.3, 22.6),
    "AoA": _captions(38.9, 29.2, 58.8, 129.8, 22.4),
    "MT": _captions(39.8, 29.1, 59.1, 130.9, millions=57.0),
    "SAN": _SAN,
    "N-SAN": _N_SAN,
    "G-SAN": _G_SAN,
    "NG-SAN": _captions(39.9, 29.3, 59.2, 132.1, 23.3, millions=41.5, server=(126.3, 128.6)),
}
"""Tables 5 and 6, with the four models; N-SAN and G-SAN are in Tables 1 and 4."""

VIDEO: Mapping[str, Values] = {
    "VATEX LSTM": _captions(28.2, 21.7, 46.9, 45.7),
    "Transformer": _captions(30.6, 22.3, 48.4, 53.4),
    "Transformer + NSA": _captions(31.0, 22.7, 49.0, 57.1),
}
"""Table 7."""

TRANSLATION: Mapping[str, Values] = {
    "Transformer, published": {"tokenised BLEU": 27.30},
    "Transformer-Big": {"tokenised BLEU": 28.40},
    "Transformer": {"tokenised BLEU": 27.56},
    "Transformer + NSA": {"tokenised BLEU": 27.92},
}
"""Table 8; the first two are of Vaswani et al. 2017."""


def _answers(dev: float, std: float) -> Values:
    """Accuracy on test-dev and test-std."""
    return {"test-dev accuracy": dev, "accuracy": std}


VQA: Mapping[str, Values] = {
    "MLIN": _answers(70.18, 70.28),
    "DFAF": _answers(70.22, 70.34),
    "MCAN, published": _answers(70.63, 70.90),
    "MCAN": _answers(70.54, 70.83),
    "MCAN + GSA": _answers(70.76, 71.28),
}
"""Table 9; `accuracy` is of test-std."""


def columns(table: Mapping[str, Values]) -> list[str]:
    """The columns of one of the paper's tables, in its order."""
    return [name for name in _COLUMNS if any(name in row for row in table.values())]


def lines(table: Mapping[str, Values]) -> list[list[str]]:
    """The rows of one of the paper's tables as text: the label, and a cell for each column."""
    digits = max(len(str(v).partition(".")[2]) for row in table.values() for v in row.values())
    return [
        [label, *(f"{row[name]:.{digits}f}" if name in row else "" for name in columns(table))]
        for label, row in table.items()
    ]


def paper_millions(model: str, layers: int) -> float | None:
    """The parameters that the paper prints for one of its four models, in millions.

    Args:
        model: Its name, such as "ng-san".
        layers: L.
    """
    label = model.upper()
    of_four = SYSTEMS.get(label, {}) if layers == 4 else {}
    return LAYERS.get(f"{label}, L = {layers}", of_four).get(MILLIONS)
