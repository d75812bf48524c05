"""The searches in numpy against those in torch, over tables in the place of models."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ngsan.config import DecodingConfig
from ngsan.decoding import randomness as torch_randomness
from ngsan.light.captioner import build_search
from ngsan.light.randomness import uniforms
from ngsan.light.search import Beam, best_of
from ngsan.light.walks import Greedy, _keep_best
from ngsan.predict import build_search as build_torch_search
from ngsan.text.vocabulary import UNKNOWN, Vocabulary
from tests.decoding.models import PositionModel, TableModel

WORDS = ["a", "of", "the", "dog", "cat", "runs", "red", "on", "grass", UNKNOWN]
VOCABULARY = Vocabulary(WORDS)


class Adapted:
    """A model of torch's searches as the ones in numpy see it."""

    def __init__(self, model):
        self.model, self.images, self.vocab_size = model, model.images, model.vocab_size

    def first(self, captions):
        self.model.start(captions, 10**6)
        return self.model.step(torch.zeros(self.images, captions, dtype=torch.long)).numpy()

    def step(self, words, parents):
        self.model.reorder(torch.from_numpy(parents.copy()))
        return self.model.step(torch.from_numpy(words.copy())).numpy()


def table(images=2, seed=0, scale=1.5, first=0, vocabulary=VOCABULARY):
    return TableModel(
        images=images, vocab_size=len(vocabulary), seed=seed, scale=scale, first=first
    )


def random_decoding(random):
    """Any settings at all, but for those that are refused."""

    def words(most, of):
        return " ".join(random.choice(of, random.integers(0, most + 1), replace=False))

    longest = int(random.integers(1, 9))
    beam = int(random.integers(1, 7))
    return DecodingConfig(
        method=str(random.choice(["beam", "beam", "beam", "greedy", "sample"])),
        longest=longest,
        fewest=int(random.choice([0, 0, random.integers(0, longest + 1)])),
        beam=beam,
        best=int(random.integers(1, beam + 1)),
        length_penalty=float(random.choice([0.0, 0.0, 0.7, 1.0, 2.0, -0.5])),
        early_stopping=bool(random.integers(2)),
        samples=int(random.choice([1, 3, 40])),
        temperature=float(random.choice([0.3, 1.0, 1.0, 2.5])),
        top_k=int(random.choice([0, 0, 1, 3, 100])),
        top_p=float(random.choice([1.0, 1.0, 0.8, 0.2])),
        seed=int(random.integers(-(2**62), 2**62)),
        no_repeat=int(random.choice([0, 0, 1, 2, 3])),
        no_bad_ending=bool(random.integers(2)),
        unknown=bool(random.integers(2)),
        forbid=str(random.choice(["", words(3, WORDS[:9])])),
        prefix=str(random.choice(["", "", words(min(2, longest), WORDS[:9])])),
    )


def assert_same(ours, theirs):
    """The same captions in the same order, wherever there are any."""
    scores = theirs.scores.numpy()
    np.testing.assert_allclose(ours.scores, scores, atol=1e-5)
    real = ~np.isneginf(scores)
    np.testing.assert_array_equal(ours.words[real], theirs.words.numpy()[real])
    log_probs = theirs.word_log_probs.numpy()[real]
    np.testing.assert_allclose(ours.word_log_probs[real], log_probs, atol=1e-5)


@pytest.mark.parametrize("block", range(4))
def test_random_settings_give_what_torch_gives(block):
    refused = 0
    for seed in range(block * 40, block * 40 + 40):
        random = np.random.default_rng(seed)
        decoding, scale = random_decoding(random), random.choice([0.5, 1.5, 4.0])
        models = [table(int(random.integers(1, 4)), seed, scale)]
        models.append(table(models[0].images, seed, scale))
        theirs = build_torch_search(models[0], decoding, VOCABULARY).run()
        ours = build_search(Adapted(models[1]), decoding, VOCABULARY).run()
        assert_same(ours, theirs)
        try:
            theirs.check()
        except ValueError as error:
            refused += 1
            with pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
                ours.check()
        else:
            ours.check()
    assert refused < 15, "most settings must have captions"


@pytest.mark.parametrize("beam", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_large_vocabulary(beam, penalty):
    # Far more words than are looked at one by one.
    decoding = DecodingConfig(beam=beam, best=beam, longest=6, length_penalty=penalty)
    vocabulary = Vocabulary([f"word{index}" for index in range(2000)])
    ours = build_search(
        Adapted(table(2, 5, 3.0, vocabulary=vocabulary)), decoding, vocabulary
    ).run()
    theirs = build_torch_search(table(2, 5, 3.0, vocabulary=vocabulary), decoding, vocabulary).run()
    assert_same(ours, theirs)


def test_other_images_do_not_matter():
    for method in ("beam", "sample"):
        decoding = DecodingConfig(method=method, best=3, samples=3, longest=7)
        whole = build_search(Adapted(table(4, 3)), decoding, VOCABULARY).run()
        for image in range(4):
            alone = Adapted(table(1, 3, first=image))
            found = build_search(alone, decoding, VOCABULARY, first=image).run()
            np.testing.assert_array_equal(found.words[0], whole.words[image])
            np.testing.assert_array_equal(found.scores[0], whole.scores[image])


@pytest.mark.parametrize("seed", range(20))
def test_ties_have_the_scores_that_torch_finds(seed):
    # Whole numbers for logits, which depend on nothing but the position: whichever of equal
    # captions a search follows, it comes to the same scores. Only the end has no equals.
    logits = np.random.default_rng(seed).integers(0, 3, (5, 80)).astype("f4")
    logits[:, 0] += 0.5
    decoding = DecodingConfig(beam=4, best=4, longest=5, length_penalty=seed % 2)
    vocabulary = Vocabulary([f"word{index}" for index in range(79)])
    models = [PositionModel(logits, images=2) for _ in range(2)]
    theirs = build_torch_search(models[0], decoding, vocabulary).run()
    ours = build_search(Adapted(models[1]), decoding, vocabulary).run()
    np.testing.assert_allclose(ours.scores, theirs.scores.numpy(), atol=1e-5)
    for captions in ours.words:
        assert len(np.unique(captions, axis=0)) == 4


def test_of_equals_the_first_are_taken():
    logits = np.zeros(200, "f4")
    logits[0] = -1e4
    found = Beam(Adapted(PositionModel(logits)), beam=3, best=3, longest=2).run()
    assert found.words[0].tolist() == [[1, 1], [1, 2], [1, 3]]
    assert Greedy(Adapted(PositionModel(logits)), longest=2).run().words[0].tolist() == [[1, 1]]


numbers = st.one_of(st.integers(-3, 3).map(float), st.just(-math.inf))


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 400)), elements=numbers),
    st.integers(1, 9),
)
def test_best_of_is_a_sort(values, count):
    places, best = best_of(values, count)
    for row, place, found in zip(values.tolist(), places.tolist(), best.tolist(), strict=True):
        real = [(-value, index) for index, value in enumerate(row) if value > -math.inf]
        wanted = sorted(real)[:count]
        none = count - len(wanted)
        assert place == [index for _, index in wanted] + [0] * none
        assert found == [-value for value, _ in wanted] + [-math.inf] * none


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 30)), elements=numbers),
    st.integers(1, 30),
)
def test_keep_best_is_a_sort(values, count):
    count = min(count, values.shape[1])
    kept = values.copy()
    _keep_best(kept, np.full(len(values), count))
    for row, found in zip(values.tolist(), kept.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda index: (-row[index], index))[:count]
        wanted = [row[index] if index in order else -math.inf for index in range(len(row))]
        assert found == wanted


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_random_numbers_are_torchs_bit_for_bit(integers):
    wanted = torch_randomness.uniforms(*(torch.tensor(number) for number in integers))
    assert uniforms(*integers).tolist() == [wanted.item()]


def test_random_numbers_broadcast():
    keys, samples = np.arange(5)[:, None], np.arange(7)
    wanted = torch_randomness.uniforms(
        torch.tensor(-3), torch.from_numpy(keys), torch.from_numpy(samples), torch.tensor(2)
    )
    np.testing.assert_array_equal(uniforms(-3, keys, samples, 2), wanted.numpy())


def test_samples_follow_the_probabilities():
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], "f4"))
    decoding = DecodingConfig(method="sample", samples=4000, longest=1)
    search = build_search(Adapted(PositionModel(logits)), decoding, Vocabulary(["x", "y", "z"]))
    shares = np.bincount(search.run().words.ravel(), minlength=4) / 4000
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.3, 0.4], atol=0.03)


@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_no_caption_is_reported(method):
    # Three words must come, none of them twice, and there are two.
    decoding = DecodingConfig(
        method=method, longest=3, fewest=3, no_repeat=1, top_p=0.5, forbid=" ".join(WORDS[2:])
    )
    found = build_search(Adapted(table()), decoding, VOCABULARY).run()
    with pytest.raises(ValueError, match="for 2 of 2 images .the first is number 0."):
        found.check()


@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_numbers_are_reported(method, value):
    logits = torch.zeros(2, 1, len(VOCABULARY))
    logits[1, 0, 3] = value

    class Broken(PositionModel):
        def step(self, words):
            return logits.expand(2, words.shape[1], -1)

    search = build_search(
        Adapted(Broken(logits[0], images=2)), DecodingConfig(method=method), VOCABULARY
    )
    with pytest.raises(ValueError, match="1 of 2 images .the first is number 1. are no numbers"):
        search.run().check()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (dict(require="dog"), "require: 'dog' .* use the torch search"),
        (dict(beam=4, groups=2), "groups: 2 .* use the torch search"),
        (dict(forbid="zebra"), "forbid: 'zebra' is not a word of the model"),
        (dict(prefix=UNKNOWN), "prefix: '<unk>' may not be written unless unknown is true"),
        (dict(prefix="a dog runs", longest=2), "prefix: 3 words do not fit"),
        (dict(forbid=" ".join(WORDS), fewest=1), "every word is forbidden"),
        (dict(beam=1000, longest=2000), "more than 1,000,000 words"),
        (dict(length_penalty=1000.0), "length_penalty: 1000.0 is too extreme"),
        (dict(length_penalty=math.nan), "length_penalty: nan is not finite"),
        (dict(method="sample", seed=2**63), "seed: .* does not fit into 64 bits"),
    ],
)
def test_refusals(keys, message):
    with pytest.raises(ValueError, match=message):
        build_search(Adapted(table()), DecodingConfig(**keys), VOCABULARY)


def test_groups_are_of_no_concern_to_other_methods():
    decoding = DecodingConfig(method="greedy", beam=4, groups=2)
    assert_same(
        build_search(Adapted(table()), decoding, VOCABULARY).run(),
        build_torch_search(table(), decoding, VOCABULARY).run(),
    )
