"""`/v1/scene` and `/v1/bias`, with a fake studio."""

import pytest

from ngsan.app.app import build_app
from ngsan.app.attention import Surfaces
from ngsan.app.settings import ServeSettings
from ngsan.app.studio import SceneAnswer, SceneMaps, SceneObject, SceneStudio
from tests.app.stand_in import GatedPainter, ask, card_of

BALL = {"shape": "ball", "colour": "red", "x": 0.25, "y": 0.5, "width": 0.2, "height": 0.2}
BOX = {"shape": "box", "colour": "blue", "x": 0.75, "y": 0.5, "width": 0.3, "height": 0.2}


class FakeStudio:
    """Records its calls."""

    def __init__(self):
        self.calls = []

    def caption(self, model, signed, objects, *, maps=False):
        if signed and "g" not in model:
            raise ValueError(f"signed: {model} has no signed geometry")
        left, right = sorted(objects, key=lambda each: each.x)
        text = f"{left.colour} {left.shape} left of {right.colour} {right.shape}"
        grid = [[[[0.5, 0.5]] * 2]]
        shown = SceneMaps(grid, None, grid) if maps else None
        return SceneAnswer(text, -0.5, text.split(), True, [[0.5, 0.5]] * 6, shown)

    def surfaces(self, model, signed, *, layer, head, two_sided=False, **scene):
        self.calls.append((model, signed, layer, head, two_sided, scene))
        if layer > 2:
            raise ValueError(f"layer: {layer} is not one of 0 to 2")
        flat = {"0.5": [[0.0]], "1": [[1.0]], "2": [[2.0]]}
        return Surfaces("query", (0.0, 3.0), 1, flat, flat)

    def models(self):
        return [{"name": "ng-san", "kind": "scene", "signed": True}]


@pytest.fixture
def studio():
    return FakeStudio()


@pytest.fixture
def app(studio):
    return build_app(ServeSettings(), model=card_of(GatedPainter()), studio=studio)


def test_caption_a_scene(app):
    asked = {"model": "ng-san", "signed": True, "objects": [BOX, BALL]}
    answer = ask(app, "POST", "/v1/scene", json=asked)
    assert answer.json() == {
        "caption": "red ball left of blue box",
        "score": -0.5,
        "words": ["red", "ball", "left", "of", "blue", "box"],
        "is_true": True,
        "attention": [[0.5, 0.5]] * 6,
    }
    maps = ask(app, "POST", "/v1/scene", json={**asked, "maps": True}).json()["maps"]
    assert maps["geometry"] is None
    assert maps["weights"] == [[[[0.5, 0.5]] * 2]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "other"}, "model: "),
        ({"model": "san", "signed": True}, "san has no signed geometry"),
        ({"signed": "yes"}, "signed: "),
        ({"objects": []}, "objects: "),
        ({"objects": [BALL] * 9}, "objects: "),
        ({"objects": [{**BALL, "x": 1.5}]}, "objects.0.x: "),
        ({"objects": [{**BALL, "x": "0.5"}]}, "objects.0.x: "),
        ({"objects": [{**BALL, "width": 0}]}, "objects.0.width: "),
        ({"objects": [BALL, {**BALL, "shape": "cat"}]}, "objects.1.shape: "),
        ({"objects": [{**BALL, "size": 1}]}, "objects.0.size: "),
        ({"objects": [{key: BALL[key] for key in ("x", "y")}]}, "objects.0.shape: "),
        ({"extra": 1}, "extra: "),
    ],
)
def test_invalid_scenes_raise(app, change, message):
    asked = {"model": "ng-san", "objects": [BALL, BOX], **change}
    answer = ask(app, "POST", "/v1/scene", json=asked)
    assert answer.status_code == 422
    assert message.lower() in answer.json()["error"].lower()


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 60_000, b"", b"NaN", b"[]", b"3"])
def test_invalid_json_raises(app, body):
    headers = {"content-type": "application/json"}
    answer = ask(app, "POST", "/v1/scene", content=body, headers=headers)
    assert answer.status_code in (400, 422)
    assert list(answer.json()) == ["error"]


def test_nan_coordinates_raise(app):
    body = b'{"model": "san", "objects": [{"shape": "ball", "colour": "red", "x": NaN, "y": 0}]}'
    headers = {"content-type": "application/json"}
    assert ask(app, "POST", "/v1/scene", content=body, headers=headers).status_code == 422


def test_bias_surfaces(app, studio):
    found = ask(app, "GET", "/v1/bias", params={"model": "g-san", "signed": "true", "head": 3})
    assert found.json()["kind"] == "query"
    assert found.json()["range"] == [0, 3]
    assert studio.calls.pop() == ("g-san", True, 0, 3, False, {})
    asked = {
        "model": "g-san",
        "objects": [BALL, BOX],
        "object_index": 1,
        "layer": 2,
        "two_sided": True,
    }
    assert ask(app, "POST", "/v1/bias", json=asked).is_success
    scene = {"objects": [SceneObject(**BALL), SceneObject(**BOX)], "object_index": 1}
    assert studio.calls.pop() == ("g-san", False, 2, 0, True, scene)
    for query in (
        "",
        "?model=other",
        "?model=san&layer=-1",
        "?model=san&layer=x",
        "?model=san&layer=9",
        "?model=g-san&layer=1&layer=1",
    ):
        answer = ask(app, "GET", f"/v1/bias{query}")
        assert (answer.status_code, list(answer.json())) == (422, ["error"])


def test_models_are_listed(app):
    found = ask(app, "GET", "/v1/models").json()["models"]
    assert [(model["name"], model["kind"]) for model in found] == [
        ("painter", "photo"),
        ("ng-san", "scene"),
    ]


def test_missing_scene_models_answer_404(monkeypatch):
    def missing(**_):
        raise ValueError("looks.json is missing")

    monkeypatch.setattr(SceneStudio, "open", missing)
    app = build_app(ServeSettings(), model=card_of(GatedPainter()))
    answer = ask(app, "POST", "/v1/scene", json={"model": "san", "objects": [BALL]})
    assert answer.status_code == 404
    assert "scene models are not installed" in answer.json()["error"]
    assert len(ask(app, "GET", "/v1/models").json()["models"]) == 1
