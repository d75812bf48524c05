"""Scores of captions, translations and answers.

`score` scores captions as raw text. The metrics are in modules of their names; `reward` has those
that self-critical training computes on a device.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ngsan.metrics.scores import Scores as Scores
    from ngsan.metrics.scores import score as score

__all__ = ["Scores", "score"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported on first use: training imports the reward without the scores.
    import ngsan.metrics.scores

    return getattr(ngsan.metrics.scores, name)
