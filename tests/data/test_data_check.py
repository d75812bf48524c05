import numpy as np
import pytest

from ngsan.data.data_check import checked_features
from ngsan.data.shards import FileEntry
from ngsan.data.store import FeatureStore, Regions
from ngsan.data.store_writer import StoreWriter


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    with StoreWriter(tmp_path, source="made here", shard_bytes=2000) as writer:
        for number in range(9):
            writer.add(str(number), Regions(rng.random((4, 64), np.float32), None, None))
    return FeatureStore(tmp_path)


def test_a_store_is_read_once_until_it_is_written_to(store, monkeypatch):
    read = []
    check = FileEntry.check

    def counted(entry, folder, *, content=False):
        read.append(entry.name)
        check(entry, folder, content=content)

    monkeypatch.setattr(FileEntry, "check", counted)
    with checked_features(store, None):
        pass
    shards = sorted(path.name for path in store.folder.glob("shard-*"))
    assert len(shards) > 2
    assert set(shards) <= set(read)
    read.clear()
    with checked_features(store):
        pass
    assert not read
    damaged = store.folder / shards[1]
    content = bytearray(damaged.read_bytes())
    content[-9] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(ValueError, match=shards[1]), checked_features(store):
        pass


def test_a_missing_shard_is_named(store):
    (store.folder / "shard-00001.safetensors").unlink()
    with pytest.raises(ValueError, match="shard-00001"), checked_features(store):
        pass
