"""Search over captions: beam search, greedy search and sampling, in NumPy and in torch.

`build_search` turns a `DecodingConfig` into a search. A search sees a model as a `StepModel` and
its arrays through a few operations, which `numpy_ops` and `torch_ops` implement. torch is imported
only for a model whose arrays are tensors.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.config import DecodingConfig
from ngsan.search.beam import Beam
from ngsan.search.constraints import Constraints
from ngsan.search.sampling import Greedy, Sampling
from ngsan.search.search import Ensemble, Search, StepModel, Written
from ngsan.text.vocabulary import Vocabulary

__all__ = [
    "Beam",
    "Constraints",
    "Ensemble",
    "Greedy",
    "Sampling",
    "Search",
    "StepModel",
    "Written",
    "build_search",
]


def build_search(
    steps: StepModel,
    decoding: DecodingConfig,
    vocabulary: Vocabulary,
    *,
    first: int = 0,
    evidence: NDArray[np.floating[Any]] | None = None,
) -> Search:
    """Turns a configuration into a search.

    Args:
        steps: The model with its images.
        decoding: How to write captions.
        vocabulary: The model's words.
        first: Number of the first image. Sampled words depend on it.
        evidence: (B, V) what is added to the log-probabilities when words are ranked, or None.

    Raises:
        ValueError: A word is not in the vocabulary, or the constraints cannot be met.
    """
    shared: dict[str, Any] = {
        "max_length": decoding.max_length,
        "constraints": Constraints.of(decoding, vocabulary),
        "evidence": evidence,
    }
    if decoding.method == "greedy":
        return Greedy(steps, **shared)
    if decoding.method == "sample":
        return Sampling(
            steps,
            samples=decoding.num_return,
            temperature=decoding.temperature,
            top_k=decoding.top_k,
            top_p=decoding.top_p,
            seed=decoding.seed,
            keys=range(first, first + steps.images),
            **shared,
        )
    return Beam(
        steps,
        beam=decoding.beam,
        num_return=decoding.num_return,
        length_penalty=decoding.length_penalty,
        early_stopping=decoding.early_stopping,
        groups=decoding.groups,
        diversity=decoding.diversity,
        **shared,
    )
