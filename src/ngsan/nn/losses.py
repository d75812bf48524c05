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
        target_mask: (...) boolean, True = a real target, including the end of the sentence.
        label_smoothing: Probability mass spread over the vocabulary.

    Returns:
        A scalar; zero if no target is real.
    """
    total = word_cross_entropy_sum(logits, targets, target_mask, label_smoothing=label_smoothing)
    return total / target_mask.sum().clamp(min=1)


def word_cross_entropy_sum(
    logits: Tensor, targets: Tensor, target_mask: Tensor, *, label_smoothing: float = 0.0
) -> Tensor:
    """The sum instead of the mean of `word_cross_entropy`, to combine batches."""
    if targets.shape != logits.shape[:-1] or target_mask.shape != targets.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)}, targets {tuple(targets.shape)} and target_mask "
            f"{tuple(target_mask.shape)} do not match"
        )
    losses = F.cross_entropy(
        _single(logits).flatten(0, -2),
        targets.flatten(),
        reduction="none",
        label_smoothing=label_smoothing,
    )
    return losses.masked_fill(~target_mask.flatten(), 0.0).sum()


def allowed_log_probs(
    logits: Tensor, *, forbidden: Tensor | None = None, temperature: float = 1.0
) -> Tensor:
    """Log-probabilities of the allowed words, at a temperature.

    Args:
        logits: (..., V).
        forbidden: (F,) ids of forbidden words, or None.
        temperature: Divisor of the logits.

    Returns:
        (..., V), minus infinity for forbidden words; the probabilities of the others sum to one.
    """
    scores = _single(logits)
    if temperature != 1:
        scores = scores / temperature
    if forbidden is not None:
        scores = scores.index_fill(-1, forbidden, -math.inf)
    return scores.log_softmax(-1)


def _single(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
