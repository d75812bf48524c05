"""Rewards on word ids against the COCO tools and plain counting."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocoevalcap.bleu.bleu_scorer import BleuScorer
from pycocoevalcap.cider.cider_scorer import CiderScorer

import ngsan.metrics.reward as reward_module
import ngsan.metrics.reward_references as references_module
from ngsan.metrics.reward import (
    Bleu4Reward,
    CiderDReward,
    MixedReward,
    References,
)

BOUNDARY = 0
END = "<end>"


def sentence(words, *, end):
    """A caption as the COCO tools expect it."""
    return " ".join([*(f"w{word}" for word in words), *([END] if end else [])])


def tools_cider(hypotheses, references, *, end):
    """CIDEr-D of the tools, one caption an image; `hypotheses` are (words, ended)."""
    scorer = CiderScorer()
    for (words, ended), others in zip(hypotheses, references, strict=True):
        scorer += (
            sentence(words, end=end and ended),
            [sentence(other, end=end) for other in others],
        )
    scorer.compute_doc_freq()
    return np.array(scorer.compute_cider())


def tools_bleu(hypotheses, references, *, end):
    scorer = BleuScorer()
    for (words, ended), others in zip(hypotheses, references, strict=True):
        scorer += (
            sentence(words, end=end and ended),
            [sentence(other, end=end) for other in others],
        )
    return np.array(scorer.compute_score(option="closest")[1][3])


def ngrams(words, order):
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def plain_cider(words, references, split, *, sigma=6.0):
    """CIDEr-D from its definition; every argument is lists of words that count."""

    def vector(caption, order):
        return {
            ngram: count
            * math.log(
                len(split)
                / max(1, sum(any(ngram in ngrams(ref, order) for ref in refs) for refs in split))
            )
            for ngram, count in ngrams(caption, order).items()
        }

    total = 0.0
    for reference in references:
        gap = max(len(words) - 1, 0) - max(len(reference) - 1, 0)
        for order in (1, 2, 3, 4):
            ours, theirs = vector(words, order), vector(reference, order)
            lengths = math.hypot(*ours.values()) * math.hypot(*theirs.values())
            if lengths:
                common = sum(min(ours[k], theirs[k]) * theirs[k] for k in ours.keys() & theirs)
                total += common / lengths * math.exp(-(gap**2) / (2 * sigma**2))
    return 10 * total / 4 / len(references)


def as_tensor(hypotheses, max_length, *, junk=0):
    """Pads captions with arbitrary words after the boundary, which must not matter."""
    rows = []
    for words, ended in hypotheses:
        row = [*words, *([BOUNDARY] if ended else [])]
        rows.append(row + [junk] * (max_length - len(row)))
    return torch.tensor(rows)


def random_images(seed, images, *, vocab_size, max_length=12, most=7):
    """References of images, and a caption that shares words with them."""
    rng = np.random.default_rng(seed)
    references, hypotheses = [], []
    for _ in range(images):
        words = rng.integers(1, vocab_size, size=rng.integers(2, 6))
        references.append(
            [
                rng.choice(words, size=rng.integers(0, max_length)).tolist()
                for _ in range(rng.integers(1, most + 1))
            ]
        )
        words = np.append(words, rng.integers(1, vocab_size))
        ended = bool(rng.integers(4))
        size = rng.integers(0, max_length) if ended else max_length
        hypotheses.append((rng.choice(words, size=size).tolist(), ended))
    return hypotheses, references


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize(("seed", "vocab_size"), [(0, 4), (1, 30), (2, 3000)])
def test_rewards_equal_the_coco_tools(seed, vocab_size, end):
    hypotheses, references = random_images(seed, 60, vocab_size=vocab_size)
    prepared = References.build(references, vocab_size=vocab_size, end=end)
    images = torch.arange(60)
    captions = as_tensor(hypotheses, 12, junk=1)
    cider = CiderDReward(prepared)(images, captions)
    bleu = Bleu4Reward(prepared)(images, captions)
    assert cider.dtype == bleu.dtype == torch.float32
    expected = tools_cider(hypotheses, references, end=end)
    np.testing.assert_allclose(cider, expected, rtol=0, atol=1e-5)
    assert expected.max() > 1
    expected = tools_bleu(hypotheses, references, end=end)
    np.testing.assert_allclose(bleu, expected, rtol=1e-4, atol=1e-7)
    mixed = MixedReward([(0.5, CiderDReward(prepared)), (2.0, Bleu4Reward(prepared))])
    torch.testing.assert_close(mixed(images, captions), 0.5 * cider + 2.0 * bleu)


WORDS = st.lists(st.integers(1, 3), max_size=7)
SPLIT = st.lists(st.lists(WORDS, min_size=1, max_size=3), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(SPLIT, SPLIT, st.lists(st.tuples(WORDS, st.booleans()), min_size=4, max_size=4), st.data())
def test_cider_d_is_its_definition(references, split, hypotheses, data):
    end, own = data.draw(st.booleans()), data.draw(st.booleans())
    sigma = data.draw(st.sampled_from([6.0, 2.0]))
    hypotheses = hypotheses[: len(references)]
    max_length = max(1, *(len(words) + ended for words, ended in hypotheses))
    hypotheses = [(words, ended or len(words) < max_length) for words, ended in hypotheses]
    options = {"vocab_size": 4, "end": end}
    reward = CiderDReward(
        References.build(references, **options),
        document_frequencies=None if own else References.build(split, **options).documents,
        sigma=sigma,
    )
    captions = as_tensor(hypotheses, max_length, junk=2)
    found = reward(torch.arange(len(hypotheses)), captions).tolist()

    def closed(words, ended=True):
        return [*words, *([BOUNDARY] if end and ended else [])]

    documents = [[closed(ref) for ref in refs] for refs in (references if own else split)]
    for value, (words, ended), refs in zip(found, hypotheses, references, strict=False):
        expected = plain_cider(
            closed(words, ended), [closed(ref) for ref in refs], documents, sigma=sigma
        )
        assert value == pytest.approx(expected, abs=1e-5)


def test_document_frequencies_of_another_split():
    _, split = random_images(3, 200, vocab_size=12)
    hypotheses, references = random_images(4, 20, vocab_size=12)
    documents = References.build(split, vocab_size=12, end=True).documents
    prepared = References.build(references, vocab_size=12, end=True)
    captions = as_tensor(hypotheses, 12)
    found = CiderDReward(prepared, document_frequencies=documents)(torch.arange(20), captions)
    scorer = CiderScorer()
    for others in split:
        scorer += ("", [sentence(other, end=True) for other in others])
    scorer.compute_doc_freq()
    # The tools count frequencies of all images so far, and N is the length of their list. So the
    # split comes first and stays in the list.
    for (words, ended), others in zip(hypotheses, references, strict=True):
        scorer += (
            sentence(words, end=ended),
            [sentence(other, end=True) for other in others],
        )
    scorer.crefs, scorer.ctest = scorer.crefs[20:], scorer.ctest[20:]
    np.testing.assert_allclose(found, scorer.compute_cider()[-20:], rtol=0, atol=1e-5)
    own = References.build(references, vocab_size=12, end=True).documents
    torch.testing.assert_close(
        CiderDReward(prepared, document_frequencies=own)(torch.arange(20), captions),
        CiderDReward(prepared)(torch.arange(20), captions),
    )


def test_equals_the_score_for_reports():
    cider = pytest.importorskip("ngsan.metrics.cider")
    captions_of = pytest.importorskip("ngsan.metrics.captions")
    hypotheses, references = random_images(5, 40, vocab_size=20)
    captions = captions_of.TokenizedCaptions(
        tuple(map(str, range(40))),
        tuple(tuple(f"w{word}" for word in words) for words, _ in hypotheses),
        tuple(tuple(tuple(f"w{w}" for w in ref) for ref in refs) for refs in references),
    )
    ended = [(words, True) for words, _ in hypotheses]
    for end in (False, True):
        metric = cider.CiderD(end=end)
        expected = metric.score(metric.statistics(captions))[:, 0]
        prepared = References.build(references, vocab_size=20, end=end)
        found = CiderDReward(prepared)(torch.arange(40), as_tensor(ended, 13))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("reward", [CiderDReward, Bleu4Reward])
@pytest.mark.parametrize("most", [1, 3000, 20_000])
def test_scores_do_not_depend_on_batching(monkeypatch, reward, most):
    """Rewards do not depend on the other captions or on the block size."""
    hypotheses, references = random_images(6, 30, vocab_size=8)
    score = reward(References.build(references, vocab_size=8, end=True))
    captions = as_tensor(hypotheses, 12)
    images = torch.tensor([4, 0, 4, 29, 7])
    samples = captions[torch.randint(30, (5, 6), generator=torch.Generator().manual_seed(0))]
    expected = torch.stack([score(images, samples[:, i]) for i in range(6)], dim=1)
    monkeypatch.setattr(reward_module, "MAX_ELEMENTS", most)
    found = score(images, samples)
    assert found.shape == (5, 6)
    torch.testing.assert_close(found, expected)
    longer = torch.nn.functional.pad(samples, (0, 5), value=BOUNDARY)
    closed = (samples == BOUNDARY).any(-1)
    torch.testing.assert_close(score(images, longer)[closed], expected[closed])


@pytest.mark.parametrize("block", [1, 7, 100])
def test_norms_do_not_depend_on_the_block(monkeypatch, block):
    _, references = random_images(10, 15, vocab_size=8)
    prepared = References.build(references, vocab_size=8, end=False)
    idf = prepared.documents.inverse_frequencies()
    monkeypatch.setattr(references_module, "_BLOCK", block)
    found = prepared.squared_norms(idf)
    captions = [caption for one in references for caption in one]
    documents = [
        {ngram for ref in one for n in (1, 2, 3, 4) for ngram in ngrams(ref, n)}
        for one in references
    ]
    for caption, row in zip(captions, found, strict=True):
        for order in (1, 2, 3, 4):
            expected = sum(
                (count * math.log(15 / sum(ngram in one for one in documents))) ** 2
                for ngram, count in ngrams(caption, order).items()
            )
            assert row[order - 1].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_ids_of_any_integer_type_and_layout():
    """Ids of n-grams go far beyond 16 bits, whatever the captions come in."""
    hypotheses, references = random_images(9, 60, vocab_size=20_000)
    reward = CiderDReward(References.build(references, vocab_size=20_000, end=True))
    captions, images = as_tensor(hypotheses, 12), torch.arange(60)
    expected = reward(images, captions)
    for kind in (torch.int16, torch.int32):
        torch.testing.assert_close(reward(images.int(), captions.to(kind)), expected)
    columns = captions.T.contiguous().T
    torch.testing.assert_close(reward(images, columns), expected)


@pytest.mark.parametrize("end", [False, True])
def test_captions_of_extreme_length(end):
    """Empty, one word, one repeated word, longer than all references."""
    hypotheses = [([], True), ([1], False), ([1] * 9, True), ([2, 1] * 20, True), ([3], True)]
    references = [
        [[1, 2]],
        [[1]],
        [[1, 1, 1, 2], [1, 1]],
        [[2, 1, 2, 1]] * 7,
        [[], [3]],
    ]
    prepared = References.build(references, vocab_size=5, end=end)
    for (words, ended), image in zip(hypotheses, torch.arange(5), strict=True):
        caption = as_tensor([(words, ended)], len(words) + ended)
        others = [(words, ended) if i == image else ([], True) for i in range(5)]
        for reward, tools in ((CiderDReward, tools_cider), (Bleu4Reward, tools_bleu)):
            found = reward(prepared)(image.view(1), caption)
            expected = tools(others, references, end=end)[image]
            assert found.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("references", [[[[]]], [[[], []], [[]]], [[[1]], [[1]]]])
def test_references_without_words(references):
    prepared = References.build(references, vocab_size=3, end=False)
    captions = torch.tensor([[1, 1, 0], [0, 0, 0]])[: len(references)]
    images = torch.arange(len(references))
    assert CiderDReward(prepared)(images, captions).tolist() == [0.0] * len(references)
    assert Bleu4Reward(prepared)(images, captions).isfinite().all()


def test_ngrams_of_every_image_have_no_weight():
    """Not even a rounding error, which the cosine would scale up."""
    for images in [*range(1, 40), 1001, 113_287]:
        prepared = References.build([[[1, 2]]] * images, vocab_size=3, end=True)
        found = CiderDReward(prepared)(torch.zeros(1, dtype=torch.long), torch.tensor([[1, 2, 0]]))
        assert found.item() == 0, images


def test_counts_above_255():
    references = [[[1] * 300 + [2]], [[2]]]
    prepared = References.build(references, vocab_size=3, end=False)
    hypotheses = [([1] * 280, True), ([2], True)]
    found = CiderDReward(prepared)(torch.arange(2), as_tensor(hypotheses, 281))
    expected = tools_cider(hypotheses, references, end=False)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_nothing_is_read_back_from_the_device():
    """A tensor without values has nothing to read, and any attempt to do so fails."""
    _, references = random_images(7, 10, vocab_size=8)
    prepared = References.build(references, vocab_size=8, end=True)
    reward = MixedReward([(1.0, CiderDReward(prepared)), (1.0, Bleu4Reward(prepared))])
    reward = reward.to("meta")
    captions = torch.zeros(3, 5, 9, dtype=torch.long, device="meta")
    images = torch.zeros(3, dtype=torch.long, device="meta")
    found = reward(images, captions)
    assert found.shape == (3, 5)
    assert found.device.type == "meta"


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # a prototype feature
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu_without_synchronisation_and_in_a_graph():
    hypotheses, references = random_images(8, 50, vocab_size=20)
    captions, images = as_tensor(hypotheses, 12), torch.arange(50)
    prepared = References.build(references, vocab_size=20, end=True)
    expected = MixedReward([(1.0, CiderDReward(prepared)), (1.0, Bleu4Reward(prepared))])(
        images, captions
    )
    prepared = References.build(references, vocab_size=20, end=True, device="cuda")
    reward = MixedReward([(1.0, CiderDReward(prepared)), (1.0, Bleu4Reward(prepared))])
    captions, images = captions.cuda(), images.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = reward(images, captions)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-5)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = reward(images, captions)
    graph.replay()
    torch.testing.assert_close(captured, found)


@pytest.mark.parametrize(
    ("captions", "options", "says"),
    [
        ([], {}, "no images"),
        ([[[1]], []], {}, "image 1 has no reference"),
        ([[[1, 9]]], {}, "from 1 to 9.*vocab_size 5"),
        ([[[1, -2]]], {}, "from -2 to 1"),
        ([[[1, 0]]], {}, "contains the boundary, 0"),
        ([[[1]]], {"boundary": 5}, "boundary 5"),
    ],
)
def test_invalid_references(captions, options, says):
    with pytest.raises(ValueError, match=says):
        References.build(captions, vocab_size=5, end=True, **options)


def test_invalid_calls():
    prepared = References.build([[[1]]], vocab_size=5, end=True)
    reward = CiderDReward(prepared)
    image = torch.zeros(1, dtype=torch.long)
    with pytest.raises(ValueError, match=r"images \(1,\) and captions \(2, 3\)"):
        reward(image, torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="are empty"):
        reward(image, torch.zeros(1, 2, 0, dtype=torch.long))
    with pytest.raises(ValueError, match="sigma must be above 0"):
        CiderDReward(prepared, sigma=0)
    with pytest.raises(ValueError, match="end False"):
        CiderDReward(
            prepared,
            document_frequencies=References.build([[[1]]], vocab_size=5, end=False).documents,
        )
    with pytest.raises(ValueError, match="at least one part"):
        MixedReward([])
    other = References.build([[[1]]], vocab_size=5, end=True)
    with pytest.raises(ValueError, match="share one References"):
        MixedReward([(1.0, reward), (1.0, Bleu4Reward(other))])


@pytest.mark.parametrize(
    ("images", "captions", "message"),
    [
        ([-1], [[1, 2]], "image -1 is out of range: 0 to 0"),
        ([1], [[1, 2]], "image 1 is out of range: 0 to 0"),
        ([0], [[1, 7]], "word 7 is out of range: 0 to 4"),
        ([0], [[1.5, 2.0]], "captions must be integer ids"),
    ],
)
def test_out_of_range_ids_are_rejected(images, captions, message):
    reward = CiderDReward(References.build([[[2, 1, 3, 4]]], vocab_size=5, end=False))
    with pytest.raises(ValueError, match=message):
        reward(torch.tensor(images), torch.tensor(captions))
