"""Turns a configuration into a search."""

from typing import Any

from ngsan.config import DecodingConfig
from ngsan.decoding import Beam, Constraints, Greedy, Sampling, Search, StepModel
from ngsan.text.endings import BAD_ENDINGS
from ngsan.text.vocabulary import BOUNDARY, UNKNOWN, Vocabulary


def build_search(model: StepModel, decoding: DecodingConfig, vocabulary: Vocabulary) -> Search:
    """Turns a configuration into a search.

    Args:
        model: The model with its images.
        decoding: How captions are to be written.
        vocabulary: The model's words.

    Raises:
        ValueError: A word is not in the vocabulary, or the constraints cannot be met.
    """
    shared: dict[str, Any] = {
        "longest": decoding.longest,
        "boundary": BOUNDARY,
        "constraints": constraints_of(decoding, vocabulary),
    }
    if decoding.method == "greedy":
        return Greedy(model, **shared)
    if decoding.method == "sample":
        return Sampling(
            model,
            samples=decoding.samples,
            temperature=decoding.temperature,
            top_k=decoding.top_k,
            top_p=decoding.top_p,
            seed=decoding.seed,
            **shared,
        )
    return Beam(
        model,
        beam=decoding.beam,
        best=decoding.best,
        length_penalty=decoding.length_penalty,
        early_stopping=decoding.early_stopping,
        groups=decoding.groups,
        diversity=decoding.diversity,
        **shared,
    )


def constraints_of(decoding: DecodingConfig, vocabulary: Vocabulary) -> Constraints:
    """The conditions of a configuration, in word ids.

    Raises:
        ValueError: A word is not in the vocabulary; names it and the key.
    """

    def ids(key: str, text: str) -> list[int]:
        words = text.split()
        for word in words:
            if word not in vocabulary:
                raise ValueError(f"{key}: {word!r} is not a word of the model")
            if word == UNKNOWN and key != "forbid" and not decoding.unknown:
                raise ValueError(f"{key}: {word!r} may not be written unless unknown is true")
        return vocabulary.encode(words)

    both = set(decoding.forbid.split()) & set(decoding.require.split())
    if both:
        raise ValueError(f"{min(both)!r} is in both forbid and require")
    unknown = [] if decoding.unknown or UNKNOWN not in vocabulary else [UNKNOWN]
    endings = [word for word in sorted(BAD_ENDINGS) if word in vocabulary]
    return Constraints(
        fewest=decoding.fewest,
        forbidden=[*vocabulary.encode(unknown), *ids("forbid", decoding.forbid)],
        required=ids("require", decoding.require),
        prefix=ids("prefix", decoding.prefix),
        bad_endings=vocabulary.encode(endings) if decoding.no_bad_ending else [],
        no_repeat=decoding.no_repeat,
    )
