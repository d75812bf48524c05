"""The shipped photo captioner."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ngsan
from ngsan.examples import EXAMPLES
from ngsan.models.checkpoint import read_metrics
from ngsan.predict.captioner import PHOTO_MODEL
from ngsan.text.vocabulary import BAD_ENDINGS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def captioner():
    return ngsan.load()


def test_captioning_writes_nothing_to_the_home_folder(tmp_path):
    """Neither do the libraries in use, for example for telemetry."""
    home = {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    dropped = ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "CI", "GITHUB_ACTIONS")
    outside = {name: value for name, value in os.environ.items() if name not in dropped}
    command = [sys.executable, "-m", "ngsan", "caption", str(EXAMPLES[0].path)]
    subprocess.run(command, env=outside | home, check=True, capture_output=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_model_is_small():
    sizes = {path.name: path.stat().st_size for path in PHOTO_MODEL.iterdir()}
    assert sum(sizes.values()) <= 40_000_000, sizes


def test_captions_name_the_main_objects(captioner):
    """Main objects named by a human; the photographs were not selected by a model."""
    there = {
        "cat.jpg": {"cat"},
        "coffee.jpg": {"coffee", "cup"},
        "bridge.jpg": {"bridge"},
        "gull.jpg": {"bird", "flying"},
        "fisherman.jpg": {"man", "boat"},
        "bed.jpg": {"bed", "bear"},
        "street.jpg": {"cat"},
    }
    found = captioner.caption([example.path for example in EXAMPLES])
    captions = {example.file: caption for example, caption in zip(EXAMPLES, found, strict=True)}
    for file, words in there.items():
        assert words <= set(captions[file].words), (file, captions[file])


def test_captions_have_no_bad_endings_or_repeats(captioner):
    for caption in captioner.caption([example.path for example in EXAMPLES]):
        assert caption.words[-1] not in BAD_ENDINGS
        threes = list(zip(caption.words, caption.words[1:], caption.words[2:], strict=False))
        assert len(set(threes)) == len(threes)
        assert caption.log_probability <= 0


def test_paths_images_and_arrays_give_equal_captions(captioner):
    path = EXAMPLES[1].path
    picture = Image.open(path)
    texts = {str(captioner.caption(image)) for image in (path, str(path), picture)}
    texts.add(str(captioner.caption(np.asarray(picture.convert("RGB")))))
    assert len(texts) == 1


def test_torch_gives_nearly_the_same_captions(captioner):
    """PyTorch uses the same weights without quantized activations, so a few captions may differ."""
    paths = [example.path for example in EXAMPLES]
    on_torch = ngsan.load(device="cpu")
    same = 0
    for path in paths:
        same += captioner.caption(path) == on_torch.caption(path)
    assert same >= len(paths) - 4


def test_command_needs_no_torch_and_little_memory():
    code = (
        "import re, sys; from pathlib import Path; from ngsan.__main__ import main; "
        "status = main(['caption', *sys.argv[1:]]); "
        "assert not {'torch', 'jsonargparse'} & set(sys.modules); "
        "status_file = Path('/proc/self/status').read_text(); "
        "print(re.search('VmHWM: *[^0-9]*([0-9]+) kB', status_file)[1]); sys.exit(status)"
    )
    paths = [str(example.path) for example in EXAMPLES]
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True
    )
    *lines, kilobytes = done.stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == paths
    assert int(kilobytes) * 1024 < 1e9


def test_model_card_agrees_with_the_metrics():
    card = (PHOTO_MODEL / "README.md").read_text(encoding="utf-8")
    metrics = read_metrics(PHOTO_MODEL)
    assert int(10 * metrics["CIDEr"]) / 10 > 115
    assert f"{int(10 * metrics['CIDEr']) / 10}" in card
    for part in ("## How it was made", "## Limits", "## Licences"):
        assert part in card
