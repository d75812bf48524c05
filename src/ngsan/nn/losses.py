"""Losses over words.

Shapes: leading axes `...` (images, captions), `T` words, `V` vocabulary.
"""

import torch.nn.functional as F
from torch import Tensor


def word_cross_entropy(
    logits: Tensor, targets: Tensor, target_mask: Tensor, *, label_smoothing: float = 0.0
) -> Tensor:
    """Mean cross-entropy of the real target words.

    Args:
        logits: (..., T, V).
        targets: (..., T) word ids.
        target_mask: (..., T) boolean, True = a real target, the end of the sentence included.
        label_smoothing: Share of the probability spread over the vocabulary.

    Returns:
        A scalar; zero when no target is real.
    """
    if targets.shape != logits.shape[:-1] or target_mask.shape != targets.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)}, targets {tuple(targets.shape)} and target_mask "
            f"{tuple(target_mask.shape)} do not fit"
        )
    losses = F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), reduction="none", label_smoothing=label_smoothing
    )
    real = target_mask.flatten()
    return losses.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)
