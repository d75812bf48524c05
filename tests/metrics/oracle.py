"""Scores by pycocoevalcap 1.2, the program behind nearly all published ones."""

import contextlib
import io

import numpy as np
from hypothesis import strategies as st
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from ngsan.metrics.captions import TokenizedCaptions


def as_coco(captions):
    """Tokenized captions in the form that pycocoevalcap's scorers expect."""
    hypotheses = {
        name: [" ".join(words)]
        for name, words in zip(captions.ids, captions.hypotheses, strict=True)
    }
    references = {
        name: [" ".join(words) for words in several]
        for name, several in zip(captions.ids, captions.references, strict=True)
    }
    return references, hypotheses


def _run(scorer, captions, **options):
    with contextlib.redirect_stdout(io.StringIO()):
        whole, single = scorer.compute_score(*as_coco(captions), **options)
    return np.atleast_1d(whole), np.asarray(single).reshape(-1, len(captions.ids)).T


def bleu(captions):
    """Scores (4,) of the set and (images, 4) of the images."""
    return _run(Bleu(4), captions, verbose=0)


def rouge(captions):
    """Scores (1,) of the set and (images, 1) of the images."""
    return _run(Rouge(), captions)


def cider(captions):
    """Scores (1,) of the set and (images, 1) of the images."""
    return _run(Cider(), captions)


WORDS = ("a", "the", "dog", "cat", "runs", "-lrb-", "n't", "1\xa01/2", "é", "犬", "\u0301x")


def word_sets(*, min_images=1):
    """Sets in few words, so that n-grams repeat: empty captions, copies, 1 to 7 references."""
    caption = st.lists(st.sampled_from(WORDS), max_size=9).map(tuple)
    image = st.tuples(caption, st.lists(caption, min_size=1, max_size=7).map(tuple))
    return st.lists(image, min_size=min_images, max_size=6).map(make)


def make(images):
    """Captions from pairs of a caption's words and its references' words."""
    hypotheses, references = zip(*images, strict=True)
    return TokenizedCaptions(tuple(map(str, range(len(images)))), hypotheses, references)


def has_words(captions):
    """Whether any reference has a word that pycocoevalcap's CIDEr sees; it fails without."""
    return any("".join(words).split() for several in captions.references for words in several)


def long_set():
    """Captions of 1,000 and more words, with many and with few different ones."""
    random = np.random.default_rng(5)

    def caption(length, different):
        return tuple(f"w{number}" for number in random.integers(different, size=length))

    return make(
        [
            (caption(1000, 3), (caption(900, 3), caption(1100, 3))),
            (caption(1000, 5000), (caption(1000, 5000),)),
            (("w1",) * 1200, (("w1",) * 1000, ("w1", "w2") * 40, ())),
            ((), (caption(1000, 50),)),
            (caption(12, 50), (caption(1000, 50), caption(11, 50))),
        ]
    )


def agrees(metric, peer, captions, tolerance=1e-9):
    """Asserts that a metric and a function of this module agree on the set and on each image."""
    rows = metric.statistics(captions)
    assert rows.dtype == np.float64
    assert len(rows) == len(captions.ids)
    whole, single = peer(captions)
    np.testing.assert_allclose(metric.score(rows.sum(axis=0)), whole, rtol=0, atol=tolerance)
    np.testing.assert_allclose(metric.score(rows), single, rtol=0, atol=tolerance)
