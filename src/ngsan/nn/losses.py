"""Losses over words.

Shapes: leading axes `...` (images, captions, words), `V` vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def word_cross_entropy(
    logits: Tensor, targets: Tensor, target_mask: Tensor, *, label_smoothing: float = 0.0
) -> Tensor:
    """Mean cross-entropy of the real target words.

    Args:
        logits: (..., V).
        targets: (...) word ids.
        target_mask: (...) boolean, True = a real target, the end of the sentence included.
        label_smoothing: Share of the probability spread over the vocabulary.

    Returns:
        A scalar; zero when no target is real.
    """
    total = word_cross_entropy_sum(logits, targets, target_mask, label_smoothing=label_smoothing)
    return total / target_mask.sum().clamp(min=1)


def word_cross_entropy_sum(
    logits: Tensor, targets: Tensor, target_mask: Tensor, *, label_smoothing: float = 0.0
) -> Tensor:
    """The sum rather than the mean of `word_cross_entropy`, for batches that are put together."""
    if targets.shape != logits.shape[:-1] or target_mask.shape != targets.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)}, targets {tuple(targets.shape)} and target_mask "
            f"{tuple(target_mask.shape)} do not fit"
        )
    losses = F.cross_entropy(
        _exact(logits).flatten(0, -2),
        targets.flatten(),
        reduction="none",
        label_smoothing=label_smoothing,
    )
    return losses.masked_fill(~target_mask.flatten(), 0.0).sum()


def allowed_log_probs(
    logits: Tensor, *, forbidden: Tensor | None = None, temperature: float = 1.0
) -> Tensor:
    """Log-probabilities among the words that may be written, at a temperature.

    Args:
        logits: (..., V).
        forbidden: (F,) ids of words that may not be written, or None.
        temperature: What the logits are divided by.

    Returns:
        (..., V), minus infinity for what is forbidden; the rest sums to one.
    """
    scores = _exact(logits)
    if temperature != 1:
        scores = scores / temperature
    if forbidden is not None:
        scores = scores.index_fill(-1, forbidden, -math.inf)
    return scores.log_softmax(-1)


def _exact(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
