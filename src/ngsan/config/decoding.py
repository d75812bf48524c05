"""How captions and translations are searched for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from ngsan.config.schema import check_range, check_seed, check_types

_BEAM_ONLY = ("beam", "length_penalty", "early_stopping", "groups", "diversity")
_SAMPLING_ONLY = ("temperature", "top_k", "top_p", "seed")


@dataclass(frozen=True)
class DecodingConfig:
    """How captions are searched for. The defaults are the paper's: beam search, beam 3."""

    method: Literal["beam", "greedy", "sample"] = "beam"
    """Beam search, the most probable word at each step, or sampling."""

    max_length: int = 20
    """Most words of a caption."""

    min_length: int = 0
    """Fewest words of a caption."""

    beam: int = 3
    """Beam search: the width of the beam."""

    num_return: int = 1
    """Captions to return of each image; beam search: at most beam."""

    length_penalty: float = 0.0
    """Beam search: scores are log-probabilities divided by the length to this power, so that a
    higher value favours longer captions; 0 ranks by probability, 1 by the mean over the words."""

    early_stopping: bool = False
    """Beam search: whether to stop as soon as a beam's number of captions has ended, rather than
    when no better one is possible."""

    groups: int = 1
    """Diverse beam search: groups of the beam that avoid each other's words; 1 for none."""

    diversity: float = 0.5
    """Diverse beam search: penalty of a word, in log-probability, for each caption of earlier
    groups that has it at the same position."""

    temperature: float = 1.0
    """Sampling: above 1 more varied, below 1 closer to the most probable."""

    top_k: int = 0
    """Sampling: draw among the K most probable words; 0 for all."""

    top_p: float = 1.0
    """Sampling: draw among the most probable words that together have this probability."""

    seed: int = 0
    """Sampling: seed of the random numbers."""

    no_repeat_ngram: int = 0
    """Length N of n-grams that may occur only once in a caption; 0 for no such rule."""

    no_bad_ending: bool = False
    """Whether captions may not end with words such as "a", "of" or "with"."""

    allow_unknown: bool = False
    """Whether captions may contain the unknown word."""

    forbid: str = ""
    """Words that must not occur, separated by spaces."""

    require: str = ""
    """Words that must all occur, separated by spaces."""

    prefix: str = ""
    """Words that every caption starts with, such as "a photo of"."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "max_length", "beam", "num_return", "groups", at_least=1)
        check_range(self, "min_length", "diversity", "top_k", "no_repeat_ngram", at_least=0)
        check_range(self, "temperature", above=0)
        check_range(self, "top_p", above=0, at_most=1)
        check_seed(self)
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length: {self.min_length} is above max_length: {self.max_length}"
            )
        if self.method == "beam" and self.num_return > self.beam:
            raise ValueError(
                f"num_return: {self.num_return} captions cannot come from beam: {self.beam}"
            )
        if self.beam % self.groups:
            raise ValueError(f"groups: {self.groups} does not divide beam: {self.beam}")

    def override(self, given: Mapping[str, Any], spell: Callable[[str], str] = str) -> Self:
        """These settings with the values that a user gave.

        Words are lower-cased, and the beam is widened to the number of captions.

        Args:
            given: Values by key.
            spell: How error messages spell a key, such as `--top-k`.

        Raises:
            ValueError: A key does not apply to the method, or a value is out of range.
        """
        keys = dict(given)
        method = keys.setdefault("method", self.method)
        for name in keys:
            if name in _BEAM_ONLY and method != "beam":
                raise ValueError(f"{spell(name)} does not apply to {spell('method')} {method}")
            if name in _SAMPLING_ONLY and method != "sample":
                raise ValueError(f"{spell(name)} applies only to {spell('method')} sample")
        for name in {"prefix", "forbid", "require"} & keys.keys():
            keys[name] = keys[name].lower()
        if method == "beam" and "num_return" in keys:
            beam, count = spell("beam"), keys["num_return"]
            if keys.setdefault("beam", max(self.beam, count)) < count:
                raise ValueError(
                    f"{spell('num_return')} {count}: {beam} {keys['beam']} finds fewer; "
                    f"raise {beam}"
                )
        return replace(self, **keys)


@dataclass(frozen=True)
class TranslationDecodingConfig:
    """How translations are searched for. The defaults are fairseq's for WMT14 English-German."""

    beam: int = 4
    """Width of the beam; 1 is greedy search."""

    num_return: int = 1
    """Translations to return per sentence, at most beam."""

    length_penalty: float = 0.6
    """Scores are log-probabilities divided by the length in subwords, including the end, to this
    power, as in fairseq: 0 ranks by probability, higher values favour longer translations. (This
    differs from GNMT's formula, ((5 + length) / 6) to the power.)"""

    early_stopping: bool = False
    """Whether to stop as soon as a beam's number of translations has ended, as fairseq does, rather
    than when no better one is possible."""

    max_length_ratio: float = 1.5
    """A translation has at most this times the subwords of its sentence, rounded up to a multiple
    of 8, plus max_length_extra."""

    max_length_extra: int = 10
    """See max_length_ratio."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "beam", "num_return", "max_length_extra", at_least=1)
        check_range(self, "max_length_ratio", at_least=0)
        if self.num_return > self.beam:
            raise ValueError(
                f"num_return: {self.num_return} translations cannot come from beam: {self.beam}"
            )
