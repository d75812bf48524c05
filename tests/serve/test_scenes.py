"""`/v1/scene` and `/v1/bias`, with a stand-in for the models."""

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest

from ngsan.serve.app import build_app
from ngsan.serve.settings import ServeSettings
from tests.serve.stand_in import GatedPainter, ask, card_of

BALL = {"shape": "ball", "colour": "red", "x": 0.25, "y": 0.5, "width": 0.2, "height": 0.2}
BOX = {"shape": "box", "colour": "blue", "x": 0.75, "y": 0.5, "width": 0.3, "height": 0.2}


@dataclass(frozen=True)
class Thing:
    shape: str
    colour: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Maps:
    content: list
    geometry: list | None
    weights: list


@dataclass(frozen=True)
class Answer:
    caption: str
    score: float
    words: list
    true: bool | None
    attention: list
    maps: Maps | None = None


@dataclass(frozen=True)
class Surfaces:
    kind: str
    range: tuple
    steps: int
    position: dict
    size: dict


class Studio:
    """Says what it was asked for."""

    def __init__(self):
        self.asked = []

    def caption(self, model, signed, things, *, maps=False):
        if signed and "g" not in model:
            raise ValueError(f"signed: {model} has no signed geometry")
        left, right = sorted(things, key=lambda thing: thing.x)
        text = f"{left.colour} {left.shape} left of {right.colour} {right.shape}"
        grid = [[[[0.5, 0.5]] * 2]]
        shown = Maps(grid, None, grid) if maps else None
        return Answer(text, -0.5, text.split(), True, [[0.5, 0.5]] * 6, shown)

    def surfaces(self, model, signed, *, layer, head, things=None, thing=0, two_sided=False):
        self.asked.append((model, signed, layer, head, things, thing, two_sided))
        if layer > 2:
            raise ValueError(f"layer: {layer} is not one of 0 to 2")
        flat = {"0.5": [[0.0]], "1": [[1.0]], "2": [[2.0]]}
        return Surfaces("query", (0.0, 3.0), 1, flat, flat)

    def models(self):
        return [{"name": "ng-san", "kind": "scene", "signed": True}]


@pytest.fixture
def studio(monkeypatch):
    module = ModuleType("ngsan.studio.scenes")
    module.SceneThing, module.SceneStudio = Thing, SimpleNamespace(open=None)
    monkeypatch.setitem(sys.modules, "ngsan.studio", ModuleType("ngsan.studio"))
    monkeypatch.setitem(sys.modules, "ngsan.studio.scenes", module)
    return Studio()


@pytest.fixture
def app(studio):
    return build_app(ServeSettings(), model=card_of(GatedPainter()), studio=studio)


def test_a_scene(app):
    asked = {"model": "ng-san", "signed": True, "things": [BOX, BALL]}
    answer = ask(app, "POST", "/v1/scene", json=asked)
    assert answer.json() == {
        "caption": "red ball left of blue box",
        "score": -0.5,
        "words": ["red", "ball", "left", "of", "blue", "box"],
        "true": True,
        "attention": [[0.5, 0.5]] * 6,
    }
    maps = ask(app, "POST", "/v1/scene", json={**asked, "maps": True}).json()["maps"]
    assert maps["geometry"] is None
    assert maps["weights"] == [[[[0.5, 0.5]] * 2]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "other"}, "model: "),
        ({"model": "san", "signed": True}, "san has no signed geometry"),
        ({"signed": "yes"}, "signed: "),
        ({"things": []}, "things: "),
        ({"things": [BALL] * 9}, "things: "),
        ({"things": [{**BALL, "x": 1.5}]}, "things.0.x: "),
        ({"things": [{**BALL, "x": "0.5"}]}, "things.0.x: "),
        ({"things": [{**BALL, "width": 0}]}, "things.0.width: "),
        ({"things": [BALL, {**BALL, "shape": "cat"}]}, "things.1.shape: "),
        ({"things": [{**BALL, "size": 1}]}, "things.0.size: "),
        ({"things": [{key: BALL[key] for key in ("x", "y")}]}, "things.0.shape: "),
        ({"extra": 1}, "extra: "),
    ],
)
def test_wrong_scenes(app, change, said):
    asked = {"model": "ng-san", "things": [BALL, BOX], **change}
    answer = ask(app, "POST", "/v1/scene", json=asked)
    assert answer.status_code == 422
    assert said.lower() in answer.json()["error"].lower()


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 60_000, b"", b"NaN", b"[]", b"3"])
def test_broken_json(app, body):
    headers = {"content-type": "application/json"}
    answer = ask(app, "POST", "/v1/scene", content=body, headers=headers)
    assert answer.status_code in (400, 422)
    assert list(answer.json()) == ["error"]


def test_numbers_that_are_none(app):
    body = b'{"model": "san", "things": [{"shape": "ball", "colour": "red", "x": NaN, "y": 0}]}'
    headers = {"content-type": "application/json"}
    assert ask(app, "POST", "/v1/scene", content=body, headers=headers).status_code == 422


def test_surfaces(app, studio):
    found = ask(app, "GET", "/v1/bias", params={"model": "g-san", "signed": "true", "head": 3})
    assert found.json()["kind"] == "query"
    assert found.json()["range"] == [0, 3]
    assert studio.asked.pop() == ("g-san", True, 0, 3, None, 0, False)
    asked = {"model": "g-san", "things": [BALL, BOX], "thing": 1, "layer": 2, "two_sided": True}
    assert ask(app, "POST", "/v1/bias", json=asked).is_success
    assert studio.asked.pop() == ("g-san", False, 2, 0, [Thing(**BALL), Thing(**BOX)], 1, True)
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


def test_models(app):
    found = ask(app, "GET", "/v1/models").json()["models"]
    assert [(model["name"], model["kind"]) for model in found] == [
        ("painter", "photo"),
        ("ng-san", "scene"),
    ]


def test_an_installation_without_scene_models(monkeypatch):
    monkeypatch.setitem(sys.modules, "ngsan.studio.scenes", None)
    app = build_app(ServeSettings(), model=card_of(GatedPainter()))
    answer = ask(app, "POST", "/v1/scene", json={"model": "san", "things": [BALL]})
    assert answer.status_code == 404
    assert "without scene models" in answer.json()["error"]
    assert len(ask(app, "GET", "/v1/models").json()["models"]) == 1
