"""Command lines of random options with hostile values: an error of one line, never a traceback."""

import contextlib
import json

import pytest

from ngsan.__main__ import main
from ngsan.cli import COMMANDS, find_command
from ngsan.cli import caption as caption_command
from ngsan.cli.completion import _walk
from tests.hostile.damage import WORDS, damaged_bytes, damaged_json
from tests.hostile.limits import bounded, seeds
from tests.predict.painter import open_painter, paint

pytestmark = pytest.mark.slow

RESULTS = [{"image_id": i, "caption": f"a dog with {i} hats"} for i in range(1, 5)]
REFERENCES = {
    "images": [{"id": i, "width": 64, "height": 48} for i in range(1, 5)],
    "annotations": [
        {"id": i, "image_id": i, "caption": "a dog with hats", "category_id": 18}
        for i in range(1, 5)
    ],
    "categories": [{"id": 18, "name": "dog"}],
}

BASES = {
    "answer": ["picture.png", "what is it?", "--model", "missing"],
    "caption": ["picture.png"],
    "data inspect": ["missing"],
    "describe": ["toy-scenes"],
    "demo": ["--model", "missing"],
    "evaluate": ["missing", "--data", "missing", "-o", "out"],
    "export": ["missing", "-o", "out"],
    "extract": ["picture.png", "-o", "out", "--extractor", "onnx:missing"],
    "pack": ["missing", "-o", "out"],
    "reproduce": ["--data", "missing"],
    "score": ["results.json", "--references", "references.json", "--metrics", "BLEU"],
    "serve": ["--model", "missing"],
    "train": ["ng-san", "--data", "missing", "-o", "out"],
    "translate": ["--model", "missing", "-o", "out"],
}
"""Words with which a command ends soon, whatever is added."""

KEYS = ("model.layers", "model.dim", "model.vocab-size", "model.geometry", "model.heads",
        "model.dropout", "data.folder", "seed", "cross-entropy.epochs", "runtime.workers",
        "runtime.threads", "cross_entropy.batch_size", "model.image_size", "model.frame-grid",
        "model.backbone", "model.norm")  # fmt: skip
TAKEN = {
    "--runtime.nodes", "--runtime.processes",  # wait for others
    "--verbose",  # prints tracebacks
    "--model", "--data", "--extractor", "--metrics", "--references", "--help", "--version",
}  # fmt: skip
"""Options that do more than this test wants, and those of `BASES`, which end the commands."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder far from others, which becomes the current one."""
    folder = tmp_path / "a" / "b" / "c" / "d"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    paint().save("picture.png")
    (folder / "results.json").write_text(json.dumps(RESULTS))
    (folder / "references.json").write_text(json.dumps(REFERENCES))
    monkeypatch.setattr(caption_command, "load", lambda *_, **__: open_painter())
    return folder


def run(name, words, capsys):
    with bounded(name), contextlib.suppress(SystemExit):
        status = main(words)
        err = capsys.readouterr().err
        assert status in (0, 1, 2), (name, status)
        assert "Traceback" not in err, (name, err)
        assert "Error:" not in err, (name, err)
        assert (err != "") or status == 0, name
        assert err.count("\n") <= 8, (name, err)


def value_of(rng):
    numbers = str(rng.randint(-9, 999)), str(10.0 ** rng.randint(-320, 308))
    return rng.choice((rng.choice(WORDS), *numbers))


def test_options(place, capsys, tally):
    tree = (_walk((name,), find_command(name)) for name in COMMANDS)
    commands = {name: sorted(options) for one in tree for name, options in one}
    names = [name for name in commands if name in BASES or name.startswith("data ")]
    for number, rng in seeds("options", 2500):
        name = names[number % len(names)]
        words = [*name.split(), *BASES.get(name, ["missing", "-o", "out"])]
        for _ in range(rng.choice((1, 1, 2, 3))):
            if name in ("train", "describe") and rng.random() < 0.6:
                option = "--" + rng.choice(KEYS)
            else:
                option = rng.choice(commands[name] or ["--quiet"])
            if option in TAKEN or (option, name) in (("--output", "train"),):
                continue
            more = [value_of(rng)] if rng.random() < 0.85 else []
            words += [f"{option}={more[0]}"] if more and rng.random() < 0.3 else [option, *more]
        if rng.random() < 0.2:
            words.insert(rng.randrange(1, len(words)), value_of(rng))
        run(f"{number} {words}"[:500], words, capsys)
    tally(number + 1)


@pytest.mark.parametrize("kind", ["results", "references", "boxes", "ids"])
def test_score(kind, place, capsys, tally):
    words = ["score", "results.json", "--references", "references.json"]
    words += ["--metrics", "BLEU", "--resamples", "5", "-o", "out.json"]
    if kind in ("boxes", "ids"):
        words += [f"--{kind}", "bad"]
    good = {"results": RESULTS, "references": REFERENCES, "boxes": REFERENCES, "ids": [1, 2]}[kind]
    path = place / {"boxes": "bad", "ids": "bad"}.get(kind, f"{kind}.json")
    for number, rng in seeds(kind, 300):
        if rng.random() < 0.6:
            path.write_text(damaged_json(good, rng))
        else:
            path.write_bytes(damaged_bytes(json.dumps(good).encode(), rng))
        run(f"{kind} {number}", words, capsys)
    tally(number + 1)
