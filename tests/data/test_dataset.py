import dataclasses
import json
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ngsan.data.dataset import CaptionDataset
from ngsan.data.resident import ResidentDataset, fits, resident_bytes
from ngsan.data.sampler import BatchSampler
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.text import ptb
from ngsan.text.vocabulary import Origin, Vocabulary

WORDS = ["a", "cat", "dog", "on", "the", "mat", "and", "<unk>"]
CAPTIONS = {
    "7": ("train", ["A cat on the mat.", "the dog"]),
    "9": ("val", ["A dog and a cat"]),
    "11": ("train", ["A zebra on the mat and the cat and the dog", "cat", "a  Dog and a mat"]),
    "park": ("train", ["dog"]),
    "13": ("train", ["the cat and a dog", "mat", "a mat", "on the mat", "a"]),
}
REGIONS = {"13": 1, "7": 3, "9": 2, "11": 5, "park": 2}
WIDTH = 4


def write_vocabulary(folder, words=WORDS):
    origin = Origin(ptb.TOKENIZER_VERSION, 0, 0)
    Vocabulary(words, origin=origin).save(folder / "vocabulary.json")


def write_captions(folder, captions=CAPTIONS):
    lines = [
        json.dumps({"id": image, "split": split, "captions": texts}) + "\n"
        for image, (split, texts) in captions.items()
    ]
    (folder / "captions.jsonl").write_text("".join(lines))


def write_features(folder, counts=REGIONS, *, boxes=True, seed=0):
    """Writes a store of several shards and returns its content."""
    rng = np.random.default_rng(seed)
    written = {}
    with StoreWriter(folder, source=f"test {seed}", shard_bytes=200) as writer:
        for image, count in counts.items():
            written[image] = Regions(
                rng.standard_normal((count, WIDTH)).astype(np.float16),
                (0.25 + 0.5 * rng.random((count, 4))).astype(np.float32) * [1, 1, 0.5, 0.5]
                if boxes
                else None,
                (640, 480),
            )
            writer.add(image, written[image])
    return written


@pytest.fixture
def folder(tmp_path):
    write_vocabulary(tmp_path)
    write_captions(tmp_path)
    write_features(tmp_path)
    return tmp_path


def assert_same(first, second):
    """Asserts that two batches are equal in every tensor, shape and type."""
    for item in dataclasses.fields(first):
        a, b = getattr(first, item.name), getattr(second, item.name)
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype, item.name
            assert a.shape == b.shape, item.name
            assert torch.equal(a, b.cpu()), item.name
        else:
            assert a == b, item.name


def test_split_joins_captions_and_features(folder):
    dataset = CaptionDataset(folder, "train", max_length=6)
    assert len(dataset) == 4
    assert dataset.ids == ["7", "11", "park", "13"]
    assert dataset.region_counts.tolist() == [3, 5, 2, 1]
    assert dataset.missing == 0
    for place, image in enumerate(dataset.ids):
        assert dataset.captions(place) == CAPTIONS[image][1]
    assert dataset.captions(-1) == CAPTIONS["13"][1]
    with pytest.raises(IndexError):
        dataset.captions(4)


def test_batch_equals_the_written_data(tmp_path):
    write_vocabulary(tmp_path)
    write_captions(tmp_path)
    written = write_features(tmp_path)
    batch = CaptionDataset(tmp_path, "train", max_length=6).batch([1, 0])
    assert batch.ids == ["11", "7"]
    assert batch.features.shape == (2, 5, WIDTH)
    np.testing.assert_array_equal(batch.features[0], written["11"].features.astype(np.float32))
    np.testing.assert_array_equal(batch.features[1, :3], written["7"].features.astype(np.float32))
    np.testing.assert_allclose(batch.boxes[1, :3], written["7"].boxes, rtol=1e-6)
    assert batch.mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    # The zebra is unknown, id 8; "A zebra on the mat and ..." is cut after six words.
    assert batch.words[0].tolist() == [
        [0, 1, 8, 4, 5, 6, 7],
        [0, 2, 0, 0, 0, 0, 0],
        [0, 1, 3, 7, 1, 6, 0],
    ]
    assert batch.targets[0].tolist() == [
        [1, 8, 4, 5, 6, 7, 0],
        [2, 0, 0, 0, 0, 0, 0],
        [1, 3, 7, 1, 6, 0, 0],
    ]
    assert batch.target_mask[0].sum(-1).tolist() == [7, 2, 6]
    assert batch.caption_mask.tolist() == [[True] * 3, [True, True, False]]
    assert not batch.target_mask[1, 2].any()


def test_features_have_the_requested_dtype(folder):
    full = CaptionDataset(folder, "train").batch([0, 1])
    half = CaptionDataset(folder, "train", dtype=torch.float16).batch([0, 1])
    assert full.features.dtype == torch.float32
    assert half.features.dtype == torch.float16
    assert torch.equal(full.features, half.features.float())
    with pytest.raises(ValueError, match="dtype"):
        CaptionDataset(folder, "train", dtype=torch.int32)


def test_features_without_boxes(tmp_path):
    write_vocabulary(tmp_path)
    write_captions(tmp_path)
    write_features(tmp_path, boxes=False)
    dataset = CaptionDataset(tmp_path, "train")
    assert dataset.batch([0]).boxes is None
    assert_same(dataset.batch([2, 0]), ResidentDataset(dataset, "cpu").batch([2, 0]))


def test_missing_features_raise_or_are_counted(folder, tmp_path_factory):
    poor = tmp_path_factory.mktemp("poor")
    write_vocabulary(poor)
    write_captions(poor)
    write_features(poor, {"9": 2, "park": 1})
    with pytest.raises(ValueError, match=r"3 of 4 images of split 'train'.*such as 7, 11, 13"):
        CaptionDataset(poor, "train")
    dataset = CaptionDataset(poor, "train", skip_missing=True)
    assert dataset.ids == ["park"]
    assert dataset.missing == 3
    assert dataset.captions(0) == ["dog"]
    write_captions(poor, {"1": ("train", ["a cat"])})
    with pytest.raises(ValueError, match="no image of split 'train'"):
        CaptionDataset(poor, "train", skip_missing=True)


def test_unknown_split_error_lists_existing_splits(folder):
    with pytest.raises(ValueError, match=r"no split 'test', only train \(4 images\), val \(1"):
        CaptionDataset(folder, "test")


def test_invalid_requests_raise(folder):
    dataset = CaptionDataset(folder, "train")
    with pytest.raises(IndexError, match="0 to 3"):
        dataset.batch([4])
    with pytest.raises(IndexError, match="0 to 3"):
        dataset.batch([-1])
    with pytest.raises(ValueError, match="at least one"):
        dataset.batch([])
    with pytest.raises(ValueError, match="captions_per_image"):
        CaptionDataset(folder, "train", captions_per_image=0)
    with pytest.raises(ValueError, match="max_length"):
        CaptionDataset(folder, "train", max_length=0)


def test_require_vocabulary_raises_for_another_vocabulary(folder):
    dataset = CaptionDataset(folder, "train")
    dataset.require_vocabulary(Vocabulary(WORDS))
    with pytest.raises(ValueError, match=r"id 2 .*'dog'.*'cat'"):
        dataset.require_vocabulary(Vocabulary(["a", "dog", "cat"]))
    with pytest.raises(ValueError, match="id 9"):
        dataset.require_vocabulary(Vocabulary([*WORDS, "more"]))


def test_signature_covers_all_data(folder, tmp_path_factory):
    def signature(split="train", max_length=20, change=lambda copy: None):
        copy = tmp_path_factory.mktemp("copy")
        write_vocabulary(copy)
        write_captions(copy)
        write_features(copy)
        change(copy)
        return CaptionDataset(copy, split, max_length=max_length).signature

    def other_features(copy):
        for path in (copy / "features").iterdir():
            path.unlink()
        (copy / "features").rmdir()
        write_features(copy, seed=1)

    moved = {**CAPTIONS, "7": ("train", ["A cat on the mat.the dog"])}
    reordered = dict(reversed(CAPTIONS.items()))
    swapped = dict(zip(["park", "9", "11", "7", "13"], CAPTIONS.values(), strict=True))
    # The same text and words, split into captions elsewhere.
    parted = [
        {**CAPTIONS, "7": ("train", ["mat", " mat mat"])},
        {**CAPTIONS, "7": ("train", ["mat mat", " mat"])},
    ]
    variants = [
        signature("val"),
        signature(max_length=3),
        signature(change=lambda copy: write_vocabulary(copy, [*WORDS, "more"])),
        signature(change=lambda copy: write_captions(copy, moved)),
        signature(change=lambda copy: write_captions(copy, reordered)),
        signature(change=lambda copy: write_captions(copy, swapped)),
        signature(change=lambda copy: write_captions(copy, parted[0])),
        signature(change=lambda copy: write_captions(copy, parted[1])),
        signature(change=other_features),
    ]
    assert signature() == signature() == CaptionDataset(folder, "train").signature
    assert len({signature(), *variants}) == 10


@pytest.mark.parametrize("captions_per_image", [None, 1, 2])
def test_data_loader_with_workers_gives_equal_batches(folder, captions_per_image):
    dataset = CaptionDataset(folder, "train", captions_per_image=captions_per_image)
    sampler = BatchSampler(len(dataset), 3, seed=4)
    loader = DataLoader(
        dataset,
        sampler=sampler,
        batch_size=None,
        num_workers=2,
        multiprocessing_context="fork",
    )
    expected = [dataset.batch(draw.indices, epoch=draw.epoch) for draw in sampler]
    for ours, theirs in zip(expected, loader, strict=True):
        assert_same(ours, theirs)
    again = pickle.loads(pickle.dumps(dataset))  # as in a spawned worker
    assert_same(dataset.batch([3, 1]), again.batch([3, 1]))


@pytest.mark.parametrize("captions_per_image", [None, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_resident_dataset_gives_equal_batches(folder, captions_per_image, dtype):
    dataset = CaptionDataset(folder, "train", captions_per_image=captions_per_image, dtype=dtype)
    resident = ResidentDataset(dataset, "cpu")
    assert len(resident) == len(dataset)
    for epoch in range(3):
        for indices in ([0], [3, 1], [2, 2, 0, 1]):
            expected = dataset.batch(indices, epoch=epoch)
            assert_same(expected, resident.batch(indices, epoch=epoch))
    draw = next(iter(BatchSampler(len(dataset), 2)))
    assert_same(dataset[draw], resident[draw])


@pytest.mark.parametrize("captions_per_image", [None, 2])
def test_static_resident_dataset_has_one_shape(folder, captions_per_image):
    dataset = CaptionDataset(folder, "train", captions_per_image=captions_per_image)
    resident = ResidentDataset(dataset, "cpu", static=True)
    captions = captions_per_image or 5
    for indices in ([0], [2], [3], [1]):
        free, static = dataset.batch(indices, epoch=1), resident.batch(indices, epoch=1)
        assert static.features.shape == (1, 5, WIDTH)
        assert static.words.shape == (1, captions, 12)  # the zebra's 11 words and the boundary
        for name in ("features", "boxes", "mask", "words", "targets", "target_mask"):
            whole, part = getattr(static, name), getattr(free, name)
            corner = tuple(slice(size) for size in part.shape)
            assert torch.equal(whole[corner], part), name
            outside = whole.clone()
            outside[corner] = 0
            assert not outside.any(), name
        assert static.caption_mask.sum() == free.caption_mask.sum()


def test_fits_compares_sizes_with_free_memory(folder, monkeypatch):
    dataset = CaptionDataset(folder, "train")
    needed = resident_bytes(dataset)
    resident = ResidentDataset(dataset, "cpu")
    held = (*vars(resident).values(), *vars(resident._seen).values())
    tensors = [value for value in held if isinstance(value, torch.Tensor)]
    tensors += [resident._tokens.tokens, resident._tokens.offsets]
    assert needed == sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    for free, share, answer in [
        (needed, 1.0, True),
        (needed - 1, 1.0, False),
        (needed, 0.5, False),
    ]:
        monkeypatch.setattr("ngsan.data.resident._free_bytes", lambda device, free=free: free)
        assert fits(dataset, "cpu", share=share) is answer


def test_captions_per_image_rotates_over_epochs(folder):
    dataset = CaptionDataset(folder, "train", captions_per_image=2)
    seen = []
    for epoch in range(5):
        batch = dataset.batch([2, 3], epoch=epoch)
        assert batch.words.shape[:2] == (2, 2)
        assert batch.caption_mask.tolist() == [[True, False], [True, True]]
        seen += [tuple(dataset.vocabulary.decode(row)) for row in batch.targets[1].tolist()]
    assert sorted(seen) == sorted(2 * [tuple(text.split()) for text in CAPTIONS["13"][1]])


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # a prototype feature
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_resident_dataset_does_not_synchronize(folder):
    dataset = CaptionDataset(folder, "train", captions_per_image=2)
    resident = ResidentDataset(dataset, "cuda")
    resident.batch([0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = resident.batch([3, 1, 0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same(dataset.batch([3, 1, 0]), batch)


def test_permuted_boxes_move_within_each_image(tmp_path):
    counts = {"7": 40, "9": 40, "11": 40, "park": 40, "13": 1}
    write_vocabulary(tmp_path)
    write_captions(tmp_path)
    written = write_features(tmp_path, counts)
    moved = {}
    for split in ("train", "val"):
        given = CaptionDataset(tmp_path, split)
        permuted = CaptionDataset(tmp_path, split, boxes="permuted")
        assert permuted.origin != given.origin
        assert permuted.signature != given.signature
        resident = ResidentDataset(permuted, "cpu")
        for place, image in enumerate(permuted.ids):
            batch, held = permuted.batch([place]), resident.batch(np.array([place]))
            boxes = batch.boxes[0].numpy()
            assert np.array_equal(held.boxes[0].numpy(), boxes)
            assert np.array_equal(batch.features[0].numpy(), written[image].features)
            before = written[image].boxes.astype(np.float32)
            assert sorted(map(tuple, boxes)) == sorted(map(tuple, before))
            again = CaptionDataset(tmp_path, split, boxes="permuted").batch([place])
            assert torch.equal(again.boxes, batch.boxes)
            if len(boxes) > 1:
                moved[image] = [int(np.flatnonzero((before == box).all(1))[0]) for box in boxes]
    assert set(moved) == {"7", "9", "11", "park"}
    for order in moved.values():
        assert sum(place != was for place, was in enumerate(order)) > 30
    assert len({tuple(order) for order in moved.values()}) == len(moved)  # each its own
