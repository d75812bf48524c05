"""`/v1/explain` with the shipped model, against the explainer."""

import base64

import numpy as np
import pytest

import ngsan
from ngsan.app.app import build_app
from ngsan.app.maps import Explainer, quantize_rows
from ngsan.app.settings import ServeSettings
from ngsan.examples import EXAMPLES
from ngsan.predict.captioner import PHOTO_MODEL
from ngsan.vision.images import open_image
from tests.app.stand_in import ask

FILE = EXAMPLES[7].path


@pytest.fixture(scope="module")
def app():
    return build_app(ServeSettings(threads=1, explain_queue_size=1))


@pytest.fixture(scope="module")
def explained():
    explainer = Explainer.open(PHOTO_MODEL, threads=1)
    near = 2 * explainer.size  # as for captions
    picture = open_image(FILE, min_side=near)
    return explainer.explain(picture, [ngsan.load(threads=1).caption(picture)])


def decode_map(blob, entry):
    """Decodes a map of a blob, as the page does."""
    shape, at = entry["shape"], entry["at"]
    rows = int(np.prod(shape[:-1]))
    scales = np.frombuffer(blob, "<f4", rows, at).reshape(*shape[:-1], 1)
    numbers = np.frombuffer(blob, np.uint8, rows * shape[-1], at + 4 * rows).reshape(shape)
    shares = (numbers.astype(float) - 128) / 127 if entry["signed"] else numbers / 255
    return scales * shares


def test_maps_agree_with_the_explainer(app, explained):
    answer = ask(app, "POST", "/v1/explain", files={"image": FILE.read_bytes()})
    assert answer.status_code == 200
    found, expected = answer.json(), explained.captions[0]
    assert found["caption"] == expected.text
    assert found["words"] == list(expected.words)
    assert found["grid"] == [8, 8]
    assert found["probabilities"] == pytest.approx(expected.probabilities, abs=1e-4)
    blob = base64.b64decode(found["blob"])
    for entry, wanted in (
        (found["attention"], expected.attention),
        (found["regions"]["weights"], explained.weights),
        (found["regions"]["content"], explained.content),
    ):
        scales, _ = quantize_rows(wanted)
        assert np.abs(decode_map(blob, entry) - wanted).max() < 0.01 * scales.max()
    geometry = decode_map(blob, found["regions"]["geometry"])
    clipped = explained.geometry.clip(-np.log(1000), np.log(1000))
    assert np.abs(geometry - clipped).max() < 0.06
    assert found["caption"] == caption_of(app)


def caption_of(app):
    answer = ask(app, "POST", "/v1/caption", files={"image": FILE.read_bytes()})
    return answer.json()["results"][0]["caption"]


def test_explain_a_given_caption(app):
    files = {"image": FILE.read_bytes()}
    found = ask(app, "POST", "/v1/explain", files=files, data={"caption": "A dog on a  bed"})
    assert found.json()["words"] == ["a", "dog", "on", "a", "bed"]
    assert len(found.json()["probabilities"]) == 6
    assert found.json()["attention"]["shape"][2] == 6
    for wrong in ("", "  ", "a qwertyuiop", "a " * 51):
        answer = ask(app, "POST", "/v1/explain", files=files, data={"caption": wrong})
        assert answer.status_code == 422


def test_objects_are_found_if_asked_for(app):
    request = {"files": {"image": FILE.read_bytes()}, "data": {"objects": "true"}}
    found = ask(app, "POST", "/v1/explain", **request).json()["objects"]
    wanted = [one.as_record() for one in ngsan.load(threads=1).objects(FILE)]
    assert [one["label"] for one in found] == [one["label"] for one in wanted]
    assert found[0]["box"] == pytest.approx(wanted[0]["box"], abs=0.02)


def test_several_or_invalid_photographs_raise(app):
    two = [("image", FILE.read_bytes())] * 2
    assert ask(app, "POST", "/v1/explain", files=two).status_code == 422
    assert ask(app, "POST", "/v1/explain", files={"image": b"none"}).status_code == 422


def test_bias_surface_of_a_cell(app, explained):
    """At the positions of real cells, the surface equals the bias of these cells."""
    region, layer, head = 19, 1, 3
    asked = {"region": region, "layer": layer, "head": head, "caption": "a cat"}
    answer = ask(app, "POST", "/v1/explain", files={"image": FILE.read_bytes()}, data=asked)
    found = answer.json()["surfaces"]
    assert found["kind"] == "query"
    assert found["range"] == [0, 3]
    assert found["offsets"] == [-3, 3]  # because the model has signed geometry
    position = np.array(found["position"]["1"])  # all cells have the same size
    middle = (found["steps"] - 1) // 2
    step = middle // 3
    row, column = divmod(region, 8)
    shifts = [
        position[middle + step * dy, middle + step * dx]
        - explained.geometry[layer, head, region, 8 * (row + dy) + column + dx]
        for dy in range(-2, 4)
        for dx in range(-3, 4)
    ]
    assert np.ptp(shifts) < 0.02


def test_bias_surface_is_the_mean_over_heads(app):
    files = {"image": FILE.read_bytes()}
    every = [
        ask(
            app,
            "POST",
            "/v1/explain",
            files=files,
            data={"region": 0, "head": head, "caption": "a cat"},
        ).json()
        for head in range(8)
    ]
    mean = ask(
        app, "POST", "/v1/explain", files=files, data={"region": 0, "caption": "a cat"}
    ).json()
    tables = [found["surfaces"]["size"]["0.5"] for found in every]
    np.testing.assert_allclose(mean["surfaces"]["size"]["0.5"], np.mean(tables, 0), atol=1e-4)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"region": 64}, "region: 64 is not one of 0 to 63"),
        ({"region": -1}, "region: Input should be greater than or equal to 0"),
        ({"region": "x"}, "region: Input should be a valid integer"),
        ({"region": 1, "layer": 99}, "layer: 99 is not one of"),
        ({"region": 1, "head": 8}, "head: 8 is not one of 0 to 7"),
        ({"head": 1}, "head applies only with region"),
    ],
)
def test_invalid_regions_raise(app, asked, message):
    files = {"image": FILE.read_bytes()}
    answer = ask(app, "POST", "/v1/explain", files=files, data=asked)
    assert answer.status_code == 422
    assert message.lower() in answer.json()["error"].lower()
