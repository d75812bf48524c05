"""METEOR against the published program: every statistic, score of images and of sets.

`golden/meteor_scores.json` holds what the program printed and needs no Java; with Java, the program
itself is asked, through pycocoevalcap. It is started once.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pycocoevalcap.meteor.meteor import Meteor as Oracle

from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.meteor import Meteor
from ngsan.metrics.scores import score_captions

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "meteor_scores.json").read_text("utf-8")
)
COMPARED = 300


@pytest.fixture(scope="module")
def meteor():
    return Meteor()


@pytest.fixture(scope="module")
def oracle():
    """The published program, which takes a few seconds to start."""
    if shutil.which("java") is None:
        pytest.skip("needs Java, to run the published program")
    oracle = Oracle()
    yield oracle
    oracle.meteor_p.stdout.close()
    oracle.meteor_p.stderr.close()


@pytest.fixture(scope="module")
def scored(meteor, published):
    """Captions of a published system and their statistics by us."""
    captions = TokenizedCaptions.tokenize(*published)
    return captions, meteor.statistics(captions)


def of_lines(images):
    """Captions of images given as pairs of a caption and a list of references."""
    cut = [
        (_words(caption), tuple(_words(reference) for reference in references))
        for caption, references in images
    ]
    hypotheses, references = zip(*cut, strict=True)
    return TokenizedCaptions(tuple(map(str, range(len(cut)))), hypotheses, references)


def _words(line):
    return tuple(word for word in line.split(" ") if word)


def ask(oracle, captions):
    """Statistics by the published program, in our form."""
    rows = []
    for words, references in zip(captions.hypotheses, captions.references, strict=True):
        answer = oracle._stat(" ".join(words), [" ".join(reference) for reference in references])
        rows.append([float(number) for number in answer.split()])
    return in_our_form(rows)


def in_our_form(rows):
    """The chunks of a caption equal to its reference count 0."""
    rows = np.array(rows, dtype=np.float64)
    equal = (rows[:, 20] == 1) & (rows[:, 21:23] == rows[:, 0:2]).all(1)
    rows[equal, 20] = 0
    return rows


def test_golden_statistics_and_scores(meteor):
    images = GOLDEN["images"]
    captions = of_lines([(image["caption"], image["references"]) for image in images])
    rows = meteor.statistics(captions)
    wanted = in_our_form([image["statistics"] for image in images])
    for image, row, right in zip(images, rows, wanted, strict=True):
        assert row.tolist() == right.tolist(), image["caption"]
    assert meteor.score(rows)[:, 0] == pytest.approx([i["score"] for i in images], abs=1e-14)
    assert meteor.score(rows.sum(0)) == pytest.approx(GOLDEN["corpus"], abs=1e-14)


def test_golden_covers_every_stage():
    totals = np.array([image["statistics"] for image in GOLDEN["images"]]).sum(0)
    assert (totals[4:20:4] > 0).all()  # content words of captions by stage


def test_set_equals_published_score(meteor, scored, published_scores):
    _, rows = scored
    assert 100 * meteor.score(rows.sum(0))[0] == pytest.approx(published_scores["METEOR"], abs=1e-6)


@pytest.mark.slow
def test_published_captions_equal_the_program(meteor, oracle, scored):
    captions, rows = scored
    some = TokenizedCaptions(
        captions.ids[:COMPARED], captions.hypotheses[:COMPARED], captions.references[:COMPARED]
    )
    assert (rows[:COMPARED] == ask(oracle, some)).all()
    references = {
        name: [" ".join(words) for words in several]
        for name, several in zip(some.ids, some.references, strict=True)
    }
    hypotheses = {
        name: [" ".join(words)] for name, words in zip(some.ids, some.hypotheses, strict=True)
    }
    whole, single = oracle.compute_score(references, hypotheses)
    assert meteor.score(rows[:COMPARED])[:, 0] == pytest.approx(single, abs=1e-14)
    assert meteor.score(rows[:COMPARED].sum(0))[0] == pytest.approx(whole, abs=1e-14)


@pytest.mark.slow
def test_human_captions_equal_the_program(meteor, oracle, published):
    _, references = published
    some = dict(list(references.items())[:COMPARED])
    captions = TokenizedCaptions.tokenize(
        {name: several[0] for name, several in some.items()},
        {name: several[1:] for name, several in some.items()},
    )
    assert (meteor.statistics(captions) == ask(oracle, captions)).all()


WORDS = (
    "a", "a", "the", "on", "man", "men", "dog", "dogs", "cat", "geese", "goose", "runs", "running",
    "ran", "big", "large", "bigger", "bunch of", "group of", "next to", "near", "a lot of", "many",
    "people", "person", "u.s.", "e.g.", "vs.", "no. 5", "end.", "...", "1,000", "o'clock", "'s",
    "1980's", "``", "''", "–", "--", "a-b-c", "x--y", "-lrb-", "$", "caf\u00e9", "\u4e2d\u6587",
    "1\u00a01/2", "\u2003", "|||", "||||", "\x0b", "\x01", "\U0001f600", "\u0301",
)  # fmt: skip
LINES = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join),
    st.lists(st.sampled_from(WORDS[:12]), max_size=25).map(" ".join),
    st.text(st.sampled_from("ab1s.,'-`’“– |"), max_size=20),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n\r"), max_size=12),
).map(str.lower)


@pytest.mark.slow
@given(image=st.tuples(LINES, st.lists(LINES, min_size=1, max_size=3)))
@example(image=("", [""]))
@example(image=("a dog", ["", "a ||| dog", "a dog"]))
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_odd_captions_equal_the_program(meteor, oracle, image):
    captions = of_lines([image])
    assert meteor.statistics(captions).tolist() == ask(oracle, captions).tolist()


@pytest.mark.slow
def test_many_equal_words_equal_the_program(meteor, oracle):
    # Far more candidates than the beam keeps.
    rng = np.random.default_rng(0)
    words = ["a", "dog", "dogs", "the", "running", "runs", "big", "large", "near", "next", "to"]
    images = [
        (" ".join(rng.choice(words, 40)), [" ".join(rng.choice(words, 35)) for _ in range(2)])
        for _ in range(8)
    ]
    captions = of_lines(images)
    assert (meteor.statistics(captions) == ask(oracle, captions)).all()


def test_scores_are_finite_and_within_bounds(meteor):
    images = [("", [""]), ("", ["a"]), ("a", [""]), ("dog", ["cat"]), ("a dog", ["a dog"])]
    scores = meteor.score(meteor.statistics(of_lines(images)))
    assert scores[:, 0].tolist() == [0, 0, 0, 0, 1]


def test_order_of_images_does_not_matter(meteor):
    images = [(image["caption"], image["references"]) for image in GOLDEN["images"]]
    rows = meteor.statistics(of_lines(images))
    assert (meteor.statistics(of_lines(images[::-1]))[::-1] == rows).all()


def test_report_and_signature(meteor):
    scores = score_captions(of_lines([("a dog runs", ["a dog ran"])]), [meteor])
    assert set(scores.values) == {"METEOR"}
    line = scores.signatures["METEOR"]
    assert "|meteor:1.5|lang:en|norm:yes|data:" in line
