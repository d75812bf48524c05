import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngsan.search import Beam, Constraints, Greedy, Sampling
from tests.search.models import PositionModel, TableModel
from tests.search.oracle import all_captions, allowed
from tests.search.test_beam import constraints


def captions_of(written):
    """The words of the found captions of each image."""
    return [
        [tuple(w[:n]) for w, n, s in zip(words, lengths, scores, strict=True) if s > -math.inf]
        for words, lengths, scores in zip(
            written.words.tolist(), written.lengths.tolist(), written.scores.tolist(), strict=True
        )
    ]


@settings(max_examples=75)
@given(rules=constraints(5, 5), seed=st.integers(0, 10**6))
def test_greedy_search_chooses_the_best_allowed_word(rules, seed):
    model = TableModel(vocab_size=5, seed=seed)
    written = Greedy(model, max_length=5, constraints=rules).run()
    words, total = (), 0.0
    while len(words) < 5:
        log_probs = model.log_probs(0, words)
        choices = [word for word in range(5) if allowed(words, word, rules, 5)]
        if not choices:
            assert written.scores[0, 0] == -math.inf  # a dead end
            return
        best = max(choices, key=lambda word: log_probs[word])
        total += log_probs[best]
        if best == 0:
            break
        words = (*words, best)
    assert captions_of(written) == [[words]]
    assert written.log_probs[0, 0].item() == pytest.approx(total, abs=1e-4)


@settings(max_examples=30)
@given(rules=constraints(4, 4), seed=st.integers(0, 10**6), top_p=st.sampled_from((1.0, 0.8)))
def test_samples_satisfy_the_constraints(rules, seed, top_p):
    model = TableModel(images=2, vocab_size=4, seed=seed)
    search = Sampling(
        model, samples=20, max_length=4, seed=seed, temperature=1.5, top_p=top_p, constraints=rules
    )
    for image, captions in enumerate(captions_of(search.run())):
        assert set(captions) <= {
            f.words for f in all_captions(model, image, max_length=4, rules=rules)
        }


SEARCHES = {
    "beam": lambda model, **rest: Beam(model, beam=3, num_return=3, **rest),
    "groups": lambda model, **rest: Beam(model, beam=4, num_return=4, groups=2, **rest),
    "greedy": Greedy,
    "sample": lambda model, **rest: Sampling(model, samples=5, **rest),
    "top-p": lambda model, **rest: Sampling(model, samples=5, top_p=0.5, top_k=3, **rest),
}


@pytest.fixture(params=SEARCHES)
def search(request):
    return SEARCHES[request.param]


def test_forbidding_every_word_leaves_the_empty_caption(search):
    rules = Constraints(forbidden=[1, 2, 3])
    written = search(TableModel(images=3), max_length=4, constraints=rules).run().check()
    assert all(set(captions) == {()} for captions in captions_of(written))


def test_forbidding_every_word_with_min_length_raises(search):
    rules = Constraints(forbidden=[1, 2, 3], min_length=1)
    with pytest.raises(ValueError, match="every word is forbidden, .* min_length: 1"):
        search(TableModel(), max_length=4, constraints=rules)


def test_forbidding_every_word_leaves_the_prefix(search):
    rules = Constraints(forbidden=[1, 2, 3], min_length=2, prefix=[3, 3])
    written = search(TableModel(), max_length=4, constraints=rules).run().check()
    assert set(captions_of(written)[0]) == {(3, 3)}


@pytest.mark.parametrize(
    "rules",
    [
        Constraints(no_repeat_ngram=1, min_length=4),
        Constraints(bad_endings=[1, 2, 3], min_length=1),
        Constraints(bad_endings=[1, 2, 3], prefix=[1]),
        Constraints(required=[2], bad_endings=[2], forbidden=[1, 3]),
    ],
    ids=["no repeat", "bad endings", "bad endings after a prefix", "required"],
)
def test_unsatisfied_constraints_raise_in_check(search, rules):
    written = search(TableModel(images=2), max_length=5, constraints=rules).run()
    assert (written.scores == -math.inf).all()
    with pytest.raises(ValueError, match="no caption .* for 2 of 2 images .* number 0"):
        written.check()


def test_check_names_the_first_image_without_captions():
    """One of three images gives a required word a logit of -inf."""

    class PartlyImpossible(TableModel):
        def step(self, words, parents):
            logits = super().step(words, parents)
            logits[1, :, 3] = -math.inf
            return logits

    written = Beam(
        PartlyImpossible(images=3), max_length=4, constraints=Constraints(required=[3])
    ).run()
    with pytest.raises(ValueError, match="for 1 of 3 images .* number 1"):
        written.check()
    assert (written.scores[0] > -math.inf).all()
    assert (written.scores[2] > -math.inf).all()


def test_improbable_required_word_is_included(search):
    """At the last possible place, only the required word is allowed."""
    logits = [0.0, 9.0, 1.0, -30.0]
    rules = Constraints(required=[3])
    written = search(PositionModel(logits, images=2), max_length=6, constraints=rules).run().check()
    assert all(3 in caption for captions in captions_of(written) for caption in captions)


def test_min_length_equal_to_max_length(search):
    rules = Constraints(min_length=4)
    written = search(TableModel(images=3), max_length=4, constraints=rules).run().check()
    assert (written.lengths == 4).all()
    assert not written.ended.any()


IMPOSSIBLE = [
    (Constraints(min_length=5), "min_length: 5 .* max_length: 4"),
    (Constraints(min_length=-1), "min_length: -1"),
    (Constraints(no_repeat_ngram=-2), "no_repeat_ngram: -2"),
    (Constraints(forbidden=[4]), "forbidden: word 4"),
    (Constraints(required=[-1]), "required: word -1"),
    (Constraints(prefix=[7]), "prefix: word 7"),
    (Constraints(bad_endings=[9]), "bad_endings: word 9"),
    (Constraints(forbidden=[0]), "forbidden: 0 is the boundary"),
    (Constraints(required=[0]), "required: 0 is the boundary"),
    (Constraints(prefix=[0]), "prefix: 0 is the boundary"),
    (Constraints(prefix=[1, 1, 1, 1, 1]), "prefix: 5 words .* at most 4"),
    (Constraints(required=[1, 2], forbidden=[2, 3]), "word 2 is both forbidden and required"),
    (Constraints(required=[1, 2, 3], prefix=[1, 1, 1]), "required: 2 words .* prefix of 3"),
]


def test_impossible_constraints_raise(search):
    for rules, message in IMPOSSIBLE:
        with pytest.raises(ValueError, match=message):
            search(TableModel(vocab_size=4), max_length=4, constraints=rules)


def test_too_many_required_words_raise():
    rules = Constraints(required=[1, 2, 3])
    with pytest.raises(ValueError, match="required: 3 words do not fit into captions of at most 2"):
        Beam(TableModel(), max_length=2, constraints=rules)


def test_required_words_may_fill_the_caption(search):
    rules = Constraints(required=[1, 2, 3])
    written = search(TableModel(images=2), max_length=3, constraints=rules).run().check()
    assert all(
        sorted(caption) == [1, 2, 3] for captions in captions_of(written) for caption in captions
    )
