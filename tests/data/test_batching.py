import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ngsan.data.batch import NO_CAPTION, CaptionBatch, CaptionRows, TokenTable, pad_regions
from ngsan.data.sampler import BatchSampler, SamplerState
from ngsan.data.store import Regions


def some_regions(counts, width=3, boxes=True, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Regions(
            rng.standard_normal((count, width)).astype(np.float16),
            rng.random((count, 4)).astype(np.float32) if boxes else None,
        )
        for count in counts
    ]


# Padding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 3), st.booleans())
def test_pad_regions_equals_loops(dtype, counts, spare, with_boxes):
    regions = some_regions(counts, boxes=with_boxes)
    width = max(counts) + spare
    features, boxes, mask = pad_regions(regions, width=width if spare else None, dtype=dtype)
    assert features.dtype == dtype
    assert features.shape == (len(counts), width, 3)
    assert mask.shape == (len(counts), width)
    assert (boxes is not None) == with_boxes
    for image, region in itertools.product(range(len(counts)), range(width)):
        real = region < counts[image]
        assert mask[image, region] == real
        for column in range(3):
            expected = float(regions[image].features[region, column]) if real else 0.0
            assert features[image, region, column] == expected
        for column in range(4 if with_boxes else 0):
            expected = float(regions[image].boxes[region, column]) if real else 0.0
            assert boxes[image, region, column] == expected


def test_regions_wider_than_the_batch_raise():
    with pytest.raises(ValueError, match="5 regions do not fit into a width of 4"):
        pad_regions(some_regions([2, 5]), width=4)
    with pytest.raises(ValueError, match="1 of 2 images"):
        pad_regions(some_regions([2]) + some_regions([2], boxes=False))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(1, 99), max_size=4), max_size=5),
    st.data(),
)
def test_token_table_equals_loops(captions, data):
    table = TokenTable.of_lengths(
        list(itertools.chain(*captions)), [len(caption) for caption in captions]
    )
    row = st.integers(NO_CAPTION, len(captions) - 1)
    rows = np.array(data.draw(st.lists(st.tuples(row, row), min_size=1, max_size=4)))
    width = table.width(rows)
    asked = [captions[r] for r in rows.ravel() if r != NO_CAPTION]
    assert width == 1 + max(map(len, asked), default=0)
    spare = data.draw(st.integers(0, 2))
    words, targets, target_mask, caption_mask = table.gather(torch.from_numpy(rows), width + spare)
    assert words.dtype == targets.dtype == torch.long
    assert words.shape == targets.shape == target_mask.shape == (*rows.shape, width + spare)
    for i, j in np.ndindex(*rows.shape):
        absent = rows[i, j] == NO_CAPTION
        caption = [] if absent else captions[rows[i, j]]
        padding = [0] * (width + spare - len(caption))
        assert targets[i, j].tolist() == caption + padding
        assert words[i, j].tolist() == [0, *caption, *padding][: width + spare]
        real = 0 if absent else len(caption) + 1
        assert target_mask[i, j].tolist() == [t < real for t in range(width + spare)]
        assert caption_mask[i, j] != absent


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(1, 7), st.integers(0, 9))
def test_captions_are_chosen_evenly_over_epochs(counts, count, seed):
    rows = CaptionRows.of_counts(counts, seed=seed)
    indices = np.arange(len(counts))
    owned = {i: set(range(sum(counts[:i]), sum(counts[: i + 1]))) for i in indices}
    seen = [Counter(dict.fromkeys(owned[i], 0)) for i in indices]
    for epoch in range(8):
        chosen = rows.choose(indices, count=count, epoch=epoch)
        assert chosen.shape == (len(counts), count)
        for image in indices:
            real = [row for row in chosen[image].tolist() if row != NO_CAPTION]
            assert len(set(real)) == len(real) == min(count, counts[image])
            assert set(real) <= owned[image]
            assert chosen[image].tolist() == real + [NO_CAPTION] * (count - len(real))
            # The choice does not depend on the rest of the batch.
            assert rows.choose(np.array([image]), count=count, epoch=epoch)[0].tolist() == (
                chosen[image].tolist()
            )
            seen[image].update(real)
            if owned[image]:
                assert max(seen[image].values()) - min(seen[image].values()) <= 1


def test_choosing_all_captions_keeps_their_order():
    rows = CaptionRows.of_counts([2, 0, 3], seed=5)
    assert rows.choose(np.array([2, 1, 0]), epoch=3).tolist() == [
        [2, 3, 4],
        [NO_CAPTION] * 3,
        [0, 1, NO_CAPTION],
    ]


def test_seed_decides_the_chosen_captions():
    first = {
        seed: CaptionRows.of_counts([5] * 40, seed=seed).choose(np.arange(40), count=1).tolist()
        for seed in (0, 1)
    }
    again = CaptionRows.of_counts([5] * 40, seed=1).choose(np.arange(40), count=1).tolist()
    assert first[0] != first[1] == again


# The batch


def make_batch(images=4):
    rng = np.random.default_rng(1)
    return CaptionBatch(
        torch.from_numpy(rng.random((images, 2, 3), np.float32)),
        None,
        torch.ones(images, 2, dtype=torch.bool),
        torch.arange(images * 6).reshape(images, 2, 3),
        torch.arange(images * 6).reshape(images, 2, 3) + 1,
        torch.ones(images, 2, 3, dtype=torch.bool),
        torch.ones(images, 2, dtype=torch.bool),
        [f"image {i}" for i in range(images)],
    )


@pytest.mark.parametrize(
    ("index", "places"),
    [
        (slice(1, 3), [1, 2]),
        (torch.tensor([3, 0, 3]), [3, 0, 3]),
        (torch.tensor([True, False, False, True]), [0, 3]),
    ],
)
def test_indexing_a_batch_selects_ids_too(index, places):
    batch = make_batch()
    part = batch[index]
    assert len(part) == len(places)
    assert part.ids == [f"image {place}" for place in places]
    assert part.boxes is None
    for k, place in enumerate(places):
        assert part.words[k].tolist() == batch.words[place].tolist()
        assert part.features[k].tolist() == batch.features[place].tolist()


def test_indexing_a_batch_with_a_scalar_raises():
    with pytest.raises(ValueError, match=r"batch\[2:3\]"):
        make_batch()[torch.tensor(2)]


def test_to_moves_all_tensors():
    moved = make_batch().to("meta")
    assert moved.features.is_meta
    assert moved.caption_mask.is_meta
    assert moved.ids == make_batch().ids


# The sampler

shapes = st.tuples(st.integers(1, 60), st.integers(1, 9)).filter(lambda s: s[0] >= s[1])


def epoch_of(sampler):
    return [draw.indices.tolist() for draw in sampler]


@settings(deadline=None, max_examples=80)
@given(shapes, st.integers(0, 2**40), st.booleans(), st.booleans())
def test_every_index_occurs_once_per_epoch(shape, seed, grouped, shuffle):
    size, batch_size = shape
    lengths = np.arange(size) % 7 if grouped and shuffle else None
    sampler = BatchSampler(size, batch_size, seed=seed, lengths=lengths, shuffle=shuffle)
    batches = epoch_of(sampler)
    assert sorted(itertools.chain(*batches)) == list(range(size))
    assert len(batches) == len(sampler)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    dropping = BatchSampler(
        size, batch_size, seed=seed, lengths=lengths, shuffle=shuffle, drop_last=True
    )
    assert epoch_of(dropping) == [batch for batch in batches if len(batch) == batch_size]
    assert len(dropping) == size // batch_size


@settings(deadline=None, max_examples=60)
@given(shapes, st.integers(0, 9), st.integers(0, 40), st.booleans())
def test_sampler_resumes_with_the_next_batch(shape, seed, stop, grouped):
    size, batch_size = shape
    options = {"lengths": np.arange(size) % 5} if grouped else {}

    def run(sampler, steps):
        seen = []
        while len(seen) < steps:
            for draw in sampler:
                seen.append((draw.epoch, draw.indices.tolist()))
                sampler.advance()
                if len(seen) == steps:
                    break
        return seen

    whole = run(BatchSampler(size, batch_size, seed=seed, **options), stop + 20)
    stopped = BatchSampler(size, batch_size, seed=seed, **options)
    first = run(stopped, stop)
    state = SamplerState(stopped.state().seed, stopped.state().epoch, stopped.state().position)
    resumed = BatchSampler.from_state(state, size, batch_size, **options)
    assert first + run(resumed, 20) == whole


def test_reading_ahead_does_not_change_the_state():
    sampler = BatchSampler(10, 3, seed=2)
    ahead = epoch_of(sampler)
    assert sampler.state() == SamplerState(2, 0, 0)
    sampler.advance()
    assert epoch_of(sampler) == ahead[1:]
    for _ in range(3):
        sampler.advance()
    assert sampler.state() == SamplerState(2, 1, 0)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 4), st.integers(1, 60), st.integers(1, 12), st.integers(0, 5), st.booleans())
def test_processes_share_the_batches_of_one(world, size, batch_size, seed, drop_last):
    rest = 0 if drop_last else size % batch_size
    smallest = min(batch_size, size, rest or batch_size)
    if smallest < world or (drop_last and size < batch_size):
        with pytest.raises(ValueError, match=r"share a batch|do not fill"):
            BatchSampler(size, batch_size, drop_last=drop_last, world_size=world)
        return
    alone = epoch_of(BatchSampler(size, batch_size, seed=seed, drop_last=drop_last))
    shares = [
        epoch_of(
            BatchSampler(
                size, batch_size, seed=seed, drop_last=drop_last, rank=rank, world_size=world
            )
        )
        for rank in range(world)
    ]
    for batch, *parts in zip(alone, *shares, strict=True):
        assert sorted(itertools.chain(*parts)) == sorted(batch)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_order_depends_on_seed_and_epoch():
    sampler = BatchSampler(50, 50, seed=1)
    orders = [tuple(sampler.order(epoch)) for epoch in range(5)]
    orders += [tuple(BatchSampler(50, 50, seed=seed).order(0)) for seed in (2, 3)]
    assert len(set(orders)) == len(orders)


def test_order_is_uniform():
    # Each of the 6 orders of 3 images, in 3000 epochs: 500 expected, standard deviation 20.
    sampler = BatchSampler(3, 1, seed=0)
    orders = Counter(tuple(sampler.order(epoch).tolist()) for epoch in range(3000))
    assert len(orders) == 6
    assert all(400 < count < 600 for count in orders.values())


def test_grouping_by_length_saves_padding():
    lengths = np.random.default_rng(0).integers(10, 101, 2000)

    def padding(sampler):
        return sum(int((lengths[d.indices].max() - lengths[d.indices]).sum()) for d in sampler)

    apart = padding(BatchSampler(2000, 10, seed=0))
    grouped = BatchSampler(2000, 10, seed=0, lengths=lengths)
    assert padding(grouped) < apart / 10
    means = [lengths[draw.indices].mean() for draw in grouped]
    assert (
        abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.3
    )  # lengths come in random order


def test_invalid_sampler_options_raise():
    for options, message in [
        ({"rank": 2, "world_size": 2}, "rank 2"),
        ({"lengths": [1, 2]}, r"lengths of \(2,\)"),
        ({"lengths": [1] * 5, "shuffle": False}, "shuffle"),
        ({"seed": -1}, "seed must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            BatchSampler(5, 2, **options)
    with pytest.raises(ValueError, match="batches of 0"):
        BatchSampler(5, 0)
    with pytest.raises(ValueError, match="position 3 does not exist"):
        BatchSampler.from_state(SamplerState(0, 0, 3), 5, 2)
