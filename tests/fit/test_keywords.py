"""`ngsan fit keywords` on photographs of plain colours."""

import json
import shutil
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from ngsan.__main__ import main
from ngsan.data.captions import ImageCaptions, write_captions
from ngsan.fit import features as module
from ngsan.fit.features import extract_features, ordered_files, read_features
from ngsan.fit.keywords import References, calibrate
from ngsan.vision.keywords import EYE, KEYWORD_MODEL, load_keywords

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (40, 40, 210)}


def square(colour, seed):
    noise = np.random.default_rng(seed).integers(-25, 25, (64, 64, 3))
    return np.clip(np.array(COLOURS[colour]) + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """24 images for training, 12 for validation, one for test."""
    folder = tmp_path_factory.mktemp("colours")
    (folder / "images").mkdir()
    records = []
    for number in range(37):
        colour = list(COLOURS)[number % 3]
        Image.fromarray(square(colour, number)).save(folder / "images" / f"{number}.png")
        split = "train" if number < 24 else "val" if number < 36 else "test"
        captions = (f"a {colour} wall", f"two {colour} walls on the {colour} street")
        records.append(ImageCaptions(str(number), split, captions))
    write_captions(folder, records)
    return folder


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 10)
    (tmp_path / "features").mkdir()
    shutil.copyfile(KEYWORD_MODEL / EYE, tmp_path / "features" / EYE)
    return tmp_path


def test_colours_are_learned_from_captions(dataset, work, capsys):
    words = ["fit", "keywords", str(dataset / "images"), "--data", str(dataset)]
    folders = ["--features", str(work / "features"), "-o", str(work / "keywords")]
    assert main([*words, *folders]) == 0
    assert "100.0 % of 1" in capsys.readouterr().err
    model = load_keywords(work / "keywords")
    assert set(model.keywords) == {"wall", "street", *COLOURS}
    assert "two" in model.words
    for colour in COLOURS:
        image = np.array(Image.fromarray(square(colour, 99)).resize((256, 256)))
        confidences = model.confidences(model.logits(image[None]))[0]
        best = [keyword.word for keyword in model.rank(confidences, 3)]
        assert set(best) == {"wall", "street", colour}
    text = json.loads((work / "keywords" / "words.json").read_text(encoding="utf-8"))
    assert text["photographs"] == 24


class MeanColour:
    """An eye that is fast."""

    size, signature = 32, "mean colour"

    def features(self, images):
        return np.repeat(images.mean((1, 2))[:, None], 8, 1)


def test_a_stopped_extraction_gives_the_features_of_an_uninterrupted_one(dataset, work):
    files = ordered_files([dataset / "images"], References(dataset).splits)
    eye = MeanColour()
    for _ in range(3):
        stopped = extract_features(files, eye, work / "features")
        list(islice(stopped, 21))
        stopped.close()
    assert list(extract_features(files, eye, work / "features"))[-1] == 36
    list(extract_features(files, eye, work / "whole"))
    (images, found), (same, whole) = map(read_features, (work / "features", work / "whole"))
    assert images == same == list(files)
    np.testing.assert_array_equal(found, whole)


def test_validation_comes_first_and_test_never(dataset, tmp_path):
    shutil.copytree(dataset / "images", tmp_path / "more")
    for number in range(16):
        (tmp_path / "more" / f"{number}.png").unlink()
    splits = References(dataset).splits
    found = [int(image) for image in ordered_files([tmp_path / "more", dataset / "images"], splits)]
    assert sorted(found[:12]) == list(range(24, 36))
    assert sorted(found[12:20]) == list(range(16, 24))
    assert sorted(found[20:]) == list(range(16))
    assert found[20:] != sorted(found[20:])


def test_shares_are_counted_over_captions(dataset):
    found = References(dataset).shares(["0", "1"], ["red", "two", "walls", "street", "absent"])
    np.testing.assert_array_equal(found, [[1, 0.5, 0.5, 0.5, 0], [0, 0.5, 0.5, 0.5, 0]])


def test_calibration_recovers_factor_and_summand():
    chance = np.random.default_rng(0)
    log_odds = chance.normal(0, 2, (20000, 10))
    used = chance.random(log_odds.shape) < 1 / (1 + np.exp(-(0.5 * log_odds - 1)))
    factor, summand = calibrate(log_odds, used)
    assert factor == pytest.approx(0.5, abs=0.02)
    assert summand == pytest.approx(-1, abs=0.02)


@pytest.mark.parametrize("change", ["images", "data"])
def test_wrong_folders_are_one_line(change, dataset, work, tmp_path, capsys):
    folders = {"data": dataset, "images": dataset / "images", change: tmp_path / "nowhere"}
    words = [str(folders["images"]), "--data", str(folders["data"])]
    end = ["--features", str(work / "features"), "-o", str(work / "keywords")]
    assert main(["fit", "keywords", *words, *end]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "nowhere" in error
