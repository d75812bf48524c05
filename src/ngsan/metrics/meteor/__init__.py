"""METEOR 1.5 for English without Java, as the COCO caption tools report it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.meteor.matching import (
    CaptionMatcher,
    Match,
    PhraseUse,
    Word,
    align,
    count_chunks,
    java_hash,
)
from ngsan.metrics.meteor.paraphrases import ParaphraseTable, Phrases
from ngsan.metrics.meteor.words import (
    Normalizer,
    Synonyms,
    find_resources,
    meteor_folder,
    stem,
    trim,
)

_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_STAGE_WEIGHTS = (1.0, 0.6, 0.8, 0.6)  # equal words, equal stems, synonyms, paraphrases
_COUNTS = 23


class Meteor:
    """METEOR 1.5 with the parameters and word lists for English.

    Words of caption and reference match if they are equal, have equal stems, are synonyms in
    WordNet, or are part of paraphrases. The score is a weighted mean of precision and recall, times
    a penalty for matches in many chunks. The reference with the best score counts.

    The word lists come with the package ``pycocoevalcap`` (``pip install 'ngsan[metrics]'``). They
    are read on first use; see `ParaphraseTable.load` for the cached files.

    Note: all statistics equal those of ``meteor-1.5.jar -l en -norm``, which the COCO caption tools
        run, with one formal difference: a caption equal to its reference has 0 chunks here and 1
        there. The program ignores that chunk when it adds statistics and computes the penalty, so
        the scores are equal.

    Raises:
        ValueError: The word lists are not installed.
    """

    names = ("METEOR",)

    def __init__(self) -> None:
        meteor_folder()

    @property
    def signature(self) -> Mapping[str, str]:
        return {"meteor": "1.5", "lang": "en", "norm": "yes", "data": self._lists.digest}

    def statistics(self, captions: TokenizedCaptions) -> NDArray[np.float64]:
        """Statistics of every image with its best reference, (images, 23).

        The columns are: length of caption and reference; function words of caption and reference;
        for each of the four stages the matched content words of caption and reference and the
        matched function words of both; chunks; matched words of caption and reference.
        """
        normalize = self._lists.normalizer.words
        texts: list[list[str]] = []
        sizes = []
        hypotheses = []
        for words, references in zip(captions.hypotheses, captions.references, strict=True):
            *lines, line = _lines(words, references)
            sizes.append(len(lines))
            hypotheses.append(normalize(line))
            texts += map(normalize, lines)
        rows = np.array(list(self._pairs(hypotheses, texts, sizes)), np.float64)  # (pairs, 23)
        scores = self.score(rows)[:, 0]
        ends = np.cumsum(sizes)
        best = [
            end - size + int(np.argmax(scores[end - size : end]))
            for end, size in zip(ends.tolist(), sizes, strict=True)
        ]
        return rows[best]

    def score(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        """METEOR (..., 1), from 0 to 1, from sums of statistics (..., 23)."""
        stages = totals[..., 4:20].reshape(*totals.shape[:-1], 4, 2, 2)
        # (..., 2) for caption and reference. Summed in the order of the program: if two references
        # differ by rounding only, rounding decides which one counts.
        matches = np.zeros_like(totals[..., :2])
        for kind, share in enumerate((_DELTA, 1 - _DELTA)):
            for stage, weight in enumerate(_STAGE_WEIGHTS):
                matches += stages[..., stage, kind, :] * weight * share
        lengths = _DELTA * (totals[..., 0:2] - totals[..., 2:4]) + (1 - _DELTA) * totals[..., 2:4]
        with np.errstate(divide="ignore", invalid="ignore"):
            precision, recall = np.moveaxis(matches / lengths, -1, 0)
            mean = 1 / ((1 - _ALPHA) / precision + _ALPHA / recall)
            fragmentation = totals[..., 20] / ((totals[..., 21] + totals[..., 22]) / 2)
            value = mean * (1 - _GAMMA * fragmentation**_BETA)
        # NaN is 0 / 0: nothing matched, or there was nothing to match.
        result: NDArray[np.float64] = np.where(np.isnan(value), 0, np.maximum(value, 0))[..., None]
        return result

    def _pairs(
        self, hypotheses: list[list[str]], references: list[list[str]], sizes: Sequence[int]
    ) -> Iterator[list[int]]:
        """Statistics of each caption with each of its references."""
        table = self._lists.paraphrases
        lookup = self._lists.word
        ours, theirs = table.find(hypotheses), table.find(references)
        forward = table.paraphrases(theirs.nodes, ours.nodes)
        backward = table.paraphrases(ours.nodes, theirs.nodes)
        uses = _uses(ours, len(hypotheses), sources=backward, targets=forward)
        pairs = zip(references, _uses(theirs, len(references), forward, backward), strict=True)
        for words, use, size in zip(hypotheses, uses, sizes, strict=True):
            matcher = CaptionMatcher(words, use, lookup=lookup, forward=forward, backward=backward)
            known: dict[tuple[str, ...], list[int]] = {}
            for _ in range(size):
                reference, its_use = next(pairs)
                if (row := known.get(tuple(reference))) is None:
                    chosen = align(matcher.matches(reference, its_use), len(words))
                    row = _count(matcher.words, [lookup(word) for word in reference], chosen)
                    known[tuple(reference)] = row
                yield row

    @cached_property
    def _lists(self) -> _WordLists:
        return _WordLists()


class _WordLists:
    """METEOR's data, and the properties of the words seen so far."""

    def __init__(self) -> None:
        resources = find_resources()
        self.normalizer = Normalizer(resources.abbreviations)
        self.paraphrases = ParaphraseTable.load(resources.paraphrases)
        self.digest = f"{resources.digest[:8]}-{self.paraphrases.digest[:8]}"
        self._synonyms = Synonyms(resources.synsets, resources.irregular)
        self._function_words = resources.function_words
        self._words: dict[str, Word] = {}

    def word(self, text: str) -> Word:
        """Properties of a word, cached."""
        if (word := self._words.get(text)) is None:
            word = self._words[text] = Word(
                key=java_hash(text),
                stem=java_hash(stem(text)),
                synsets=self._synonyms.of(text),
                is_function=text in self._function_words,
            )
        return word


def _lines(words: Sequence[str], references: Sequence[Sequence[str]]) -> list[str]:
    """The references and the caption as METEOR reads them from one line.

    The parts of the line are separated by "|||". The COCO tools remove it from the caption but not
    from the references, where it splits one reference in two.
    """
    caption = " ".join(words).replace("|||", "").replace("  ", " ")
    line = " ||| ".join((*(" ".join(reference) for reference in references), caption))
    return [trim(part) for part in line.split("|||")]


def _uses(
    phrases: Phrases,
    captions: int,
    sources: Mapping[int, Sequence[int]],
    targets: Mapping[int, Sequence[int]],
) -> list[PhraseUse]:
    """Groups the phrases that occur in paraphrases by caption.

    Args:
        phrases: Phrases of the captions.
        captions: Number of captions.
        sources: Phrases with paraphrases on the other side.
        targets: Phrases of the other side, with their paraphrases on this side.
    """
    wanted = {phrase for found in targets.values() for phrase in found}
    kept = np.isin(phrases.nodes, np.array([*sources, *wanted], np.int64))
    uses: list[tuple[list[tuple[int, int, int]], dict[int, list[tuple[int, int]]]]]
    uses = [([], {}) for _ in range(captions)]
    columns = (phrases.captions, phrases.starts, phrases.lengths, phrases.nodes)
    for caption, start, length, phrase in zip(*(c[kept].tolist() for c in columns), strict=True):
        found, places = uses[caption]
        if phrase in sources:
            found.append((start, length, phrase))
        if phrase in wanted:
            places.setdefault(phrase, []).append((start, length))
    return [PhraseUse(*use) for use in uses]


def _count(
    words: Sequence[Word], reference: Sequence[Word], chosen: Sequence[tuple[int, Match]]
) -> list[int]:
    """The 23 statistics of one caption and one reference."""
    row = [0] * _COUNTS
    row[0], row[1] = len(words), len(reference)
    row[2], row[3] = (sum(word.is_function for word in side) for side in (words, reference))
    for place, (stage, start, length, reference_length) in chosen:
        first = 4 + 4 * stage
        for word in words[start : start + length]:
            row[first + 2 * word.is_function] += 1
        for word in reference[place : place + reference_length]:
            row[first + 1 + 2 * word.is_function] += 1
        row[21] += length
        row[22] += reference_length
    chunks = count_chunks(chosen)
    row[20] = 0 if chunks == 1 and row[21:23] == row[0:2] else chunks
    return row
