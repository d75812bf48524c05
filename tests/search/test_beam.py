import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngsan.search import Beam, Constraints, Greedy
from tests.search.models import PositionModel, TableModel
from tests.search.oracle import all_captions, assert_same, beam_search

PENALTIES = (0.0, 1.0, -0.5, 2.0)


def constraints(max_length=4, vocab_size=4):
    """Random constraints that pass `Constraints.check`, usually only a few at a time."""
    word = st.integers(1, vocab_size - 1)

    @st.composite
    def draw(pick):
        used = pick(st.sets(st.sampled_from(range(6)), max_size=4))
        required = pick(st.lists(word, max_size=3)) if 0 in used else []
        forbidden = pick(st.sets(word, max_size=2)) - set(required) if 1 in used else []
        prefix = pick(st.lists(word, max_size=max_length - 1)) if 2 in used else []
        # Leave one place for a valid last word.
        while prefix and len(prefix) + len(set(required) - set(prefix)) >= max_length:
            prefix = prefix[:-1]
        return Constraints(
            min_length=pick(st.integers(0, max_length)) if 3 in used else 0,
            forbidden=sorted(forbidden) if len(forbidden) < vocab_size - 1 else [],
            required=required,
            prefix=prefix,
            bad_endings=sorted(pick(st.sets(word, max_size=2))) if 4 in used else [],
            no_repeat_ngram=pick(st.integers(1, 3)) if 5 in used else 0,
        )

    return draw()


CASES = {
    "free": Constraints(),
    "min_length": Constraints(min_length=2),
    "all words": Constraints(min_length=4),
    "forbidden": Constraints(forbidden=[2]),
    "one required": Constraints(required=[3]),
    "two required": Constraints(required=[3, 1]),
    "three required": Constraints(required=[3, 1, 2]),
    "required twice": Constraints(required=[2, 2]),
    "prefix": Constraints(prefix=[2, 2]),
    "only the prefix": Constraints(prefix=[2, 1, 2, 3]),
    "prefix and required": Constraints(prefix=[2, 1], required=[3, 2]),
    "prefix against all": Constraints(
        prefix=[2, 2, 1], forbidden=[2], bad_endings=[1], no_repeat_ngram=1, min_length=1
    ),
    "bad endings": Constraints(bad_endings=[1, 3]),
    "bad endings and required": Constraints(bad_endings=[1], required=[1]),
    "no word twice": Constraints(no_repeat_ngram=1),
    "no pair twice": Constraints(no_repeat_ngram=2),
    "no triple twice": Constraints(no_repeat_ngram=3),
    "no repeats of more than fit": Constraints(no_repeat_ngram=5),
}


@pytest.mark.parametrize("rules", CASES.values(), ids=CASES)
def test_wide_beam_equals_exhaustive_search(rules):
    model = TableModel(images=2, seed=3)
    for length_penalty in PENALTIES:
        settings = dict(max_length=4, length_penalty=length_penalty)
        written = Beam(model, beam=130, num_return=130, constraints=rules, **settings).run()
        for image in range(2):
            assert_same(written, image, all_captions(model, image, rules=rules, **settings))


@settings(max_examples=40)
@given(rules=constraints(), length_penalty=st.sampled_from(PENALTIES), seed=st.integers(0, 10**6))
def test_wide_beam_equals_exhaustive_search_under_random_constraints(rules, length_penalty, seed):
    model = TableModel(seed=seed)
    expected = all_captions(model, 0, max_length=4, length_penalty=length_penalty, rules=rules)
    search = Beam(
        model,
        beam=85,
        num_return=85,
        max_length=4,
        length_penalty=length_penalty,
        constraints=rules,
    )
    assert_same(search.run(), 0, expected[:85])


@settings(max_examples=150)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_narrow_beam_equals_reference_implementation(data, seed):
    groups = data.draw(st.sampled_from((1, 1, 2, 3)))
    beam = groups * data.draw(st.integers(1, 4))
    max_length = data.draw(st.integers(1, 6))
    vocab_size = data.draw(st.integers(4, 6))
    rules = Constraints()
    if max_length >= 4:
        rules = data.draw(constraints(max_length, vocab_size))
    shared = dict(
        beam=beam,
        num_return=data.draw(st.integers(1, beam)),
        max_length=max_length,
        length_penalty=data.draw(st.sampled_from((*PENALTIES, 0.7))),
        early_stopping=data.draw(st.booleans()),
        groups=groups,
        diversity=data.draw(st.sampled_from((0.0, 0.5, 3.0))),
    )
    model = TableModel(images=2, vocab_size=vocab_size, seed=seed, scale=2.0)
    written = Beam(model, constraints=rules, **shared).run()
    for image in range(2):
        assert_same(written, image, beam_search(model, image, rules=rules, **shared))


@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_must_end_equals_exhaustive_search(length_penalty):
    model = TableModel(images=2, seed=3)
    shared = dict(max_length=4, length_penalty=length_penalty, must_end=True)
    written = Beam(model, beam=60, num_return=60, **shared).run()
    for image in range(2):
        expected = all_captions(model, image, **shared)
        assert len(expected) == 1 + 3 + 9 + 27
        assert_same(written, image, expected)
    assert written.ended[:, :40].all()


@settings(max_examples=50)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_must_end_equals_reference_implementation(data, seed):
    groups = data.draw(st.sampled_from((1, 1, 2)))
    beam = groups * data.draw(st.integers(1, 4))
    shared = dict(
        beam=beam,
        num_return=data.draw(st.integers(1, beam)),
        max_length=data.draw(st.integers(1, 6)),
        length_penalty=data.draw(st.sampled_from((*PENALTIES, 0.6))),
        early_stopping=data.draw(st.booleans()),
        groups=groups,
        must_end=True,
    )
    model = TableModel(images=2, vocab_size=data.draw(st.integers(2, 6)), seed=seed, scale=2.0)
    written = Beam(model, **shared).run()
    for image in range(2):
        assert_same(written, image, beam_search(model, image, **shared))
    assert (written.ended | (written.scores == -math.inf)).all()


def test_must_end_with_constraints_raises():
    with pytest.raises(ValueError, match="must_end: captions under constraints"):
        Beam(TableModel(), constraints=Constraints(min_length=1), must_end=True)


def test_beam_wider_than_the_number_of_captions():
    """Returns all captions of a vocabulary of two ids; the other places score -inf."""
    model = TableModel(vocab_size=2)
    written = Beam(model, beam=9, num_return=9, max_length=3).run()
    assert_same(written, 0, all_captions(model, 0, max_length=3))
    assert (written.scores[0, 4:] == -math.inf).all()


@pytest.mark.parametrize("beam", [1, 2, 7])
def test_max_length_of_one(beam):
    model = TableModel(images=3, vocab_size=5)
    written = Beam(model, beam=beam, num_return=beam, max_length=1).run()
    for image in range(3):
        assert_same(written, image, all_captions(model, image, max_length=1)[:beam])
    assert (written.ended == (written.words[..., 0] == 0)).reshape(-1)[: 3 * min(beam, 5)].all()


def test_vocabulary_of_only_the_boundary():
    """Its only caption is empty."""
    written = Beam(PositionModel([0.5]), beam=2, num_return=2, max_length=3).run()
    assert written.scores.tolist() == [[0.0, -math.inf]]
    assert written.lengths[0, 0] == 0


def test_beam_of_one_equals_greedy_search():
    model = TableModel(images=40, vocab_size=6, seed=5)
    beam, greedy = Beam(model, beam=1, max_length=6).run(), Greedy(model, max_length=6).run()
    np.testing.assert_array_equal(beam.words, greedy.words)
    np.testing.assert_allclose(beam.scores, greedy.scores, rtol=1e-6)


def test_no_images():
    written = Beam(TableModel(images=0), beam=3, num_return=2, max_length=5).run().check()
    assert written.words.shape == (0, 2, 5)
    assert written.scores.shape == (0, 2)


def test_search_can_run_again_on_other_images():
    model = TableModel(images=2, seed=1)
    search = Beam(model, beam=3, num_return=3, max_length=5)
    first = search.run()
    model.first = 10
    second = search.run()
    model.first = 0
    third = search.run()
    np.testing.assert_array_equal(first.words, third.words)
    np.testing.assert_array_equal(first.word_log_probs, third.word_log_probs)
    fresh = Beam(TableModel(images=2, seed=1, first=10), beam=3, num_return=3, max_length=5).run()
    np.testing.assert_array_equal(second.words, fresh.words)
    assert (first.words != second.words).any()


@pytest.mark.parametrize("required", [(), (2,), (2, 3)], ids=len)
def test_word_log_probs_equal_the_model(required):
    """They cover the words and the end token, and exclude constraints and diversity."""
    model = TableModel(images=3, vocab_size=6, seed=2)
    rules = Constraints(required=required, min_length=2, forbidden=[5])
    written = Beam(
        model, beam=6, num_return=6, groups=2, diversity=2.0, max_length=5, constraints=rules
    ).run()
    for image, rank in itertools.product(range(3), range(6)):
        if written.scores[image, rank] == -math.inf:
            continue
        words = written.words[image, rank].tolist()
        length = int(written.lengths[image, rank])
        for place in range(5):
            value = written.word_log_probs[image, rank, place].item()
            if place < length + int(written.ended[image, rank]):
                expected = model.log_probs(image, tuple(words[:place]))[words[place]]
                assert value == pytest.approx(expected, abs=1e-5)
            else:
                assert value == 0.0
        total = written.word_log_probs[image, rank].sum()
        assert written.log_probs[image, rank] == pytest.approx(total.item(), rel=1e-6)
        assert written.scores[image, rank] == pytest.approx(total.item(), rel=1e-5)


@pytest.mark.parametrize("diversity", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("required", [(), (2,)], ids=["free", "required"])
def test_groups_wider_than_the_vocabulary(diversity, required):
    """Empty places do not add to the diversity penalty of later groups."""
    model = TableModel(images=30, vocab_size=3, seed=9)
    rules = Constraints(required=required)
    shared = dict(beam=8, num_return=8, groups=2, max_length=4, diversity=diversity)
    written = Beam(model, constraints=rules, **shared).run()
    for image in range(30):
        assert_same(written, image, beam_search(model, image, rules=rules, **shared))


def test_dead_end_is_not_an_empty_caption():
    """The first group runs into a dead end; the second group's empty caption is kept."""
    model = PositionModel([1.0, 2.0, 0.0])
    rules = Constraints(bad_endings=[1, 2])
    written = Beam(
        model, beam=2, num_return=2, groups=2, diversity=5.0, max_length=2, constraints=rules
    ).run()
    assert written.scores[0, 0] == pytest.approx(1 - math.log(math.e + math.e**2 + 1))
    assert written.lengths[0, 0] == 0
    assert written.scores[0, 1] == -math.inf


def test_high_diversity_gives_distinct_first_words():
    """With a penalty above all score differences, each group starts with another word."""
    model = TableModel(images=5, vocab_size=8, seed=4)
    rules = Constraints(min_length=1)
    written = Beam(
        model, beam=4, num_return=4, groups=4, diversity=1e4, max_length=4, constraints=rules
    ).run()
    assert all(len(set(rows)) == 4 for rows in written.words[:, :, 0].tolist())


def test_duplicate_captions_of_groups_are_merged():
    model = TableModel(images=20, vocab_size=4, seed=6)
    written = Beam(model, beam=6, num_return=6, groups=3, diversity=0.0, max_length=4).run()
    for words, scores in zip(written.words.tolist(), written.scores.tolist(), strict=True):
        there = [tuple(w) for w, score in zip(words, scores, strict=True) if score > -math.inf]
        assert len(there) == len(set(there)) == 2  # all three groups find the same two


@pytest.mark.parametrize("images", [1, 500])
@pytest.mark.parametrize(
    "settings",
    [{}, {"constraints": Constraints(required=[2], no_repeat_ngram=2)}, {"groups": 2}],
    ids=["plain", "required", "groups"],
)
def test_results_do_not_depend_on_the_batch(images, settings):
    shared = dict(beam=4, num_return=4, max_length=5, **settings)
    together = Beam(TableModel(images=images, first=7), **shared).run()
    for image in range(0, images, 50):
        alone = Beam(TableModel(images=1, first=7 + image), **shared).run()
        np.testing.assert_array_equal(together.words[image], alone.words[0])
        np.testing.assert_array_equal(together.scores[image], alone.scores[0])
        np.testing.assert_array_equal(together.word_log_probs[image], alone.word_log_probs[0])


def test_images_may_end_at_different_steps():
    """Each image gets the caption that it would get alone."""
    eager = [[9.0, 0.0, 0.0]]
    slow = [[-9.0, 1.0, 0.0]] * 9 + [[9.0, 0.0, 0.0]]

    class TwoImages(PositionModel):
        def step(self, words, parents):
            logits = super().step(words)
            logits[0] = self.convert(np.array(eager[0], "f4"))
            return logits

    written = Beam(TwoImages(slow, images=2), beam=2, max_length=12).run()
    assert written.lengths.tolist() == [[0], [9]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam": 0}, "beam: 0"),
        ({"num_return": 0}, "num_return: 0"),
        ({"beam": 2, "num_return": 3}, "num_return: 3 .* beam of 2"),
        ({"beam": 4, "groups": 3}, "groups: 3 does not divide beam: 4"),
        ({"groups": 0}, "groups: 0"),
        ({"max_length": 0}, "max_length: 0"),
        ({"length_penalty": math.nan}, "length_penalty: nan"),
        ({"length_penalty": math.inf}, "length_penalty: inf"),
        ({"diversity": -1.0}, "diversity: -1.0"),
        ({"diversity": math.nan}, "diversity: nan"),
    ],
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        Beam(TableModel(), **settings)
