"""Captions of drawn scenes by the scene models that come with the package, and their attention.

Shapes: `N` regions: the objects and, last of all, the canvas; `L` layers, `H` heads, `D` model
width, `T` words.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from ngsan.app.attention import AttentionModel, Floats, Surfaces, attention_shares, check_index
from ngsan.config import DecodingConfig
from ngsan.data.synthetic.scenes import (
    COLOURS,
    SHAPES,
    Box,
    family_of,
    read_claim,
    relation,
    sample_scenes,
)
from ngsan.predict.backend_onnx import OnnxBackend
from ngsan.predict.captioner import Captioner

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
"""The codes of colours, shapes and the canvas, of which features are sums."""

MAX_OBJECTS = 8
"""Most objects of a scene. The models were trained with fewer; see their README."""

_CANVAS = (0.5, 0.5, 1.0, 1.0)
_DECODING = DecodingConfig(max_length=12)
_TYPICAL_SCENES, _TYPICAL_SEED = 100, 7_000_021
_DIGITS = 7
_SMALLEST = 1e-30


Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Size = Annotated[float, Field(strict=True, ge=0.001, le=1, allow_inf_nan=False)]


@pydantic_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SceneObject:
    """An object of a scene: centre and size, relative to the canvas; y points down."""

    shape: Literal[SHAPES]  # type: ignore[valid-type]
    colour: Literal[COLOURS]  # type: ignore[valid-type]
    x: Share
    y: Share
    width: Size
    height: Size

    @property
    def name(self) -> str:
        """Colour and shape, as captions name them."""
        return f"{self.colour} {self.shape}"

    @property
    def box(self) -> Box:
        """`cxcywh` relative to the canvas."""
        return self.x, self.y, self.width, self.height


def is_true(caption: str, objects: Sequence[SceneObject]) -> bool | None:
    """Whether a caption is true of a scene; None if it does not state a relation.

    If several objects have the same name, one pair that fits is enough.
    """
    claim = read_claim(caption)
    if claim is None:
        return None
    family = family_of(claim.relation)
    return any(
        relation(a.box, b.box, family) == claim.relation
        for a in objects
        for b in objects
        if (a.name, b.name) == (claim.a, claim.b)
    )


@dataclass(frozen=True)
class SceneMaps:
    """The attention of a scene's regions to each other, [L][H][N][N]; the canvas comes last.

    See `ngsan.app.attention.attention_shares`; the row is the region that attends.
    """

    content: list[Any]
    geometry: list[Any] | None
    weights: list[Any]


@dataclass(frozen=True)
class SceneAnswer:
    """A caption of a scene."""

    caption: str
    score: float
    """Its log-probability."""
    words: list[str]
    is_true: bool | None
    """Whether it is true of the scene; None if it does not state a relation."""
    attention: list[list[float]]
    """(T, N - 1) each word's attention to each object; the rest went to the canvas."""
    maps: SceneMaps | None = None
    """The encoder's maps, if asked for."""


class SceneModel:
    """One scene model. Several threads may use it."""

    def __init__(self, folder: Path, looks: Floats, *, threads: int) -> None:
        """Opens a packed model; see `SceneStudio.open`."""
        self.captioner = Captioner(OnnxBackend(folder, threads=threads))
        self.attention = AttentionModel.open(folder, threads=threads)
        self.config = self.attention.config
        self.metrics, signature = (
            _read_json(folder / f"{name}.json") for name in ("metrics", "signature")
        )
        self.signature = signature["signature"]
        self._looks = looks

    def regions(self, objects: Sequence[Any]) -> tuple[Floats, Floats]:
        """(N, feature_dim) and (N, 4) of objects that have a colour, a shape and a box."""
        colours = [COLOURS.index(each.colour) for each in objects]
        shapes = [len(COLOURS) + SHAPES.index(each.shape) for each in objects]
        features = np.concatenate((self._looks[colours] + self._looks[shapes], self._looks[-1:]))
        return features, np.array([*(each.box for each in objects), _CANVAS], np.float32)

    @cached_property
    def typical_inputs(self) -> Floats:
        """(L, D) the mean input of each layer's bias over the objects of a hundred unseen scenes.

        The bias is linear in Q' and K', which are linear in it.
        """
        scenes = sample_scenes(_TYPICAL_SCENES, min_objects=2, max_objects=3, seed=_TYPICAL_SEED)
        found = [
            self.attention.maps(*self.regions(scene.things))["inputs"][:, :-1] for scene in scenes
        ]
        mean: Floats = np.concatenate(found, 1).mean(1)
        return mean


class SceneStudio:
    """The scene models that come with the package. Several threads may call it."""

    def __init__(self, models: Mapping[tuple[str, bool], SceneModel]) -> None:
        """Wraps models by name and by whether their geometry is signed."""
        self._models = dict(models)

    @classmethod
    def open(cls, threads: int = 1, folder: str | Path = SCENES) -> "SceneStudio":
        """Opens all models.

        Args:
            threads: Threads of ONNX Runtime; more than one do not help models this small.
            folder: Where they are.

        Raises:
            ValueError: Something is missing or damaged.
        """
        folder = Path(folder)
        looks = read_looks(folder / LOOKS)
        models = {
            key: SceneModel(folder / name, looks, threads=threads) for key, name in FOLDERS.items()
        }
        return cls(models)

    def models(self) -> list[dict[str, Any]]:
        """Information about each model, as JSON values."""
        return [
            {
                "name": name,
                "kind": "scene",
                "default": False,
                "signed": signed,
                "norm": model.config.norm,
                "geometry": model.config.geometry,
                "layers": model.config.layers,
                "heads": model.config.heads,
                "vocabulary": model.config.vocab_size,
                "signature": model.signature,
                "metrics": model.metrics,
            }
            for (name, signed), model in self._models.items()
        ]

    def caption(
        self, model: str, signed: bool, objects: Sequence[SceneObject], *, maps: bool = False
    ) -> SceneAnswer:
        """Captions a scene.

        Args:
            model: "san", "n-san", "g-san", "ng-san" or "g-san-ci".
            signed: Whether its geometry distinguishes left from right and above from below.
            objects: 1 to 8 of them.
            maps: Whether to return the encoder's maps.

        Raises:
            ValueError: The model is unknown, or the number of objects is out of range.
        """
        chosen = self._model(model, signed)
        _check_objects(objects)
        features, boxes = chosen.regions(objects)
        (best,) = chosen.captioner.caption_regions(
            features[None], boxes[None], attention=True, **vars(_DECODING)
        )
        assert best.attention is not None
        shown = None
        if maps:
            found = chosen.attention.maps(features, boxes)
            content, geometry = attention_shares(found)
            shown = SceneMaps(
                _as_lists(content),
                None if geometry is None else _as_lists(geometry),
                _as_lists(found["weights"]),
            )
        return SceneAnswer(
            caption=best.text,
            score=best.score,
            words=best.words,
            is_true=is_true(best.text, objects),
            attention=_as_lists(best.attention[:, : len(objects)]),
            maps=shown,
        )

    def surfaces(
        self,
        model: str,
        signed: bool,
        *,
        layer: int = 0,
        head: int | None = 0,
        objects: Sequence[SceneObject] | None = None,
        object_index: int = 0,
        steps: int = 31,
        two_sided: bool = False,
    ) -> Surfaces:
        """The geometric bias as a function of geometry; see `AttentionModel.surfaces`.

        A bias that depends on the query is computed for an object of a scene or, without a scene,
        for the mean query of a hundred scenes.

        Args:
            model: A model with geometry.
            signed: See `caption`.
            layer: From 0.
            head: From 0, or None for the mean of the heads.
            objects: A scene, or None.
            object_index: Which of them attends, from 0; their number for the canvas.
            steps: Values of each axis.
            two_sided: Whether the position's axes range from -3 to 3.

        Raises:
            ValueError: The model, layer, head or object does not exist, or the model has no bias.
        """
        chosen = self._model(model, signed)
        check_index("layer", layer, chosen.config.layers)
        if not chosen.attention.has_bias:
            raise ValueError(
                f"model: {model} has no geometric bias; choose g-san, ng-san or g-san-ci"
            )
        query = chosen.typical_inputs
        if objects is not None:
            _check_objects(objects)
            check_index("object_index", object_index, len(objects) + 1)
            query = chosen.attention.maps(*chosen.regions(objects))["inputs"][:, object_index]
        return chosen.attention.surfaces(
            layer=layer,
            head=head,
            query=query,
            key=chosen.typical_inputs,
            steps=steps,
            two_sided=two_sided,
        )

    def _model(self, name: str, signed: bool) -> SceneModel:
        found = self._models.get((name, signed))
        if found is not None:
            return found
        names = [known for known, _ in self._models]
        if name not in names:
            raise ValueError(f"model: {name!r} is not one of {', '.join(dict.fromkeys(names))}")
        able = [known for known, with_sign in self._models if with_sign]
        raise ValueError(f"signed: {name} has no signed geometry; {' and '.join(able)} have it")


def _check_objects(objects: Sequence[SceneObject]) -> None:
    if not 1 <= len(objects) <= MAX_OBJECTS:
        raise ValueError(f"objects: a scene has 1 to {MAX_OBJECTS} of them, not {len(objects)}")


def read_looks(path: Path) -> Floats:
    """(looks, feature_dim) the codes of all colours, of all shapes, and of the canvas."""
    content = _read_json(path)
    try:
        rows = [content["colours"][name] for name in COLOURS]
        rows += [content["shapes"][name] for name in SHAPES]
        return np.array([*rows, content["canvas"]], np.float32)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: damaged: codes are missing") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing") from error
    except ValueError as error:
        raise ValueError(f"{path}: damaged: {error}") from error


def _as_lists(array: NDArray[np.floating[Any]]) -> list[Any]:
    """Nested lists of numbers, rounded to the digits that are worth sending."""
    numbers = array.astype(np.float64)
    sizes = np.maximum(np.abs(numbers), _SMALLEST)
    scale = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(sizes)))
    lists: list[Any] = (np.round(numbers * scale) / scale).tolist()
    return lists
