"""`ngsan caption` of clips: which inputs are clips, and errors."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from ngsan.__main__ import main
from ngsan.cli import caption as command
from ngsan.predict.captioner import Caption, Result
from ngsan.vision.images import ImageError


class FakeCaptioner:
    """Captions every input with its kind; raises for bad files."""

    def __init__(self, kind, requests):
        self.kind, self.requests = kind, requests

    def stream(self, paths, *, frames=None, batch_size=None, **decoding):
        self.requests.append((self.kind, frames))
        for number, path in enumerate(paths):
            if "bad" in path.name:
                yield Result(number, None, ImageError(f"{path}: it is bad"))
            else:
                yield Result(number, Caption(f"{self.kind[:-1]} {path.name}"))


@pytest.fixture
def requests(monkeypatch):
    found = []

    def load(model, **options):
        kind = "clips" if model in ("clips", "mine") else "photos"
        found.append((kind, model))
        return FakeCaptioner(kind, found)

    monkeypatch.setattr(command, "load", load)
    return found


@pytest.fixture
def run(capsys, requests):
    def call(*words):
        try:
            status = main(["caption", *map(str, words)])
        except SystemExit as stopped:
            status = stopped.code
        out, err = capsys.readouterr()
        printed = [line.split("\t")[-1] for line in out.splitlines()]
        return SimpleNamespace(status=status, printed=printed, err=err)

    return call


@pytest.fixture
def root(tmp_path):
    """A folder with photographs, animations, videos and frame folders."""
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    (tmp_path / "photos").mkdir()
    for place in (tmp_path, tmp_path / "photos"):
        frames[0].save(place / "moves.gif", save_all=True, append_images=frames[1:])
        frames[0].save(place / "still.gif")
        frames[0].save(place / "a.jpg")
    (tmp_path / "b.mp4").write_bytes(b"")
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos/v.mp4").write_bytes(b"")
    (tmp_path / "frames").mkdir()
    for number in (1, 2):
        frames[number].save(tmp_path / "frames" / f"{number}.png")
    return tmp_path


def test_animations_and_videos_are_clips(root, run, requests):
    words = [root / name for name in ("a.jpg", "moves.gif", "still.gif", "b.mp4")]
    done = run(*words)
    assert done.printed == ["photo a.jpg", "clip moves.gif", "photo still.gif", "clip b.mp4"]
    assert done.status == 0
    assert sorted(kind for kind, _ in requests) == ["clips", "clips", "photos", "photos"]


def test_folders_contain_photographs_by_default(root, run):
    done = run(root / "photos")
    assert done.printed == ["photo a.jpg", "photo moves.gif", "photo still.gif"]


def test_clip_options_apply_to_all_inputs(root, run):
    assert run("--clip", root / "frames", root / "videos", root / "still.gif").printed == [
        "clip frames",
        "clip v.mp4",
        "clip still.gif",
    ]
    assert run("--no-clip", root / "moves.gif").printed == ["photo moves.gif"]
    assert run("--clip", f"{root}/*.mp4").printed == ["clip b.mp4"]


def test_unneeded_model_is_not_loaded(root, run, requests):
    run(root / "b.mp4", "--model", "mine", "--frames", "12")
    assert requests == [("clips", "mine"), ("clips", 12)]


def test_folder_of_videos_suggests_the_clip_option(root, run):
    done = run(root / "videos")
    assert done.status == 2
    assert "no images in" in done.err
    assert "use --clip for the clips in it" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.jpg", "--frames", "4"], "--frames applies only to clips"),
        (["b.mp4", "--frames", "100000"], "--frames: 100000 is more than 1024"),
        (["b.mp4", "--frames", "0"], "not a whole number of at least 1"),
        (["b.mp4", "--page", "page.html"], "--page shows photographs only"),
        (["--clip", "empty"], "no clips in"),
    ],
)
def test_invalid_combinations_raise(root, run, words, message):
    (root / "empty").mkdir()
    done = run(*(root / word if (root / word).exists() else word for word in words))
    assert done.status == 2
    assert message in done.err


def test_bad_clips_are_reported_and_the_rest_captioned(root, run):
    (root / "bad.mp4").write_bytes(b"")
    to = root / "captions.json"
    done = run(root / "bad.mp4", root / "a.jpg", root / "b.mp4", "--output", to)
    assert done.status == 1
    assert "bad.mp4: it is bad" in done.err
    records = json.loads(to.read_text())
    assert [record.get("caption") for record in records] == [None, "photo a.jpg", "clip b.mp4"]


def test_output_never_overwrites_a_clip(root, run):
    done = run(root / "b.mp4", "--output", root / "b.mp4")
    assert done.status == 2
    assert "would be overwritten" in done.err


def test_extract_clips(tmp_path, capsys, monkeypatch):
    """Frames become cells with boxes; a bad clip is skipped and reported."""
    from ngsan.cli import extract
    from ngsan.data import FeatureStore

    class FakeDescriber:
        size, feature_dim = 16, 3

        def __init__(self, photos, grid):
            self.grid = grid

        def describe(self, squares):
            colour = squares.mean((1, 2), dtype=np.float32)
            return np.repeat(colour, 4, 0), np.full((4 * len(squares), 4), 0.5, np.float32)

    monkeypatch.setattr(extract, "FrameDescriber", FakeDescriber)
    monkeypatch.setattr(extract, "OnnxBackend", lambda folder: None)
    frames = [Image.new("RGB", (8, 8), (level, 0, 0)) for level in (0, 100, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    (tmp_path / "bad.gif").write_bytes(b"GIF89a")
    words = ["extract", str(tmp_path), "--output", str(tmp_path / "data"), "--frames", "2"]
    assert main([*words, "--grid", "2"]) == 1
    out, err = capsys.readouterr()
    assert "bad.gif" in err
    assert "wrote the features of 1 files" in out
    assert "--model.frame-grid 2" in err
    found = FeatureStore(tmp_path / "data")["a"]
    np.testing.assert_allclose(found.features[:, 0], [0] * 4 + [200] * 4, atol=3)
    assert main(["extract", str(tmp_path), "--output", "x", "--frames", "-1"]) == 2
    assert main([*words, "--extractor", "onnx:x"]) == 2
