"""Damaged files of every kind that `ngsan data` imports: an error of one line, or an import."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ngsan.__main__ import main
from ngsan.data import FeatureStore
from tests.hostile.damage import damaged_bytes, damaged_json
from tests.hostile.limits import bounded, seeds

FEATURES = np.linspace(0, 1, 24, dtype=np.float32).reshape(3, 8)
BOXES = np.tile(np.array([0.1, 0.1, 0.5, 0.5], np.float32), (3, 1))
TENSORS = {"features": torch.from_numpy(FEATURES), "boxes": torch.from_numpy(BOXES)}
IDS = (1, 2, 3)

COCO = {
    "images": [{"id": i, "file_name": f"{i}.jpg", "width": 64, "height": 48} for i in IDS],
    "annotations": [{"id": 10 + i, "image_id": i, "caption": f"a dog with {i} hats"} for i in IDS],
}
KARPATHY = {
    "dataset": "coco",
    "images": [
        {
            "imgid": i,
            "cocoid": i,
            "filename": f"{i}.jpg",
            "filepath": "val2014",
            "split": split,
            "sentences": [{"raw": "A dog.", "tokens": ["a", "dog"], "sentid": i, "imgid": i}],
        }
        for i, split in zip(IDS, ("train", "val", "test"), strict=True)
    ],
}
VATEX = [{"videoID": f"clip{i}_000001_000011", "enCap": ["a dog runs"] * 2} for i in IDS]
QUESTIONS = {
    "questions": [{"image_id": i, "question_id": i, "question": "what is it?"} for i in IDS]
}
ANNOTATIONS = {
    "annotations": [
        {
            "question_id": i,
            "image_id": i,
            "question_type": "what",
            "answer_type": "other",
            "multiple_choice_answer": "dog",
            "answers": [{"answer": "dog", "answer_confidence": "yes", "answer_id": 1}] * 10,
        }
        for i in IDS
    ]
}
JSON = {
    "coco": (COCO, ["captions", "coco", "{}", "--split", "train"]),
    "karpathy": (KARPATHY, ["captions", "karpathy", "{}"]),
    "vatex": (VATEX, ["captions", "vatex", "{}", "--split", "train"]),
    "questions": (QUESTIONS, ["questions", "{}", "{annotations}", "--split", "train"]),
    "annotations": (ANNOTATIONS, ["questions", "{questions}", "{}", "--split", "train"]),
}


def tsv():
    rows = (
        "\t".join(
            [
                str(i),
                "64",
                "48",
                "3",
                base64.b64encode((BOXES * 40).tobytes()).decode(),
                base64.b64encode(FEATURES.tobytes()).decode(),
            ]
        )
        for i in IDS
    )
    return ("\n".join(rows) + "\n").encode()


def npz(folder):
    np.savez_compressed(folder / "1.npz", features=FEATURES, bbox=BOXES, image_w=64, image_h=48)


def npy(folder):
    np.save(folder / "1.npy", FEATURES)


def pt(folder):
    torch.save(
        {"features": torch.from_numpy(FEATURES), "boxes": torch.from_numpy(BOXES)}, folder / "1.pt"
    )


def safetensors(folder):
    save_file(
        {"features": torch.from_numpy(FEATURES), "boxes": torch.from_numpy(BOXES)},
        folder / "1.safetensors",
    )


def hdf5(folder):
    with h5py.File(folder / "1.h5", "w") as file:
        for i in IDS:
            group = file.create_group(str(i))
            group["features"], group["bbox"] = FEATURES, BOXES
            group.create_dataset("unused", (4, 4), "i4", chunks=(2, 2), compression="gzip")


BINARY = {
    "npz": (npz, ["features", "npz", "{folder}"]),
    "frames": (npy, ["features", "frames", "{folder}"]),
    "pt": (pt, ["features", "tensors", "{folder}"]),
    "safetensors": (safetensors, ["features", "tensors", "{folder}"]),
    "hdf5": (hdf5, ["features", "hdf5", "{file}"]),
}
TOKENS = "".join(f"{i}.jpg#{n}\tA dog .\n" for i in IDS for n in range(5))
SIDES = ("source", "target", "val-source", "val-target")
PARALLEL = [word for side in SIDES for word in (f"--{side}", "{}")]
TEXT = {
    "tsv": (tsv(), ["features", "tsv", "{}"]),
    "flickr": (TOKENS.encode(), ["captions", "flickr", "{}"]),
    "csv": (b'image,caption\n1.jpg,a dog\n2.jpg,"two, dogs"\n', ["captions", "csv", "{}"]),
    "jsonl": (b'{"image": "1.jpg", "caption": "a dog"}\n' * 3, ["captions", "jsonl", "{}"]),
    "parallel": (
        b"a dog runs\nit sleeps\n" * 20,
        ["parallel", *PARALLEL, "--vocabulary-size", "300"],
    ),
}


def imports(name, words, output, capsys, *, skip):
    """Runs an import; its exit status is that of success or of an error of one line."""
    skipping = ["--skip-bad"] if skip else []
    with bounded(name):
        status = main(["data", *map(str, words), "--output", str(output), *skipping, "--quiet"])
        err = capsys.readouterr().err
        assert status in (0, 1, 2), name
        assert "Traceback" not in err, (name, err)
        assert (status == 2) == (err.count("\n") >= 1) or status == 1, (name, status, err)
        assert len(err) < 5000, (name, err[:500])
    shutil.rmtree(output, ignore_errors=True)


@pytest.mark.slow
def test_a_thousand_folders_within_each_other(tmp_path, monkeypatch, tally):
    monkeypatch.chdir(tmp_path)
    for _ in range(1100):
        Path("d").mkdir()
        os.chdir("d")
    npz(Path())
    os.chdir(tmp_path)
    assert main(["data", "features", "npz", "d", "-o", "out"]) == 0
    assert list(FeatureStore("out").ids()) == ["1"]
    subprocess.run(["rm", "-rf", "d"], check=True)  # Python alone cannot remove it
    tally(1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", JSON)
def test_json(kind, tmp_path, capsys, tally):
    value, words = JSON[kind]
    places = {}
    for name, good in (("questions", QUESTIONS), ("annotations", ANNOTATIONS)):
        places[name] = tmp_path / f"{name}.json"
        places[name].write_text(json.dumps(good))
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(value))
    assert (
        main(
            ["data", *(word.format(path, **places) for word in words), "-o", str(tmp_path / "good")]
        )
        == 0
    )
    for number, rng in seeds(kind, 500):
        if rng.random() < 0.6:
            path.write_text(damaged_json(value, rng))
        else:
            path.write_bytes(damaged_bytes(json.dumps(value).encode(), rng))
        filled = [word.format(path, **places) for word in words]
        imports(f"{kind} {number}", filled, tmp_path / "out", capsys, skip=number % 2)
    tally(number + 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TEXT)
def test_text(kind, tmp_path, capsys, tally):
    content, words = TEXT[kind]
    path = tmp_path / f"bad.{kind}"
    path.write_bytes(content)
    assert main(["data", *(word.format(path) for word in words), "-o", str(tmp_path / "good")]) == 0
    for number, rng in seeds(kind, 400):
        path.write_bytes(damaged_bytes(content, rng))
        filled = [word.format(path) for word in words]
        imports(f"{kind} {number}", filled, tmp_path / "out", capsys, skip=number % 2)
    tally(number + 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BINARY)
def test_binary(kind, tmp_path, capsys, tally):
    make, words = BINARY[kind]
    folder = tmp_path / "in"
    folder.mkdir()
    make(folder)
    (path,) = folder.iterdir()
    content = path.read_bytes()
    good = [word.format(folder=folder, file=path) for word in words]
    assert main(["data", *good, "-o", str(tmp_path / "good")]) == 0
    for number, rng in seeds(kind, 600):
        path.write_bytes(damaged_bytes(content, rng))
        imports(f"{kind} {number}", good, tmp_path / "out", capsys, skip=number % 2)
    tally(number + 1)
