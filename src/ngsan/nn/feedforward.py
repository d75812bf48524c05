"""The position-wise feed-forward network of a layer."""

from torch import Tensor, nn


class FeedForward(nn.Module):
    """Two dense layers with a ReLU between them, applied to each element alone."""

    def __init__(self, dim: int = 512, hidden: int = 2048, *, dropout: float = 0.1) -> None:
        """Makes the network.

        Args:
            dim: D, width of input and output.
            hidden: Width between the two dense layers.
            dropout: Dropout after the ReLU.
        """
        super().__init__()
        self.widen = nn.Linear(dim, hidden)
        self.dropout = nn.Dropout(dropout)
        self.narrow = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., D)."""
        narrowed: Tensor = self.narrow(self.dropout(self.widen(x).relu()))
        return narrowed
