"""Scores of captions, translations and answers.

`score` scores captions as raw text, and `chair` counts the objects that they hallucinate. The
metrics are in modules of their names; `reward` has those that self-critical training computes on a
device.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ngsan.metrics.hallucination import Chair as Chair
    from ngsan.metrics.hallucination import chair as chair
    from ngsan.metrics.scores import Scores as Scores
    from ngsan.metrics.scores import score as score

_PUBLIC = {
    "Chair": "hallucination",
    "Scores": "scores",
    "chair": "hallucination",
    "score": "scores",
}

__all__ = ["Chair", "Scores", "chair", "score"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported on first use: training imports the reward without the scores.
    return getattr(import_module(f"ngsan.metrics.{_PUBLIC[name]}"), name)
