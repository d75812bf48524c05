"""Feature files written here with base64, NumPy, h5py, safetensors and PyTorch, and read back."""

import base64
import json
import pickle
import re
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ngsan.data.importers import tsv
from ngsan.data.importers.features import BoxRules, import_features, place, relative_boxes
from ngsan.data.importers.folders import (
    frames_total,
    npz_total,
    read_frames,
    read_npz,
    read_tensors,
    tensors_total,
)
from ngsan.data.importers.hdf5 import hdf5_total, read_hdf5
from ngsan.data.importers.tsv import LXMERT_FIELDS, _numbers, read_tsv, tsv_total
from ngsan.data.problems import Problems
from ngsan.data.store import BadRegionsError, FeatureStore
from ngsan.data.store_writer import StoreWriter

DIM = 8


def make_images(count=4, *, dim=DIM):
    """Images as a detector returns them: pixel corners, float32."""
    generator = np.random.default_rng(count)
    images = []
    for index in range(count):
        regions, width, height = 2 + index, 640 - index, 480 + index
        corner = generator.uniform((0, 0), (300, 200), (regions, 2))
        extent = generator.uniform(5, 250, (regions, 2))
        images.append(
            {
                "id": str(1000 + 7 * index),
                "features": generator.standard_normal((regions, dim)).astype(np.float32),
                "boxes": np.concatenate((corner, corner + extent), 1).astype(np.float32),
                "size": (width, height),
            }
        )
    return images


def check_image(regions, image):
    """Compares with a calculation box by box."""
    assert regions.features.dtype == np.float16
    np.testing.assert_array_equal(regions.features, image["features"].astype(np.float16))
    width, height = image["size"]
    expected = [
        [
            (float(x1) + float(x2)) / 2 / width,
            (float(y1) + float(y2)) / 2 / height,
            (float(x2) - float(x1)) / width,
            (float(y2) - float(y1)) / height,
        ]
        for x1, y1, x2, y2 in image["boxes"]
    ]
    assert regions.boxes.dtype == np.float32
    np.testing.assert_allclose(regions.boxes, expected, rtol=1e-6, atol=1e-7)
    assert regions.size == (width, height)


def tsv_line(image, *, order="wh"):
    width, height = image["size"]
    return [
        image["id"],
        str(width if order == "wh" else height),
        str(height if order == "wh" else width),
        str(image.get("count", len(image["boxes"]))),
        base64.b64encode(np.asarray(image["boxes"], "<f4").tobytes()).decode(),
        base64.b64encode(np.asarray(image["features"], "<f4").tobytes()).decode(),
    ]


def write_tsv(folder, images, *, end="\n"):
    path = folder / "features.tsv"
    path.write_bytes("".join("\t".join(tsv_line(image)) + end for image in images).encode())
    return path


def named(image):
    arrays = {"features": image["features"], "bbox": image["boxes"]}
    arrays |= {"image_w": image["size"][0], "image_h": image["size"][1]}
    if "count" in image:
        arrays["num_boxes"] = image["count"]
    return {name: array for name, array in arrays.items() if array is not None}


def write_npz(folder, images):
    for image in images:
        np.savez(folder / f"{image['id']}.npz", **named(image))
    return folder


def write_groups(folder, images):
    with h5py.File(folder / "features.h5", "w") as file:
        for image in images:
            group = file.create_group(image["id"])
            for name, array in named(image).items():
                if name.startswith("image_"):
                    group.attrs[name] = array
                else:
                    group[name] = array
    return folder / "features.h5"


def write_safetensors(folder, images):
    for image in images:
        tensors = {name: torch.tensor(array) for name, array in named(image).items()}
        save_file(tensors, folder / f"{image['id']}.safetensors")
    return folder


def write_pt(folder, images):
    for image in images:
        arrays = named(image)
        tensors = {name: torch.tensor(arrays[name]) for name in arrays if "image_" not in name}
        torch.save({**arrays, **tensors}, folder / f"{image['id']}.pt")
    return folder


FORMATS = {
    "tsv": (write_tsv, read_tsv),
    "npz": (write_npz, read_npz),
    "hdf5": (write_groups, read_hdf5),
    "safetensors": (write_safetensors, read_tensors),
    "pt": (write_pt, read_tensors),
}


def read(reader, *paths, **options):
    return list(reader(*paths, problems=Problems(), **options))


# Valid files.


@pytest.mark.parametrize("name", FORMATS)
def test_formats_round_trip(tmp_path, name):
    write, reader = FORMATS[name]
    images = make_images()
    items = read(reader, write(tmp_path, images))
    assert [image_id for _, image_id, _ in items] == [image["id"] for image in images]
    for (_, _, regions), image in zip(items, images, strict=True):
        check_image(regions, image)


@pytest.mark.parametrize("name", FORMATS)
def test_reading_can_start_at_any_position(tmp_path, name):
    write, reader = FORMATS[name]
    path = write(tmp_path, make_images(5))
    whole = read(reader, path)
    for index, (position, _, _) in enumerate(whole):
        start = json.loads(json.dumps(position))
        rest = read(reader, path, start=start)
        assert [item[:2] for item in rest] == [item[:2] for item in whole[index + 1 :]]
        for (_, _, regions), (_, _, expected) in zip(rest, whole[index + 1 :], strict=True):
            np.testing.assert_array_equal(regions.features, expected.features)
            np.testing.assert_array_equal(regions.boxes, expected.boxes)


def test_totals_equal_the_last_position(tmp_path):
    images = make_images()
    totals = {"tsv": tsv_total, "npz": npz_total, "hdf5": hdf5_total, "pt": tensors_total}
    for name, total in totals.items():
        write, reader = FORMATS[name]
        (tmp_path / name).mkdir()
        path = write(tmp_path / name, images)
        done = [position["done"] for position, _, _ in read(reader, path)]
        assert done == sorted(set(done))
        assert done[-1] == total(path)
    assert (
        tsv_total(tmp_path / "tsv/features.tsv") == (tmp_path / "tsv/features.tsv").stat().st_size
    )


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("buffer", [16, 1000, 1 << 20])
def test_tsv_accepts_all_line_ends(tmp_path, monkeypatch, end, buffer):
    monkeypatch.setattr(tsv, "_READ_AHEAD", buffer)
    images = make_images()
    path = write_tsv(tmp_path, images, end=end)
    for content in (path.read_bytes(), path.read_bytes().rstrip()):
        path.write_bytes(content)
        items = read(read_tsv, path)
        for (position, _, regions), image in zip(items, images, strict=True):
            check_image(regions, image)
            before = content[: position["byte"]]
            assert position["line"] == before.count(b"\n") + (not before.endswith(b"\n"))


def test_tsv_of_several_files_resumes_in_each(tmp_path):
    images = make_images(6)
    paths = []
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        paths.append(write_tsv(tmp_path / str(number), images[2 * number : 2 * number + 2]))
    whole = read(read_tsv, paths)
    assert [image_id for _, image_id, _ in whole] == [image["id"] for image in images]
    assert whole[-1][0]["done"] == tsv_total(paths)
    for index, (position, _, _) in enumerate(whole):
        rest = read(read_tsv, paths, start=position)
        assert [item[:2] for item in rest] == [item[:2] for item in whole[index + 1 :]]


def test_tsv_columns_are_named_by_option_or_by_the_first_line(tmp_path):
    images = make_images()
    lines = []
    for image in images:
        number, height, width, count, boxes, features = tsv_line(image, order="hw")
        lines.append(
            [number, height, width, "AA==", "AA==", "AA==", "AA==", count, boxes, features]
        )
    path = tmp_path / "lxmert.tsv"
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
    for header, options in (([], {"fields": LXMERT_FIELDS}), ([list(LXMERT_FIELDS)], {})):
        path.write_text("".join("\t".join(line) + "\n" for line in header + lines))
        items = read(read_tsv, path, **options)
        for (_, _, regions), image in zip(items, images, strict=True):
            check_image(regions, image)
        assert len(read(read_tsv, path, start=items[0][0], **options)) == len(images) - 1


def test_tsv_cells_written_as_python_bytes_are_unwrapped(tmp_path):
    (image,) = make_images(1)
    cells = tsv_line(image)
    cells[4:] = [f"b'{cell}'" for cell in cells[4:]]
    path = tmp_path / "a.tsv"
    path.write_text("\t".join(cells) + "\n")
    check_image(read(read_tsv, path)[0][2], image)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(0, 40_000), seed=st.integers(0, 1000))
def test_base64_equals_the_standard_library(count, seed):
    data = np.random.default_rng(seed).bytes(4 * count)
    numbers = _numbers("features", memoryview(base64.b64encode(data)))
    assert numbers.dtype == np.float32
    assert numbers.tobytes() == data


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), wrong=st.sampled_from(b"=\n -_*\x00\xff\xc3"))
def test_invalid_base64_character_raises(place, wrong):
    text = bytearray(base64.b64encode(bytes(range(256)) * 3 * 48))
    text[int(place * len(text))] = wrong
    with pytest.raises(BadRegionsError, match="features: ") as error:
        _numbers("features", memoryview(text))
    assert error.value.kind in ("broken base64", "wrong byte count")


@pytest.mark.parametrize("feature_name", ["features", "feat", "x", "feature", "image_features"])
@pytest.mark.parametrize("box_name", ["bbox", "boxes", "box", "bboxes"])
def test_npz_key_names(tmp_path, feature_name, box_name):
    (image,) = make_images(1)
    arrays = {feature_name: image["features"], box_name: image["boxes"]}
    # A pickled array that is not read does no harm.
    arrays |= {"size": np.array(image["size"]), "info": np.array({"objects": 1}, dtype=object)}
    np.savez_compressed(tmp_path / "COCO_val2014_000000001000.npz", **arrays)
    ((_, image_id, regions),) = read(read_npz, tmp_path)
    assert image_id == "1000"
    check_image(regions, image)


@pytest.mark.parametrize("pair", [("width", "height"), ("img_w", "img_h")])
def test_npz_size_key_names(tmp_path, pair):
    (image,) = make_images(1)
    sizes = {name: np.array([side]) for name, side in zip(pair, image["size"], strict=True)}
    np.savez(tmp_path / "a.npz", x=image["features"], box=image["boxes"], **sizes)
    check_image(read(read_npz, tmp_path)[0][2], image)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_npy_features_with_boxes_in_a_second_folder(tmp_path, inside, packed):
    images = make_images()
    att = tmp_path / "cocobu_att"
    box = att / "box" if inside else tmp_path / "cocobu_box"
    for folder in (att / "part", box / "part"):
        folder.mkdir(parents=True)
    for image in images:
        np.save(att / "part" / f"{image['id']}.npy", image["features"])
        if packed:
            np.savez(box / "part" / f"{image['id']}.npz", image["boxes"])
        else:
            np.save(box / "part" / f"{image['id']}.npy", image["boxes"])
    rules = BoxRules(sizes={image["id"]: image["size"] for image in images})
    items = read(read_npz, att, boxes=box, box_rules=rules)
    assert npz_total(att, boxes=box) == len(items) == len(images)
    for (_, _, regions), image in zip(items, images, strict=True):
        check_image(regions, image)


@pytest.mark.parametrize("axes", ["hwd", "dhw"])
def test_grids_use_their_cells_as_boxes(tmp_path, axes):
    grid = np.random.default_rng(0).standard_normal((2, 3, DIM)).astype(np.float32)
    np.save(tmp_path / "5.npy", grid if axes == "hwd" else np.moveaxis(grid, 2, 0))
    torch.save(torch.tensor(grid if axes == "hwd" else np.moveaxis(grid, 2, 0)), tmp_path / "5.pt")
    for reader in (read_npz, read_tensors):
        ((_, _, regions),) = read(reader, tmp_path, grid=axes)
        assert regions.size is None
        for row in range(2):
            for column in range(3):
                cell = 3 * row + column
                np.testing.assert_array_equal(
                    regions.features[cell], grid[row, column].astype("f2")
                )
                x, y, w, h = regions.boxes[cell]
                assert (x - w / 2, x + w / 2) == pytest.approx((column / 3, (column + 1) / 3))
                assert (y - h / 2, y + h / 2) == pytest.approx((row / 2, (row + 1) / 2))


def write_pairs(path, images):
    with h5py.File(path, "w") as file:
        for image in images:
            file[f"{image['id']}_features"] = image["features"]
            file[f"{image['id']}_boxes"] = image["boxes"]
            file[f"{image['id']}_cls_prob"] = np.zeros((2, 2))


def write_rows(path, images, *, dense, ids="image_id"):
    limit = max(len(image["boxes"]) for image in images)
    with h5py.File(path, "w") as file:
        if ids == "text":
            file["image_id"] = [f"COCO_val2014_{int(image['id']):012d}" for image in images]
        elif ids:
            file[ids] = [int(image["id"]) for image in images]
        file["width"] = [image["size"][0] for image in images]
        file["height"] = [image["size"][1] for image in images]
        file["num_boxes"] = [len(image["boxes"]) for image in images]
        for name, width in (("boxes", 4), ("features", DIM)):
            if dense:
                array = np.full((len(images), limit, width), np.nan, np.float32)
                for row, image in enumerate(images):
                    array[row, : len(image[name])] = image[name]
                file[name] = array
            else:
                kind = h5py.vlen_dtype(np.float32)
                dataset = file.create_dataset(name, (len(images),), kind)
                for row, image in enumerate(images):
                    dataset[row] = image[name].reshape(-1)


def write_list(path, images):
    """All regions in one list, as in the VQA files with 10 to 100 boxes."""
    ends = np.cumsum([len(image["boxes"]) for image in images])
    with h5py.File(path, "w") as file:
        file["image_features"] = np.concatenate([image["features"] for image in images])
        file["image_bb"] = np.concatenate([image["boxes"] for image in images])
        file["pos_boxes"] = np.stack((np.concatenate(([0], ends[:-1])), ends), axis=1)


@pytest.mark.parametrize("layout", ["pairs", "vlen", "dense", "text ids", "list"])
def test_hdf5_layouts(tmp_path, layout):
    images, path, options = make_images(), tmp_path / "a.hdf5", {}
    rules = BoxRules(sizes={image["id"]: image["size"] for image in images})
    if layout == "pairs":
        write_pairs(path, images)
    elif layout == "list":
        write_list(path, images)
        options = {"ids": [int(image["id"]) for image in images]}
    else:
        write_rows(
            path, images, dense=layout != "vlen", ids="text" if " " in layout else "image_id"
        )
    items = read(read_hdf5, path, box_rules=rules, **options)
    assert hdf5_total(path, **options) == len(items)
    for (position, image_id, regions), image in zip(items, images, strict=True):
        assert image_id == image["id"]
        check_image(regions, image)
        rest = read(read_hdf5, path, box_rules=rules, start=position, **options)
        assert len(rest) == len(images) - position["done"]


def test_hdf5_with_36_boxes_per_image(tmp_path):
    generator = np.random.default_rng(0)
    boxes = np.tile(np.float32([10, 20, 110, 220]), (3, 36, 1)) + generator.uniform(
        0, 9, (3, 36, 1)
    )
    features = generator.standard_normal((3, 36, DIM)).astype(np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["image_features"], file["image_bb"], file["image_id"] = features, boxes, [3, 1, 2]
    rules = BoxRules(sizes=dict.fromkeys("123", (500, 400)))
    for row, (_, image_id, regions) in enumerate(
        read(read_hdf5, tmp_path / "a.h5", box_rules=rules)
    ):
        image = {"features": features[row], "boxes": boxes[row], "size": (500, 400)}
        assert image_id == str([3, 1, 2][row])
        check_image(regions, image)


def test_missing_h5py_error_names_the_extra(tmp_path, monkeypatch):
    path = write_groups(tmp_path, make_images(1))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ValueError, match=r"ngsan\[hdf5\]"):
        read(read_hdf5, path)


def test_bfloat16_tensors(tmp_path):
    (image,) = make_images(1)
    rounded = torch.tensor(image["features"]).bfloat16()
    tensors = {"features": rounded, "boxes": torch.tensor(image["boxes"])}
    save_file({**tensors, "size": torch.tensor(image["size"])}, tmp_path / "a.safetensors")
    torch.save({**tensors, "size": image["size"]}, tmp_path / "b.pt")
    for _, _, regions in read(read_tensors, tmp_path):
        check_image(regions, {**image, "features": rounded.float().numpy()})


def test_frames_have_no_boxes_and_keep_their_names(tmp_path):
    generator = np.random.default_rng(0)
    clips = {"-_0a_000012_000022": (1, 5, DIM), "000123": (7, DIM)}
    arrays = {name: generator.standard_normal(shape).astype("f4") for name, shape in clips.items()}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "._000123.npy").write_bytes(b"metadata of a file server")
    items = read(read_frames, tmp_path)
    assert frames_total(tmp_path) == 2
    assert [clip_id for _, clip_id, _ in items] == sorted(clips)
    for _, clip_id, frames in items:
        expected = arrays[clip_id].reshape(-1, DIM).astype(np.float16)
        np.testing.assert_array_equal(frames.features, expected)
        assert frames.boxes is None
        assert frames.size is None
    assert [item[1] for item in read(read_frames, tmp_path, start=items[0][0])] == ["000123"]


# Boxes.


@pytest.mark.parametrize("box_format", ["xyxy", "xywh", "cxcywh"])
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("unit", ["auto", "explicit"])
def test_boxes_of_every_format_and_unit(box_format, relative, unit):
    (image,) = make_images(1)
    width, height = image["size"]
    boxes = image["boxes"].astype(np.float64)
    if relative:
        boxes = boxes / (width, height, width, height)
    x1, y1, x2, y2 = boxes.T
    if box_format == "xywh":
        boxes = np.stack((x1, y1, x2 - x1, y2 - y1), 1)
    if box_format == "cxcywh":
        boxes = np.stack(((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1), 1)
    explicit = "relative" if relative else "pixels"
    rules = BoxRules(box_format, "auto" if unit == "auto" else explicit)
    for size in [image["size"]] + [None] * relative:
        found = relative_boxes(boxes, size, rules)
        centre, extent = found[:, :2] * (width, height), found[:, 2:] * (width, height)
        corners = np.concatenate((centre - extent / 2, centre + extent / 2), 1)
        np.testing.assert_allclose(corners, image["boxes"], atol=1e-3)


def test_boxes_outside_by_one_pixel_are_clipped():
    boxes = np.float32([[-1, -0.5, 50, 50], [20, 30, 101, 200.9], [0, 0, 100, 200]])
    found = relative_boxes(boxes, (100, 200), BoxRules())
    expected = [[0.25, 0.125, 0.5, 0.25], [0.6, 0.575, 0.8, 0.85], [0.5, 0.5, 1, 1]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("box", "size", "rules", "message"),
    [
        ((-1.1, 0, 50, 50), (100, 100), BoxRules(), "-1.1, 0, 50, 50"),
        ((0, 0, 50, 101.1), (100, 100), BoxRules(), "image of 100 x 100"),
        ((0, 0, 1.1, 0.5), None, BoxRules(unit="relative"), "unknown size"),
        ((0, 0, 30, 0.5), (100, 100), BoxRules(unit="relative"), "relative"),
        ((100.2, 0, 100.9, 50), (100, 100), BoxRules(), "beyond the edge"),
        ((0, 0, 50, 50), None, BoxRules(), "import captions with sizes first"),
        ((0, 0, 0.5, 0.5), None, BoxRules(unit="pixels"), "box_unit 'relative'"),
        ((10, 10, 10, 20), (100, 100), BoxRules(), "not above 0"),
        ((10, 10, 5, 20), (100, 100), BoxRules(), "box_format 'xywh'"),
        ((10, 10, -5, 20), (100, 100), BoxRules("xywh"), "not above 0"),
        ((50, 50, 103, 10), (100, 100), BoxRules("cxcywh"), "read as cxcywh, pixels"),
        ((np.nan, 0, 5, 5), (100, 100), BoxRules(), "NaN"),
        ((0, 0, np.inf, 5), (100, 100), BoxRules(), "infinity"),
    ],
)
def test_invalid_boxes_raise(box, size, rules, message):
    good = (0.1, 0.2, 0.3, 0.4) if max(box) <= 1.2 or rules.unit == "relative" else (1, 2, 30, 40)
    with pytest.raises(ValueError, match=re.escape(message)):
        relative_boxes(np.array([good, box]), size, rules)


@pytest.mark.parametrize("options", [{"format": "yxyx"}, {"unit": "inches"}])
def test_unknown_box_rules_raise(options):
    with pytest.raises(ValueError, match="is not one of"):
        BoxRules(**options)


# Invalid files raise, or are skipped and counted.


def changed(name, index, value):
    def change(image):
        array = image[name].copy()
        array[index] = value
        return {**image, name: array}

    return change


def replaced(**values):
    return lambda image: {**image, **values}


BAD_IMAGES = {
    "NaN": ("features not finite", changed("features", (1, 3), np.nan)),
    "infinite": ("features not finite", changed("features", (0, 0), -np.inf)),
    "too large": ("features too large", changed("features", (1, 3), 1e6)),
    "box NaN": ("box not finite", changed("boxes", (1, 2), np.nan)),
    "no width": ("box of no size", changed("boxes", (0, slice(None)), (5, 5, 5, 9))),
    "turned box": ("box of no size", changed("boxes", (0, slice(None)), (50, 5, 5, 9))),
    "outside": ("box outside the image", changed("boxes", (1, 2), 700)),
    "left of it": ("box outside the image", changed("boxes", (1, 0), -3)),
    "no size": ("bad image size", replaced(size=(0, 480))),
}
BAD_COUNTS = {
    "fewer boxes": ("differ in number", lambda image: {**image, "boxes": image["boxes"][1:]}),
    "claim": ("differ in number", replaced(count=9)),
    "claim of none": ("differ in number", replaced(count=0)),
    "flat": ("wrong shape", lambda image: {**image, "features": image["features"][0]}),
    "no regions": ("wrong shape", replaced(features=np.ones((0, 8), "f4"), boxes=np.ones((0, 4)))),
    "no features": ("differ in number", replaced(features=np.ones((0, 8), "f4"))),
    "no boxes": ("no boxes", replaced(boxes=None)),
    "three columns": (
        "wrong shape",
        lambda image: {**image, "boxes": image["boxes"][:, :3].copy()},
    ),
    "integers": ("wrong type", replaced(features=np.ones((3, DIM), np.int64))),
    "boolean boxes": ("wrong type", replaced(boxes=np.ones((3, 4), bool))),
    "bad number": ("bad number", replaced(size=(0.5, 480))),
    "grid and boxes": ("wrong shape", replaced(features=np.ones((2, 2, DIM), np.float32))),
    "turned grid": ("wrong shape", replaced(features=np.ones((DIM, 2, 2), "f4"), boxes=None)),
    "row of cells": ("no boxes", replaced(features=np.ones((1, 3, DIM), "f4"), boxes=None)),
}
CASES = [(name, case) for name in FORMATS for case in BAD_IMAGES]
CASES += [(name, case) for name in FORMATS if name != "tsv" for case in BAD_COUNTS]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_invalid_images_raise_or_are_skipped(tmp_path, name, case):
    write, reader = FORMATS[name]
    kind, change = {**BAD_IMAGES, **BAD_COUNTS}[case]
    images = make_images()
    images[1] = change(images[1])
    path = write(tmp_path, images)
    with pytest.raises(ValueError, match=kind) as error:
        read(reader, path)
    for word in ("image 1007", {"tsv": "line 2", "hdf5": "key 1007"}.get(name, f"1007.{name}")):
        assert word in str(error.value)
    problems = Problems(skip=True)
    found = [image_id for _, image_id, _ in reader(path, problems=problems)]
    assert found == ["1000", "1014", "1021"]
    assert sum(problems.counts.values()) == 1
    assert kind in problems.summary()[0]


def cell(index, value):
    def change(cells):
        cells[index] = value(cells[index]) if callable(value) else value
        return cells

    return change


BAD_LINES = {
    "base64 character": ("broken base64", cell(5, lambda text: text[:9] + "*" + text[10:])),
    "base64 length": ("broken base64", cell(5, lambda text: text[:-1])),
    "base64 boxes": ("broken base64", cell(4, lambda text: "=" + text[1:])),
    "base64 blank": ("broken base64", cell(4, lambda text: text[:8] + " " + text[9:])),
    "base64 url": ("broken base64", cell(5, lambda text: "__--" + text[4:])),
    "base64 more": ("broken base64", cell(5, lambda text: text + "AAAA=")),
    "three bytes": ("wrong byte count", cell(5, lambda text: text[:4])),
    "box bytes": ("wrong byte count", cell(4, lambda text: text[:16])),
    "feature bytes": ("wrong byte count", cell(5, "AAAAAAAAAAAAAAAAAAAAAA==")),
    "no features": ("wrong byte count", cell(5, "")),
    "no boxes": ("wrong byte count", cell(4, "")),
    "count more": ("wrong byte count", cell(3, "4")),
    "count less": ("wrong byte count", cell(3, "2")),
    "count none": ("no regions", cell(3, "0")),
    "count negative": ("no regions", cell(3, "-3")),
    "count text": ("bad number", cell(3, "three")),
    "count part": ("bad number", cell(3, "3.5")),
    "width text": ("bad number", cell(1, "wide")),
    "width infinite": ("bad number", cell(1, "inf")),
    "height negative": ("bad image size", cell(2, "-1")),
    "id empty": ("bad image id", cell(0, " ")),
    "columns fewer": ("wrong number of columns", lambda cells: cells[:4]),
    "columns more": ("wrong number of columns", lambda cells: [*cells, "x"]),
    "not a table": ("wrong number of columns", lambda cells: ["{'a': 1}"]),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_invalid_lines_raise_or_are_skipped(tmp_path, case):
    kind, change = BAD_LINES[case]
    lines = [tsv_line(image) for image in make_images()]
    lines[1] = change(lines[1])
    path = tmp_path / "some.tsv"
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match=rf"some\.tsv, line 2(, image 1007)?: {kind}"):
        read(read_tsv, path)
    problems = Problems(skip=True)
    items = list(read_tsv(path, problems=problems))
    assert [position["line"] for position, _, _ in items] == [1, 3, 4]
    assert problems.counts == {kind: 1}


@pytest.mark.parametrize("cut", [1, 50, 70, 79, 90, 130])
def test_truncated_table_raises_at_its_last_line(tmp_path, cut):
    path = write_tsv(tmp_path, make_images())
    path.write_bytes(path.read_bytes()[:-1][:-cut])
    with pytest.raises(ValueError, match=r"line 4"):
        read(read_tsv, path)


def test_empty_table_and_table_without_line_ends_raise(tmp_path, monkeypatch):
    empty, endless = tmp_path / "empty.tsv", tmp_path / "endless.tsv"
    empty.write_bytes(b"")
    endless.write_bytes(bytes(10_000))
    good = write_tsv(tmp_path, make_images())
    monkeypatch.setattr(tsv, "_READ_AHEAD", 64)
    monkeypatch.setattr(tsv, "MAX_LINE", 2_000)
    with pytest.raises(ValueError, match=r"empty\.tsv: empty file"):
        read(read_tsv, empty)
    with pytest.raises(ValueError, match=r"endless\.tsv, line 1: not a table"):
        read(read_tsv, endless)
    problems = Problems(skip=True)
    assert len(list(read_tsv([empty, endless, good], problems=problems))) == 4
    assert problems.counts == {"empty file": 1, "not a table": 1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("image_id", "boxes", "features"), "num_boxes once"),
        (("image_id", "img_id", "num_boxes", "boxes", "features"), "image_id once"),
        (("image_id", "image_w", "num_boxes", "boxes", "features"), "only one side"),
    ],
)
def test_invalid_columns_raise(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        read(read_tsv, write_tsv(tmp_path, make_images(1)), fields=fields)


@pytest.mark.parametrize("reader", [read_npz, read_tensors, read_frames])
def test_folders_without_features_raise(tmp_path, reader):
    (tmp_path / "readme.txt").write_text("nothing here")
    with pytest.raises(ValueError, match=r"no file here ends in \.(npy|pt)"):
        read(reader, tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        read(reader, tmp_path / "nowhere")


@pytest.mark.parametrize("reader", [read_tsv, read_hdf5])
def test_missing_files_raise(tmp_path, reader):
    with pytest.raises(ValueError, match="no such file"):
        read(reader, tmp_path / "nowhere")


def object_array(path):
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)


def object_archive(path):
    with path.open("wb") as file:
        np.savez(file, features=np.array([{"a": 1}], dtype=object), bbox=np.ones((1, 4)))


def pickled(path):
    path.write_bytes(pickle.dumps(np.ones((2, 4))))


def torch_object(path):
    torch.save({"features": Path("x")}, path)


def torch_list(path):
    torch.save({"features": ["a", "b"]}, path)


def torch_sparse(path):
    torch.save({"features": torch.eye(3).to_sparse()}, path)


@pytest.mark.parametrize(
    ("name", "write", "kind"),
    [
        ("5.npy", object_array, "pickled data"),
        ("5.npz", object_archive, "pickled data"),
        ("5.npy", pickled, "pickled data"),
        ("5.npz", pickled, "pickled data"),
        ("5.npy", lambda path: path.write_bytes(b""), "unreadable file"),
        ("5.npz", lambda path: path.write_bytes(b""), "unreadable file"),
        ("5.npz", lambda path: path.write_text("<html>404"), "unreadable file"),
        ("5.npy", lambda path: path.mkdir(), "unreadable file"),
        ("5.npz", lambda path: np.savez(path, other=np.ones(3)), "no features"),
        ("5.npz", lambda path: np.savez(path, x=np.ones((3, 4)), size=[1, 2, 3]), "bad image size"),
        ("5.npy", lambda path: np.save(path, np.ones((2, 2, 2, 4))), "no boxes"),
        ("5.npy", lambda path: np.save(path, np.ones((0, 2, 4))), "wrong shape"),
        ("5.npy", lambda path: np.save(path, np.array(["a"])), "no boxes"),
        ("5.pt", torch_object, "pickled data"),
        ("5.pt", torch_list, "wrong type"),
        ("5.pt", torch_sparse, "wrong type"),
        ("5.pt", lambda path: path.write_bytes(b""), "unreadable file"),
        ("5.safetensors", lambda path: path.write_bytes(b""), "unreadable file"),
        ("5.safetensors", lambda path: path.write_bytes(b"\xff" * 99), "unreadable file"),
        ("5.safetensors", lambda path: save_file({"y": torch.ones(3)}, path), "no features"),
    ],
)
def test_invalid_files_raise_or_are_skipped(tmp_path, name, write, kind):
    path = tmp_path / name
    write(path)
    reader = read_npz if path.suffix in (".npy", ".npz") else read_tensors
    with pytest.raises(ValueError, match=rf"{name}, image 5: {kind}"):
        read(reader, tmp_path)
    problems = Problems(skip=True)
    assert list(reader(tmp_path, problems=problems)) == []
    assert problems.counts == {kind: 1}


@pytest.mark.parametrize("write", [write_npz, write_safetensors, write_pt])
def test_truncated_or_damaged_files_are_detected(tmp_path, write):
    (image,) = make_images(1)
    write(tmp_path, [image])
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    reader = read_npz if write is write_npz else read_tensors
    for length in range(0, len(content), max(1, len(content) // 60)):
        path.write_bytes(content[:length])
        problems = Problems(skip=True)
        assert list(reader(tmp_path, problems=problems)) == []
        assert sum(problems.counts.values()) == 1
    generator = np.random.default_rng(0)
    for _ in range(100):
        damaged = bytearray(content)
        damaged[generator.integers(len(content))] ^= 1 << generator.integers(8)
        path.write_bytes(damaged)
        problems = Problems(skip=True)
        items = list(reader(tmp_path, problems=problems))
        assert len(items) + sum(problems.counts.values()) == 1


def test_truncated_hdf5_raises(tmp_path):
    path = write_groups(tmp_path, make_images(3))
    content = path.read_bytes()
    for length in range(0, len(content), len(content) // 40):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"features\.h5.*(cut off|no features)"):
            read(read_hdf5, path)


def drop(name):
    def change(file):
        del file[name]

    return change


def assign(name, row, value):
    def change(file):
        file[name][row] = value

    return change


def shorten(name):
    def change(file):
        rest = file[name][:-1]
        del file[name]
        file[name] = rest

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("image_id"), "no image ids"),
        (drop("features"), "unknown layout"),
        (shorten("image_id"), "image_id has 3 rows, but there are features of 4 images"),
        (shorten("boxes"), "boxes has 3 rows"),
        (shorten("width"), "width has 3 rows"),
        (drop("boxes"), "row 0, image 1000: no boxes"),
        # The padding after the real regions is NaN.
        (assign("num_boxes", 1, 4), "row 1, image 1007: features not finite"),
        (assign("num_boxes", 1, 0), "row 1, image 1007: wrong shape"),
        (assign("num_boxes", 1, 99), "row 1, image 1007: boxes and features differ in number"),
        (assign("width", 2, 0), "row 2, image 1014: bad image size"),
        (assign("features", (1, 0, 2), np.nan), "row 1, image 1007: features not finite"),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_invalid_hdf5_rows_raise(tmp_path, change, message, chunked):
    path = tmp_path / "a.h5"
    write_rows(path, make_images(), dense=True)
    with h5py.File(path, "a") as file:
        if chunked and "features" in file:
            features = file["features"][()]
            del file["features"]
            file.create_dataset("features", data=features, chunks=(2, 1, DIM), compression="gzip")
        change(file)
    with pytest.raises(ValueError, match=rf"a\.h5.*{message}"):
        read(read_hdf5, path)


def test_hdf5_with_different_numbers_of_boxes_and_features_raises(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["image_features"], file["image_id"] = np.ones((2, 6, DIM), np.float32), [1, 2]
        file["image_bb"] = np.tile(np.float32([0.1, 0.1, 0.5, 0.5]), (2, 5, 1))
    with pytest.raises(ValueError, match="6 features, 5 boxes"):
        read(read_hdf5, tmp_path / "a.h5")


@pytest.mark.parametrize("bounds", [(0, 99), (3, 3), (-2, 2)])
def test_invalid_hdf5_bounds_raise(tmp_path, bounds):
    path = tmp_path / "a.h5"
    write_list(path, make_images())
    with h5py.File(path, "a") as file:
        file["pos_boxes"][1] = bounds
    with pytest.raises(ValueError, match="row 1, image 2: bad bounds"):
        read(read_hdf5, path, ids=[1, 2, 3, 4], box_rules=BoxRules(sizes={"1": (640, 480)}))


def test_hdf5_features_or_boxes_without_partner_are_reported(tmp_path):
    path = tmp_path / "a.h5"
    images = make_images()
    write_pairs(path, images)
    with h5py.File(path, "a") as file:
        del file["1000_boxes"], file["1007_features"]
    problems = Problems(skip=True)
    rules = BoxRules(sizes={image["id"]: image["size"] for image in images})
    items = list(read_hdf5(path, problems=problems, box_rules=rules))
    assert [image_id for _, image_id, _ in items] == ["1014", "1021"]
    assert problems.counts == {"no boxes": 1, "no features": 1}


def test_missing_box_files_raise(tmp_path):
    att, box = tmp_path / "att", tmp_path / "box"
    att.mkdir()
    np.save(att / "5.npy", np.ones((2, DIM), np.float32))
    with pytest.raises(ValueError, match=r"box: no such folder"):
        read(read_npz, att, boxes=box)
    box.mkdir()
    with pytest.raises(ValueError, match=r"5\.npy, image 5: no boxes: there is no .*box/5"):
        read(read_npz, att, boxes=box)
    np.savez(box / "5.npz", other=np.ones((2, 4)))
    with pytest.raises(ValueError, match=r"holds other, but none of bbox"):
        read(read_npz, att, boxes=box)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.ones((2, 3, DIM), np.float32), "wrong shape"),
        (np.ones(DIM, np.float32), "wrong shape"),
        (np.ones((0, DIM), np.float32), "wrong shape"),
        (np.full((2, DIM), np.nan), "features not finite"),
        (np.ones((2, DIM), np.int32), "wrong type"),
    ],
)
def test_invalid_frames_raise(tmp_path, array, kind):
    np.save(tmp_path / "clip_1.npy", array)
    with pytest.raises(ValueError, match=rf"clip_1\.npy, image clip_1: {kind}"):
        read(read_frames, tmp_path)


# Into the store.


def import_all(path, folder, problems, *, stop_after=None, shard_bytes=300):
    """Imports a table, or is interrupted after `stop_after` images."""
    seen = []

    def on_item(position):
        seen.append(position)
        if len(seen) == stop_after:
            raise KeyboardInterrupt

    with StoreWriter(folder, source="tsv", shard_bytes=shard_bytes) as writer:
        items = read_tsv(path, problems=problems, start=writer.position)
        added = import_features(items, writer, problems, on_item)
    return added, seen


def test_imported_store_equals_the_file(tmp_path):
    images = make_images(6)
    path = write_tsv(tmp_path, images)
    added, seen = import_all(path, tmp_path / "data", Problems())
    store = FeatureStore(tmp_path / "data")
    assert added == len(seen) == len(store) == len(images)
    assert seen[-1]["done"] == path.stat().st_size
    for image in images:
        check_image(store[image["id"]], image)


@pytest.mark.parametrize("stop_after", range(1, 7))
def test_resumed_import_equals_an_uninterrupted_one(tmp_path, stop_after):
    path = write_tsv(tmp_path, make_images(6))
    import_all(path, tmp_path / "whole", Problems())
    with pytest.raises(KeyboardInterrupt):
        import_all(path, tmp_path / "broken", Problems(), stop_after=stop_after)
    import_all(path, tmp_path / "broken", Problems())
    whole, broken = FeatureStore(tmp_path / "whole"), FeatureStore(tmp_path / "broken")
    assert whole.signature == broken.signature


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (replaced(id="000000001000"), "duplicate id"),
        (replaced(features=np.ones((4, DIM + 1), np.float32)), "feature width changes"),
        (changed("features", (0, 0), np.nan), "features not finite"),
    ],
)
def test_images_rejected_by_the_store_raise_or_are_skipped(tmp_path, change, kind):
    images = make_images()
    images[2] = change(images[2])
    path = write_tsv(tmp_path, images)
    with pytest.raises(ValueError, match=rf"features\.tsv, line 3, image 10\d\d: {kind}"):
        import_all(path, tmp_path / "strict", Problems())
    problems = Problems(skip=True)
    added, _ = import_all(path, tmp_path / "skipped", problems)
    assert added == len(FeatureStore(tmp_path / "skipped")) == 3
    assert problems.counts == {kind: 1}


def test_store_errors_are_reported_as_problems(tmp_path):
    items = list(read_tsv(write_tsv(tmp_path, make_images(2)), problems=Problems()))
    position, image_id, regions = items[1]
    items[1] = (position, image_id, type(regions)(regions.features, None, None))
    problems = Problems(skip=True)
    with StoreWriter(tmp_path / "data", source="tsv") as writer:
        assert import_features(items, writer, problems) == 1
    assert problems.counts == {"rejected by the store": 1}
    assert "boxes" in problems.examples["rejected by the store"][0]


def test_frames_and_grids_are_imported(tmp_path):
    clips, grids = tmp_path / "clips", tmp_path / "grids"
    clips.mkdir()
    grids.mkdir()
    np.save(clips / "clip_1.npy", np.ones((1, 5, DIM), np.float32))
    np.save(grids / "9.npy", np.ones((7, 7, DIM), np.float32))
    for reader, folder in ((read_frames, clips), (read_npz, grids)):
        with StoreWriter(folder / "data", source="x") as writer:
            import_features(reader(folder, problems=Problems()), writer, Problems())
    assert FeatureStore(clips / "data")["clip_1"].boxes is None
    assert len(FeatureStore(grids / "data")[9].boxes) == 49


def test_max_frames_samples_long_clips(tmp_path):
    """A very long clip in full and sampled, and short clips."""
    clips = tmp_path / "clips"
    clips.mkdir()
    numbers = np.arange(5000, dtype=np.float32)[:, None] / 10 + np.zeros((1, DIM), np.float32)
    for name, count in {"long": 5000, "short": 3, "one": 1}.items():
        np.save(clips / f"{name}.npy", numbers[:count])
    for limit, lengths in ((0, (5000, 3, 1)), (32, (32, 3, 1))):
        with StoreWriter(tmp_path / f"limit{limit}", source="x") as writer:
            read = read_frames(clips, max_frames=limit, problems=Problems())
            import_features(read, writer, Problems())
        store = FeatureStore(tmp_path / f"limit{limit}")
        assert [len(store[name].features) for name in ("long", "short", "one")] == list(lengths)
    found = store["long"].features[:, 0].astype(np.float64)
    wanted = np.linspace(0, 499.9, 32)
    np.testing.assert_allclose(found, wanted, atol=0.3)
    with pytest.raises(ValueError, match="max_frames: -1"):
        next(read_frames(clips, max_frames=-1, problems=Problems()))


def test_place_names_file_and_line():
    position = {"file": "a.tsv", "part": 0, "byte": 9, "line": 3, "done": 9}
    assert place(position, "7") == "a.tsv, line 3, image 7"
    assert place({"file": "a.h5", "row": 2, "done": 3}) == "a.h5, row 2"
