"""Self-guided attention and attention reduction, the parts of MCAN (Yu et al. 2019).

Shapes: `B` images, `N` regions, `T` words, `D` model width.
"""

from torch import Tensor, nn

from ngsan.nn.attend import AttentionMaps
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.feedforward import FeedForward
from ngsan.nn.layers import NormPlace, Residual
from ngsan.nn.masks import check_mask, zero_padding


class GuidedLayer(nn.Module):
    """Self-attention over the regions, attention to the question's words, feed-forward network.

    It is the SGA unit of MCAN. Unlike a decoder's layer it sees all elements at once.
    """

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        guided_attention: MultiHeadAttention,
        feedforward: FeedForward,
        dim: int = 512,
        *,
        dropout: float = 0.1,
        norm_place: NormPlace = "post",
    ) -> None:
        """Takes the parts; see `Residual` for the rest."""
        super().__init__()
        self.self_attention = self_attention
        self.self_residual = Residual(dim, dropout=dropout, place=norm_place)
        self.guided_attention = guided_attention
        self.guided_residual = Residual(dim, dropout=dropout, place=norm_place)
        self.feedforward = feedforward
        self.feedforward_residual = Residual(dim, dropout=dropout, place=norm_place)

    def forward(
        self,
        x: Tensor,
        guide: Tensor,
        *,
        mask: Tensor | None = None,
        guide_mask: Tensor | None = None,
        geometry: Tensor | None = None,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """Lets the question guide what is seen.

        Args:
            x: (B, N, D) the regions.
            guide: (B, T, D) the question's words.
            mask: (B, N) boolean, True = a real region, or None.
            guide_mask: (B, T) boolean, True = a real word, or None.
            geometry: (B, N, N, F) of `relative_geometry`, for a score bias of the self-attention.
            record: A list that the maps of the self-attention are appended to, or None.

        Returns:
            (B, N, D)
        """
        x = self.self_residual(
            x, lambda y: self.self_attention(y, mask=mask, geometry=geometry, record=record)
        )
        x = self.guided_residual(x, lambda y: self.guided_attention(y, guide, mask=guide_mask))
        guided: Tensor = self.feedforward_residual(x, self.feedforward)
        return guided


class AttentionReduction(nn.Module):
    """Reduces elements to one vector: their weighted mean, projected.

    The weights are a softmax over the elements of a small network's score of each.
    """

    def __init__(
        self, dim: int = 512, *, hidden: int = 512, out: int = 1024, dropout: float = 0.1
    ) -> None:
        """Makes the parts.

        Args:
            dim: D.
            hidden: Width between the two dense layers that score.
            out: Width of the vector.
            dropout: Dropout between them.
        """
        super().__init__()
        self.score = nn.Sequential(
            nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1)
        )
        self.merge = nn.Linear(dim, out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Reduces.

        Args:
            x: (B, N, D).
            mask: (B, N) boolean, True = real, or None. Padding may hold anything.

        Returns:
            The vectors, (B, out), and the weights of the elements, (B, N), which add up to one
            and are zero at padding.
        """
        check_mask(mask, x)
        x = zero_padding(x, mask)
        scores = self.score(x).squeeze(-1).float()
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = scores.softmax(-1)
        mean = (weights.to(x.dtype).unsqueeze(1) @ x).squeeze(1)
        return self.merge(mean), weights
