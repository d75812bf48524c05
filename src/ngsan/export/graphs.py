"""The graphs of an export, traced from the captioner's own modules.

A model of pixels has a backbone, which takes `images` (B, P, P, 3) uint8 and returns the `features`
(B, N, F) of their cells. Its batch norms are in its convolutions. All else is as for regions.

The encoder takes `features` (B, N, F), `mask` (B, N) and, if the model is geometry-aware, `boxes`
(B, N, 4). It returns what every layer of the decoder attends to: `region_keys_*` and
`region_values_*` (B, H, N, K).

The decoder takes `words` (B, W) and their `position` (), which slots of earlier words each caption
has `seen` (B, W, S), `word_keys_*` and `word_values_*` (B, H, S, K) of those slots, what the
encoder returned, and `mask`. It returns `logits` (B, W, V), `attention` to the regions (B, W, N) in
the last layer, the mean of its heads, and `grown_keys_*` and `grown_values_*` (B, H, S + W, K): the
slots and the W new words behind them, which go into the next call as they are.

Shapes: `B` images, `P` pixels of a side, `N` regions, `W` captions an image, `S` slots,
`V` vocabulary, `F` features, `D` model width, `H` heads, `K` head width. B, N, W and S are free.
"""

import math
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ngsan.config import CaptionerConfig
from ngsan.export.tracing import Example, write_graph
from ngsan.light.manifest import BACKBONE, DECODER, ENCODER, layer_names
from ngsan.models.captioner import Captioner, RegionEncoder, WordDecoder
from ngsan.models.photo import PhotoEncoder
from ngsan.nn.attend import Attend
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.layers import DecoderLayer
from ngsan.nn.masks import zero_padding
from ngsan.nn.positions import sinusoidal
from ngsan.vision.efficientnet import fold_norms


class BackboneGraph(nn.Module):
    """From pixels to the features of cells."""

    def __init__(self, backbone: nn.Module) -> None:
        """Takes the backbone."""
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        """(B, P, P, 3) bytes to (B, N, F)."""
        features: Tensor = self.backbone(images.permute(0, 3, 1, 2))
        return features


class EncoderGraph(nn.Module):
    """From regions to keys and values."""

    def __init__(self, captioner: Captioner) -> None:
        """Takes the captioner; of one of pixels, the part behind the backbone counts."""
        super().__init__()
        encoder = captioner.encoder
        regions = encoder.regions if isinstance(encoder, PhotoEncoder) else encoder
        assert isinstance(regions, RegionEncoder)
        assert isinstance(captioner.decoder, WordDecoder)
        self.encoder, self.layers = regions, captioner.decoder.layers

    def forward(
        self, features: Tensor, mask: Tensor, boxes: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The keys in every layer, then the values."""
        memory = zero_padding(self.encoder(features, boxes, mask), mask)
        keys, values = [], []
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            key, value = layer.cross_attention._key_value(memory, mask)
            keys.append(key)
            values.append(value)
        return *keys, *values


class DecoderGraph(nn.Module):
    """One more word of every caption.

    Note: this is `WordDecoder.step` for a graph, which cannot write into buffers: keys and values
        are appended, and position and view are given from outside.
    """

    def __init__(self, captioner: Captioner) -> None:
        """Takes the captioner."""
        super().__init__()
        assert isinstance(captioner.decoder, WordDecoder)
        self.decoder = captioner.decoder

    def forward(
        self,
        words: Tensor,
        position: Tensor,
        seen: Tensor,
        word_keys: list[Tensor],
        word_values: list[Tensor],
        region_keys: list[Tensor],
        region_values: list[Tensor],
        mask: Tensor,
    ) -> tuple[Tensor, ...]:
        """The logits, the attention, the grown keys in every layer, then the grown values."""
        decoder, told = self.decoder, list[Tensor]()
        cache = _GrowingCache(list(word_keys), list(word_values), _view(seen))
        width = decoder.embed.embedding_dim
        where = sinusoidal(position.to(torch.float32).unsqueeze(0), width)  # (1, D)
        x = decoder._embed(words, where)  # (B, W, D)
        for index, layer in enumerate(decoder.layers):
            assert isinstance(layer, DecoderLayer)
            regions = region_keys[index], region_values[index], mask
            x = layer.self_residual(x, partial(_to_words, layer.self_attention, cache, index))
            x = layer.cross_residual(x, partial(_to_regions, layer.cross_attention, regions, told))
            x = layer.feedforward_residual(x, layer.feedforward)
        logits = decoder.logits(decoder.norm(x))
        return logits, told[-1].mean(1), *cache.keys, *cache.values


class _GrowingCache(NamedTuple):
    """The words so far, in every layer."""

    keys: list[Tensor]
    values: list[Tensor]
    view: Tensor
    """(B, 1, W, S + W)."""


def _to_words(attention: MultiHeadAttention, cache: _GrowingCache, layer: int, x: Tensor) -> Tensor:
    """Appends the words `x`, (B, W, D), to the cache and attends from them to it."""
    for part, new in zip((cache.keys, cache.values), attention._key_value(x, None), strict=True):
        part[layer] = torch.cat((part[layer], new), 2)
    query = attention._query(x, None)
    return attention._join(
        attention.attend(query, cache.keys[layer], cache.values[layer], bias=cache.view)
    )


def _to_regions(
    attention: MultiHeadAttention,
    regions: tuple[Tensor, Tensor, Tensor],
    told: list[Tensor],
    x: Tensor,
) -> Tensor:
    """Attends from the words `x`, (B, W, D), to keys and values, and appends the weights."""
    key, value, mask = regions
    told.append(attention.attend.maps(attention._query(x, None), key, mask=mask).weights)
    return attention._join(told[-1] @ value)


def _view(seen: Tensor) -> Tensor:
    """(B, 1, W, S + W) what is added to scores, as a caption also sees its own new word."""
    slots = torch.arange(seen.shape[1])
    own = slots.unsqueeze(0) == slots.unsqueeze(1)
    visible = torch.cat((seen, own.expand(seen.shape[0], -1, -1)), -1)
    return torch.where(visible.unsqueeze(1), 0.0, -math.inf)


def write_graphs(
    captioner: Captioner, config: CaptionerConfig, folder: Path
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Writes `encoder.onnx` and `decoder.onnx`, and for a model of pixels `backbone.onnx`.

    Args:
        captioner: The model, in single precision and evaluation mode; stays as it is.
        config: What it was built from.
        folder: Where to.

    Returns:
        inputs: The names of what each graph takes, by file.
        outputs: The names of what each graph returns, by file.

    Raises:
        ValueError: The model is too large for a file.
    """
    captioner = deepcopy(captioner)
    for module in captioner.modules():
        if isinstance(module, Attend):
            module.backend = "explicit"  # the fused one with a bias has no free shapes in ONNX
    layers = config.layers
    regions = layer_names("region", layers)
    inputs = {
        ENCODER: ["features", "mask", *(["boxes"] if config.geometry != "none" else [])],
        DECODER: ["words", "position", "seen", *layer_names("word", layers), *regions, "mask"],
    }
    outputs = {
        ENCODER: regions,
        DECODER: ["logits", "attention", *layer_names("grown", layers)],
    }
    examples = {ENCODER: _encoder_example(config), DECODER: _decoder_example(config)}
    graphs: dict[str, nn.Module] = {
        ENCODER: EncoderGraph(captioner),
        DECODER: DecoderGraph(captioner),
    }
    if isinstance(captioner.encoder, PhotoEncoder):
        fold_norms(captioner.encoder)
        graphs[BACKBONE] = BackboneGraph(captioner.encoder.backbone)
        inputs[BACKBONE], outputs[BACKBONE] = ["images"], ["features"]
        examples[BACKBONE] = _backbone_example(config)
    for name, graph in graphs.items():
        write_graph(graph.eval(), examples[name], inputs[name], outputs[name], folder / name)
    return inputs, outputs


# Tracing keeps what holds for its example, so no number of these may be 0, 1 or twice the same.
_IMAGES, _CAPTIONS, _REGIONS, _SLOTS = 2, 3, 5, 7


def _backbone_example(config: CaptionerConfig) -> Example:
    images = torch.zeros(_IMAGES, config.image_size, config.image_size, 3, dtype=torch.uint8)
    return (images,), ({0: torch.export.Dim("images")},)


def _encoder_example(config: CaptionerConfig) -> Example:
    images, regions = torch.export.Dim("images"), torch.export.Dim("regions")
    mask = torch.ones(_IMAGES, _REGIONS, dtype=torch.bool)
    arguments = [torch.zeros(_IMAGES, _REGIONS, config.feature_dim), mask]
    if config.geometry != "none":
        arguments.append(torch.full((_IMAGES, _REGIONS, 4), 0.5))
    return tuple(arguments), ({0: images, 1: regions},) * len(arguments)


def _decoder_example(config: CaptionerConfig) -> Example:
    names = ("images", "regions", "captions", "slots")
    images, regions, captions, slots = (torch.export.Dim(name) for name in names)

    def each_layer(count: int) -> list[Tensor]:
        shape = (_IMAGES, config.heads, count, config.dim // config.heads)
        return [torch.zeros(shape) for _ in range(config.layers)]

    arguments = (
        torch.zeros(_IMAGES, _CAPTIONS, dtype=torch.long),
        torch.tensor(2),
        torch.ones(_IMAGES, _CAPTIONS, _SLOTS, dtype=torch.bool),
        each_layer(_SLOTS),
        each_layer(_SLOTS),
        each_layer(_REGIONS),
        each_layer(_REGIONS),
        torch.ones(_IMAGES, _REGIONS, dtype=torch.bool),
    )
    of_words = [{0: images, 2: slots}] * config.layers
    of_regions = [{0: images, 2: regions}] * config.layers
    free: tuple[Any, ...] = (
        {0: images, 1: captions},
        {},
        {0: images, 1: captions, 2: slots},
        of_words,
        of_words,
        of_regions,
        of_regions,
        {0: images, 1: regions},
    )
    return arguments, free
