"""From regions to captions.

Shapes: `B` images, `N` regions, `T` words, `V` vocabulary.
"""

import torch
from torch import Tensor

from ngsan.decoding.greedy import greedy
from ngsan.models.captioner import Captioner
from ngsan.nn.geometry import check_boxes
from ngsan.text.vocabulary import Vocabulary


@torch.inference_mode()
def caption_regions(
    captioner: Captioner,
    vocabulary: Vocabulary,
    features: Tensor,
    boxes: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    longest: int = 20,
) -> list[str]:
    """Writes a caption for each image, greedily.

    Args:
        captioner: The model, in evaluation mode.
        vocabulary: The model's words.
        features: (B, N, feature_dim).
        boxes: (B, N, 4) `cxcywh`.
        mask: (B, N) boolean, True = a real region, or None.
        longest: Most words of a caption.
    """
    if boxes is not None:
        check_boxes(boxes, mask)
    memory = captioner.encode(features, boxes, mask)

    def next_logits(words: Tensor) -> Tensor:
        return captioner.decode(words, memory, mask)[:, -1]

    words = greedy(next_logits, images=len(features), longest=longest, device=features.device)
    return [" ".join(vocabulary.decode(row)) for row in words.tolist()]
