"""Files from strangers at import: bombs, links to other files, folders without end."""

import gzip
import io
import json
import os
import subprocess
import time
import zipfile
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from ngsan.__main__ import main
from ngsan.data import FeatureStore
from ngsan.data.importers.features import list_files
from ngsan.data.importers.folders import read_frames, read_npz, read_tensors
from ngsan.data.importers.hdf5 import read_hdf5
from ngsan.data.importers.questions import vqa_questions
from ngsan.data.importers.tsv import read_tsv
from ngsan.data.problems import Problems
from ngsan.data.text_files import open_bytes, read_items, read_lines

FEATURES = np.ones((3, 8), np.float32)
BOXES = np.tile(np.array([0.1, 0.1, 0.5, 0.5], np.float32), (3, 1))


def refused(items, word):
    with pytest.raises(ValueError, match=word) as raised:
        list(items)
    assert "\n" not in str(raised.value)


def hdf5(path, make):
    with h5py.File(path, "w") as file:
        make(file)
    return read_hdf5(path, problems=Problems())


def test_hdf5_follows_no_link_and_no_external_storage(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(FEATURES.tobytes())
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["1_features"], other["1_boxes"] = FEATURES, BOXES

    def external_storage(file):
        file.create_dataset("1_features", (3, 8), "f4", external=[(str(secret), 0, 96)])
        file["1_boxes"] = BOXES

    def external_link(file):
        file["1_features"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "1_features")
        file["1_boxes"] = BOXES

    def soft_link(file):
        file["elsewhere"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/")
        file["1_features"] = h5py.SoftLink("/elsewhere/1_features")
        file["1_boxes"] = BOXES

    def virtual(file):
        layout = h5py.VirtualLayout((3, 8), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "1_features", (3, 8))
        file.create_virtual_dataset("1_features", layout)
        file["1_boxes"] = BOXES

    def group(file):
        one = file.create_group("1")
        one.create_dataset("features", (3, 8), "f4", external=[(str(secret), 0, 96)])
        one["bbox"] = BOXES

    def linked_group(file):
        file["1"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/")

    def rows(file):
        file.create_dataset("features", (1, 3, 8), "f4", external=[(str(secret), 0, 96)])
        file["boxes"], file["image_id"] = BOXES[None], np.array([1])

    for make in (external_storage, virtual, group, rows):
        refused(hdf5(tmp_path / "bad.h5", make), "another file")
    for make in (external_link, soft_link, linked_group):
        refused(hdf5(tmp_path / "bad.h5", make), "is a link")


def test_hdf5_arrays_of_nothing_are_not_read(tmp_path):
    def sparse(file):
        file.create_dataset("1_features", (10**6, 10**5), "f4", chunks=(1, 10**5))
        file["1_boxes"] = BOXES

    def chunk(file):
        file["1_boxes"] = BOXES
        shape, chunks = (3, 8), (30_000, 10_000)
        file.create_dataset("1_features", shape, "f4", chunks=chunks, maxshape=(None, None))

    def id_of_many_numbers(file):
        file["features"], file["boxes"] = FEATURES[None], BOXES[None]
        file.create_dataset("image_id", (1, 10**10), "i8", chunks=(1, 1000))

    for make in (sparse, chunk, id_of_many_numbers):
        refused(hdf5(tmp_path / "sparse.h5", make), "more than")


def test_hdf5_lists_of_lists_are_not_read(tmp_path):
    """Each could be the same long one."""
    lists = h5py.vlen_dtype("f4")

    def dataset(file):
        file["1_boxes"] = BOXES
        file.create_dataset("1_features", (10**6,), lists)

    def attribute(file):
        group = file.create_group("1")
        group["bbox"] = BOXES
        value = np.empty(2, object)
        value[:] = [FEATURES[0]] * 2
        group.attrs.create("features", value, (2,), lists)

    for make in (dataset, attribute):
        refused(hdf5(tmp_path / "lists.h5", make), "not numbers")


def test_packed_arrays_of_nothing_are_not_unpacked(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "1.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("features.npy", "w", force_zip64=True) as file,
    ):
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (600, 1 << 18)}
        )
        for _ in range(600):
            file.write(bytes(1 << 20))
    assert (tmp_path / "1.npz").stat().st_size < 2_000_000
    refused(read_npz(tmp_path, problems=Problems()), "unpacks to")


def test_hdf5_groups_in_place_of_numbers_are_refused(tmp_path):
    def make(file):
        group = file.create_group("1")
        group["features"] = group
        group["bbox"] = BOXES

    refused(hdf5(tmp_path / "cycle.h5", make), "features is a group|is a group, not numbers")


def test_hdf5_chunks_that_lie_about_their_size_are_not_unpacked(tmp_path):
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(bytes(1 << 24)) for _ in range(8)) + packer.flush()

    def pairs(file):
        dataset = file.create_dataset(
            "1_features", (3, 8), "f4", chunks=(3, 8), compression="gzip", shuffle=True
        )
        dataset.id.write_direct_chunk((0, 0), bomb)
        file["1_boxes"] = BOXES

    def rows(file):
        dataset = file.create_dataset(
            "features", (4, 3, 8), "f4", chunks=(2, 3, 4), compression="gzip"
        )
        dataset[...] = FEATURES
        dataset.id.write_direct_chunk((2, 0, 4), bomb)
        file["boxes"] = np.tile(BOXES, (4, 1, 1))
        file["image_id"] = np.arange(4)

    refused(hdf5(tmp_path / "pairs.h5", pairs), "unpacks to more than its 96 bytes")
    found = hdf5(tmp_path / "rows.h5", rows)
    assert [next(found)[1], next(found)[1]] == ["0", "1"]
    refused(found, "unpacks to more than its 96 bytes")


def test_large_gzip_chunks_of_honest_files_are_read(tmp_path):
    wide = np.random.default_rng(0).random((3, 20_000), np.float32)

    def make(file):
        file.create_dataset("1_features", data=wide, chunks=wide.shape, compression="gzip")
        file["1_boxes"] = BOXES

    ((_, _, regions),) = hdf5(tmp_path / "wide.h5", make)
    np.testing.assert_array_equal(regions.features, wide.astype(np.float16))


def test_hdf5_filters_that_are_not_known_are_refused(tmp_path):
    def make(file):
        file.create_dataset("1_features", (3, 8), "i4", chunks=(3, 8), scaleoffset=0)
        file["1_boxes"] = BOXES

    refused(hdf5(tmp_path / "filter.h5", make), "is packed with filter 6")


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_npz_in_unusual_packings_are_refused(packing, tmp_path):
    held = io.BytesIO()
    np.save(held, FEATURES)
    with zipfile.ZipFile(tmp_path / "1.npz", "w", packing) as archive:
        archive.writestr("features.npy", held.getvalue())
    refused(read_npz(tmp_path, problems=Problems()), "packed in a way that")


@pytest.mark.parametrize(
    "features",
    [
        torch.empty(3, 8, device="meta"),
        torch.zeros(3, 8).to(torch.float8_e4m3fn),
        torch.complex(torch.zeros(3, 8), torch.zeros(3, 8)).conj(),
    ],
    ids=["meta", "float8", "complex"],
)
def test_tensors_without_numbers_are_refused(features, tmp_path):
    torch.save({"features": features, "boxes": torch.from_numpy(BOXES)}, tmp_path / "1.pt")
    refused(read_tensors(tmp_path, problems=Problems()), "wrong type|wrong shape")


def test_long_headers_are_refused(tmp_path):
    head = b"{" + b" " * (2 << 20) + b"}"
    (tmp_path / "1.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    refused(read_tensors(tmp_path, problems=Problems()), "a header of 2,097,154 bytes")


@pytest.mark.parametrize("kind", ["npy", "safetensors", "pt"])
def test_files_full_of_holes_are_not_read(kind, tmp_path):
    path = tmp_path / f"1.{kind}"
    read = read_frames if kind == "npy" else read_tensors
    with path.open("wb") as file:
        shape = (1 << 20, 1 << 8)
        if kind == "npy":
            head = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, head)
        elif kind == "safetensors":
            entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 1 << 30]}
            head = json.dumps({"features": entry}).encode()
            file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(file.tell() + (1 << 30))
    refused(read(tmp_path, problems=Problems()), "more than 134,217,728 for one image")


@pytest.mark.parametrize("content", [b"[[" + b"{}," * (1 << 21), b'["' + b"a" * (5 << 20)])
def test_json_without_an_end_is_not_held(content, tmp_path):
    (tmp_path / "captions.json").write_bytes(content)
    refused(read_items(tmp_path / "captions.json"), "bytes without a quotation mark")


@pytest.mark.parametrize("identity", ["[" * 3000 + "]" * 3000, "9" * 5000], ids=["deep", "long"])
def test_ids_that_cannot_be_shown_are_one_error(identity, tmp_path, capsys):
    content = f'{{"images": [{{"id": {identity}, "file_name": "a.jpg"}}], "annotations": []}}'
    (tmp_path / "train.json").write_text(content)
    words = ["data", "captions", "coco", str(tmp_path / "train.json"), "-o", str(tmp_path / "out")]
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_lines_of_tabs_are_one_bad_line(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"\t" * (1 << 24))
    started = time.process_time()
    refused(read_tsv(tmp_path / "a.tsv", problems=Problems()), "columns, not 6")
    assert time.process_time() - started < 2


def test_texts_of_nothing_are_not_unpacked(tmp_path):
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'["')
        for _ in range(24):
            file.write(b"a" * (1 << 20))
        file.write(b'"]')
    refused(read_items(path), "unpacks to|without a quotation mark")
    refused(read_lines(path, max_bytes=-1), "unpacks to")


def test_packed_texts_are_read_as_before(tmp_path):
    content = json.dumps([{"number": number} for number in range(1000)]).encode()
    with gzip.open(tmp_path / "good.json.gz", "wb") as file:
        file.write(b"\xef\xbb\xbf" + content)
    assert [item["number"] for _, _, item in read_items(tmp_path / "good.json.gz")] == [
        *range(1000)
    ]
    with open_bytes(tmp_path / "good.json.gz") as file:
        assert file.read() == b"\xef\xbb\xbf" + content


def test_an_expanded_view_is_not_written_out(tmp_path):
    huge = torch.ones(1, 1).expand(10**6, 10**6)
    torch.save({"features": huge, "boxes": torch.from_numpy(BOXES)}, tmp_path / "1.pt")
    refused(read_tensors(tmp_path, problems=Problems()), "expanded view")


def test_a_thousand_folders_within_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(1100):
        Path("d").mkdir()
        os.chdir("d")
    np.savez("7.npz", features=FEATURES, bbox=BOXES)
    os.chdir(tmp_path)
    (name,) = list_files(".", (".npz",))
    assert name == "d/" * 1100 + "7.npz"
    subprocess.run(["rm", "-rf", "d"], check=True)  # Python alone cannot remove it


def test_a_folder_that_cannot_be_read_is_an_error(closed_folder):
    np.savez(closed_folder.parent / "1.npz", features=FEATURES, bbox=BOXES)
    with pytest.raises(ValueError, match="closed: unreadable folder: Permission denied"):
        list_files(closed_folder.parent, (".npz",))


def test_unreadable_folders_are_counted_and_the_rest_is_imported(closed_folder, capsys):
    folder = closed_folder.parent
    for number in (1, 2):
        np.savez(folder / f"{number}.npz", features=FEATURES, bbox=BOXES)
    words = ["data", "features", "npz", str(folder), "-o", str(folder / "out")]
    assert main(words) == 2
    assert "closed: unreadable folder: Permission denied" in capsys.readouterr().err
    assert main([*words, "--skip-bad"]) == 1
    assert "skipped 1: unreadable folder (first: " in capsys.readouterr().out
    assert sorted(FeatureStore(folder / "out").ids()) == ["1", "2"]


def test_bad_files_are_counted_and_the_rest_is_read(tmp_path):
    torch.save(torch.ones(1, 1).expand(10**6, 10**6), tmp_path / "1.pt")
    torch.save({"features": torch.ones(3, 8), "boxes": torch.from_numpy(BOXES)}, tmp_path / "2.pt")
    problems = Problems(skip=True)
    assert [name for _, name, _ in read_tensors(tmp_path, problems=problems)] == ["2"]
    assert problems.counts == {"wrong shape": 1}


def test_questions_nested_too_deeply_and_pipes_are_refused_at_once(tmp_path):
    (tmp_path / "deep.json").write_text('{"questions":[' + "[" * 500_000)
    os.mkfifo(tmp_path / "pipe.json")
    start = time.process_time()
    for name, problem in (("deep.json", "nested too deeply"), ("pipe.json", "is a pipe")):
        refused(vqa_questions([tmp_path / name], split="train", problems=Problems()), problem)
    assert time.process_time() - start < 4  # gigabytes, where the parser gets them


@pytest.mark.parametrize(
    "words",
    [
        ["score", "RESULTS", "--references", "RESULTS", "--boxes", "zero.json"],
        ["score", "zero.json", "--check-submission"],
        ["extract", "PHOTOS", "--output", "out", "--source", "boxes", "zero.json"],
        ["fit", "confidence", "PHOTOS", "--data", "data", "--boxes", "zero.json", "--output", "o"],
        ["plot", "metrics", "zero.json", "--output", "p.png"],
    ],
    ids=["boxes", "submission", "extract", "fit", "plot"],
)
def test_devices_are_refused_by_every_command(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "PHOTOS").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "PHOTOS" / "1.png")
    (tmp_path / "RESULTS").write_text('[{"image_id": 1, "caption": "a dog"}]')
    assert main(words) == 2
    assert "zero.json is a device, not a file" in capfd.readouterr().err
