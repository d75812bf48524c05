"""Options of a request for captions; they are those of `ngsan caption`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ngsan.config import DecodingConfig
from ngsan.light.photos import PHOTO_DECODING
from ngsan.serve.settings import ServeSettings

Value = str | int | float | bool


@dataclass(frozen=True)
class Option:
    """An option and the values that it takes."""

    kind: type[int] | type[float] | type[bool] | type[str]
    """Of its values."""

    text: str
    """What it means, with the default in brackets."""

    least: float | None = None
    """The smallest value."""

    most: float | None = None
    """The largest value, or the most letters of a text."""

    above: float | None = None
    """What the value must be above."""

    def schema(self) -> dict[str, Any]:
        """The JSON schema of its values."""
        names = {int: "integer", float: "number", bool: "boolean", str: "string"}
        made: dict[str, Any] = {"type": names[self.kind], "description": self.text}
        most = "maxLength" if self.kind is str else "maximum"
        bounds = {"minimum": self.least, most: self.most, "exclusiveMinimum": self.above}
        return made | {key: bound for key, bound in bounds.items() if bound is not None}


@dataclass(frozen=True)
class Asked:
    """What a request asks for."""

    decoding: DecodingConfig
    """How captions are to be written."""

    attention: bool
    """Whether they carry the attention of their words."""

    model: str | None
    """The model's name, or None for the default."""


_SAMPLING = ("temperature", "top_k", "top_p", "seed")
_SEARCHING = ("beam", "n_best", "length_penalty")
_LETTERS = 1000
_SEEDS = 2**53 - 1  # which every JSON reader takes exactly


def options(settings: ServeSettings) -> dict[str, Option]:
    """The options by name, with the limits of a server."""
    usual, wide, words = PHOTO_DECODING, settings.most_beam, settings.most_words
    return {
        "beam": Option(int, f"Captions that are followed ({usual.beam}).", 1, wide),
        "n_best": Option(int, "Captions of each photograph, the best first (1).", 1, wide),
        "length_penalty": Option(float, "Above 0 for longer captions (0).", -4, 4),
        "sample": Option(int, "Draw so many captions instead of searching.", 1, wide),
        "temperature": Option(float, "Sampling: above 1 more varied (1).", 0.01, 100),
        "top_k": Option(int, "Sampling: among so many words; 0 for all (0).", 0, 1_000_000),
        "top_p": Option(float, "Sampling: among the words that hold this share (1).", None, 1, 0),
        "seed": Option(int, "Sampling: seed of the random numbers (0).", -_SEEDS, _SEEDS),
        "longest": Option(int, f"Most words of a caption ({usual.longest}).", 1, words),
        "fewest": Option(int, "Fewest words of a caption (0).", 0, words),
        "no_repeat": Option(
            int,
            f"So many words in a row occur only once; 0 for no rule ({usual.no_repeat}).",
            0,
            words,
        ),
        "bad_ending": Option(bool, 'Whether captions may end with words such as "a" (false).'),
        "prefix": Option(str, "Words that every caption begins with.", None, _LETTERS),
        "forbid": Option(
            str, "Words that may not occur, with spaces between them.", None, _LETTERS
        ),
        "attention": Option(bool, "Whether to tell where each word looked (false)."),
        "model": Option(str, "The model's name, of /v1/models.", None, _LETTERS),
    }


def read_options(given: Mapping[str, Any], settings: ServeSettings, *, texts: bool) -> Asked:
    """Reads the options of a request.

    Args:
        given: Values by name.
        settings: The server's limits.
        texts: Whether the values are the texts of a form, and not those of JSON.

    Raises:
        ValueError: An option is not known, a value is not right, or options do not go together.
    """
    known = options(settings)
    for name in given:
        if name not in known:
            raise ValueError(f"there is no option {name[:50]!r}; there are {', '.join(known)}")
    values = {name: read_value(name, value, known[name], texts) for name, value in given.items()}
    sampled = "sample" in values
    for name in _SEARCHING if sampled else _SAMPLING:
        if name in values:
            why = "has no use with sample" if sampled else "has a use with sample only"
            raise ValueError(f"{name} {why}")
    for name in ("prefix", "forbid"):
        if len(str(values.get(name, "")).split()) > settings.most_words:
            raise ValueError(f"{name}: more than {settings.most_words} words are not taken")
    return Asked(
        _decoding(values), bool(values.get("attention", False)), _text(values.get("model"))
    )


def _decoding(values: Mapping[str, Value]) -> DecodingConfig:
    keys: dict[str, Any] = {
        name: values[name]
        for name in (*_SAMPLING, "length_penalty", "longest", "fewest", "no_repeat")
        if name in values
    }
    keys |= {name: str(values[name]).lower() for name in ("prefix", "forbid") if name in values}
    keys["no_bad_ending"] = not values.get("bad_ending", False)
    if "sample" in values:
        keys |= {"method": "sample", "samples": values["sample"]}
    else:
        best = int(values.get("n_best", 1))
        beam = int(values.get("beam", max(PHOTO_DECODING.beam, best)))
        if best > beam:
            raise ValueError(f"n_best: {best} captions cannot come from beam: {beam}; widen it")
        keys |= {"beam": beam, "best": best}
    return replace(PHOTO_DECODING, **keys)


def _text(value: Value | None) -> str | None:
    return None if value is None else str(value)


def read_value(name: str, value: Any, option: Option, texts: bool) -> Value:
    """A value of JSON or the text of one, as the option takes it.

    Raises:
        ValueError: It does not take it.
    """
    is_text = texts and option.kind is not str
    made = _read_text(str(value).strip(), option.kind) if is_text else _read(value, option.kind)
    if made is None:
        kinds = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise ValueError(f"{name}: {_short(value)} is not {kinds[option.kind]}")
    if isinstance(made, str):
        if option.most is not None and len(made) > option.most:
            raise ValueError(f"{name}: {len(made):,} letters are more than {option.most:,.0f}")
    elif not isinstance(made, bool):
        if option.least is not None and made < option.least:
            raise ValueError(f"{name}: {made:g} is below {option.least:g}")
        if option.most is not None and made > option.most:
            raise ValueError(f"{name}: {made:g} is above {option.most:g}")
        if option.above is not None and made <= option.above:
            raise ValueError(f"{name}: {made:g} is not above {option.above:g}")
    return made


def _read(value: Any, kind: type) -> Value | None:
    """A value of JSON; None if it is not of the kind."""
    if kind in (str, bool):
        return value if isinstance(value, kind) else None
    if isinstance(value, bool):
        return None
    if kind is int:  # in JSON, 3.0 is a whole number as well
        whole = isinstance(value, float) and value.is_integer()
        return int(value) if isinstance(value, int) or whole else None
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _read_text(text: str, kind: type) -> Value | None:
    """The value that a text of a form stands for."""
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if not text.isascii() or len(text) > 40 or "_" in text:
        return None
    try:
        number = float(text)
        if kind is int:
            return int(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _short(value: Any) -> str:
    return repr(value)[:50]
