"""Metrics by epoch, from logs to figures."""

import json

import numpy as np
import pytest
from PIL import Image

from ngsan.__main__ import main
from ngsan.plots import Curve, plot_curves, read_curve


def write_log(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_a_curve_is_read_from_both_forms_of_line(tmp_path):
    log = write_log(
        tmp_path / "n-san.jsonl",
        [
            {"step": 10, "loss": 3.2},
            {"epoch": 2, "CIDEr": 101.5},
            {"epoch": 1, "metrics": {"CIDEr": 95.0, "BLEU-4": 30.0}},
            {"epoch": 3, "loss": 2.0},
            {"epoch": 4, "CIDEr": float("nan")},
        ],
    )
    assert read_curve(log, "CIDEr") == Curve("n-san", (1.0, 2.0), (95.0, 101.5))
    assert read_curve(log, "BLEU-4", "ours") == Curve("ours", (1.0,), (30.0,))


def test_an_epoch_logged_again_counts_as_it_was_last_and_a_torn_line_is_passed_over(tmp_path):
    log = write_log(tmp_path / "log.jsonl", [{"epoch": 1, "CIDEr": 1}, {"epoch": 1, "CIDEr": 2}])
    log.write_text(log.read_text() + '{"epoch": 2, "CI')
    assert read_curve(log, "CIDEr") == Curve(tmp_path.name, (1.0,), (2.0,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"epoch": 1, "BLEU-4": 3}\n', "no line has an epoch and 'CIDEr'; there are BLEU-4"),
        ("", "no line has an epoch"),
        ('nonsense\n{"epoch": 1}\n', "log:1: not a line of JSON"),
        ("[1]\n", "expected an object"),
        ('{"epoch": 1, "CIDEr": NaN, "loss": 2}\n', "there are loss$"),
    ],
)
def test_wrong_logs_are_named(tmp_path, text, message):
    log = tmp_path / "log"
    log.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_curve(log, "CIDEr")


def colours(path):
    """How many pixels have each colour that is no grey."""
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).astype(int)
    bright = pixels[np.ptp(pixels, axis=1) > 100]
    found, counts = np.unique(bright, axis=0, return_counts=True)
    return {tuple(colour): count for colour, count in zip(found, counts, strict=True)}


def test_the_command_draws_a_line_a_run(tmp_path):
    for name, offset in (("san", 0), ("n-san", 3)):
        entries = [{"epoch": e, "CIDEr": 90 + offset + e, "BLEU-4": 30 + e} for e in range(1, 16)]
        write_log(tmp_path / f"{name}.jsonl", entries)
    figures = []
    for runs in (["san"], ["san", "n-san"]):
        target = tmp_path / f"{len(runs)}.png"
        logs = [f"{name.upper()}={tmp_path / name}.jsonl" for name in runs]
        assert main(["plot", "metrics", *logs, "--to", str(target)]) == 0
        figures.append(colours(target))
    blue, orange = (31, 119, 180), (255, 127, 14)
    assert figures[0][blue] > 500
    assert orange not in figures[0]
    assert figures[1][blue] > 500
    assert figures[1][orange] > 500
    target = tmp_path / "two.pdf"
    log = str(tmp_path / "san.jsonl")
    assert main(["plot", "metrics", log, "--metrics", "CIDEr,BLEU-4", "--to", str(target)]) == 0
    assert target.read_bytes().startswith(b"%PDF")


def test_wrong_command_lines(tmp_path, capsys):
    log = write_log(tmp_path / "log.jsonl", [{"epoch": 1, "CIDEr": 1}])
    assert main(["plot", "metrics", str(log), "--to", str(tmp_path / "figure.doc")]) == 2
    assert ".png, .pdf, .svg" in capsys.readouterr().err
    assert main(["plot", "metrics", str(tmp_path / "none"), "--to", "f.png"]) == 2
    assert main(["plot", "metrics", str(log), "--metrics", "SPICE", "--to", "f.png"]) == 2
    assert "there are CIDEr" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no curve"):
        plot_curves({}, tmp_path / "f.png")


def test_what_is_no_text_is_named(tmp_path):
    (tmp_path / "log").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ValueError, match="log: not a log, which is text"):
        read_curve(tmp_path / "log", "CIDEr")
