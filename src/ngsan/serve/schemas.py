"""The shapes of what goes over the wire, for the description at `/openapi.json`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ngsan.data.synthetic.scene import COLOURS, SHAPES
from ngsan.serve.looking import OPTIONS
from ngsan.serve.options import options
from ngsan.serve.settings import ServeSettings

MOST_THINGS = 8
"""Things of a scene."""

_DOTS = (
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR4nGP4z8DAAMIM/////8/AwAAAR+oH+pLW"
    "H0cAAAAASUVORK5CYII="
)

_MEANINGS = {
    400: "The request cannot be understood.",
    401: "The token is missing or wrong.",
    404: "There is no such thing.",
    408: "The request came too slowly.",
    413: "The request is too large.",
    415: "The body is of a kind that is not taken.",
    422: "Something in the request is wrong, or is no photograph.",
    429: "There is too much to do; try again.",
    503: "It took too long, or the server is stopping; try again.",
}


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Pair = Annotated[list[int], Field(min_length=2, max_length=2)]
Bounds = Annotated[list[float], Field(min_length=2, max_length=2)]


class Problem(_Shape):
    """Why there is no answer."""

    error: str
    """One sentence."""


class OtherCaption(_Shape):
    """A further caption."""

    caption: str
    score: float
    log_probability: float


class CaptionResult(OtherCaption):
    """The caption of a photograph."""

    words: list[str]
    others: list[OtherCaption]
    width: int
    height: int
    grid: Pair
    attention: list[list[float]] | None = None


class Captions(_Shape):
    """The captions of a request's photographs."""

    model: str
    results: list[CaptionResult]


class Map(_Shape):
    """A part of a blob: rows of numbers of 8 bits after the scales of all rows."""

    at: int
    shape: list[int]
    signed: bool


class Regions(_Shape):
    """How cells attend to each other: by layer, head, and the cell that attends."""

    weights: Map
    content: Map
    geometry: Map | None = None


class BiasSurfaces(_Shape):
    """The geometric bias as a function of how two things lie to each other."""

    kind: str
    range: Bounds
    steps: int
    position: dict[str, list[list[float]]]
    size: dict[str, list[list[float]]]
    offsets: Bounds | None = None


class Explanation(_Shape):
    """A caption and what was looked at."""

    caption: str
    words: list[str]
    width: int
    height: int
    grid: Pair
    probabilities: list[float]
    regions: Regions
    attention: Map
    blob: str
    surfaces: BiasSurfaces | None = None


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Size = Annotated[float, Field(ge=0.001, le=1, allow_inf_nan=False)]
Index = Annotated[int, Field(ge=0, le=1000)]
SceneModelName = Literal["san", "n-san", "g-san", "ng-san", "g-san-ci"]
BiasModelName = Literal["g-san", "ng-san", "g-san-ci"]


class SceneThingAsked(_Asked):
    """A thing of a scene: centre and size, relative to the canvas."""

    shape: Literal[SHAPES]  # type: ignore[valid-type]
    colour: Literal[COLOURS]  # type: ignore[valid-type]
    x: Share
    y: Share
    width: Size
    height: Size


class SceneAsked(_Asked):
    """A scene to caption."""

    model: SceneModelName
    signed: bool = False
    things: Annotated[list[SceneThingAsked], Field(min_length=1, max_length=MOST_THINGS)]
    maps: bool = False


class BiasAsked(_Asked):
    """A thing of a scene whose bias is to be told."""

    model: BiasModelName
    signed: bool = False
    things: Annotated[list[SceneThingAsked], Field(min_length=1, max_length=MOST_THINGS)]
    thing: Index = 0
    layer: Index = 0
    head: Index = 0
    two_sided: bool = False


class Maps(_Shape):
    """Attention of the things to each other: by layer, head, and the thing that attends."""

    content: list[Any]
    geometry: list[Any] | None
    weights: list[Any]


class SceneCaption(_Shape):
    """The caption of a scene."""

    caption: str
    score: float
    words: list[str]
    true: bool | None
    attention: list[list[float]]
    maps: Maps | None = None


class ModelList(_Shape):
    """The models that are served."""

    models: list[dict[str, Any]]


class ExamplePhotograph(_Shape):
    """A photograph to try."""

    file: str
    title: str
    credit: str
    url: str


class Health(_Shape):
    """Whether the server takes requests."""

    status: Literal["ok", "draining"]


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that an address may answer with."""
    return {
        status: {"model": Problem, "description": _MEANINGS[status]} for status in sorted(statuses)
    }


def photographs(settings: ServeSettings, *, several: bool) -> dict[str, Any]:
    """The body of a request with photographs.

    Args:
        settings: The server's limits.
        several: Whether it may have several; if not, it may have a caption to explain.
    """
    keys = {name: option.schema() for name, option in options(settings).items()}
    if not several:
        keys |= {name: option.schema() for name, option in OPTIONS.items()}
        keys["caption"] = {
            "type": "string",
            "maxLength": 1000,
            "description": "The caption to explain; without it, one is written.",
        }
    file = {"type": "string", "format": "binary"}
    coded = {"type": "string", "format": "byte", "contentEncoding": "base64"}
    many = {"type": "array", "minItems": 1, "maxItems": settings.most_images}
    form = {"image": {**many, "items": file} if several else file}
    single: dict[str, Any] = {
        "type": "object",
        "required": ["image"],
        "properties": {"image": coded, **keys},
        "additionalProperties": False,
    }
    plural = {
        **single,
        "required": ["images"],
        "properties": {"images": {**many, "items": coded}, **keys},
    }
    return {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {**single, "properties": {**form, **keys}},
            },
            "application/json": {
                "schema": {"oneOf": [single, plural]} if several else single,
                "example": {"image": _DOTS},
            },
        },
    }
