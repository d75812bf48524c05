"""BLEU of translations: sacreBLEU, and the tokenised one that older papers report.

- `bleu` is corpus BLEU of tokens against one reference each (Papineni et al. 2002).
- `plain_bleu` cuts texts as mteval-v13a does and smooths as sacreBLEU does by default: it equals
  sacreBLEU and needs no library, so it serves validation.
- `sacre_bleu` asks the library sacrebleu, with any number of references, and gives its signature.
- `compound_bleu` is what the paper's figures on WMT14 English-German are, by way of fairseq and
  tensor2tensor: texts are cut as Moses does, hyphens within words are cut, too
  ("Fahrrad-Helm" becomes "Fahrrad ##AT##-##AT## Helm"), and BLEU is taken without smoothing. It is
  higher than sacreBLEU, and scores by different tokenisers cannot be compared.

All scores are 0 to 100.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan import __version__
from ngsan.text import moses

__all__ = [
    "TranslationScore",
    "bleu",
    "bleu_of_counts",
    "compound_bleu",
    "compound_bleu_lacks",
    "cut_13a",
    "plain_bleu",
    "plain_counts",
    "sacre_bleu",
    "split_compounds",
]

ORDERS = 4

_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
# All ASCII signs but the apostrophe, comma, hyphen and full stop stand alone, and so does a comma
# or full stop beside anything but a digit, and a hyphen after a digit.
_RULES = (
    (re.compile(r'([ !"#$%&()*+/:;<=>?@\[\\\]^_`{|}~])'), r" \1 "),
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)
_COMPOUND = re.compile(r"(\S)-(\S)")


@dataclass(frozen=True)
class TranslationScore:
    """A score and how it was made."""

    name: str
    """Such as "sacreBLEU"."""

    value: float
    """0 to 100."""

    signature: str
    """Scores with the same line can be compared."""

    precisions: tuple[float, ...]
    """Of 1 to 4 tokens, 0 to 100."""

    brevity_penalty: float
    """1 unless the translations are shorter than the references."""

    length: int
    """Tokens of the translations."""

    reference_length: int
    """Tokens of the references."""


def cut_13a(text: str) -> list[str]:
    """The tokens of a text as mteval-v13a, the default of sacreBLEU, cuts them."""
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    if "&" in text:
        for name, sign in _ENTITIES:
            text = text.replace(name, sign)
    text = f" {text} "
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.split()


def split_compounds(text: str) -> str:
    """A tokenised text whose hyphens within words stand apart, as in get_ende_bleu."""
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", text)


def bleu(
    hypotheses: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    *,
    smooth: bool = False,
    name: str = "BLEU",
    signature: str = "",
) -> TranslationScore:
    """Corpus BLEU of tokens against one reference each.

    Args:
        hypotheses: The tokens of each translation.
        references: Those of each reference.
        smooth: Whether the first order without a match counts as half a match, the next as a
            quarter, and so on; otherwise the score is 0 if there is one.
        name: For the result.
        signature: For the result.

    Raises:
        ValueError: There are not as many of both, or none.
    """
    _check_counts(len(hypotheses), len(references))
    sums = _counts(hypotheses, references).sum(axis=0).tolist()
    matches, totals, (length, wanted) = sums[:ORDERS], sums[ORDERS:-2], sums[-2:]
    # As sacreBLEU has it: where not a single token matches there is nothing to smooth.
    precisions = _precisions(matches, totals, smooth and matches[0] > 0)
    penalty = 1.0
    if length < wanted:
        penalty = math.exp(1 - wanted / length) if length else 0.0
    value = 0.0
    if matches[0] and all(precisions):
        value = penalty * math.exp(sum(map(math.log, precisions)) / ORDERS)
    return TranslationScore(name, value, signature, tuple(precisions), penalty, length, wanted)


def plain_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> TranslationScore:
    """BLEU of texts against one reference each; equal to sacreBLEU's default."""
    return bleu(
        [cut_13a(text.rstrip()) for text in hypotheses],
        [cut_13a(text.rstrip()) for text in references],
        smooth=True,
        signature=f"nrefs:1|case:mixed|tok:13a|smooth:exp|version:ngsan-{__version__}",
    )


def plain_counts(hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """What `plain_bleu` counts in each sentence, (sentences, 10): see `bleu_of_counts`."""
    _check_counts(len(hypotheses), len(references))
    return _counts(
        [cut_13a(text.rstrip()) for text in hypotheses],
        [cut_13a(text.rstrip()) for text in references],
    )


def bleu_of_counts(counts: NDArray[Any]) -> NDArray[np.float64]:
    """Smoothed BLEU of sums of counts, of many corpora at a time.

    Args:
        counts: (..., 10) sums over the sentences of a corpus: n-grams that match, all n-grams of
            the translations, both for 1 to 4 tokens, and the tokens of translations and references.

    Returns:
        (...) 0 to 100, for one corpus the same as `plain_bleu`.
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


def sacre_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> TranslationScore:
    """BLEU by the library sacrebleu with its defaults.

    Args:
        hypotheses: The translations.
        references: One or more sets of references, each as many as there are translations.

    Raises:
        ValueError: The library is missing, or there are not as many of each.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise ValueError("sacreBLEU is an extra: pip install 'ngsan[translation]'") from error
    if not references:
        raise ValueError("there are no references")
    for one in references:
        _check_counts(len(hypotheses), len(one))
    metric = BLEU()
    found: Any = metric.corpus_score(list(hypotheses), [list(one) for one in references])
    return TranslationScore(
        name="sacreBLEU",
        value=float(found.score),
        signature=str(metric.get_signature()),
        precisions=tuple(map(float, found.precisions)),
        brevity_penalty=float(found.bp),
        length=int(found.sys_len),
        reference_length=int(found.ref_len),
    )


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
        references: One reference of each.
        language: Of both: "de" or "en", for `ngsan.text.moses`.
        tokenized: Whether both have been cut into tokens already, by Moses' own program.

    Raises:
        ValueError: There are no rules for the language, or not as many of both, or none.
    """

    def tokens(text: str) -> list[str]:
        cut = text if tokenized else " ".join(moses.tokenize(text, language))
        return split_compounds(cut).split()

    how = "given" if tokenized else f"{moses.TOKENIZER_VERSION}-{language}"
    return bleu(
        [tokens(text) for text in hypotheses],
        [tokens(text) for text in references],
        name="tokenised BLEU",
        signature=(
            f"nrefs:1|case:mixed|tok:{how}|compounds:split|smooth:none|version:ngsan-{__version__}"
        ),
    )


def compound_bleu_lacks(language: str) -> str:
    """Why there is no tokenised BLEU of texts in a language; empty if there is.

    Args:
        language: Such as "de"; empty if it is not known.
    """
    if language in moses.LANGUAGES:
        return ""
    known = " or ".join(moses.LANGUAGES)
    if not language:
        return (
            "the language of the translations is not known; ngsan score --translation and ngsan "
            f"data parallel take --language {known}"
        )
    return (
        f"there are no rules for {language!r}, only for {known}: cut translations and references "
        "by Moses' own program and give them to ngsan score --translation with --tokenized"
    )


def _check_counts(hypotheses: int, references: int) -> None:
    if hypotheses != references:
        raise ValueError(f"{hypotheses} translations do not fit {references} references")
    if not hypotheses:
        raise ValueError("there are no translations to score")


def _counts(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> NDArray[np.int64]:
    """What BLEU counts in each sentence; see `bleu_of_counts`."""
    counts = np.zeros((len(hypotheses), 2 * ORDERS + 2), np.int64)
    for row, hypothesis, reference in zip(counts, hypotheses, references, strict=True):
        for order in range(ORDERS):
            mine, its = _ngrams(hypothesis, order + 1), _ngrams(reference, order + 1)
            row[order] = sum((mine & its).values())
            row[ORDERS + order] = sum(mine.values())
        row[-2:] = len(hypothesis), len(reference)
    return counts


def _ngrams(tokens: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[start:] for start in range(size)), strict=False))


def _precisions(matches: list[int], totals: list[int], smooth: bool) -> list[float]:
    found = []
    share = 1.0
    for matched, total in zip(matches, totals, strict=True):
        if total and not matched and smooth:
            share /= 2
            found.append(100 * share / total)
        else:
            found.append(100 * matched / total if total else 0.0)
    return found
