"""Captions of scenes that somebody has drawn, and how the models came to them.

Shapes: `N` regions: the things and, last of all, the canvas; `T` words, `L` layers, `H` heads,
`G` width of the geometry embedding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.config import DecodingConfig
from ngsan.studio.bias import Surfaces, bias_surfaces
from ngsan.studio.encoder import LayerMaps
from ngsan.studio.scene_model import FOLDERS, LOOKS, SCENES, SceneModel, read_looks
from ngsan.studio.things import SceneThing as SceneThing
from ngsan.studio.things import check_things, is_true

SCENE_MODELS: tuple[str, ...] = ("san", "n-san", "g-san", "ng-san")
"""The paper's four models."""

_DECODING = DecodingConfig(longest=12)
_DIGITS = 7
_SMALLEST = 1e-30


@dataclass(frozen=True)
class SceneMaps:
    """The attention of a scene's regions to each other, [L][H][N][N]; the canvas comes last.

    As in `ngsan.explain`: `weights` is `content` times the exponential of `geometry`.
    """

    content: list[Any]
    """The weights that the content scores alone would give, a softmax of QK^T / sqrt(K); the row
    is the region that attends."""

    geometry: list[Any] | None
    """The geometric bias, shifted in every row, which no softmax notices; None without one."""

    weights: list[Any]
    """What the model used; a row sums to one."""


@dataclass(frozen=True)
class SceneAnswer:
    """A caption of a scene."""

    caption: str
    """The words with spaces between them."""

    score: float
    """Its log-probability."""

    words: list[str]
    """The words."""

    true: bool | None
    """Whether it is true of the scene; None if it is no sentence of the scenes' language."""

    attention: list[list[float]]
    """How much of each word's attention fell on each thing; the rest fell on the canvas."""

    maps: SceneMaps | None = None
    """The encoder's maps, if asked for."""


class SceneStudio:
    """The scene models that come with the package. Several threads may call it."""

    def __init__(self, models: Mapping[tuple[str, bool], SceneModel]) -> None:
        """Takes the models by name and by whether their geometry is signed."""
        self._models = dict(models)

    @classmethod
    def open(cls, threads: int = 1, folder: str | Path = SCENES) -> "SceneStudio":
        """Opens all models.

        Args:
            threads: Threads of ONNX Runtime; more than one do not help models as small.
            folder: Where they are.

        Raises:
            ValueError: Something is missing or damaged.
        """
        folder = Path(folder)
        looks = read_looks(folder / LOOKS)
        return cls(
            {
                which: SceneModel(folder / name, looks, threads=threads)
                for which, name in FOLDERS.items()
            }
        )

    def models(self) -> list[dict[str, Any]]:
        """What there is to tell about each model, as JSON values."""
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
                "signature": model.about["signature"]["signature"],
                "metrics": model.about["metrics"],
            }
            for (name, signed), model in self._models.items()
        ]

    def caption(
        self, model: str, signed: bool, things: Sequence[SceneThing], *, maps: bool = False
    ) -> SceneAnswer:
        """Writes the caption of a scene.

        Args:
            model: One of `SCENE_MODELS`, or "g-san-ci".
            signed: Whether its geometry tells left from right and above from below.
            things: 1 to 8 of them.
            maps: Whether the encoder's maps are wanted.

        Raises:
            ValueError: There is no such model, or there are too few or too many things.
        """
        chosen = self._model(model, signed)
        check_things(things)
        features, boxes = chosen.regions(things)
        captions = chosen.captioner.caption(
            features[None], boxes[None], decoding=_DECODING, attention=True
        )
        best = captions[0][0]
        assert best.attention is not None
        return SceneAnswer(
            caption=best.text,
            score=best.score,
            words=best.text.split(),
            true=is_true(best.text, things),
            attention=_plain(best.attention[:, : len(things)]),
            maps=_scene_maps(chosen.encoder.maps(features, boxes)) if maps else None,
        )

    def surfaces(
        self,
        model: str,
        signed: bool,
        *,
        layer: int = 0,
        head: int | None = 0,
        things: Sequence[SceneThing] | None = None,
        thing: int = 0,
        steps: int = 31,
        two_sided: bool = False,
    ) -> Surfaces:
        """The geometric bias as a function of geometry; see `bias_surfaces`.

        A bias that depends on the query is that of a thing of a scene, or, without a scene, of the
        mean query of a hundred scenes.

        Args:
            model: A model with geometry.
            signed: See `caption`.
            layer: From 0.
            head: From 0, or None for the mean of the heads.
            things: A scene, or None.
            thing: Which of them looks, from 0; their number for the canvas.
            steps: Values of each axis.
            two_sided: Whether the position's axes go both ways, see `bias_surfaces`.

        Raises:
            ValueError: There is no such model, layer, head or thing, or the model has no bias.
        """
        chosen = self._model(model, signed)
        if not 0 <= layer < chosen.config.layers:
            raise ValueError(f"layer: {layer} is not one of 0 to {chosen.config.layers - 1}")
        bias = chosen.encoder.biases[layer]
        if bias is None:
            raise ValueError(
                f"model: {model} has no geometric bias; take g-san, ng-san or g-san-ci"
            )
        query, key = chosen.typical[layer]
        if things is not None:
            check_things(things)
            if not 0 <= thing <= len(things):
                raise ValueError(f"thing: {thing} is not one of 0 to {len(things)}")
            own = bias.project(chosen.maps(things)[layer].inputs[thing : thing + 1], "query")
            query = None if own is None else own[0]
        return bias_surfaces(
            bias, head=head, query=query, key=key, steps=steps, two_sided=two_sided
        )

    def _model(self, name: str, signed: bool) -> SceneModel:
        found = self._models.get((name, signed))
        if found is not None:
            return found
        names = [known for known, _ in self._models]
        if name not in names:
            raise ValueError(f"model: {name!r} is not one of {', '.join(dict.fromkeys(names))}")
        able = [known for known, with_sign in self._models if with_sign]
        raise ValueError(f"signed: {name} has no signed geometry; {' and '.join(able)} have")


def _scene_maps(layers: Sequence[LayerMaps]) -> SceneMaps:
    scores = np.stack([maps.content for maps in layers]).astype(np.float64)
    content = scores - _log_sum(scores)
    geometry = None
    if all(maps.bias is not None for maps in layers):
        # What the shares of content are multiplied by, which is the bias up to a constant a row.
        bias = np.stack([maps.bias for maps in layers if maps.bias is not None])
        geometry = _plain(bias - _log_sum(content + bias))
    weights = np.stack([maps.weights for maps in layers])
    return SceneMaps(_plain(np.exp(content)), geometry, _plain(weights))


def _log_sum(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The logarithm of the sum of exponentials over the last axis, which is kept."""
    most = scores.max(-1, keepdims=True)
    found: NDArray[np.float64] = most + np.log(np.exp(scores - most).sum(-1, keepdims=True))
    return found


def _plain(array: NDArray[np.floating[Any]]) -> list[Any]:
    """Nested lists of numbers, each with so many digits that count as are worth sending."""
    numbers = array.astype(np.float64)
    sizes = np.maximum(np.abs(numbers), _SMALLEST)
    scale = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(sizes)))
    lists: list[Any] = (np.round(numbers * scale) / scale).tolist()
    return lists
