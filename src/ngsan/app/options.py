"""Options of a request for captions; they are those of `ngsan caption`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from ngsan.app.errors import first_problem
from ngsan.app.settings import ServeSettings
from ngsan.config import DecodingConfig
from ngsan.predict.captioner import PHOTO_DECODING

_MAX_INDEX = _MAX_TEXT = 1000
_MAX_SEED = 2**53 - 1  # which every JSON reader represents exactly
_KEYS = {field.name for field in fields(DecodingConfig)}


@dataclass(frozen=True)
class CaptionRequest:
    """The options of a request."""

    decoding: DecodingConfig
    attention: bool
    """Whether captions carry the attention of their words."""
    quality: str | None
    """See `ngsan.predict.quality`."""
    objects: bool
    """Whether to find objects, too."""
    keywords: bool
    """Whether to find keywords, too."""
    model: str | None
    """The model's name, or None for the default."""
    caption: str | None
    """The caption to explain, or None to write one."""
    region: int | None
    """The cell whose geometric bias is returned."""
    layer: int
    head: int | None
    """None for the mean of the heads."""


@cache
def option_fields(settings: ServeSettings, *, explain: bool = False) -> type[BaseModel]:
    """The options as fields of a pydantic model, with the limits of a server.

    Args:
        settings: The limits.
        explain: Whether to add the fields of `/v1/explain`.
    """
    usual, beam, words = PHOTO_DECODING, settings.max_beam, settings.max_words

    def field(kind: type, text: str, low: float | None = None, high: float | None = None) -> Any:
        if kind is str:
            return kind, Field(None, description=text, max_length=_MAX_TEXT)
        finite = False if kind is float else None
        return kind, Field(None, description=text, ge=low, le=high, allow_inf_nan=finite)

    repeats = f"No n-gram of this length occurs twice; 0 for no rule ({usual.no_repeat_ngram})."
    method = Literal["beam", "greedy", "sample"]
    options = {
        "method": (
            method,
            Field(None, description=f"How captions are searched for ({usual.method})."),
        ),
        "beam": field(int, f"Beam size ({usual.beam}).", 1, beam),
        "num_return": field(
            int,
            "Captions per photograph, the best first; of sampling, in their order (1).",
            1,
            beam,
        ),
        "length_penalty": field(float, "Above 0 for longer captions (0).", -4, 4),
        "groups": field(int, "Diverse beam search: groups of the beam (1).", 1, beam),
        "diversity": field(float, "Diverse beam search: penalty for words of others.", 0, 100),
        "temperature": field(float, "Sampling: above 1 for more variety (1).", 0.01, 100),
        "top_k": field(int, "Sampling: from the k best words; 0 for all (0).", 0, 1_000_000),
        "top_p": field(float, "Sampling: from the words with this share (1).", 1e-6, 1),
        "seed": field(int, "Sampling: seed of the random numbers (0).", -_MAX_SEED, _MAX_SEED),
        "max_length": field(int, f"Most words of a caption ({usual.max_length}).", 1, words),
        "min_length": field(int, "Fewest words of a caption (0).", 0, words),
        "no_repeat_ngram": field(int, repeats, 0, words),
        "no_bad_ending": field(bool, 'No caption ends with words such as "a" or "of" (true).'),
        "prefix": field(str, "Words that every caption begins with."),
        "forbid": field(str, "Words that must not occur, with spaces."),
        "require": field(str, "Words that must occur, with spaces."),
        "attention": field(bool, "Whether to return the attention of each word (false)."),
        "quality": (
            Literal["fast", "good", "best"],
            Field(None, description="How much work goes into a caption (what the server offers)."),
        ),
        "objects": field(bool, "Whether to find objects, too (false)."),
        "keywords": field(bool, "Whether to find keywords, too (false)."),
        "model": field(str, "The model's name, from /v1/models."),
    }
    if explain:
        options |= {
            "caption": field(str, "The caption to explain; without it, one is written."),
            "region": field(
                int, "A cell, row by row from 0, whose bias is returned.", 0, _MAX_INDEX
            ),
            "layer": field(int, "With region: the layer, from 0 (0).", 0, _MAX_INDEX),
            "head": field(int, "With region: the head, from 0 (the mean).", 0, _MAX_INDEX),
        }
    return create_model("Options", __config__=ConfigDict(extra="forbid"), **options)


def option_schemas(settings: ServeSettings, *, explain: bool = False) -> dict[str, Any]:
    """The JSON schemas of the options, by name."""
    properties = option_fields(settings, explain=explain).model_json_schema()["properties"]
    return {
        name: {key: value for key, value in about.items() if key not in ("default", "title")}
        for name, about in properties.items()
    }


def read_options(
    given: Mapping[str, Any], settings: ServeSettings, *, from_form: bool, explain: bool = False
) -> CaptionRequest:
    """Reads the options of a request.

    Args:
        given: Values by name.
        settings: The server's limits.
        from_form: Whether the values are texts of a form, rather than values of JSON.
        explain: Whether the request is one to explain a caption.

    Raises:
        ValueError: An option is unknown, a value is wrong, or options contradict each other.
    """
    if not from_form:  # in JSON, 3.0 is a whole number
        given = {name: _whole(value) for name, value in given.items()}
    try:
        read = option_fields(settings, explain=explain).model_validate(given, strict=not from_form)
    except ValidationError as error:
        raise ValueError(first_problem(error.errors(include_url=False))) from None
    values = read.model_dump(exclude_unset=True)
    for name in ("prefix", "forbid", "require", "caption"):
        if len(values.get(name, "").split()) > settings.max_words:
            raise ValueError(f"{name}: more than {settings.max_words} words are not allowed")
    decoding = PHOTO_DECODING.override({name: values[name] for name in _KEYS & values.keys()})
    if open_captions(decoding) > settings.max_open_captions:
        raise ValueError(
            f"require: with a beam of {decoding.beam}, {len(set(decoding.require.split()))} words "
            f"make a search follow {open_captions(decoding)} captions, more than "
            f"{settings.max_open_captions}; require fewer words, or lower beam"
        )
    for name in ("layer", "head"):
        if name in values and "region" not in values:
            raise ValueError(f"{name} applies only with region")
    return CaptionRequest(
        decoding=decoding,
        attention=values.get("attention", False),
        quality=values.get("quality"),
        objects=values.get("objects", False),
        keywords=values.get("keywords", False),
        model=values.get("model"),
        caption=values.get("caption"),
        region=values.get("region"),
        layer=values.get("layer", 0),
        head=values.get("head"),
    )


def open_captions(decoding: DecodingConfig) -> int:
    """Captions of a photograph that a search follows at the same time; its memory depends on it."""
    if decoding.method != "beam":
        return decoding.num_return
    return decoding.beam * (1 + len(set(decoding.require.split())))


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
