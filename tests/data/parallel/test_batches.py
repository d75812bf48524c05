"""Token batches against brute force, and batches against the sentences."""

import itertools

import numpy as np
import pytest
import torch

from ngsan.data.parallel.batches import PairTable, TokenBatches, _best_widths
from ngsan.data.parallel.dataset import ParallelSplit
from ngsan.data.parallel.prepare import Split, prepare


def lengths(count=500, seed=0):
    generator = np.random.default_rng(seed)
    source = generator.integers(2, 60, count)
    return source, np.maximum(2, source + generator.integers(-9, 10, count))


def all_pairs(shares):
    return [int(index) for share in shares for index in share.indices if index >= 0]


@pytest.mark.parametrize(("tokens", "shapes"), [(80, 3), (256, 8), (1000, 1), (100_000, 5)])
def test_every_pair_occurs_once_per_epoch(tokens, shapes):
    source, target = lengths()
    batches = TokenBatches(source, target, tokens, shapes=shapes, seed=3)
    seen = set()
    for epoch in range(3):
        shares = list(batches.epoch(epoch))
        assert len(shares) == len(batches)
        assert sorted(all_pairs(shares)) == list(range(500))
        seen |= {(len(share.indices), share.width) for share in shares}
        # Only one batch of an epoch is not full.
        assert sum((share.indices < 0).any() for share in shares) <= 1
    assert seen <= {(shape.rows, shape.width) for shape in batches.shapes}
    assert len(batches.shapes) <= shapes
    max_length = np.maximum(source, target)
    for share in batches.epoch(0):
        real = share.indices[share.indices >= 0]
        assert max_length[real].max() <= share.width
        assert len(share.indices) * share.width <= tokens


def test_order_depends_on_seed_and_epoch():
    source, target = lengths()

    def order(seed, epoch, start=0, **options):
        batches = TokenBatches(source, target, 256, seed=seed, **options)
        return [share.indices.tolist() for share in batches.epoch(epoch, start)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    whole = order(1, 5)
    for start in (0, 1, 17, len(whole)):
        assert order(1, 5, start) == whole[start:]


@pytest.mark.parametrize("world", [2, 3, 8])
def test_processes_share_the_batches_of_one(world):
    source, target = lengths()
    one = [share.indices for share in TokenBatches(source, target, 700).epoch(2)]
    parts = [
        list(TokenBatches(source, target, 700, rank=rank, world_size=world).epoch(2))
        for rank in range(world)
    ]
    for whole, *shares in zip(one, *parts, strict=True):
        assert len({share.indices.shape for share in shares}) == 1
        assert sorted(all_pairs(shares)) == sorted(int(index) for index in whole if index >= 0)


@pytest.mark.parametrize("shapes", [1, 2, 3, 4])
def test_widths_minimize_padding(shapes):
    values = np.array([3, 3, 3, 5, 8, 8, 9, 14, 14, 20])
    found = _best_widths(values, shapes)

    def cost(widths):
        widths = sorted(widths)
        return sum(next(width for width in widths if width >= value) for value in values)

    distinct = [3, 5, 8, 9, 14]
    best = min(cost([*some, 20]) for some in itertools.combinations(distinct, shapes - 1))
    assert cost(found.tolist()) == best
    assert len(found) <= shapes


def test_batches_are_not_sorted_by_length():
    source, target = lengths(4000)
    widths = [share.width for share in TokenBatches(source, target, 256).epoch(0)]
    assert widths != sorted(widths)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 40}, "tokens: a batch of 40 words cannot hold the longest sentence"),
        ({"tokens": 400, "rank": 2}, "rank 2 is not one of 1"),
        ({"tokens": 400, "shapes": 0}, "0 shapes"),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(ValueError, match=message):
        TokenBatches(*lengths(), **options)
    with pytest.raises(ValueError, match="no pairs"):
        TokenBatches(np.zeros(0, int), np.zeros(0, int), 10)


@pytest.mark.parametrize("resident", [True, False])
def test_batches_contain_the_sentences(tmp_path, resident):
    pytest.importorskip("tokenizers")
    (tmp_path / "a").write_text("one two\n\nthree\n")
    (tmp_path / "b").write_text("eins zwei\nx\ndrei vier\n")
    files = Split([tmp_path / "a"], [tmp_path / "b"])
    prepare(tmp_path / "d", {"train": files, "val": files}, vocabulary_size=260)
    split = ParallelSplit(tmp_path / "d", "val")
    batch = PairTable(split, resident=resident).batch(np.array([2, -1, 1]), 12)
    assert len(batch) == 3
    for row, index in ((0, 2), (2, 1)):
        source, target = split.sentence("source", index), split.sentence("target", index)
        rest = [0] * (12 - len(source))
        assert batch.source[row].tolist() == source + rest
        assert batch.source_mask[row].sum() == len(source) + 1
        rest = [0] * (12 - len(target))
        assert batch.targets[row].tolist() == target + rest
        assert batch.words[row].tolist() == [0, *target, *rest[1:]]
        assert batch.target_mask[row].sum() == len(target) + 1
        assert batch.target_mask[row, : len(target) + 1].all()
    assert not batch.source_mask[1].any()
    assert not batch.target_mask[1].any()
    assert batch.source.dtype == batch.targets.dtype == torch.int64
