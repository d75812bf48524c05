import io
import tarfile

import pytest

from ngsan.data.pictures import PictureStore


def write_tar(path, files):
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.fixture
def folder(tmp_path):
    write_tar(tmp_path / "000.tar", {"000000000042.jpg": b"forty-two", "b/dog.PNG": b"wuff"})
    write_tar(tmp_path / "001.tar", {"readme.txt": b"no picture", "7.jpeg": b""})
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "COCO_val2014_000000000099.jpg").write_bytes(b"ninety-nine")
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


def test_pictures_in_tar_files_and_folders(folder):
    store = PictureStore(folder)
    assert sorted(store.ids()) == ["42", "7", "99", "dog"]
    assert len(store) == 4
    assert "42" in store
    assert "43" not in store
    assert store.read("42") == b"forty-two"
    assert store.read_many(["99", "dog", "7"]) == [b"ninety-nine", b"wuff", b""]


def test_signature_depends_on_the_pictures(folder):
    before = PictureStore(folder).signature
    assert PictureStore(folder).signature == before
    (folder / "8.jpg").write_bytes(b"eight")
    assert PictureStore(folder).signature != before


def test_invalid_picture_folders_raise(folder, tmp_path):
    with pytest.raises(ValueError, match="2 of 3 images have no picture"):
        PictureStore(folder).read_many(["42", "x", "y"])
    (folder / "42.png").write_bytes(b"again")
    with pytest.raises(ValueError, match="two pictures of image '42'"):
        PictureStore(folder)
    with pytest.raises(ValueError, match="not a folder"):
        PictureStore(folder / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="no pictures"):
        PictureStore(empty)
    (empty / "bad.tar").write_bytes(b"x" * 1000)
    with pytest.raises(ValueError, match="bad.tar"):
        PictureStore(empty)


def test_truncated_tar_file_raises(folder):
    store = PictureStore(folder)
    content = (folder / "000.tar").read_bytes()
    (folder / "000.tar").write_bytes(content[:514])
    with pytest.raises(OSError, match="shorter than it was"):
        store.read("42")
