"""Which captions are right, and what is learned from their clues."""

import json

import numpy as np
import pytest
from PIL import Image

from ngsan.__main__ import main
from ngsan.data.captions import ImageCaptions, write_captions
from ngsan.fit.confidence import fit_confidence, right_captions
from ngsan.metrics.calibration import auroc
from ngsan.predict import captioner as module
from ngsan.predict.confidence import load_formulas
from tests.predict.painter import NAMES, open_painter, paint


def test_right_captions_are_close_to_references_and_name_what_is_there():
    references = {
        "1": ["a brown dog lies on a red couch", "a dog sleeps on a couch"],
        "2": ["a plate with two slices of pizza", "pizza on a white plate"],
        "3": ["a man rides a wave on a surfboard", "a surfer on a big wave"],
        "4": ["a street sign beside a building", "a sign on a corner"],
    }
    captions = {
        "1": "a brown dog sleeps on a couch",
        "2": "a plate with two slices of pizza and a fork",
        "3": "people at the beach",
    }
    objects = {"1": ["dog"], "2": ["pizza"], "3": ["person", "surfboard"]}
    assert right_captions(captions, references, objects) == {"1": True, "2": False, "3": False}
    with_fork = {**objects, "2": ["pizza", "fork"]}
    assert right_captions(captions, references, with_fork)["2"]


def test_probabilities_that_made_the_data_are_found_again():
    chance = np.random.default_rng(0)
    clues = [{"a": a, "b": 100 + 10 * b} for a, b in chance.normal(size=(4000, 2))]
    true = [1 / (1 + np.exp(-(2 * one["a"] - 0.1 * (one["b"] - 100) + 1))) for one in clues]
    right = chance.random(4000) < true
    formula = fit_confidence(clues, right.tolist())
    found = np.array([formula(one) for one in clues])
    assert np.abs(found - true).mean() < 0.02
    assert formula.report.base_rate == pytest.approx(right.mean(), abs=1e-4)
    assert formula.report.auroc == pytest.approx(auroc(np.array(true), right), abs=0.01)
    assert formula.report.calibration_error < 0.03


def test_clues_that_say_nothing_give_chance():
    chance = np.random.default_rng(1)
    clues = [{"a": a} for a in chance.normal(size=1000)]
    report = fit_confidence(clues, (chance.random(1000) < 0.7).tolist()).report
    assert report.auroc < 0.56
    assert report.calibration_error < 0.05


def test_too_few_captions_raise():
    with pytest.raises(ValueError, match="too few"):
        fit_confidence([{"a": 1.0}] * 5, [True] * 5)


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """Pictures of pure colours, and of mixed ones, whose captions are wrong and unsure."""
    monkeypatch.setattr(module, "load", lambda *_, **__: open_painter())
    (tmp_path / "images").mkdir()
    records, chance = [], np.random.default_rng(0)
    for number in range(40):
        one, other = (" ".join(chance.choice(NAMES, 4)) for _ in range(2))
        mixed = number % 3 == 0
        picture = Image.blend(paint(one), paint(other), 0.4 * mixed)
        picture.save(tmp_path / "images" / f"{number}.png")
        reference = "a dog on snow" if mixed else one
        records.append(ImageCaptions(str(number), "val", (reference,)))
    write_captions(tmp_path, records)
    objects = {str(number): [] for number in range(40)}
    (tmp_path / "boxes.json").write_text(json.dumps(objects), encoding="utf-8")
    return tmp_path


def test_the_command_learns_from_a_captioners_doubt(dataset, capsys):
    words = ["fit", "confidence", dataset / "images", "--data", dataset, "--boxes"]
    output = dataset / "confidence.json"
    assert main([*map(str, words), str(dataset / "boxes.json"), "-o", str(output)]) == 0
    assert "of 40 captions are right" in capsys.readouterr().err
    formula = load_formulas(output)["fast"]
    assert formula.report.auroc > 0.9
    assert set(formula.weights) == {"doubt", "most_doubt", "length"}
