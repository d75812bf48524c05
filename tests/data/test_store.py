import json
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from ngsan.atomic_io import read_sealed, seal
from ngsan.data import shards
from ngsan.data.store import FeatureStore, Regions
from ngsan.data.store_writer import StoreWriter


@pytest.fixture(autouse=True, scope="module")
def _quick_disk():
    """Skips fsync for speed: no test can check a loss of power anyway."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", lambda number: None)
        yield


def make_regions(seed, regions=3, width=5, boxes=True):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((regions, width)).astype(np.float16)
    sizes = rng.uniform(0.01, 0.5, (regions, 2))
    centres = rng.uniform(sizes / 2 + 1e-6, 1 - sizes / 2 - 1e-6)
    cxcywh = np.concatenate((centres, sizes), axis=1).astype(np.float32)
    return Regions(features, cxcywh if boxes else None, (640 + seed, 480))


def write_store(folder, images=10, shard_bytes=300, **options):
    with StoreWriter(folder, source="test", shard_bytes=shard_bytes, **options) as writer:
        start = 0 if writer.position is None else writer.position + 1
        for image in range(start, images):
            writer.add(f"image {image}", make_regions(image), position=image)
    return start


def interrupt(folder, images, shard_bytes):
    """Interrupts an import after the given number of images."""
    with StoreWriter(folder, source="test", shard_bytes=shard_bytes) as writer:
        for image in range(images):
            writer.add(image, make_regions(image), position={"line": image})
        raise InterruptedError


def content(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def assert_same(regions, expected):
    assert regions.features.dtype == np.float16
    np.testing.assert_array_equal(regions.features, expected.features)
    if expected.boxes is None:
        assert regions.boxes is None
    else:
        assert regions.boxes.dtype == np.float32
        np.testing.assert_array_equal(regions.boxes, expected.boxes)
    assert regions.size == expected.size


class TestRoundTrip:
    @settings(max_examples=25, deadline=None)
    @given(
        counts=st.lists(st.integers(1, 7), min_size=1, max_size=12),
        width=st.integers(1, 9),
        shard_bytes=st.sampled_from([1, 200, 1000, 1 << 20]),
        boxes=st.booleans(),
    )
    def test_store_round_trip(self, tmp_path_factory, counts, width, shard_bytes, boxes):
        folder = tmp_path_factory.mktemp("store")
        expected = {
            str(image * 37): make_regions(image, count, width, boxes)
            for image, count in enumerate(counts)
        }
        with StoreWriter(folder, source="test", shard_bytes=shard_bytes) as writer:
            for image_id, regions in expected.items():
                writer.add(image_id, regions)
            assert len(writer) == len(counts)
        store = FeatureStore(folder)
        assert list(store.ids()) == list(expected)
        assert store.counts().tolist() == counts
        assert len(store) == len(counts)
        assert store.feature_dim == width
        assert store.has_boxes == boxes
        assert store.verify() == []
        for image_id in reversed(expected):
            assert_same(store[image_id], expected[image_id])

    def test_shards_are_plain_safetensors(self, tmp_path):
        write_store(tmp_path, shard_bytes=1 << 20)
        (path,) = (tmp_path / "features").glob("shard-*")
        tensors = load_file(path)
        images = [make_regions(image) for image in range(10)]
        np.testing.assert_array_equal(
            tensors["features"], np.concatenate([image.features for image in images])
        )
        np.testing.assert_array_equal(
            tensors["boxes"], np.concatenate([image.boxes for image in images])
        )
        assert tensors["sizes"].tolist() == [list(image.size) for image in images]
        assert tensors["offsets"].tolist() == list(range(0, 31, 3))
        assert tensors["ids"].tobytes() == b"".join(b"image %d" % n for n in range(10))

    def test_shards_have_the_requested_size(self, tmp_path):
        write_store(tmp_path, images=40, shard_bytes=2000)
        sizes = [len(load_file(path)["offsets"]) - 1 for path in tmp_path.glob("features/shard-*")]
        one = 3 * (5 * 2 + 4 * 4) + len("image 39") + 24
        assert sum(sizes) == 40
        assert len(sizes) > 2
        assert max(sizes) in (2000 // one, 2000 // one + 1)

    def test_opens_the_features_folder_directly(self, tmp_path):
        write_store(tmp_path)
        assert_same(FeatureStore(tmp_path / "features")["image 3"], make_regions(3))
        assert_same(FeatureStore(str(tmp_path))["image 3"], make_regions(3))

    def test_ids_are_canonical(self, tmp_path):
        with StoreWriter(tmp_path, source="test") as writer:
            writer.add("COCO_val2014_000000391895", make_regions(1))
            writer.add(7, make_regions(2))
            writer.add("äöü.jpg", make_regions(3))
            assert "000391895" in writer
            assert 8 not in writer
        store = FeatureStore(tmp_path)
        assert list(store.ids()) == ["391895", "7", "äöü"]
        for image_id in (391895, "391895", "000000391895", "COCO_val2014_000000391895", " 391895"):
            assert image_id in store
            assert_same(store[image_id], make_regions(1))
        assert_same(store["07"], make_regions(2))
        assert_same(store["äöü.jpg"], make_regions(3))
        assert 8 not in store

    def test_arrays_are_read_only_memory_maps(self, tmp_path):
        write_store(tmp_path)
        store = FeatureStore(tmp_path)
        with pytest.raises(ValueError, match="read-only"):
            store["image 0"].features[0, 0] = 1
        with pytest.raises(ValueError, match="read-only"):
            store["image 0"].boxes[0, 0] = 1
        assert np.shares_memory(store["image 0"].features, store["image 0"].features)

    def test_hash_collisions_are_resolved(self, tmp_path, monkeypatch):
        monkeypatch.setattr(shards, "id_hash", lambda key: len(key))
        monkeypatch.setattr("ngsan.data.store_writer.id_hash", lambda key: len(key))
        write_store(tmp_path, images=12)
        store = FeatureStore(tmp_path)
        for image in range(12):
            assert_same(store[f"image {image}"], make_regions(image))
        assert "image x" not in store
        with StoreWriter(tmp_path / "other", source="test", shard_bytes=1) as writer:
            for name in "abc":
                writer.add(name, make_regions(0))
            with pytest.raises(ValueError, match="'a' was added before"):
                writer.add("a", make_regions(0))

    def test_damaged_id_names_the_shard(self, tmp_path):
        write_store(tmp_path)
        path = tmp_path / "features" / "shard-00000.safetensors"
        content = path.read_bytes()
        path.write_bytes(content.replace(b"image 0", b"image y"))
        store = FeatureStore(tmp_path)
        assert "image 1" in store
        with pytest.raises(ValueError, match=r"shard-00000.* is damaged"):
            _ = "image 0" in store

    def test_size_may_be_unknown(self, tmp_path):
        with StoreWriter(tmp_path, source="test") as writer:
            writer.add(1, Regions(make_regions(1).features, make_regions(1).boxes))
            writer.add(2, make_regions(2))
        assert FeatureStore(tmp_path)[1].size is None
        assert FeatureStore(tmp_path)[2].size == (642, 480)

    def test_signature_depends_on_the_content(self, tmp_path):
        write_store(tmp_path / "a")
        write_store(tmp_path / "b")
        write_store(tmp_path / "c", images=9)
        one, other, third = (FeatureStore(tmp_path / name).signature for name in "abc")
        assert one == other != third


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"features": np.zeros((0, 5))}, "not .regions, width. of at least one"),
            ({"features": np.zeros((3, 4))}, "4 wide, those of the images before are 5 wide"),
            ({"features": np.zeros(5)}, r"are \(5,\), not \(regions, width\)"),
            ({"features": np.zeros((3, 5), int)}, "are int64, not floating point"),
            ({"features": np.full((3, 5), np.nan)}, "feature 0 of region 0 is nan"),
            ({"features": np.eye(3, 5) * 65_520.0}, "is 65520; float16 holds up to 65504"),
            ({"features": np.eye(3, 5, 1) * -1e9}, "feature 1 of region 0 is -1e.09; float16"),
            ({"features": np.full((3, 5), np.inf)}, "region 0 is inf"),
            ({"boxes": None}, "no boxes, unlike the images before"),
            ({"boxes": np.full((2, 4), 0.5)}, r"must be \(3, 4\), one for each region"),
            ({"boxes": np.full((3, 4), [0.5, 0.5, 0.0, 0.1])}, "box 0 .* above 0"),
            ({"boxes": np.full((3, 4), [0.5, 0.5, 0.1, -0.1])}, "box 0 .* above 0"),
            ({"boxes": np.full((3, 4), [0.5, 0.96, 0.1, 0.1])}, "box 0 .* within 0 and 1"),
            ({"boxes": np.full((3, 4), [0.048, 0.5, 0.1, 0.1])}, "box 0 .* within 0 and 1"),
            ({"boxes": np.full((3, 4), [320.0, 240.0, 64.0, 48.0])}, "relative to the image"),
            ({"boxes": np.full((3, 4), [np.nan, 0.5, 0.1, 0.1])}, "finite"),
            ({"boxes": np.full((3, 4), np.inf)}, "finite"),
            ({"boxes": np.full((3, 4), [1.0005, 0.5, 1e-4, 0.1])}, "nothing of it is in the image"),
            ({"size": (0, 480)}, "its size is 0 x 480"),
            ({"size": (640.5, 480)}, "640.5 x 480"),
        ],
    )
    def test_invalid_regions_raise_and_the_import_can_continue(self, tmp_path, change, message):
        good = make_regions(1)
        fields = {"features": good.features, "boxes": good.boxes, "size": good.size}
        with StoreWriter(tmp_path, source="test") as writer:
            writer.add("first", good)
            with pytest.raises(ValueError, match=f"^image 'bad': .*{message}"):
                writer.add("bad", Regions(**{**fields, **change}))
            assert "bad" not in writer
            writer.add("last", good)
        assert list(FeatureStore(tmp_path).ids()) == ["first", "last"]

    @pytest.mark.parametrize("shard_bytes", [1, 1 << 20])
    def test_duplicate_ids_raise(self, tmp_path, shard_bytes):
        with StoreWriter(tmp_path, source="test", shard_bytes=shard_bytes) as writer:
            for image in range(3):
                writer.add(image, make_regions(image))
            with pytest.raises(ValueError, match="image '0' was added before"):
                writer.add("000", make_regions(0))

    def test_boxes_slightly_outside_are_clipped(self, tmp_path):
        boxes = np.array([[0.05, 0.5, 0.1002, 0.1], [0.5, 0.9502, 0.1, 0.1], [0.5, 0.5, 1, 1]])
        with StoreWriter(tmp_path, source="test") as writer:
            writer.add(1, Regions(make_regions(1).features, boxes))
        # By hand: [-0.0001, 0.1001] becomes [0, 0.1001], [0.9002, 1.0002] becomes [0.9002, 1].
        expected = [[0.05005, 0.5, 0.1001, 0.1], [0.5, 0.9501, 0.1, 0.0998], [0.5, 0.5, 1, 1]]
        np.testing.assert_allclose(FeatureStore(tmp_path)[1].boxes, expected, rtol=1e-6)

    def test_empty_import_raises_and_leaves_nothing(self, tmp_path):
        writer = StoreWriter(tmp_path, source="nothing.tsv")
        with pytest.raises(ValueError, match="no image was added .* 'nothing.tsv'"), writer:
            pass
        assert list(tmp_path.iterdir()) == []

    def test_unknown_id_error_lists_some_existing_ids(self, tmp_path):
        write_store(tmp_path)
        with pytest.raises(KeyError, match="no image '12' .* 10 images, such as 'image 0', 'imag"):
            FeatureStore(tmp_path)["0012"]


class TestFolder:
    def test_missing_store_raises(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="folder not found"):
            FeatureStore(tmp_path / "nowhere")
        with pytest.raises(FileNotFoundError, match="no feature store in"):
            FeatureStore(tmp_path)

    def test_existing_store_is_replaced_only_with_overwrite(self, tmp_path):
        write_store(tmp_path, images=3)
        with pytest.raises(ValueError, match="features exists"):
            StoreWriter(tmp_path, source="test")
        write_store(tmp_path, images=4, overwrite=True)
        assert len(FeatureStore(tmp_path)) == 4
        assert [path.name for path in tmp_path.iterdir()] == ["features"]

    def test_concurrent_import_raises(self, tmp_path):
        with StoreWriter(tmp_path, source="test") as writer:
            writer.add(1, make_regions(1))
            with pytest.raises(ValueError, match="another import into .* is under way"):
                StoreWriter(tmp_path, source="test")
        assert len(FeatureStore(tmp_path)) == 1

    def test_resuming_with_another_source_raises(self, tmp_path):
        with pytest.raises(InterruptedError):
            interrupt(tmp_path, images=5, shard_bytes=1)
        with pytest.raises(ValueError, match="of another source, 'test' and not 'two'"):
            StoreWriter(tmp_path, source="two")
        with StoreWriter(tmp_path, source="two", overwrite=True) as writer:
            assert writer.position is None
            writer.add(2, make_regions(2))
        assert list(FeatureStore(tmp_path).ids()) == ["2"]
        names = ["index.safetensors", "manifest.json", "shard-00000.safetensors"]
        assert sorted(content(tmp_path / "features")) == names

    def test_store_replaced_under_a_reader_raises(self, tmp_path):
        write_store(tmp_path, images=6)
        store = FeatureStore(tmp_path)
        first = store["image 0"]
        write_store(tmp_path, images=7, overwrite=True)
        assert_same(first, make_regions(0))
        with pytest.raises(ValueError, match="replaced by another import: open the store again"):
            store["image 5"]


class TestDamage:
    def test_every_changed_byte_is_detected(self, tmp_path):
        write_store(tmp_path, images=4, shard_bytes=250)
        folder = tmp_path / "features"
        names = sorted(path.name for path in folder.iterdir())
        assert names[:3] == ["index.safetensors", "manifest.json", "shard-00000.safetensors"]
        for name in names:
            path = folder / name
            whole = path.read_bytes()
            for place in range(len(whole)):
                # Writing one byte in place is faster than writing a new file.
                with path.open("rb+") as file:
                    file.seek(place)
                    file.write(bytes([whole[place] ^ (1 << place % 8)]))
                try:
                    problems = FeatureStore(tmp_path).verify()
                except ValueError as error:
                    problems = [str(error)]
                assert any(name in problem for problem in problems), (name, place)
                with path.open("rb+") as file:
                    file.seek(place)
                    file.write(whole[place : place + 1])
        assert FeatureStore(tmp_path).verify() == []

    def test_changed_white_space_in_the_manifest_raises(self, tmp_path):
        write_store(tmp_path)
        path = tmp_path / "features" / "manifest.json"
        path.write_text(path.read_text().replace("\n ", "\n\t", 1))
        assert json.loads(path.read_text())["format"] == 2
        with pytest.raises(ValueError, match=r"manifest.json is damaged"):
            FeatureStore(tmp_path)

    @pytest.mark.parametrize("name", ["shard-00001.safetensors", "index.safetensors"])
    def test_missing_or_truncated_file_error_names_it(self, tmp_path, name):
        write_store(tmp_path)
        store = FeatureStore(tmp_path)
        path = tmp_path / "features" / name
        path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(ValueError, match=f"{name} has .* bytes instead of"):
            FeatureStore(tmp_path)
        assert name in store.verify()[0]
        path.unlink()
        with pytest.raises(FileNotFoundError, match=f"{name} is missing"):
            FeatureStore(tmp_path)
        assert name in store.verify()[0]

    def test_missing_manifest_raises(self, tmp_path):
        write_store(tmp_path)
        (tmp_path / "features" / "manifest.json").unlink()
        with pytest.raises(FileNotFoundError, match=r"manifest.json"):
            FeatureStore(tmp_path)

    def test_unsupported_format_raises(self, tmp_path):
        write_store(tmp_path)
        path = tmp_path / "features" / "manifest.json"
        path.write_text(seal({**read_sealed(path), "format": 1}))
        with pytest.raises(ValueError, match="has format 1; this version of ngsan reads format 2"):
            FeatureStore(tmp_path)

    @pytest.mark.parametrize("length", [0, 5, 8, 40, 300, -1])
    def test_mapping_a_truncated_file_raises(self, tmp_path, length):
        write_store(tmp_path)
        path = tmp_path / "features" / "shard-00000.safetensors"
        path.write_bytes(path.read_bytes()[:length])
        with pytest.raises(ValueError, match=r"shard-00000.safetensors .*cut off"):
            shards.map_tensors(path)


class Killed(BaseException):
    """Simulates a kill: nothing in the package may catch it."""


def kill_at(monkeypatch, step, *, after):
    """Makes the n-th disk operation the last one; an interrupted write leaves half a file."""
    steps = iter(range(1_000_000))

    def deadly(function):
        def call(*arguments, **options):
            now = next(steps) == step
            if now and not after:
                if function is save:
                    arguments[1].write_bytes(b"half a file")
                raise Killed
            result = function(*arguments, **options)
            if now:
                raise Killed
            return result

        return call

    save = shards.save_file
    monkeypatch.setattr(shards, "save_file", deadly(save))
    monkeypatch.setattr(os, "fsync", deadly(os.fsync))
    for name in ("rename", "replace", "unlink", "mkdir"):
        monkeypatch.setattr(Path, name, deadly(getattr(Path, name)))


def visible_images(folder):
    """The number of images that a reader sees in a folder, 0 without a store."""
    try:
        return len(FeatureStore(folder))
    except FileNotFoundError as error:
        if (folder / "features.partial").exists() and "interrupted" not in str(error):
            raise
        return 0


def next_image(folder):
    """The image with which an interrupted import continues, according to its files."""
    for name in ("state.json", "manifest.json"):
        path = folder / "features.partial" / name
        if path.exists():
            position = json.loads(path.read_text())["position"]
            return 0 if position is None else position + 1
    return 0


class TestInterruption:
    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.parametrize("after", [False, True])
    def test_kill_at_any_step_loses_nothing(self, tmp_path, overwrite, after):
        write_store(tmp_path / "whole")
        expected = content(tmp_path / "whole" / "features")
        kills = finished = 0
        while not finished:
            folder = tmp_path / str(kills)
            if overwrite:
                write_store(folder, images=2)
            with pytest.MonkeyPatch.context() as monkeypatch:
                kill_at(monkeypatch, kills, after=after)
                try:
                    write_store(folder, overwrite=overwrite)
                    finished = True
                except Killed:
                    kills += 1
            images = visible_images(folder)
            old = 2 if overwrite and (folder / "features").exists() else 0
            assert images in (old, 10)
            if images != 10:
                # Saved shards are not written again.
                start = next_image(folder)
                assert write_store(folder, overwrite=overwrite) == start
            assert content(folder / "features") == expected
        assert kills > 30

    def test_import_resumes_after_the_last_complete_shard(self, tmp_path):
        with pytest.raises(InterruptedError):
            interrupt(tmp_path, images=5, shard_bytes=250)
        with pytest.raises(FileNotFoundError, match="interrupted .* run the same import again"):
            FeatureStore(tmp_path)
        with pytest.raises(FileNotFoundError, match="interrupted"):
            FeatureStore(tmp_path / "features.partial")
        with pytest.raises(FileNotFoundError, match="interrupted"):
            FeatureStore(tmp_path / "features")
        # Two images of 78 + 25 bytes fit into a shard, so the fifth image was not written yet.
        with StoreWriter(tmp_path, source="test", shard_bytes=250) as writer:
            assert writer.position == {"line": 3}
            assert [image in writer for image in range(5)] == [True] * 4 + [False]
            with pytest.raises(ValueError, match="added before"):
                writer.add(0, make_regions(0))
            writer.add(4, make_regions(4))
        store = FeatureStore(tmp_path)
        for image in range(5):
            assert_same(store[image], make_regions(image))

    def test_import_survives_random_kills(self, tmp_path):
        write_store(tmp_path / "whole", images=60)
        images = [make_regions(image) for image in range(60)]
        features = {f"f{number}": image.features for number, image in enumerate(images)}
        boxes = {f"b{number}": image.boxes for number, image in enumerate(images)}
        np.savez(tmp_path / "arrays.npz", **features, **boxes)
        random = np.random.default_rng(0)
        folder = tmp_path / "killed"
        partly = 0
        for _ in range(10):
            command = [sys.executable, "-c", SLOW_IMPORT, folder, tmp_path / "arrays.npz"]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout.readline() == b"started\n"
                time.sleep(random.uniform(0, 0.06))
                process.send_signal(signal.SIGKILL)
            if (folder / "features").exists():
                break
            partly += (folder / "features.partial" / "shard-00000.safetensors").exists()
            with pytest.raises(FileNotFoundError, match="interrupted"):
                FeatureStore(folder)
        assert partly
        if not (folder / "features").exists():
            write_store(folder, images=60)
        assert content(folder / "features") == content(tmp_path / "whole" / "features")

    def test_import_resumes_after_a_full_disk(self, tmp_path):
        write_store(tmp_path / "whole", shard_bytes=2000)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            # The limit of a file's size is enough for the state but not for a shard.
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
            with pytest.raises(OSError, match=r"cannot write .*shard-00000.* run the same import"):
                write_store(tmp_path / "full", shard_bytes=2000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert [path.name for path in (tmp_path / "full").iterdir()] == ["features.partial"]
        write_store(tmp_path / "full", shard_bytes=2000)
        assert content(tmp_path / "full" / "features") == content(tmp_path / "whole" / "features")

    def test_damaged_interrupted_import_error_says_what_to_remove(self, tmp_path):
        with pytest.raises(InterruptedError):
            interrupt(tmp_path, images=3, shard_bytes=1)
        (tmp_path / "features.partial" / "shard-00001.safetensors").unlink()
        with pytest.raises(ValueError, match=r"shard-00001.* remove .*features.partial"):
            StoreWriter(tmp_path, source="test")


SLOW_IMPORT = """
import os, sys, time
import numpy as np
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter
os.fsync = lambda number: None
arrays = np.load(sys.argv[2])
with StoreWriter(sys.argv[1], source="test", shard_bytes=300) as writer:
    print("started", flush=True)
    start = 0 if writer.position is None else writer.position + 1
    for image in range(start, 60):
        regions = Regions(arrays[f"f{image}"], arrays[f"b{image}"], (640 + image, 480))
        writer.add(f"image {image}", regions, position=image)
        time.sleep(0.003)
"""


def read_all(store, results):
    results.put({image_id: store[image_id].features.tobytes() for image_id in store.ids()})


class TestProcesses:
    def test_pickled_store_reopens_its_files(self, tmp_path):
        write_store(tmp_path)
        store = FeatureStore(tmp_path)
        assert_same(store["image 4"], make_regions(4))
        pickled = pickle.dumps(store)
        assert make_regions(4).features.tobytes() not in pickled
        assert_same(pickle.loads(pickled)["image 4"], make_regions(4))
        assert_same(store["image 4"], make_regions(4))

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_processes_can_read_concurrently(self, tmp_path, method):
        write_store(tmp_path)
        store = FeatureStore(tmp_path)
        expected = {f"image {n}": make_regions(n).features.tobytes() for n in range(10)}
        assert_same(store["image 4"], make_regions(4))
        context = multiprocessing.get_context(method)
        results = context.Queue()
        workers = [context.Process(target=read_all, args=(store, results)) for _ in range(2)]
        for worker in workers:
            worker.start()
        found = [results.get(timeout=60) for _ in workers]
        for worker in workers:
            worker.join()
        assert found == [expected, expected]


def test_a_changed_byte_of_the_index_is_an_error_of_one_line(tmp_path):
    write_store(tmp_path)
    path = tmp_path / "features" / "index.safetensors"
    content = path.read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="index.safetensors") as raised:
            "1" in FeatureStore(tmp_path)  # noqa: B015 - it reads the index
        assert "\n" not in str(raised.value)
    path.write_bytes(content)
    assert len(list(FeatureStore(tmp_path).ids())) == 10
