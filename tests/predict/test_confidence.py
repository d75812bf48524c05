"""Clues, formulas and their file, against definitions."""

import json
import math

import numpy as np
import pytest

import ngsan
from ngsan.examples import EXAMPLES
from ngsan.predict.captioner import PHOTO_MODEL
from ngsan.predict.confidence import (
    CONFIDENCE,
    Formula,
    Report,
    keyword_clues,
    load_formulas,
    object_clues,
    save_formulas,
    word_clues,
)
from ngsan.predict.quality import QUALITIES
from ngsan.vision.keywords import load_keywords

REPORT = Report(30, 0.5, 0.8, 0.02, [[30, 0.5, 0.5]])


def test_word_clues_are_those_of_mean_and_least():
    clues = word_clues([-0.1, -0.5, 0.0, -0.2])
    assert clues["doubt"] == pytest.approx(math.log(1 + 10 * 0.8 / 4))
    assert clues["most_doubt"] == pytest.approx(math.log(1.5))
    assert clues["length"] == 4
    assert word_clues([]) == {"doubt": 0, "most_doubt": 0, "length": 0}


def test_keyword_clues_are_of_known_words():
    model = load_keywords()
    logits = model.prior + np.linspace(-6, 6, len(model.words)).astype(np.float32)
    words = ["a", "dog", "on", "snow"]
    places = [model.words.index(word) for word in ("dog", "snow")]
    clues = keyword_clues(words, model, logits)
    assert clues["keywords"] == pytest.approx(np.mean([logits[place] for place in places]))
    worst = min(float(logits[place] - model.prior[place]) for place in places)
    assert clues["worst_keyword"] == pytest.approx(max(worst, -4), abs=1e-5)
    assert set(keyword_clues(["of"], model, logits).values()) == {0.0}


def test_object_clues_are_of_named_and_other_classes():
    scores = {"dog": 0.2, "cat": 0.7, "person": 0.001}
    clues = object_clues(["a", "puppy", "and", "a", "man"], scores)
    assert clues["worst_object"] == pytest.approx(math.log(0.005 / 0.995))
    assert clues["missed_object"] == pytest.approx(math.log(0.7 / 0.3))
    assert object_clues(["snow"], scores)["worst_object"] == 0
    assert object_clues(["dog"], {}) == {"worst_object": 0, "missed_object": 0}


def test_formula_is_a_logistic_regression():
    formula = Formula({"a": 2.0, "b": -1.0}, 0.5, REPORT)
    assert formula({"a": 0.3, "b": 1.0, "c": 9.0}) == pytest.approx(1 / (1 + math.exp(-0.1)))
    assert 0 <= formula({"a": -1e9, "b": 0.0}) < 1e-9
    with pytest.raises(ValueError, match="'b'"):
        formula({"a": 1.0})


def test_file_keeps_formulas(tmp_path):
    assert load_formulas(tmp_path / CONFIDENCE) == {}
    formulas = {"fast": Formula({"a": 2.0}, 0.5, REPORT)}
    save_formulas(tmp_path / CONFIDENCE, formulas)
    assert load_formulas(tmp_path / CONFIDENCE) == formulas


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "fast": {}}'])
def test_damaged_files_raise(text, tmp_path):
    (tmp_path / CONFIDENCE).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="damaged"):
        load_formulas(tmp_path / CONFIDENCE)


@pytest.mark.parametrize("quality", QUALITIES)
def test_shipped_captions_have_the_confidence_of_the_file(quality):
    content = json.loads((PHOTO_MODEL / CONFIDENCE).read_text(encoding="utf-8"))
    paths = [each.path for each in EXAMPLES[:2]]
    for caption in ngsan.load().caption(paths, quality=quality):
        formula = content[quality]
        log_odds = formula["intercept"] + sum(
            weight * caption.clues[name] for name, weight in formula["weights"].items()
        )
        assert caption.confidence == pytest.approx(1 / (1 + math.exp(-log_odds)))
        assert 0 < caption.confidence < 1


def test_reports_of_the_shipped_file_follow_from_their_bins():
    for formula in load_formulas(PHOTO_MODEL / CONFIDENCE).values():
        report = formula.report
        count = sum(total for total, _, _ in report.bins)
        gaps = sum(total * abs(predicted - right) for total, predicted, right in report.bins)
        right = sum(total * share for total, _, share in report.bins)
        assert count == report.captions
        assert gaps / count == pytest.approx(report.calibration_error, abs=2e-4)
        assert right / count == pytest.approx(report.base_rate, abs=2e-4)
        assert report.calibration_error < 0.05
        assert report.auroc > 0.69


@pytest.mark.parametrize("content", [b"[" * 200_000, bytes(1 << 25)], ids=["deep", "long"])
def test_hostile_formulas_are_refused(content, tmp_path):
    (tmp_path / CONFIDENCE).write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        load_formulas(tmp_path / CONFIDENCE)
