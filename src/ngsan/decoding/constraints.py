"""What captions may and must say: a word that is forbidden has a score of minus infinity.

Shapes: `B` images, `R` captions an image, `T` most words, `V` vocabulary, `C` required words.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Constraints:
    """Conditions on captions, in word ids. The defaults allow everything."""

    fewest: int = 0
    """Fewest words of a caption."""

    forbidden: Sequence[int] = ()
    """Words that may not occur, the unknown word for one."""

    required: Sequence[int] = ()
    """Words that must all occur."""

    prefix: Sequence[int] = ()
    """Words that every caption begins with; they may break the other conditions."""

    bad_endings: Sequence[int] = ()
    """Words that may not be a caption's last."""

    no_repeat: int = 0
    """Length of word sequences that may occur only once: 1 for words, 3 for triples; 0 for none."""

    def check(self, *, vocab_size: int, longest: int, boundary: int) -> None:
        """Raises a `ValueError` if no caption at all could meet the conditions.

        Args:
            vocab_size: V.
            longest: T.
            boundary: The id that ends a caption.
        """
        if not 0 <= self.fewest <= longest:
            raise ValueError(f"fewest: {self.fewest} words is not within 0 and longest: {longest}")
        if self.no_repeat < 0:
            raise ValueError(f"no_repeat: {self.no_repeat} must be at least 0")
        for name in ("forbidden", "required", "prefix", "bad_endings"):
            for word in getattr(self, name):
                if not 0 <= word < vocab_size:
                    raise ValueError(f"{name}: word {word} is not within 0 and {vocab_size - 1}")
                if word == boundary:
                    raise ValueError(f"{name}: {word} is the boundary, which is no word")
        if len(self.prefix) > longest:
            raise ValueError(
                f"prefix: {len(self.prefix)} words do not fit into captions of at most {longest}"
            )
        both = set(self.forbidden) & set(self.required)
        if both:
            raise ValueError(f"word {min(both)} is both forbidden and required")
        missing = set(self.required) - set(self.prefix)
        no_end = bool(missing) and missing <= set(self.bad_endings)  # another word comes after them
        if len(self.prefix) + len(missing) + no_end > longest:
            raise ValueError(
                f"required: {len(missing)} words do not fit into captions of at most {longest}"
                + (f" that begin with a prefix of {len(self.prefix)}" if self.prefix else "")
            )
        free = vocab_size - 1 - len(set(self.forbidden))
        if not free and self.fewest > len(self.prefix):
            raise ValueError(
                f"every word is forbidden, so no caption has fewest: {self.fewest} words"
            )


class Rules:
    """Constraints made ready for a search on a device."""

    def __init__(
        self,
        constraints: Constraints,
        *,
        vocab_size: int,
        longest: int,
        boundary: int,
        device: torch.device,
    ) -> None:
        """Checks the constraints and lays out what they need; see `Constraints.check`."""
        constraints.check(vocab_size=vocab_size, longest=longest, boundary=boundary)
        self.constraints = constraints
        self.longest, self.boundary = longest, boundary
        self.required = torch.tensor(
            sorted(set(constraints.required)), dtype=torch.long, device=device
        )

        def marks(words: Sequence[int]) -> Tensor:
            table = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            table[torch.tensor(list(words), dtype=torch.long, device=device)] = True
            return table

        self._forbidden = torch.tensor(list(constraints.forbidden), dtype=torch.long, device=device)
        self._bad = marks(constraints.bad_endings)
        prefix = torch.full((longest,), -1, dtype=torch.long)
        prefix[: len(constraints.prefix)] = torch.tensor(list(constraints.prefix))
        self._prefix = prefix.to(device)
        self._ids = torch.arange(vocab_size, device=device)

    def met(self, words: Tensor) -> Tensor:
        """Which required words occur: (B, R, T) words to (B, R, C)."""
        return (words.unsqueeze(-1) == self.required).any(2)

    def apply(self, scores: Tensor, words: Tensor, position: Tensor) -> Tensor:
        """Forbids what may not come next.

        Args:
            scores: (B, R, V) of the next word; changed in place.
            words: (B, R, T) the words so far, the boundary from `position` on.
            position: () how many words there are so far.

        Returns:
            (B, R, V)
        """
        rules = self.constraints
        wanted = scores.clone() if rules.prefix else scores
        if rules.forbidden:
            scores.index_fill_(2, self._forbidden, -math.inf)
        if rules.no_repeat and self.longest >= rules.no_repeat:
            self._forbid_repeats(scores, words, position)
        if rules.required:
            self._demand_required(scores, words, position)
        self._forbid_end(scores, words, position)
        if rules.prefix:
            word = self._prefix.index_select(0, position.unsqueeze(0))  # (1,)
            prescribed = wanted.masked_fill_(self._ids != word, -math.inf)
            scores = torch.where(word >= 0, prescribed, scores)
        return scores

    def _forbid_end(self, scores: Tensor, words: Tensor, position: Tensor) -> None:
        rules = self.constraints
        early = position < rules.fewest
        if rules.bad_endings:
            last = words.gather(2, (position - 1).clamp(min=0).expand(*words.shape[:2], 1))
            early = early | (self._bad[last.squeeze(2)] & (position > 0))  # (B, R)
            # A caption that is cut off ends, too.
            scores.masked_fill_(self._bad & (position == self.longest - 1), -math.inf)
        if rules.fewest or rules.bad_endings:
            scores[..., self.boundary].masked_fill_(early, -math.inf)

    def _demand_required(self, scores: Tensor, words: Tensor, position: Tensor) -> None:
        """No end before all have come; only they, while there is just enough room for them.

        When none of those that are missing may stand last, one more place is needed after them;
        when one may, it is kept for the last place.
        """
        met = self.met(words)  # (B, R, C)
        missing = self.required.numel() - met.sum(-1)
        scores[..., self.boundary].masked_fill_(missing > 0, -math.inf)
        room = self.longest - position
        unusable = met
        if self.constraints.bad_endings:
            good = ~met & ~self._bad[self.required]
            count = good.sum(-1)
            room = room - ((count == 0) & (missing > 0)).long()
            unusable = met | (good & ((count == 1) & (missing > 1)).unsqueeze(-1))
        urgent = ((missing >= room) & (missing > 0)).unsqueeze(-1)
        values = scores.index_select(2, self.required)
        scores.masked_fill_(urgent, -math.inf)
        kept = torch.where(urgent, values.masked_fill(unusable, -math.inf), values)
        scores.index_copy_(2, self.required, kept)

    def _forbid_repeats(self, scores: Tensor, words: Tensor, position: Tensor) -> None:
        """Forbids each word that, after the last n - 1, would make a sequence of n again."""
        size = self.constraints.no_repeat
        starts = torch.arange(self.longest - size + 1, device=words.device)
        same = starts + size <= position  # such a sequence lies within the words so far
        same = same.expand(*words.shape[:2], -1)
        for offset in range(size - 1):
            place = (position - size + 1 + offset).clamp(min=0)
            latest = words.gather(2, place.expand(*words.shape[:2], 1))
            same = same & (words[..., offset : offset + len(starts)] == latest)
        follows = words[..., size - 1 :]  # (B, R, T - n + 1)
        # Adding 0 or minus infinity, in any order, gives the same.
        addend = torch.zeros_like(same, dtype=scores.dtype).masked_fill_(same, -math.inf)
        scores.scatter_add_(2, follows, addend)
