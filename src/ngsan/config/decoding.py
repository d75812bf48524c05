"""How captions are written."""

from dataclasses import dataclass
from typing import Literal

from ngsan.config.checks import check_range, check_types


@dataclass(frozen=True)
class DecodingConfig:
    """How captions are written. The defaults are the paper's: beam search with a beam of 3."""

    method: Literal["beam", "greedy", "sample"] = "beam"
    """Beam search, the most probable word at each step, or words drawn by their probability."""

    longest: int = 20
    """Most words of a caption."""

    fewest: int = 0
    """Fewest words of a caption."""

    beam: int = 3
    """Beam search: captions that are followed."""

    best: int = 1
    """Beam search: captions to return, at most beam."""

    length_penalty: float = 0.0
    """Beam search: scores are log-probabilities divided by the length to this power, so that a
    higher value favours longer captions; 0 ranks by probability, 1 by the mean over the words."""

    early_stopping: bool = False
    """Beam search: whether to stop at the first captions that end, as many as the beam is wide,
    rather than when no better one can come."""

    groups: int = 1
    """Diverse beam search: groups of the beam that keep apart; 1 for none."""

    diversity: float = 0.5
    """Diverse beam search: what a word costs, in log-probability, for each caption of earlier
    groups that has it at the same place."""

    samples: int = 1
    """Sampling: captions of an image."""

    temperature: float = 1.0
    """Sampling: above 1 more varied, below 1 closer to the most probable."""

    top_k: int = 0
    """Sampling: draw among so many most probable words; 0 for all."""

    top_p: float = 1.0
    """Sampling: draw among the fewest most probable words that hold this share."""

    seed: int = 0
    """Sampling: seed of the random numbers."""

    no_repeat: int = 0
    """Length of word sequences that may occur only once in a caption; 0 for no such rule."""

    no_bad_ending: bool = False
    """Whether captions may not end with words such as "a", "of" or "with"."""

    unknown: bool = False
    """Whether the unknown word may be written."""

    forbid: str = ""
    """Words that may not occur, with spaces between them."""

    require: str = ""
    """Words that must all occur, with spaces between them."""

    prefix: str = ""
    """Words that every caption begins with, such as "a photo of"."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        for name in ("longest", "beam", "best", "groups", "samples"):
            check_range(self, name, at_least=1)
        for name in ("fewest", "diversity", "top_k", "no_repeat"):
            check_range(self, name, at_least=0)
        check_range(self, "temperature", above=0)
        check_range(self, "top_p", above=0)
        if self.top_p > 1:
            raise ValueError(f"top_p: {self.top_p} must be at most 1")
        if self.fewest > self.longest:
            raise ValueError(f"fewest: {self.fewest} is above longest: {self.longest}")
        if self.method == "beam" and self.best > self.beam:
            raise ValueError(f"best: {self.best} captions cannot come from beam: {self.beam}")
        if self.beam % self.groups:
            raise ValueError(f"groups: {self.groups} does not divide beam: {self.beam}")
