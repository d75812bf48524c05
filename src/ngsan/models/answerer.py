"""MCAN: attention over a question's words and over the regions of an image, and the answers.

Shapes: `B` questions, `N` regions, `T` words, `D` model width, `A` answers.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ngsan.nn.geometry import check_regions, relative_geometry
from ngsan.nn.layers import AttentionReduction, EncoderLayer, GuidedLayer
from ngsan.nn.masks import check_mask, zero_padding


class Answered(NamedTuple):
    """The output of an answerer."""

    logits: Tensor
    """(B, A): the sigmoid of each is the probability of an answer, independent of the others."""

    words: Tensor
    """(B, T) weight of each word of the question in the attention reduction."""

    regions: Tensor | None
    """(B, N) weight of each region there; None for a model without regions."""


class QuestionEncoder(nn.Module):
    """Word vectors, an LSTM, and layers of self-attention over the words."""

    def __init__(
        self,
        layers: list[EncoderLayer],
        *,
        vocab_size: int,
        word_dim: int = 300,
        dim: int = 512,
        signed_geometry: bool = False,
        final_norm: bool = False,
    ) -> None:
        """Builds embedding and LSTM before the layers.

        Args:
            layers: The L layers; those with a score bias receive the words' positions.
            vocab_size: Words, padding included.
            word_dim: Width of a word's vector.
            dim: D.
            signed_geometry: Whether positions are in the signed form.
            final_norm: Whether a layer norm follows the last layer, as pre-norm layers need.
        """
        super().__init__()
        self.embed = nn.Embedding(vocab_size, word_dim)
        self.lstm = nn.LSTM(word_dim, dim, batch_first=True)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()
        self.relative = any(layer.attention.score_bias is not None for layer in layers)
        self.signed_geometry = signed_geometry

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Encodes (B, T) words, padded at the end, to (B, T, D); True in the mask is real."""
        x, _ = self.lstm(zero_padding(self.embed(words), mask))
        geometry = None
        if self.relative:
            geometry = relative_geometry(self._places(words), signed=self.signed_geometry)
        for layer in self.layers:
            x = layer(x, mask=mask, geometry=geometry)
        encoded: Tensor = self.norm(x)
        return encoded

    def _places(self, words: Tensor) -> Tensor:
        """(B, T, 4) words as boxes in a row, each of width and height one."""
        count = words.shape[1]
        places = torch.full((count, 4), 1.0, device=words.device)
        places[:, 0] = torch.arange(count, device=words.device)
        return places.expand(words.shape[0], -1, -1)


class GuidedRegions(nn.Module):
    """Dense layer on the features, layers that the question guides, and the attention reduction."""

    def __init__(
        self,
        layers: list[GuidedLayer],
        reduction: AttentionReduction,
        *,
        feature_dim: int,
        dim: int = 512,
        signed_geometry: bool = False,
        final_norm: bool = False,
    ) -> None:
        """Builds the embedding before the layers.

        Args:
            layers: The L layers; those with a score bias receive the relative geometry.
            reduction: Reduces the regions to one vector.
            feature_dim: Width of a region's feature vector.
            dim: D.
            signed_geometry: Whether relative geometry is in its signed form.
            final_norm: Whether a layer norm follows the last layer, as pre-norm layers need.
        """
        super().__init__()
        self.feature_dim = feature_dim
        self.embed = nn.Linear(feature_dim, dim)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()
        self.reduction = reduction
        self.needs_boxes = any(layer.self_attention.score_bias is not None for layer in layers)
        self.signed_geometry = signed_geometry

    def forward(
        self,
        features: Tensor | None,
        boxes: Tensor | None,
        mask: Tensor | None,
        question: Tensor,
        question_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The image as one vector, (B, out), and the weights of the regions in it, (B, N)."""
        features = self._checked(features, boxes, mask, question.shape[0])
        x = self.embed(zero_padding(features, mask))
        geometry = None
        if boxes is not None and self.needs_boxes:
            geometry = relative_geometry(boxes, mask, signed=self.signed_geometry)
        for layer in self.layers:
            x = layer(x, question, mask=mask, guide_mask=question_mask, geometry=geometry)
        reduced: tuple[Tensor, Tensor] = self.reduction(self.norm(x), mask)
        return reduced

    def _checked(
        self, features: Tensor | None, boxes: Tensor | None, mask: Tensor | None, count: int
    ) -> Tensor:
        if features is None:
            raise ValueError("this model needs the features of the images' regions")
        if features.ndim != 3 or features.shape[::2] != (count, self.feature_dim):
            raise ValueError(
                f"features must be ({count} questions, regions, {self.feature_dim}), not "
                f"{tuple(features.shape)}"
            )
        check_regions(features, boxes, mask, needs_boxes=self.needs_boxes)
        return features


class AnswererModel(nn.Module):
    """MCAN, or MCAN+GSA, which differs only in the regions' self-attention."""

    def __init__(
        self,
        question: QuestionEncoder,
        reduction: AttentionReduction,
        regions: GuidedRegions | None,
        *,
        flat_dim: int = 1024,
        answers: int,
    ) -> None:
        """Builds the output behind the parts.

        Args:
            question: The encoder of the question.
            reduction: Reduces its words to one vector.
            regions: Reduces the image to one vector; None answers from the question alone.
            flat_dim: Width of these vectors.
            answers: A.
        """
        super().__init__()
        self.question = question
        self.reduction = reduction
        self.regions = regions
        self.norm = nn.LayerNorm(flat_dim)
        self.output = nn.Linear(flat_dim, answers)

    @property
    def needs_boxes(self) -> bool:
        """Whether the regions' boxes must be given."""
        return self.regions is not None and self.regions.needs_boxes

    def answer(
        self,
        words: Tensor,
        word_mask: Tensor,
        features: Tensor | None = None,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Answered:
        """Answers questions.

        Args:
            words: (B, T) word ids; at least one real word each, and padding behind the words.
            word_mask: (B, T) boolean, True = a real word. Padding changes nothing.
            features: (B, N, feature_dim) of each question's image; ignored by a model without
                regions.
            boxes: (B, N, 4) `cxcywh` in any unit; may be None for a model without geometry.
            mask: (B, N) boolean, True = a real region, or None when all are.
        """
        if words.ndim != 2 or not words.shape[1]:
            raise ValueError(f"words must be (questions, words), not {tuple(words.shape)}")
        check_mask(word_mask, words)
        question = self.question(words, word_mask)
        flat, word_weights = self.reduction(question, word_mask)
        region_weights = None
        if self.regions is not None:
            seen, region_weights = self.regions(features, boxes, mask, question, word_mask)
            flat = flat + seen
        return Answered(self.output(self.norm(flat)), word_weights, region_weights)

    def forward(
        self,
        words: Tensor,
        word_mask: Tensor,
        features: Tensor | None = None,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The logits of `answer`, (B, A)."""
        return self.answer(words, word_mask, features, boxes, mask).logits
