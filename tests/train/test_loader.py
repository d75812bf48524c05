import pytest
import torch

from ngsan.data.resident import ResidentDataset
from ngsan.data.sampler import BatchSampler
from ngsan.train.loader import BatchLoader, hold
from tests.train.helpers import dataset, scene_folder

CPU = torch.device("cpu")
TENSORS = ("features", "boxes", "mask", "words", "targets", "target_mask", "caption_mask")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return dataset(scene_folder(tmp_path_factory.mktemp("scenes"), train=42))


def loaders(scenes, static):
    resident = ResidentDataset(scenes, CPU, static=static)
    yield BatchLoader(scenes, resident, CPU, static=static)
    yield BatchLoader(scenes, None, CPU, workers=0, static=static)
    yield BatchLoader(scenes, None, CPU, workers=2, static=static)


def test_all_loaders_give_the_batches_of_the_dataset(scenes):
    sampler = BatchSampler(len(scenes), 16, seed=5)
    wanted = [scenes.batch(draw.indices, epoch=draw.epoch) for draw in sampler]
    for source in loaders(scenes, static=False):
        found = list(source.batches(sampler))
        assert len(found) == len(wanted) == 3
        for (batch, places), expected, draw in zip(found, wanted, sampler, strict=True):
            assert places.tolist() == draw.indices.tolist()
            for name in TENSORS:
                assert torch.equal(getattr(batch, name), getattr(expected, name)), name


def test_static_batches_have_one_shape_and_masked_padding(scenes):
    sampler = BatchSampler(len(scenes), 16, seed=5)
    plain = [batch for batch, _ in BatchLoader(scenes, None, CPU).batches(sampler)]
    for source in loaders(scenes, static=True):
        found = list(source.batches(sampler))
        shapes = {tuple(batch.features.shape) for batch, _ in found}
        assert len(shapes) == 1
        for (batch, places), expected in zip(found, plain, strict=True):
            real = len(expected)
            assert len(batch) == len(places) == 16
            assert batch.target_mask[:real].sum() == expected.target_mask.sum()
            assert not batch.target_mask[real:].any()
            assert not batch.caption_mask[real:].any()
            assert batch.mask.any(1).all()
            words = expected.words.shape[2]
            assert torch.equal(batch.targets[:real, :, :words], expected.targets)


def test_loading_can_start_within_an_epoch(scenes):
    sampler = BatchSampler(len(scenes), 16, seed=5)
    whole = [places.tolist() for _, places in BatchLoader(scenes, None, CPU).batches(sampler)]
    sampler.advance()
    for source in loaders(scenes, static=False):
        assert [places.tolist() for _, places in source.batches(sampler)] == whole[1:]


@pytest.mark.parametrize("processes", [1, 2])
def test_max_targets_is_a_tight_bound(scenes, processes):
    source = BatchLoader(scenes, None, CPU)
    counts = []
    for rank in range(processes):
        sampler = BatchSampler(len(scenes), 16, seed=5, rank=rank, world_size=processes)
        for epoch in range(3):
            assert sampler.state().epoch == epoch
            for batch, _ in source.batches(sampler):
                counts.append(int(batch.target_mask.sum()))
                sampler.advance()
    found = source.max_targets(sampler, 3)
    assert max(counts) <= found < max(counts) + 128


def test_equal_region_counts_are_detected(tmp_path, scenes):
    assert not BatchLoader(scenes, None, CPU).full
    uniform = dataset(scene_folder(tmp_path, max_objects=2))
    source = BatchLoader(uniform, ResidentDataset(uniform, CPU), CPU)
    assert source.full
    batch, _ = next(source.batches(BatchSampler(len(uniform), 8)))
    assert batch.mask.all()


def test_hold_chooses_host_or_device(scenes, monkeypatch):
    assert hold(scenes, CPU, "host", static=False) is None
    assert hold(scenes, CPU, "device", static=False) is not None
    monkeypatch.setattr("ngsan.train.loader.fits", lambda *_: False)
    assert hold(scenes, CPU, "auto", static=False) is None


@pytest.mark.parametrize("static", [False, True])
def test_process_without_images_gets_a_masked_batch(scenes, static):
    # 42 images in batches of 16: the last batch has 10 images for 12 processes.
    shares = []
    for rank in range(12):
        sampler = BatchSampler(42, 16, seed=5, rank=rank, world_size=12, empty_shares=True)
        for source in list(loaders(scenes, static=static))[:2]:
            *_, (batch, places) = source.batches(sampler)
            assert len(batch) == len(places) >= 1
            real = int(batch.caption_mask.any(1).sum())
        shares.append(real)
    assert shares == [1] * 10 + [0] * 2
    with pytest.raises(ValueError, match="cannot share a batch of 10"):
        BatchSampler(42, 16, world_size=12)
