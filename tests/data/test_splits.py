"""Splits: id lists, and properties of random splits."""

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngsan.data.problems import Problems
from ngsan.data.splits import (
    canonical_split,
    id_and_file,
    random_split,
    read_id_list,
    read_split_lists,
    split_of_file,
)

sets_of_ids = st.sets(st.text("abc123", min_size=1, max_size=6), max_size=60)
shares = st.floats(0, 0.49)


@given(sets_of_ids, shares, shares, st.integers(), st.randoms(use_true_random=False))
def test_random_split_depends_on_seed_and_ids_alone(ids, val, test, seed, shuffler) -> None:
    order = sorted(ids)
    splits = random_split(order, val=val, test=test, seed=seed)
    assert list(splits) == order
    shuffler.shuffle(order)
    assert random_split([*order, *order[:3]], val=val, test=test, seed=seed) == splits


@given(sets_of_ids, shares, shares, st.integers())
def test_random_split_has_the_shares(ids, val, test, seed) -> None:
    sizes = Counter(random_split(ids, val=val, test=test, seed=seed).values())
    assert sum(sizes.values()) == len(ids)
    assert sizes["train"] >= min(len(ids), 1)
    for split, share in (("val", val), ("test", test)):
        # Rounding moves half an image; the minimum sizes of the splits move one more.
        assert abs(sizes[split] - share * len(ids)) <= 1.5
        if share == 0:
            assert sizes[split] == 0
        elif len(ids) >= 3:
            assert sizes[split] >= 1


def test_default_shares_and_few_images() -> None:
    ids = [str(number) for number in range(1000)]
    assert Counter(random_split(ids).values()) == {"train": 800, "val": 100, "test": 100}
    assert Counter(random_split(ids[:3]).values()) == {"train": 1, "val": 1, "test": 1}
    assert set(random_split(ids[:2]).values()) == {"train"}
    assert random_split([]) == {}


def test_random_split_is_random() -> None:
    ids = [str(number) for number in range(300)]
    first, second = (random_split(ids, val=0.2, test=0.3, seed=seed) for seed in (1, 2))
    # Independent splits would agree on .5^2 + .2^2 + .3^2 = 38 %, with 2.8 % standard error.
    agree = sum(first[identity] == second[identity] for identity in ids) / len(ids)
    assert abs(agree - 0.38) < 0.12
    # Each split is spread over the ids: the mean of 60 or more of 300 is near the middle.
    for split in ("train", "val", "test"):
        own = [int(identity) for identity in ids if first[identity] == split]
        assert abs(sum(own) / len(own) - 149.5) < 45


def test_adding_images_moves_few_others() -> None:
    ids = [str(number) for number in range(1010)]
    before, after = random_split(ids[:1000], seed=5), random_split(ids, seed=5)
    assert sum(before[identity] != after[identity] for identity in ids[:1000]) <= 25


@pytest.mark.parametrize(
    "shares",
    [
        {"val": 0.5, "test": 0.5},
        {"val": -0.1, "test": 0.1},
        {"val": float("nan"), "test": 0.1},
        {"val": 1.0, "test": 0.0},
    ],
)
def test_invalid_shares_raise(shares) -> None:
    with pytest.raises(ValueError, match="must be >= 0 and sum below 1"):
        random_split(["a"], **shares)


def test_id_lists_accept_ids_and_file_names(tmp_path: Path) -> None:
    numbers = random.Random(0).sample(range(10**6), 50)
    path = tmp_path / "ids.txt"
    forms = ("{}", "{:012}", "COCO_val2014_{:012}.jpg", "  {}\r", "\n{}", "val2014/{:012}.jpg")
    lines = [forms[place % len(forms)].format(number) for place, number in enumerate(numbers)]
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join(lines).encode())
    ids = read_id_list(path)
    assert list(ids) == [str(number) for number in numbers]
    raw = path.read_bytes().decode().split("\n")
    assert all(identity in raw[line - 1] for identity, line in ids.items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ids.txt: no ids"),
        (b" \n\n", "ids.txt: no ids"),
        (b"12\n13\n0012\n", "ids.txt:3: 12 is already in line 1"),
        (b"12\n\xe9\n", "ids.txt:2: .*invalid UTF-8"),
        (b"12\nx/ .jpg\n", "ids.txt:2: wrong id: .*empty"),
    ],
)
def test_invalid_id_lists_raise(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "ids.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_id_list(path)


def test_a_list_without_end_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="/dev/zero is a device, not a file"):
        list(read_id_list("/dev/zero"))
    path = tmp_path / "holes"
    with path.open("wb") as file:
        file.truncate(1 << 25)
    with pytest.raises(ValueError, match="overlong line"):
        list(read_id_list(path))


def test_id_in_two_lists_raises(tmp_path: Path) -> None:
    (tmp_path / "val.txt").write_text("1\n2\n")
    (tmp_path / "test.txt").write_text("3\n2\n")
    lists = {"val": tmp_path / "val.txt", "test": tmp_path / "test.txt"}
    with pytest.raises(
        ValueError, match=r"test\.txt:2: 2 is for test, but for val in .*val\.txt:2"
    ):
        read_split_lists(**lists)
    (tmp_path / "test.txt").write_text("3\n")
    splits = read_split_lists(train=None, **lists)
    assert {identity: split for identity, (split, _) in splits.items()} == {
        "1": "val",
        "2": "val",
        "3": "test",
    }


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("captions_train2014.json", "train"),
        ("captions_val2014.json", "val"),
        ("vatex_training_v1.0.json", "train"),
        ("vatex_validation_v1.0.json", "val"),
        ("vatex_public_test_english_v1.1.json", "test"),
        ("train/Flickr_8k.devImages.txt", "val"),
    ],
)
def test_split_of_published_file_names(name: str, split: str) -> None:
    assert split_of_file(name) == split


@pytest.mark.parametrize("name", ["captions.json", "trainval.json", "train/captions.json"])
def test_file_name_without_split_raises(name: str) -> None:
    with pytest.raises(ValueError, match="pass --split"):
        split_of_file(name)


def test_canonical_split_names() -> None:
    assert [
        canonical_split(name) for name in ("Train", "restval", " dev ", "validation", "TEST")
    ] == [
        "train",
        "train",
        "val",
        "val",
        "test",
    ]
    for name in ("", "holdout", 1, None):
        with pytest.raises(ValueError, match="not a split"):
            canonical_split(name)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (12, ("12", None)),
        ("0012", ("12", None)),
        ("dog.JPG", ("dog", "dog.JPG")),
        ("some\\folder\\dog.jpeg", ("dog", "some/folder/dog.jpeg")),
        ("COCO_val2014_000000391895.jpg", ("391895", "COCO_val2014_000000391895.jpg")),
        ("v1.2_final", ("v1.2_final", None)),
        ("a.jpg.1", ("a.jpg.1", None)),
    ],
)
def test_id_and_file_of_names(name, wanted) -> None:
    assert id_and_file(name, Problems(), "here") == wanted
