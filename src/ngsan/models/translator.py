"""The translator: an encoder of a sentence's words and the captioner's decoder of words.

It is Transformer-Base (Vaswani et al. 2017), and with `InstanceNorm` of the encoder's queries the
paper's Transformer with NSA (Table 8). Source, target and output share one matrix of word
vectors, as in fairseq's models of WMT14.

Shapes: `B` sentences, `S` words of a source sentence, `C` translations of it, `T` words of a
translation, `D` model width, `V` vocabulary.
"""

import torch
from torch import Tensor, nn

from ngsan.models.decoder import EncoderDecoder, WordDecoder
from ngsan.nn.attend import AttentionMaps
from ngsan.nn.layers import EncoderLayer
from ngsan.nn.masks import Packing, check_mask


class SentenceEncoder(nn.Module):
    """Layers of self-attention over the words of a sentence."""

    def __init__(
        self, layers: list[EncoderLayer], *, dim: int = 512, final_norm: bool = False
    ) -> None:
        """Builds the encoder.

        Args:
            layers: The L layers.
            dim: D.
            final_norm: Whether a layer norm follows the last layer, as pre-norm layers need.
        """
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """Embedded words (B, S, D) to encoded ones; see `TranslatorModel.encode`."""
        for layer in self.layers:
            x = layer(x, mask=mask, record=record)
        encoded: Tensor = self.norm(x)
        return encoded


class TranslatorModel(EncoderDecoder):
    """Transformer, or Transformer with NSA, from a sentence to its translation."""

    encoder: SentenceEncoder
    decoder: WordDecoder

    def __init__(self, encoder: SentenceEncoder, decoder: WordDecoder) -> None:
        """Joins the two halves; the decoder's word vectors are also those of the source."""
        super().__init__(encoder, decoder)

    def encode(
        self,
        source: Tensor,
        mask: Tensor | None = None,
        *,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """Encodes sentences.

        Args:
            source: (B, S) word ids, the boundary id last among the real ones.
            mask: (B, S) boolean, True = a real word, or None when all are. Padding may hold any
                ids and changes nothing.
            record: A list that each layer's attention maps are appended to, or None.

        Returns:
            (B, S, D)
        """
        if source.ndim != 2 or source.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                "source must be (sentences, words) of integers, not "
                f"{tuple(source.shape)} of {source.dtype}"
            )
        check_mask(mask, source)
        memory: Tensor = self.encoder(self.decoder.embed_words(source), mask, record=record)
        return memory

    def forward(
        self, source: Tensor, mask: Tensor | None, words: Tensor, *, packing: Packing | None = None
    ) -> Tensor:
        """Encodes sentences and scores each next word; as in `encode` and `decode`."""
        return self.decode(words, self.encode(source, mask), mask, packing=packing)
