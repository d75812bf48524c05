"""BLEU of translations: sacreBLEU, and the tokenised BLEU that older papers report.

- `sacre_bleu` is BLEU by the library sacrebleu with its defaults, and its signature.
- `compound_bleu` is the score of the paper's figures on WMT14 English-German, as in fairseq and
  tensor2tensor. Texts are tokenised as Moses does, hyphens within words are split
  ("Fahrrad-Helm" becomes "Fahrrad ##AT##-##AT## Helm"), and BLEU is not smoothed. It is higher
  than sacreBLEU, and scores by different tokenisers cannot be compared.

All scores are from 0 to 100.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

ORDERS = 4

LANGUAGES = ("de", "en")
"""Languages of `compound_bleu`, those of the paper's task."""

_COMPOUND = re.compile(r"(\S)-(\S)")


@dataclass(frozen=True)
class TranslationScore:
    """A BLEU score and how it was computed."""

    name: str
    """For example "sacreBLEU"."""
    value: float
    """0 to 100."""
    signature: str
    """Scores with equal signatures can be compared."""
    precisions: tuple[float, ...]
    """Precisions of orders 1 to 4, 0 to 100."""
    brevity_penalty: float
    """1 unless the translations are shorter than the references."""
    length: int
    """Tokens of the translations."""
    reference_length: int
    """Tokens of the references."""


def sacre_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> TranslationScore:
    """BLEU by the library sacrebleu with its defaults.

    Args:
        hypotheses: The translations.
        references: One or more lists of references, each as long as the list of translations.
    """
    return _corpus_bleu("sacreBLEU", hypotheses, references)


def compound_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    language: str = "de",
    tokenized: bool = False,
) -> TranslationScore:
    """Tokenised BLEU with compound splitting.

    Args:
        hypotheses: The translations.
        references: One reference per translation.
        language: One of `LANGUAGES`.
        tokenized: Whether both are tokenised already, by Moses' own program.
    """
    signature = "tok:given"
    if not tokenized:
        if problem := check_language(language):
            raise ValueError(problem)
        # Imported here because it loads its tables of Unicode characters, which takes a while.
        from sacremoses import MosesTokenizer

        moses = MosesTokenizer(language)
        hypotheses, references = (
            [moses.tokenize(text, return_str=True, escape=False) for text in texts]
            for texts in (hypotheses, references)
        )
        signature = f"tok:moses-{language}-sacremoses-{version('sacremoses')}"
    found = _corpus_bleu(
        "tokenised BLEU",
        [split_compounds(text) for text in hypotheses],
        [[split_compounds(text) for text in references]],
        tokenize="none",
        smooth_method="none",
        force=True,
    )
    signature = found.signature.replace("tok:none", f"{signature}|compounds:split")
    return TranslationScore(**{**vars(found), "signature": signature})


def check_language(language: str) -> str:
    """Why `compound_bleu` cannot tokenise texts in a language; empty if it can.

    Args:
        language: For example "de"; empty if unknown.
    """
    known = " or ".join(LANGUAGES)
    if language in LANGUAGES:
        if find_spec("sacremoses") is None:
            return "tokenised BLEU needs sacremoses: pip install 'ngsan[metrics]'"
        return ""
    if not language:
        return (
            "the language of the translations is unknown; pass --language "
            f"{known} to ngsan score --translation or ngsan data parallel"
        )
    return (
        f"tokenised BLEU supports {known}, not {language!r}; tokenise translations and references "
        "with Moses' own program and pass --tokenized to ngsan score --translation"
    )


def split_compounds(text: str) -> str:
    """Separates hyphens within words of a tokenised text, as get_ende_bleu does."""
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", text)


def bleu_counts(hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """The counts behind `sacre_bleu` of each sentence, (sentences, 10); see `bleu_of_counts`."""
    _check_counts(len(hypotheses), len(references))
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    found = (
        metric.corpus_score([text], [[reference]])
        for text, reference in zip(hypotheses, references, strict=True)
    )
    return np.array([[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in found])


def bleu_of_counts(counts: NDArray[Any]) -> NDArray[np.float64]:
    """Smoothed BLEU from summed counts, of many corpora at once.

    Args:
        counts: (..., 10) sums over the sentences of a corpus: n-gram matches of orders 1 to 4,
            n-grams of the translations of orders 1 to 4, tokens of translations and references.

    Returns:
        (...) 0 to 100; for one corpus equal to `sacre_bleu`.
    """
    matches, totals = counts[..., :ORDERS], counts[..., ORDERS:-2]
    length, wanted = counts[..., -2], counts[..., -1]
    none = (matches == 0) & (totals > 0)
    share = np.where(none, 0.5 ** none.cumsum(axis=-1), matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.log(share / totals).mean(axis=-1)
        penalty = np.minimum(0.0, 1 - wanted / length)
        found = 100 * np.exp(penalty + mean)
    return np.where((matches[..., 0] > 0) & (totals > 0).all(axis=-1), found, 0.0)


def _corpus_bleu(
    name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]], **options: Any
) -> TranslationScore:
    if not references:
        raise ValueError("no references to score against")
    for one in references:
        _check_counts(len(hypotheses), len(one))
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(**options)
    found: Any = metric.corpus_score(list(hypotheses), [list(one) for one in references])
    return TranslationScore(
        name=name,
        value=float(found.score),
        signature=str(metric.get_signature()),
        precisions=tuple(map(float, found.precisions)),
        brevity_penalty=float(found.bp),
        length=int(found.sys_len),
        reference_length=int(found.ref_len),
    )


def _check_counts(hypotheses: int, references: int) -> None:
    if hypotheses != references:
        raise ValueError(f"got {hypotheses} translations but {references} references")
    if not hypotheses:
        raise ValueError("no translations to score")
