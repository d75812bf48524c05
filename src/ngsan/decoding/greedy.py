"""Greedy search. It sees a step function, never a model.

Shapes: `B` images, `T` words, `V` vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def greedy(
    next_logits: Callable[[Tensor], Tensor],
    *,
    images: int,
    boundary: int = 0,
    longest: int = 20,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Writes the most probable word after each other, until every caption has ended.

    Args:
        next_logits: Given the words so far, (B, T), the boundary first, the logits of the next,
            (B, V).
        images: B.
        boundary: The id that begins and ends a caption.
        longest: Most words of a caption.
        device: Where the words are.

    Returns:
        (B, T) word ids without the first boundary; after its end a caption goes on with the
        boundary.
    """
    if longest < 1:
        raise ValueError(f"a caption has at least one word, not {longest}")
    words = torch.full((images, 1), boundary, device=device)
    ended = torch.zeros(images, dtype=torch.bool, device=device)
    for _ in range(longest):
        word = next_logits(words).argmax(-1).masked_fill(ended, boundary)
        words = torch.cat((words, word.unsqueeze(1)), dim=1)
        ended = ended | (word == boundary)
        if ended.all():
            break
    return words[:, 1:]
