"""The shape of a model that answers questions about images."""

from dataclasses import dataclass
from typing import Any, Literal

from ngsan.config.checks import check_choice, check_range, check_types
from ngsan.config.files import from_dict

ANSWERERS: dict[str, dict[str, str]] = {
    "question-only": {"regions": "none", "geometry": "none"},
    "mcan": {"regions": "guided", "geometry": "none"},
    "mcan-gsa": {"regions": "guided", "geometry": "query"},
}
"""The models by name: what each sets in `AnswererConfig`."""

BIASES = ("content-independent", "query", "key", "relation")
"""What the geometries may sum with `+`; "none" stands alone."""


@dataclass(frozen=True)
class AnswererConfig:
    """The shape of MCAN (Yu et al. 2019), encoder-decoder. The defaults are MCAN+GSA's."""

    vocab_size: int = 0
    """Words of questions, padding and the unknown word included; 0 takes it from the dataset."""

    answers: int = 0
    """Answers to choose from; 0 takes it from the dataset."""

    feature_dim: int = 0
    """Width of a region's feature vector; 0 takes it from the dataset."""

    regions: Literal["guided", "none"] = "guided"
    """What is made of the image: `guided` is MCAN's decoder of regions that the question guides;
    `none` answers from the question alone, a baseline."""

    word_dim: int = 300
    """Width of a word's vector."""

    dim: int = 512
    """D, the model's width, and that of the LSTM over the words."""

    heads: int = 8
    """H, attention heads; a divisor of dim."""

    hidden_dim: int = 2048
    """Inner width of the feed-forward networks."""

    layers: int = 6
    """L, layers over the question and also over the regions."""

    flat_hidden_dim: int = 512
    """Inner width of the network that weighs elements for the attention reduction."""

    flat_dim: int = 1024
    """Width of question and image when each is reduced to one vector."""

    dropout: float = 0.1
    """Dropout probability of attention weights, sub-layers and the attention reduction."""

    geometry: str = "query"
    """Geometry in the self-attention of the regions: none, content-independent, query, key,
    relation, or a sum such as query+key (GSA: query, Eq. 12)."""

    question_geometry: str = "none"
    """The same in the self-attention of the question's words, whose places in the question are
    the geometry, in one dimension."""

    geometry_dim: int = 64
    """Width of the geometry embedding, Eq. 9."""

    signed_geometry: bool = False
    """Whether relative geometry also tells left from right and above from below, and in a question
    before from after, which Eq. 8 does not."""

    norm_place: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum, as in MCAN, or before each sub-layer."""

    backend: Literal["fused", "explicit"] = "fused"
    """How attention is computed; both give the same result, explicit spells the equations out."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        for name in ("vocab_size", "answers", "feature_dim"):
            check_range(self, name, at_least=0)
        for name in ("word_dim", "dim", "heads", "hidden_dim", "layers", "flat_hidden_dim"):
            check_range(self, name, at_least=1)
        check_range(self, "flat_dim", at_least=1)
        check_range(self, "geometry_dim", at_least=1)
        check_range(self, "dropout", at_least=0, below=1)
        if self.dim % self.heads:
            raise ValueError(f"dim: {self.dim} does not divide into heads: {self.heads}")
        for name in ("geometry", "question_geometry"):
            _check_terms(name, getattr(self, name))
        if self.regions == "none" and self.geometry != "none":
            raise ValueError(
                f"geometry: {self.geometry!r} is of regions, which regions: none leaves out; "
                "set geometry: none"
            )

    @classmethod
    def for_model(cls, model: str, **overrides: Any) -> "AnswererConfig":
        """The configuration of a named model, with some keys changed.

        Args:
            model: "mcan", "mcan-gsa" or "question-only".
            **overrides: Any keys of this class.
        """
        check_choice("model", model, tuple(ANSWERERS))
        return from_dict(cls, {**ANSWERERS[model], **overrides})


def _check_terms(name: str, value: str) -> None:
    if value == "none":
        return
    terms = [term.strip() for term in value.split("+")]
    for term in terms:
        check_choice(name, term, ("none", *BIASES))
    if len(set(terms)) < len(terms) or "none" in terms:
        raise ValueError(f"{name}: {value!r} names a term twice, or none beside others")
