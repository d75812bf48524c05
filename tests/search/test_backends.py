"""The NumPy and torch backends give equal results, also for ties."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ngsan.config import DecodingConfig
from ngsan.search import Beam, Greedy, Sampling, build_search
from ngsan.search.numpy_ops import NumpyOps
from ngsan.search.sampling import random_bits
from ngsan.search.torch_ops import TorchOps
from ngsan.text.vocabulary import UNKNOWN, Vocabulary
from tests.search.models import PositionModel, TableModel

WORDS = ["a", "of", "the", "dog", "cat", "runs", "red", "on", "grass", UNKNOWN]
VOCABULARY = Vocabulary(WORDS)
BOTH_BACKENDS = pytest.mark.parametrize("backend", ["both"], indirect=True)


def table(images=2, seed=0, scale=1.5, first=0, vocabulary=VOCABULARY, backend=None):
    return TableModel(
        images=images,
        vocab_size=len(vocabulary),
        seed=seed,
        scale=scale,
        first=first,
        backend=backend,
    )


def random_decoding(random):
    """Random valid settings."""

    def words(max_count, choices):
        return " ".join(random.choice(choices, random.integers(0, max_count + 1), replace=False))

    max_length = int(random.integers(1, 9))
    beam = int(random.integers(1, 7))
    method = str(random.choice(["beam", "beam", "beam", "greedy", "sample"]))
    several = [1, 3, 40] if method == "sample" else range(1, beam + 1)
    return DecodingConfig(
        method=method,
        max_length=max_length,
        min_length=int(random.choice([0, 0, random.integers(0, max_length + 1)])),
        beam=beam,
        num_return=int(random.choice(several)),
        length_penalty=float(random.choice([0.0, 0.0, 0.7, 1.0, 2.0, -0.5])),
        early_stopping=bool(random.integers(2)),
        temperature=float(random.choice([0.3, 1.0, 1.0, 2.5])),
        top_k=int(random.choice([0, 0, 1, 3, 100])),
        top_p=float(random.choice([1.0, 1.0, 0.8, 0.2])),
        seed=int(random.integers(-(2**62), 2**62)),
        no_repeat_ngram=int(random.choice([0, 0, 1, 2, 3])),
        no_bad_ending=bool(random.integers(2)),
        allow_unknown=bool(random.integers(2)),
        forbid=str(random.choice(["", words(3, WORDS[:9])])),
        prefix=str(random.choice(["", "", words(min(2, max_length), WORDS[:9])])),
        require=str(random.choice(["", "", "", words(min(2, max_length), WORDS[:9])])),
        groups=int(random.choice([1, 1, beam])),
    )


def assert_same(ours, theirs):
    """Asserts the same captions in the same order, ignoring empty places."""
    scores = theirs.scores.numpy()
    np.testing.assert_allclose(ours.scores, scores, atol=1e-5)
    real = ~np.isneginf(scores)
    np.testing.assert_array_equal(ours.words[real], theirs.words.numpy()[real])
    log_probs = theirs.word_log_probs.numpy()[real]
    np.testing.assert_allclose(ours.word_log_probs[real], log_probs, atol=1e-5)


def message(written):
    try:
        written.check()
    except ValueError as error:
        return str(error)
    return None


@BOTH_BACKENDS
def test_backends_agree_for_random_settings():
    failed = tried = 0
    for seed in range(160):
        random = np.random.default_rng(seed)
        decoding, scale = random_decoding(random), random.choice([0.5, 1.5, 4.0])
        images, found = int(random.integers(1, 4)), []
        for backend in ("numpy", "torch"):
            model = table(images, seed, scale, backend=backend)
            try:
                found.append(build_search(model, decoding, VOCABULARY).run())
            except ValueError as error:
                found.append(str(error))
        if isinstance(found[0], str):
            assert found[0] == found[1]
            continue
        assert_same(*found)
        assert message(found[0]) == message(found[1])
        tried, failed = tried + 1, failed + (message(found[0]) is not None)
    assert tried > 120
    assert failed < 20, "most settings must find captions"


@BOTH_BACKENDS
@pytest.mark.parametrize("beam", [1, 3, 8, 20])
def test_large_vocabulary(beam):
    """A vocabulary far larger than the number of candidates."""
    vocabulary = Vocabulary([f"word{index}" for index in range(2000)])
    for groups in (1, beam):
        decoding = DecodingConfig(
            beam=beam, num_return=beam, max_length=5, length_penalty=1.0, groups=groups
        )
        ours, theirs = (
            build_search(table(2, 5, 3.0, 0, vocabulary, backend), decoding, vocabulary).run()
            for backend in ("numpy", "torch")
        )
        assert_same(ours, theirs)


def test_results_do_not_depend_on_the_batch():
    for method in ("beam", "sample"):
        decoding = DecodingConfig(method=method, num_return=3, max_length=7)
        whole = build_search(table(4, 3), decoding, VOCABULARY).run()
        for image in range(4):
            alone = table(1, 3, first=image)
            found = build_search(alone, decoding, VOCABULARY, first=image).run()
            np.testing.assert_array_equal(found.words[0], whole.words[image])
            np.testing.assert_array_equal(found.scores[0], whole.scores[image])


@BOTH_BACKENDS
def test_backends_break_ties_alike():
    """Integer logits that depend only on the position, so that most are equal."""
    for seed in range(20):
        logits = np.random.default_rng(seed).integers(0, 3, (5, 400 if seed % 2 else 6))
        ours, theirs = (
            Beam(
                PositionModel(logits.astype("f4"), images=2, backend=backend),
                beam=4,
                num_return=4,
                max_length=5,
                length_penalty=seed % 3,
            ).run()
            for backend in ("numpy", "torch")
        )
        assert_same(ours, theirs)


@pytest.mark.parametrize("vocab_size", [20, 200, 5000])
def test_ties_go_to_the_first(vocab_size):
    """Lowest caption index first, then lowest word id."""
    logits = np.zeros(vocab_size, "f4")
    logits[0] = -1e4
    found = Beam(PositionModel(logits), beam=3, num_return=3, max_length=2).run()
    assert found.words[0].tolist() == [[1, 1], [1, 2], [1, 3]]
    assert Greedy(PositionModel(logits), max_length=2).run().words[0].tolist() == [[1, 1]]
    kept = Sampling(PositionModel(logits), samples=30, top_k=2, max_length=1).run().words
    assert set(kept.reshape(-1).tolist()) == {1, 2}


numbers = st.one_of(st.integers(-3, 3).map(float), st.just(-math.inf))
shapes = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 1200))
tables = arrays.arrays(np.float32, shapes, elements=numbers)


@BOTH_BACKENDS
@pytest.mark.parametrize("ops", [NumpyOps(), TorchOps(torch.device("cpu"))])
@given(tables, st.integers(1, 9))
@settings(max_examples=30)
def test_top_equals_a_stable_sort(ops, values, count):
    count = min(count, values.shape[-1])
    given = values if isinstance(ops, NumpyOps) else torch.from_numpy(values)
    best, places = (np.asarray(part) for part in ops.top(given, count))
    wanted = np.argsort(-values, kind="stable")[..., :count]
    highest = np.take_along_axis(values, wanted, -1)
    np.testing.assert_array_equal(best, highest)
    real = highest > -np.inf
    np.testing.assert_array_equal(places[real], wanted[real])
    assert (places < values.shape[-1]).all()
    np.testing.assert_array_equal(ops.kth(given, count), highest[..., -1:])


@BOTH_BACKENDS
@pytest.mark.parametrize("ops", [NumpyOps(), TorchOps(torch.device("cpu"))])
def test_top_equals_a_stable_sort_for_few_high_values(ops):
    """Equal values far apart, among lower ones."""
    for seed in range(30):
        random = np.random.default_rng(seed)
        values = np.full((2, 1, 5000), -9.0, "f4")
        values[:, :, random.integers(0, 5000, 12)] = random.integers(0, 3, 12)
        given = values if isinstance(ops, NumpyOps) else torch.from_numpy(values)
        _, places = ops.top(given, 6)
        wanted = np.argsort(-values, kind="stable")[..., :6]
        np.testing.assert_array_equal(places, wanted)


@BOTH_BACKENDS
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_random_bits_are_equal_in_both_backends(integers):
    ours = random_bits(*(np.array([number]) for number in integers))
    theirs = random_bits(*(torch.tensor([number]) for number in integers))
    assert ours.tolist() == theirs.tolist()


@BOTH_BACKENDS
def test_numpy_search_does_not_import_torch():
    program = """
import sys
import numpy as np
from ngsan.search import Beam

class Model:
    images, vocab_size, device = 1, 4, None
    def start(self, rows, max_length): pass
    def step(self, words, parents): return np.zeros((*words.shape, 4), "f4")

Beam(Model(), groups=3).run().check()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_missing_captions_raise(method):
    # Three distinct words are required, and only two are allowed.
    decoding = DecodingConfig(
        method=method,
        max_length=3,
        min_length=3,
        no_repeat_ngram=1,
        top_p=0.5,
        forbid=" ".join(WORDS[2:]),
    )
    found = build_search(table(), decoding, VOCABULARY).run()
    with pytest.raises(ValueError, match="for 2 of 2 images .the first is number 0."):
        found.check()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (dict(forbid="zebra"), "forbid: 'zebra' is not a word of the model"),
        (dict(require="a zebra"), "require: 'zebra' is not a word of the model"),
        (dict(require="a dog", forbid="dog"), "'dog' is in both forbid and require"),
        (dict(prefix=UNKNOWN), "prefix: '<unk>' is not allowed unless allow_unknown is true"),
        (dict(prefix="a dog runs", max_length=2), "prefix: 3 words do not fit"),
        (dict(forbid=" ".join(WORDS), min_length=1), "every word is forbidden"),
        (dict(beam=1000, max_length=2000), "more than 1,000,000 words"),
        (dict(length_penalty=1000.0), "length_penalty: 1000.0 is too extreme"),
        (dict(length_penalty=math.nan), "length_penalty: nan is not finite"),
        (dict(method="sample", seed=2**63), "seed: .* does not fit into 64 bits"),
    ],
)
def test_impossible_settings_raise(keys, message):
    with pytest.raises(ValueError, match=message):
        build_search(table(), DecodingConfig(**keys), VOCABULARY)
