"""Cross-entropy: learning to say what people said.

Shapes: `B` images, `N` regions, `C` captions an image, `T` words, `V` vocabulary.
"""

from torch import Tensor, nn

from ngsan.models.captioner import Captioner
from ngsan.nn.losses import word_cross_entropy_sum
from ngsan.nn.packing import Packing


class CrossEntropyLoss(nn.Module):
    """The model that is trained, and its loss on given captions."""

    def __init__(
        self, captioner: Captioner, *, label_smoothing: float = 0.0, capacity: int | None = None
    ) -> None:
        """Takes the model.

        Args:
            captioner: The model.
            label_smoothing: Share of the probability spread over the vocabulary.
            capacity: Most real targets of a batch, so that shapes do not depend on values; None
                to count them, which waits for a device.
        """
        super().__init__()
        self.captioner = captioner
        self.label_smoothing, self.capacity = label_smoothing, capacity

    def forward(
        self,
        features: Tensor,
        boxes: Tensor | None,
        mask: Tensor | None,
        words: Tensor,
        targets: Tensor,
        target_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The loss of a batch; arguments as in `CaptionBatch`.

        Returns:
            The sum over the real targets, and their number.
        """
        packing = Packing.of(target_mask, self.capacity)
        logits = self.captioner(features, boxes, mask, words, packing=packing)  # (M, V)
        chosen = targets.flatten().index_select(0, packing.places)
        total = word_cross_entropy_sum(
            logits, chosen, packing.real, label_smoothing=self.label_smoothing
        )
        return total, packing.real.sum()
