"""What every metric reads: captions and their references, cut into words once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ngsan.metrics.ngrams import NgramTable
from ngsan.text.ptb import TOKENIZER_VERSION, tokenize_lines

__all__ = ["TokenizedCaptions"]


@dataclass(frozen=True)
class TokenizedCaptions:
    """One caption and at least one reference for each image, as words.

    Words come from `tokenize`, or from the caller. They must not be empty or contain a space; they
    may contain a no-break space, as the PTB tokenizer writes "1 1/2". The COCO tools are not of one
    mind about those, and each metric does as its original: BLEU and CIDEr cut the word in two,
    ROUGE-L and METEOR do not.
    """

    ids: tuple[str, ...]
    """The images."""

    hypotheses: tuple[tuple[str, ...], ...]
    """Words of each image's caption; none at all for an empty caption."""

    references: tuple[tuple[tuple[str, ...], ...], ...]
    """Words of each of each image's references."""

    tokenizer: str = "given"
    """Version of the tokenizer; "given" for words that came from the caller."""

    _tables: dict[bool, NgramTable] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuses what no metric could score."""
        if not self.ids:
            raise ValueError("there are no images to score; give at least one caption")
        counts = len(self.ids), len(self.hypotheses), len(self.references)
        if len(set(counts)) > 1:
            raise ValueError(
                "{} ids, {} captions and the references of {} images; give one caption and one "
                "list of references for each id".format(*counts)
            )
        if len(set(self.ids)) < len(self.ids):
            twice = next(name for i, name in enumerate(self.ids) if name in self.ids[:i])
            raise ValueError(f"image {twice!r} is there twice; give each image one caption")
        for name, words, references in zip(self.ids, self.hypotheses, self.references, strict=True):
            if isinstance(words, str) or any(isinstance(text, str) for text in references):
                raise ValueError(
                    f"image {name!r} has a caption that is not cut into words; use `tokenize`"
                )
            if not references:
                raise ValueError(f"image {name!r} has no reference; give one or leave it out")

    @classmethod
    def tokenize(
        cls, hypotheses: Mapping[str, str], references: Mapping[str, Sequence[str]]
    ) -> TokenizedCaptions:
        """Cuts captions into the words that the COCO tools count.

        Args:
            hypotheses: The caption of each image. It may be empty.
            references: The references of each image, for the same images as `hypotheses`. Their
                order is that of the result, and it matters a little: the tokenizer looks past the
                end of a caption at the next one (see `ngsan.text.ptb.tokenize`).

        Returns:
            The words, as pycocoevalcap finds them for images and references in this order.

        Raises:
            ValueError: A caption without references, references without a caption, or no images.
        """
        _refuse(
            hypotheses.keys() - references.keys(), "have a caption and no references", "references"
        )
        _refuse(
            references.keys() - hypotheses.keys(), "have references and no caption", "a caption"
        )
        for name, captions in references.items():
            if isinstance(captions, str):
                raise ValueError(
                    f"the references of image {name!r} are one string; give a list of strings"
                )
        ids = tuple(references)
        words = iter(tokenize_lines(text for name in ids for text in references[name]))
        return cls(
            ids=ids,
            hypotheses=tuple(map(tuple, tokenize_lines(hypotheses[name] for name in ids))),
            references=tuple(tuple(tuple(next(words)) for _ in references[name]) for name in ids),
            tokenizer=TOKENIZER_VERSION,
        )

    def with_hypotheses(self, hypotheses: Mapping[str, str]) -> TokenizedCaptions:
        """Other captions of the same images, whose references stay cut as they are.

        Args:
            hypotheses: The caption of each image; `tokenize` would give the same result.
        """
        _refuse(hypotheses.keys() - set(self.ids), "have a caption and no references", "references")
        _refuse(set(self.ids) - hypotheses.keys(), "have references and no caption", "a caption")
        words = tuple(map(tuple, tokenize_lines(hypotheses[name] for name in self.ids)))
        return TokenizedCaptions(self.ids, words, self.references, TOKENIZER_VERSION)

    def ngrams(self, *, end: bool = False) -> NgramTable:
        """The n-grams of all captions, counted when first asked for and then kept.

        Args:
            end: Whether the end of the sentence counts as one more word of every caption.
        """
        if end not in self._tables:
            self._tables[end] = NgramTable.count(self.hypotheses, self.references, end=end)
        return self._tables[end]


def _refuse(ids: Collection[str], what: str, needed: str) -> None:
    """Raises for images that are on one side only."""
    if ids:
        some = ", ".join(repr(name) for name in sorted(ids, key=str)[:3])
        more = " and others" if len(ids) > 3 else ""
        raise ValueError(
            f"{len(ids):,} image(s) {what}: {some}{more}; give {needed} for each or leave them out"
        )
