"""The shapes of requests and answers, for validation and for `/openapi.json`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, StrictBool

from ngsan.app.attention import Surfaces
from ngsan.app.options import option_schemas
from ngsan.app.settings import ServeSettings
from ngsan.app.studio import MAX_OBJECTS, SceneObject

_EXAMPLE_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR4nGP4z8DAAMIM/////8/AwAAAR+oH+pLW"
    "H0cAAAAASUVORK5CYII="
)

_MEANINGS = {
    400: "The request is malformed.",
    401: "The token is missing or wrong.",
    404: "Not found.",
    408: "The request came too slowly.",
    413: "The request is too large.",
    415: "The content type is not supported.",
    422: "A field is wrong, or an image cannot be read.",
    429: "The server is busy; try again later.",
    503: "It took too long, or the server is shutting down; try again later.",
}


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid")


Pair = Annotated[list[int], Field(min_length=2, max_length=2)]
Index = Annotated[int, Field(ge=0, le=1000)]
BodyIndex = Annotated[Index, Strict()]
SceneModelName = Literal["san", "n-san", "g-san", "ng-san", "g-san-ci"]
BiasModelName = Literal["g-san", "ng-san", "g-san-ci"]


class Problem(_Schema):
    """An error, as one sentence."""

    error: str


class OtherCaption(_Schema):
    """A further caption."""

    caption: str
    score: float
    log_probability: float
    confidence: float | None = None


class FoundObject(_Schema):
    """An object: its class, its box `cxcywh` relative to the photograph, and its confidence."""

    label: str
    box: Annotated[list[float], Field(min_length=4, max_length=4)]
    confidence: float


class FoundKeyword(_Schema):
    """A word that people would use for the photograph, and the probability that they do."""

    word: str
    confidence: float


class CaptionResult(OtherCaption):
    """The caption of a photograph."""

    words: list[str]
    others: list[OtherCaption]
    width: int
    height: int
    grid: Pair
    attention: list[list[float]] | None = None
    objects: list[FoundObject] | None = None
    keywords: list[FoundKeyword] | None = None


class Captions(_Schema):
    """The captions of the photographs of a request."""

    model: str
    results: list[CaptionResult]


class Map(_Schema):
    """A part of a blob: the scales of all rows, then rows of 8-bit numbers."""

    at: int
    shape: list[int]
    signed: bool


class Regions(_Schema):
    """How cells attend to each other: by layer, head, and the cell that attends."""

    weights: Map
    content: Map
    geometry: Map | None = None


class Explanation(_Schema):
    """A caption and the attention behind it."""

    caption: str
    words: list[str]
    width: int
    height: int
    grid: Pair
    probabilities: list[float]
    regions: Regions
    attention: Map
    blob: str
    confidence: float | None = None
    surfaces: Surfaces | None = None
    objects: list[FoundObject] | None = None
    keywords: list[FoundKeyword] | None = None


Objects = Annotated[list[SceneObject], Field(min_length=1, max_length=MAX_OBJECTS)]


class SceneRequest(_Schema):
    """A scene to caption."""

    model: SceneModelName
    signed: StrictBool = False
    objects: Objects
    maps: StrictBool = False


class BiasRequest(_Schema):
    """An object of a scene whose bias is returned."""

    model: BiasModelName
    signed: StrictBool = False
    objects: Objects
    object_index: BodyIndex = 0
    layer: BodyIndex = 0
    head: BodyIndex = 0
    two_sided: StrictBool = False


class ModelList(_Schema):
    """The models of the server."""

    models: list[dict[str, Any]]


class ExamplePhotograph(_Schema):
    """A photograph to try."""

    file: str
    title: str
    credit: str
    url: str


class Health(_Schema):
    """Whether the server accepts requests."""

    status: Literal["ok", "draining"]


def answers(model: Any, text: str, *errors: int) -> dict[int | str, dict[str, Any]]:
    """The answer of a route, and the errors that it may answer with."""
    return {200: {"model": model, "description": text}, **problems(*errors)}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a route may answer with."""
    return {
        status: {"model": Problem, "description": _MEANINGS[status]} for status in sorted(statuses)
    }


def photo_body(settings: ServeSettings, *, explain: bool) -> dict[str, Any]:
    """The body of a request with photographs.

    Args:
        settings: The server's limits.
        explain: Whether it has one photograph and may have a caption to explain, or several.
    """
    keys = option_schemas(settings, explain=explain)
    file = {"type": "string", "format": "binary"}
    coded = {"type": "string", "format": "byte", "contentEncoding": "base64"}
    many = {"type": "array", "minItems": 1, "maxItems": settings.max_images}
    form = {"image": file if explain else {**many, "items": file}}
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
            "multipart/form-data": {"schema": {**single, "properties": {**form, **keys}}},
            "application/json": {
                "schema": single if explain else {"oneOf": [single, plural]},
                "example": {"image": _EXAMPLE_PNG},
            },
        },
    }
