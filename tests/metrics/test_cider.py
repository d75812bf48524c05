"""CIDEr and its relatives against pycocoevalcap, and against the formula in plain Python."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ngsan.metrics.cider import Cider, CiderD, CiderPlain, DocumentFrequencies
from tests.metrics import oracle


def values(metric, captions):
    return metric.score(metric.statistics(captions))[:, 0]


def ngrams_of(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def frequencies_of(references):
    """Number of images of each n-gram."""
    return Counter(
        ngram
        for several in references
        for ngram in {g for words in several for n in range(1, 5) for g in ngrams_of(words, n)}
    )


def by_formula(words, references, frequency, images, *, clip, sigma):
    """The score of one image."""

    def weights(caption, n):
        counts = ngrams_of(caption, n)
        return {g: c * math.log(images / max(1, frequency[g])) for g, c in counts.items()}

    total = 0.0
    for reference in references:
        for n in range(1, 5):
            ours, theirs = weights(words, n), weights(reference, n)
            dot = sum(
                (min(w, theirs[g]) if clip else w) * theirs[g]
                for g, w in ours.items()
                if g in theirs
            )
            norm = math.hypot(*ours.values()) * math.hypot(*theirs.values())
            distance = max(0, len(words) - 1) - max(0, len(reference) - 1)
            penalty = math.exp(-(distance**2) / (2 * sigma**2)) if sigma else 1.0
            total += penalty * dot / norm if norm else 0.0
    return 10 * total / 4 / len(references)


@given(oracle.word_sets())
def test_agrees_with_pycocoevalcap(captions):
    assume(oracle.has_words(captions))
    oracle.agrees(Cider(), oracle.cider, captions)
    assert values(CiderD(), captions).tolist() == values(Cider(), captions).tolist()


def test_agrees_on_long_captions():
    oracle.agrees(Cider(), oracle.cider, oracle.long_set())


@given(oracle.word_sets())
def test_end_counts_as_a_word(captions):
    longer = oracle.make(
        [
            ((*words, "<end>"), tuple((*each, "<end>") for each in references))
            for words, references in zip(captions.hypotheses, captions.references, strict=True)
        ]
    )
    _, single = oracle.cider(longer)
    found = values(CiderD(end=True), captions)
    np.testing.assert_allclose(found, single[:, 0], rtol=0, atol=1e-9)


@given(oracle.word_sets(min_images=2), st.integers(1, 5), st.booleans())
def test_given_frequencies_are_those_of_a_larger_set(captions, scored, end):
    # Frequencies of all images for some of them: the same scores as if all had been scored.
    assume(oracle.has_words(captions))
    frequencies = DocumentFrequencies.count(captions.references, end=end)
    pairs = list(zip(captions.hypotheses, captions.references, strict=True))[:scored]
    found = values(CiderD(frequencies, end=end), oracle.make(pairs))
    expected = values(CiderD(end=end), captions)[:scored]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    if not end:
        _, single = oracle.cider(captions)
        np.testing.assert_allclose(found, single[:scored, 0], rtol=0, atol=1e-9)


@given(oracle.word_sets(), oracle.word_sets())
def test_frequencies_of_other_captions(training, captions):
    split = [
        [[w for word in words for w in word.split()] for words in several]
        for several in training.references
    ]
    frequency = frequencies_of(split)
    given_ones = DocumentFrequencies.count(training.references)
    metrics = {
        CiderD(given_ones): dict(clip=True, sigma=6),
        CiderPlain(given_ones): dict(clip=False, sigma=None),
    }
    for metric, options in metrics.items():
        expected = [
            by_formula(
                " ".join(words).split(),
                [" ".join(each).split() for each in references],
                frequency,
                len(split),
                **options,
            )
            for words, references in zip(captions.hypotheses, captions.references, strict=True)
        ]
        np.testing.assert_allclose(values(metric, captions), expected, rtol=0, atol=1e-9)


def test_plain_has_neither_clipping_nor_penalty():
    # The reference ten times over: single words point the same way; of pairs, 'b a' is new.
    captions = oracle.make(
        [(("a", "b") * 10, (("a", "b"),)), (("c",), (("c",),)), (("d",), (("e",),))]
    )
    assert values(CiderPlain(), captions)[0] == pytest.approx(2.5 * (1 + 10 / math.sqrt(181)))
    assert values(Cider(), captions)[0] < 0.1
    assert values(CiderPlain(), captions)[1:].tolist() == [2.5, 0]


def test_degenerate_captions_score_zero():
    empty = oracle.make([(("a",), ((), ())), ((), ((),))])
    for metric in (Cider(), CiderPlain(), CiderD(end=True), CiderD()):
        assert values(metric, empty).tolist() == [0, 0]
    # One image: every n-gram occurs in all images and has weight zero.
    single = oracle.make([(("a", "dog"), (("a", "dog"),))])
    assert values(Cider(), single).tolist() == [0]


@pytest.mark.parametrize("images", [3, 10, 49, 93, 113])
def test_ngrams_of_all_images_have_exactly_zero_weight(images):
    captions = oracle.make([(("a",), (("a",),))] * images)
    assert (values(Cider(), captions) == 0).all()
    frequencies = DocumentFrequencies.count(captions.references)
    assert (values(CiderD(frequencies), captions) == 0).all()


def test_frequencies_with_another_end_are_rejected():
    frequencies = DocumentFrequencies.count([[("a",)]], end=True)
    with pytest.raises(ValueError, match="end=True and the metric has end=False"):
        CiderD(frequencies)


def test_signature_shows_the_settings():
    parts = {"df": "references", "end": "no", "clip": "yes", "sigma": "6", "n": "4"}
    assert Cider().signature == CiderD().signature == parts
    assert CiderD(end=True).signature == {**parts, "end": "yes"}
    assert CiderPlain().signature == {**parts, "clip": "no", "sigma": "none"}
    frequencies = DocumentFrequencies.count([[("a",)], [("a", "b")]])
    assert CiderD(frequencies).signature["df"] == frequencies.signature
