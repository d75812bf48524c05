"""The demo of photographs, and its example photographs."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import ngsan
from ngsan.__main__ import main
from ngsan.cli import demo
from ngsan.config import CaptionerConfig
from ngsan.examples import EXAMPLES
from ngsan.models import build_captioner
from ngsan.models.checkpoint import save_model
from ngsan.text.vocabulary import Vocabulary

FOLDER = Path(ngsan.__file__).parent / "examples"


def test_demo_prints_captions_and_writes_the_page(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    expected = ngsan.load().caption([example.path for example in EXAMPLES])
    for example, caption in zip(EXAMPLES, expected, strict=True):
        (line,) = [line for line in out.splitlines() if example.file in line]
        assert caption in line
    assert "Open demo/captions.html in a browser" in out
    page = (tmp_path / "demo" / "captions.html").read_text(encoding="utf-8")
    assert page.count("<article") == len(EXAMPLES)
    assert all(f"Photograph: {example.credit}" in page for example in EXAMPLES)


def test_region_model_raises(tmp_path, capsys):
    config = CaptionerConfig(vocab_size=4, feature_dim=8, dim=16, heads=2, hidden_dim=16, layers=1)
    save_model(
        tmp_path / "model",
        build_captioner(config),
        config,
        {"vocabulary": Vocabulary(["a", "b", "c"])},
    )
    assert main(["demo", "--model", str(tmp_path / "model")]) == 2
    assert "a model of regions and not of photographs" in capsys.readouterr().err


def test_missing_model_raises(tmp_path, capsys, monkeypatch):
    assert main(["demo", "--model", str(tmp_path / "none")]) == 2
    assert f"folder not found: {tmp_path / 'none'}" in capsys.readouterr().err
    monkeypatch.setattr(demo, "PHOTO_MODEL", tmp_path / "shipped")
    assert main(["demo"]) == 2
    assert "--model" in capsys.readouterr().err


def test_demo_scenes_has_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "scenes", "--help"])
    assert stopped.value.code == 0
    assert "usage: ngsan demo scenes" in capsys.readouterr().out


def test_demo_needs_no_torch():
    quick = "import sys, ngsan.cli.demo; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", quick], check=False).returncode == 0


def test_photographs_are_small_valid_and_without_metadata():
    assert 8 <= len(EXAMPLES) <= 12
    assert sum(example.path.stat().st_size for example in EXAMPLES) <= 2_500_000
    for example in EXAMPLES:
        with Image.open(example.path) as picture:
            picture.load()
            assert picture.format == "JPEG"
            assert picture.mode == "RGB"
            assert max(picture.size) <= 1024
            assert not picture.getexif()
            assert not {"comment", "exif", "icc_profile", "photoshop", "xmp"} & set(picture.info)


def test_photographs_and_credits_match():
    rows = {}
    for line in (FOLDER / "CREDITS.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            file, _title, author, licence, origin = (cell.strip() for cell in line[1:-1].split("|"))
            rows[file.strip("`")] = (author, licence)
            assert origin
    assert rows == {example.file: (example.author, example.licence) for example in EXAMPLES}
    assert {path.name for path in FOLDER.glob("*.jpg")} == set(rows)
    assert {licence for _, licence in rows.values()} <= {
        "CC0",
        "public domain",
        "CC BY 2.0",
        "CC BY 4.0",
    }
