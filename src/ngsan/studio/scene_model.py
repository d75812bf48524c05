"""A scene model that ships, opened without torch.

Shapes: `N` regions: the things and, last of all, the canvas; `H` heads, `G` width of the geometry
embedding.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ngsan.data.synthetic.scene import COLOURS, SHAPES, sample_scenes
from ngsan.light.captioner import LightCaptioner
from ngsan.light.model import LightModel
from ngsan.studio.bias import Bias, Floats
from ngsan.studio.encoder import LayerMaps, NumpyEncoder

CONTENT_INDEPENDENT = "g-san-ci"
"""A G-SAN with content-independent bias, for the figures of the paper's appendix."""

FOLDERS: dict[tuple[str, bool], str] = {
    ("san", False): "san",
    ("n-san", False): "n-san",
    ("g-san", False): "g-san",
    ("ng-san", False): "ng-san",
    ("g-san", True): "g-san-signed",
    ("ng-san", True): "ng-san-signed",
    (CONTENT_INDEPENDENT, False): CONTENT_INDEPENDENT,
}
"""Folders of the models by name and by whether their geometry is signed."""

SCENES = Path(__file__).parents[1] / "shipped" / "scenes"
"""The scene models that come with the package."""

LOOKS = "looks.json"
"""The codes of colours, of shapes and of the canvas, of which features are made."""

_CANVAS = (0.5, 0.5, 1.0, 1.0)
_TYPICAL, _TYPICAL_SEED = 100, 7_000_021


class SceneModel:
    """One model with what was read of it. Several threads may use it."""

    def __init__(self, folder: Path, looks: Floats, *, threads: int) -> None:
        """Opens a packed model; see `SceneStudio.open`."""
        self.captioner = LightCaptioner(LightModel(folder, threads=threads))
        self.encoder = NumpyEncoder.open(folder)
        self.config = self.encoder.config
        self.about = {
            name: _read_json(folder / f"{name}.json") for name in ("metrics", "signature")
        }
        self._looks = looks

    def regions(self, things: Sequence[Any]) -> tuple[Floats, Floats]:
        """(N, feature_dim) and (N, 4) of things that have a colour, a shape and a box."""
        colours = [COLOURS.index(thing.colour) for thing in things]
        shapes = [len(COLOURS) + SHAPES.index(thing.shape) for thing in things]
        features = np.concatenate((self._looks[colours] + self._looks[shapes], self._looks[-1:]))
        return features, np.array([*(thing.box for thing in things), _CANVAS], np.float32)

    def maps(self, things: Sequence[Any]) -> list[LayerMaps]:
        """The encoder's maps of a scene."""
        return self.encoder.maps(*self.regions(things))

    @cached_property
    def typical(self) -> list[tuple[Floats | None, Floats | None]]:
        """Of each layer the mean Q' and K', (H, G), of the things of a hundred unseen scenes."""
        scenes = list(sample_scenes(_TYPICAL, fewest=2, most=3, seed=_TYPICAL_SEED))
        found = [self.maps(scene.things) for scene in scenes]
        means = []
        for layer, bias in enumerate(self.encoder.biases):
            inputs = [
                maps[layer].inputs[: len(s.things)] for s, maps in zip(scenes, found, strict=True)
            ]
            means.append((_mean(bias, inputs, "query"), _mean(bias, inputs, "key")))
        return means


def _mean(bias: Bias | None, inputs: list[Floats], name: str) -> Floats | None:
    """(H, G) the mean Q' or K' of some regions; None for a bias that has none."""
    found = None if bias is None else bias.project(np.concatenate(inputs), name)
    return None if found is None else found.mean(0)


def read_looks(path: Path) -> Floats:
    """(looks, feature_dim) the codes of all colours, of all shapes, and of the canvas."""
    content = _read_json(path)
    try:
        rows = [content["colours"][name] for name in COLOURS]
        rows += [content["shapes"][name] for name in SHAPES]
        return np.array([*rows, content["canvas"]], np.float32)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: damaged: it lacks the codes of all looks") from error


def _read_json(path: Path) -> Any:
    """The content of a file.

    Raises:
        ValueError: It is missing or damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing") from error
    except ValueError as error:
        raise ValueError(f"{path}: damaged: {error}") from error
