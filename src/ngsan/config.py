"""Configurations: frozen dataclasses, read from and written to YAML with every key explained.

The text under a field is its explanation everywhere: in the YAML that `to_yaml` writes and in the
command line's help. This module imports no torch.
"""

import ast
import dataclasses
import difflib
import inspect
import math
import re
import textwrap
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_FLOAT = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+")

MODELS: dict[str, dict[str, str]] = {
    "san": {"norm": "none", "geometry": "none"},
    "n-san": {"norm": "instance", "geometry": "none"},
    "g-san": {"norm": "none", "geometry": "query"},
    "ng-san": {"norm": "instance", "geometry": "query"},
}
"""The paper's four models: what each sets in `CaptionerConfig`."""

GEOMETRY_TERMS = ("absolute", "content-independent", "query", "key", "relation")
"""What `CaptionerConfig.geometry` may sum with `+`; "none" stands alone."""


@dataclass(frozen=True)
class CaptionerConfig:
    """The shape of an image captioner. The defaults are the paper's NG-SAN."""

    vocab_size: int = 9488
    """V, the words and the one boundary id that begins, ends and pads a caption; COCO: 9487 + 1."""

    feature_dim: int = 2048
    """Width of a region's feature vector."""

    dim: int = 512
    """D, the model's width."""

    heads: int = 8
    """H, attention heads; a divisor of dim."""

    hidden_dim: int = 2048
    """Inner width of the feed-forward networks."""

    layers: int = 4
    """L, layers of the encoder and also of the decoder (paper: 1, 2, 4 or 6)."""

    dropout: float = 0.1
    """Dropout probability of inputs, attention weights and sub-layers."""

    norm: Literal["none", "instance", "instance-affine", "batch", "layer"] = "instance"
    """Norm inside the encoder's self-attention, Eq. 6-7 (NSA: instance)."""

    norm_of: Literal["query", "key", "both"] = "query"
    """What that norm is applied to."""

    geometry: str = "query"
    """Geometry of the encoder: none, absolute, content-independent, query, key, relation, or a
    sum such as query+key (GSA: query, Eq. 12)."""

    geometry_dim: int = 64
    """Width of the geometry embedding, Eq. 9."""

    signed_geometry: bool = False
    """Whether relative geometry also tells left from right and above from below, which Eq. 8
    does not."""

    decoder_norm: Literal["none", "instance", "instance-affine", "batch", "layer"] = "none"
    """Norm of the queries in the decoder's self-attention. Instance and batch norm are refused:
    they would see the words still to be written."""

    norm_place: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum, as in the original Transformer, or before each
    sub-layer."""

    backend: Literal["fused", "explicit"] = "fused"
    """How attention is computed; both give the same result, explicit spells the equations out."""

    def __post_init__(self) -> None:
        """Checks every value.

        Raises:
            ValueError: A value is of the wrong type or out of range; the message names the key.
        """
        check_types(self)
        if self.decoder_norm in ("instance", "instance-affine", "batch"):
            raise ValueError(
                f"decoder_norm: {self.decoder_norm!r} cannot be used in an autoregressive decoder: "
                "its statistics take in the words that are still to be written. "
                "Use 'none' or 'layer'"
            )
        for name in ("vocab_size", "feature_dim", "dim", "heads", "hidden_dim", "layers"):
            check_range(self, name, at_least=1)
        check_range(self, "geometry_dim", at_least=1)
        check_range(self, "dropout", at_least=0, below=1)
        if self.dim % self.heads:
            raise ValueError(f"dim: {self.dim} does not divide into heads: {self.heads}")
        if self.dim % 2:
            raise ValueError(f"dim: {self.dim} must be even, for sinusoidal word positions")
        for term in self.geometry_terms:
            check_choice("geometry", term, GEOMETRY_TERMS)
        if len(set(self.geometry_terms)) < len(self.geometry_terms):
            raise ValueError(f"geometry: {self.geometry!r} names a term twice")
        if "absolute" in self.geometry_terms and self.dim % 8:
            raise ValueError(f"dim: {self.dim} must be divisible by 8 for absolute geometry")

    @property
    def geometry_terms(self) -> tuple[str, ...]:
        """The terms that `geometry` sums; none for "none"."""
        if self.geometry == "none":
            return ()
        return tuple(term.strip() for term in self.geometry.split("+"))

    @classmethod
    def for_model(cls, model: str, **overrides: Any) -> "CaptionerConfig":
        """The configuration of a named model, with some keys changed.

        Args:
            model: "san", "n-san", "g-san" or "ng-san".
            **overrides: Any keys of this class.
        """
        check_choice("model", model, tuple(MODELS))
        return from_dict(cls, {**MODELS[model], **overrides})

    def as_model(self, model: str) -> "CaptionerConfig":
        """This configuration with the norm and geometry of a named model."""
        check_choice("model", model, tuple(MODELS))
        return from_dict(CaptionerConfig, {**dataclasses.asdict(self), **MODELS[model]})


@dataclass(frozen=True)
class SceneConfig:
    """The built-in scenes: coloured shapes whose captions follow from geometry."""

    train: int = 8000
    """Scenes to learn from."""

    test: int = 400
    """Unseen scenes to be scored on."""

    fewest: int = 2
    """Fewest objects in a scene."""

    most: int = 2
    """Most objects in a scene, 6 at most."""

    seed: int = 0
    """Seed of the generator; the same seed gives the same scenes."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        for name in ("train", "test"):
            check_range(self, name, at_least=1)
        check_range(self, "fewest", at_least=2, below=7)
        check_range(self, "most", at_least=self.fewest, below=7)


@dataclass(frozen=True)
class TrainingConfig:
    """Cross-entropy training."""

    epochs: int = 2
    """Passes over the training scenes."""

    batch_size: int = 32
    """Scenes in a step, each with its five captions."""

    learning_rate: float = 3e-3
    """Highest learning rate; it rises over the first tenth of the steps and then falls to zero
    along a cosine."""

    label_smoothing: float = 0.0
    """Share of the probability spread over the whole vocabulary."""

    clip: float = 1.0
    """Largest norm of the gradient."""

    seed: int = 0
    """Seed of the weights, of the order of the scenes and of dropout."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        check_range(self, "epochs", at_least=1)
        check_range(self, "batch_size", at_least=1)
        check_range(self, "learning_rate", above=0)
        check_range(self, "label_smoothing", at_least=0, below=1)
        check_range(self, "clip", above=0)


@dataclass(frozen=True)
class DecodingConfig:
    """How captions are written. The defaults are the paper's: beam search with a beam of 3."""

    method: Literal["beam", "greedy", "sample"] = "beam"
    """Beam search, the most probable word at each step, or words drawn by their probability."""

    longest: int = 20
    """Most words of a caption."""

    fewest: int = 0
    """Fewest words of a caption."""

    beam: int = 3
    """Beam search: captions that are followed."""

    best: int = 1
    """Beam search: captions to return, at most beam."""

    length_penalty: float = 0.0
    """Beam search: scores are log-probabilities divided by the length to this power, so that a
    higher value favours longer captions; 0 ranks by probability, 1 by the mean over the words."""

    early_stopping: bool = False
    """Beam search: whether to stop at the first captions that end, as many as the beam is wide,
    rather than when no better one can come."""

    groups: int = 1
    """Diverse beam search: groups of the beam that keep apart; 1 for none."""

    diversity: float = 0.5
    """Diverse beam search: what a word costs, in log-probability, for each caption of earlier
    groups that has it at the same place."""

    samples: int = 1
    """Sampling: captions of an image."""

    temperature: float = 1.0
    """Sampling: above 1 more varied, below 1 closer to the most probable."""

    top_k: int = 0
    """Sampling: draw among so many most probable words; 0 for all."""

    top_p: float = 1.0
    """Sampling: draw among the fewest most probable words that hold this share."""

    seed: int = 0
    """Sampling: seed of the random numbers."""

    no_repeat: int = 0
    """Length of word sequences that may occur only once in a caption; 0 for no such rule."""

    no_bad_ending: bool = False
    """Whether captions may not end with words such as "a", "of" or "with"."""

    unknown: bool = False
    """Whether the unknown word may be written."""

    forbid: str = ""
    """Words that may not occur, with spaces between them."""

    require: str = ""
    """Words that must all occur, with spaces between them."""

    prefix: str = ""
    """Words that every caption begins with, such as "a photo of"."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        for name in ("longest", "beam", "best", "groups", "samples"):
            check_range(self, name, at_least=1)
        for name in ("fewest", "diversity", "top_k", "no_repeat"):
            check_range(self, name, at_least=0)
        check_range(self, "temperature", above=0)
        check_range(self, "top_p", above=0)
        if self.top_p > 1:
            raise ValueError(f"top_p: {self.top_p} must be at most 1")
        if self.fewest > self.longest:
            raise ValueError(f"fewest: {self.fewest} is above longest: {self.longest}")
        if self.method == "beam" and self.best > self.beam:
            raise ValueError(f"best: {self.best} captions cannot come from beam: {self.beam}")
        if self.beam % self.groups:
            raise ValueError(f"groups: {self.groups} does not divide beam: {self.beam}")


@dataclass(frozen=True)
class ModelConfig:
    """A model alone, as the files of `configs/image` hold it."""

    model: CaptionerConfig = field(default_factory=CaptionerConfig)
    """The captioner."""


@dataclass(frozen=True)
class SceneRunConfig:
    """A run on the built-in scenes; the defaults learn geometry in half a minute on two cores."""

    model: CaptionerConfig = field(
        default_factory=lambda: CaptionerConfig(
            vocab_size=35,
            feature_dim=32,
            dim=64,
            hidden_dim=128,
            layers=2,
            dropout=0.0,
            norm_place="pre",
        )
    )
    """The captioner."""

    scenes: SceneConfig = field(default_factory=SceneConfig)
    """The data."""

    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How it is trained."""


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raises a `ValueError` that names the key unless `value` is one of `choices`."""
    if value not in choices:
        close = difflib.get_close_matches(str(value), [str(choice) for choice in choices], 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(map(str, choices))}{hint}")


def check_range(
    config: object,
    name: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Raises a `ValueError` that names the key unless its value lies within the bounds."""
    value = getattr(config, name)
    if at_least is not None and not value >= at_least:
        raise ValueError(f"{name}: {value} must be at least {at_least}")
    if above is not None and not value > above:
        raise ValueError(f"{name}: {value} must be above {above}")
    if below is not None and not value < below:
        raise ValueError(f"{name}: {value} must be below {below}")


def check_types(config: Any) -> None:
    """Raises a `ValueError` that names the first key whose value is not of its declared type."""
    hints = get_type_hints(type(config))
    for item in dataclasses.fields(config):
        value, hint = getattr(config, item.name), hints[item.name]
        if get_origin(hint) is Literal:
            check_choice(item.name, value, get_args(hint))
            continue
        allowed = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        if float in allowed:
            allowed = (*allowed, int)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{item.name}: {value} is not finite")
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            wanted = getattr(hint, "__name__", str(hint))
            raise ValueError(f"{item.name}: {value!r} is not of type {wanted}")


def from_dict(cls: type[T], values: Any, where: str = "") -> T:
    """Makes a configuration from plain values, as YAML holds them.

    Args:
        cls: The dataclass to make.
        values: A mapping of keys to values; keys that are left out have their defaults.
        where: The dotted path of `values`, for messages.

    Raises:
        ValueError: A key is unknown or a value is wrong; the message names the key.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{where or cls.__name__}: expected keys and values, not {values!r}")
    names = {item.name: item for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    arguments = {}
    for key, value in values.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in names:
            close = difflib.get_close_matches(str(key), names, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(names)}"
            raise ValueError(f"unknown key {path!r}; {hint}")
        if dataclasses.is_dataclass(hints[key]):
            value = from_dict(hints[key], value, path)
        elif hints[key] is float and isinstance(value, str) and _FLOAT.fullmatch(value):
            value = float(value)  # YAML 1.1 takes 1e-4 for a word
        arguments[key] = value
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ValueError(f"{where}.{error}" if where else str(error)) from error


def read_yaml(cls: type[T], path: str | Path) -> T:
    """Reads a configuration from a YAML file; errors name the file and the key."""
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        return from_dict(cls, {} if values is None else values)
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from error


def to_yaml(config: Any) -> str:
    """Writes a configuration as YAML, each key under its explanation."""
    import yaml

    explanations = explain(type(config))
    blocks = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        comment = textwrap.indent(textwrap.fill(explanations[item.name], 95), "# ")
        if dataclasses.is_dataclass(value):
            blocks.append(f"{comment}\n{item.name}:\n{textwrap.indent(to_yaml(value), '  ')}")
        else:
            blocks.append(f"{comment}\n{yaml.safe_dump({item.name: value})}")
    return "\n".join(blocks)


def explain(cls: type) -> dict[str, str]:
    """The explanation that stands under each field of a configuration."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                texts[name] = " ".join(str(text).split())
    return texts
