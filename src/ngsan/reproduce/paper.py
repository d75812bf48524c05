"""The paper's own values, as far as it prints them for rows that our tables have."""

from collections.abc import Mapping

AFTER_SELF_CRITICAL = "Karpathy's test split after self-critical learning"
"""What the paper's values of captions of images are of: Table 6 says so, and in all others SAN has
the same values."""

Values = Mapping[str, float]


def _captions(bleu: float, meteor: float, rouge: float, cider: float) -> Values:
    return {"BLEU-4": bleu, "METEOR": meteor, "ROUGE-L": rouge, "CIDEr": cider}


_SAN = _captions(38.4, 28.6, 58.4, 128.6)
_N_SAN = _captions(39.3, 29.1, 58.9, 130.8)
_G_SAN = _captions(39.3, 29.2, 59.0, 131.4)
_NG_SAN = _captions(39.9, 29.3, 59.2, 132.1)

LAYERS: Mapping[str, Values] = {
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

NORMS: Mapping[str, Values] = {
    "none (SAN)": _SAN,
    "layer norm": _captions(38.5, 28.6, 58.3, 128.2),
    "batch norm": _captions(38.8, 28.9, 58.7, 129.4),
    "instance norm with affine": _captions(39.4, 29.2, 59.0, 130.7),
    "instance norm (N-SAN)": _N_SAN,
}
"""Table 2."""

QUERY_KEY: Mapping[str, Values] = {
    "neither (SAN)": _SAN,
    "query (N-SAN)": _N_SAN,
    "key": _captions(39.2, 29.0, 58.8, 130.1),
    "query and key": _captions(39.4, 29.1, 58.8, 130.7),
}
"""Table 3."""

GEOMETRY: Mapping[str, Values] = {
    "none (SAN)": _SAN,
    "absolute": _captions(38.3, 28.5, 58.4, 128.4),
    "content-independent": _captions(39.2, 29.1, 58.9, 131.0),
    "key-dependent": _captions(38.9, 29.0, 58.8, 129.5),
    "query-dependent (G-SAN)": _G_SAN,
}
"""Table 4."""

MODELS: Mapping[str, Values] = {
    "SAN": _SAN,
    "N-SAN": _N_SAN,
    "G-SAN": _G_SAN,
    "NG-SAN": _NG_SAN,
    "Up-Down": _captions(36.3, 27.7, 56.9, 120.1),
    # What was published of ORT comes from its program.
    "ORT with its box-scale bug": _captions(38.6, 28.7, 58.4, 128.3),
    "AoA": _captions(38.9, 29.2, 58.8, 129.8),
}
"""Table 6."""

VIDEO: Mapping[str, Values] = {
    "Transformer": _captions(30.6, 22.3, 48.4, 53.4),
    "Transformer + NSA": _captions(31.0, 22.7, 49.0, 57.1),
}
"""Table 7."""

TRANSLATION: Mapping[str, Values] = {
    "Transformer": {"tokenised BLEU": 27.56},
    "Transformer + NSA": {"tokenised BLEU": 27.92},
}
"""Table 8."""

VQA: Mapping[str, Values] = {
    "MCAN": {"accuracy": 70.83},
    "MCAN + GSA": {"accuracy": 71.28},
}
"""Table 9, whose other column, test-dev, has 70.54 and 70.76."""
