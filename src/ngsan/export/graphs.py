"""The graphs of an export, traced from the model's own modules.

A model of pixels has a backbone, which takes `images` (B, P, P, 3) uint8 and returns the `features`
(B, N, F) of their cells. Its batch norms are in its convolutions. Its encoder takes the features
alone: N is the number of cells, and their boxes are constants. All else is as for regions.

The encoder takes `features` (B, N, F), `mask` (B, N) and, if the model is geometry-aware, `boxes`
(B, N, 4). It returns what every layer of the decoder attends to: `region_keys_*` and
`region_values_*` (B, H, N, K).

The decoder takes `words` (B, W) and their `position` (), which slots of earlier words each caption
has `seen` (B, W, S), `word_keys_*` and `word_values_*` (B, H, S, K) of those slots, what the
encoder returned, and `mask`. It returns `logits` (B, W, V), `attention` to the regions (B, W, N) in
the last layer, the mean of its heads, and `grown_keys_*` and `grown_values_*` (B, H, S + W, K): the
slots and the W new words behind them, which go into the next call as they are.

A translator's encoder takes the `source` (B, N) and `mask` (B, N); its decoder is the captioner's.
An answerer is one graph: from `words` (Q, T) and, if it sees images, `features` (Q, N, F) and
`boxes` (Q, N, 4) to `logits` (Q, A), `word_weights` (Q, T) and `region_weights` (Q, N). T is fixed.

Shapes: `B` images, `P` pixels of a side, `N` regions, `W` captions an image, `S` slots,
`V` vocabulary, `F` features, `D` model width, `H` heads, `K` head width; `Q` questions, `T` words,
`A` answers. B, N, W, S and Q are free.
"""

import math
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ngsan.config import AnswererConfig, CaptionerConfig, TranslatorConfig
from ngsan.export.tracing import Example, fix_inputs, write_graph
from ngsan.models.answerer import AnswererModel
from ngsan.models.captioner import CaptionerModel, PhotoEncoder, RegionEncoder
from ngsan.models.decoder import WordDecoder
from ngsan.models.translator import TranslatorModel
from ngsan.nn.attend import Attend
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.geometry import sinusoidal
from ngsan.nn.layers import DecoderLayer
from ngsan.nn.masks import zero_padding
from ngsan.predict.manifest import ANSWERER, BACKBONE, DECODER, ENCODER, layer_names
from ngsan.text.vocabulary import BOUNDARY
from ngsan.vision.backbone import fold_norms


class BackboneGraph(nn.Module):
    """From pixels to the features of cells."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        """(B, P, P, 3) bytes to (B, N, F)."""
        features: Tensor = self.backbone(images.permute(0, 3, 1, 2))
        return features


class SentenceGraph(nn.Module):
    """From the words of sentences to keys and values."""

    def __init__(self, translator: TranslatorModel) -> None:
        super().__init__()
        self.translator = translator

    def forward(self, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """The keys in every layer, then the values."""
        memory = self.translator.encode(source, mask)
        return _remembered(memory, mask, self.translator.decoder.layers)


class AnswererGraph(nn.Module):
    """From words and regions to the logits of all answers, and the attention weights."""

    def __init__(self, answerer: AnswererModel) -> None:
        super().__init__()
        self.answerer = answerer
        answerer.question.lstm = UnrolledLSTM(answerer.question.lstm)  # type: ignore[assignment]

    def forward(
        self, words: Tensor, features: Tensor | None = None, boxes: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The logits (Q, A), the weights of the words (Q, T), and those of the regions (Q, N)."""
        given = self.answerer.answer(words, words != BOUNDARY, features, boxes)
        return tuple(part for part in given if part is not None)


class UnrolledLSTM(nn.Module):
    """An LSTM of one layer as plain products: its weights are then found in `model.safetensors`."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        weights = dict(lstm.named_parameters())
        self.input, self.state = weights["weight_ih_l0"], weights["weight_hh_l0"]
        self.shift = nn.ParameterList([weights["bias_ih_l0"], weights["bias_hh_l0"]])

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """(Q, T, D) to the states after each word, (Q, T, D)."""
        given = x @ self.input.t() + self.shift[0] + self.shift[1]
        weight = self.state.t()
        state = memory = torch.zeros_like(given[:, 0, : len(weight)])
        states = []
        for step in given.unbind(1):
            gates = step + state @ weight
            enter, forget, value, leave = gates.chunk(4, -1)
            memory = forget.sigmoid() * memory + enter.sigmoid() * value.tanh()
            state = leave.sigmoid() * memory.tanh()
            states.append(state)
        return torch.stack(states, 1), None


class EncoderGraph(nn.Module):
    """From regions to keys and values."""

    def __init__(self, captioner: CaptionerModel) -> None:
        super().__init__()
        assert isinstance(captioner.encoder, RegionEncoder)
        assert isinstance(captioner.decoder, WordDecoder)
        self.encoder, self.layers = captioner.encoder, captioner.decoder.layers

    def forward(
        self, features: Tensor, mask: Tensor, boxes: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The keys in every layer, then the values."""
        memory = self.encoder(features, boxes, mask)
        return _remembered(memory, mask, self.layers)


class CellsGraph(nn.Module):
    """From the cells of photographs to keys and values."""

    def __init__(self, captioner: CaptionerModel) -> None:
        super().__init__()
        assert isinstance(captioner.encoder, PhotoEncoder)
        assert isinstance(captioner.decoder, WordDecoder)
        self.encoder, self.layers = captioner.encoder.regions, captioner.decoder.layers

    def forward(self, features: Tensor, boxes: Tensor) -> tuple[Tensor, ...]:
        """The keys in every layer, then the values; the boxes (1, N, 4) are those of all images."""
        return _remembered(self.encoder.encode_checked(features, boxes), None, self.layers)


def _remembered(memory: Tensor, mask: Tensor | None, layers: nn.ModuleList) -> tuple[Tensor, ...]:
    """The keys of a memory in every layer of a decoder, then the values."""
    memory = zero_padding(memory, mask)
    keys, values = [], []
    for layer in layers:
        assert isinstance(layer, DecoderLayer)
        key, value = layer.cross_attention._key_value(memory, mask)
        keys.append(key)
        values.append(value)
    return *keys, *values


class DecoderGraph(nn.Module):
    """Appends one word to every caption.

    Note: this is `WordDecoder.step` for a graph, which cannot write into buffers: keys and values
        are appended, and position and view are given from outside.
    """

    def __init__(self, model: CaptionerModel | TranslatorModel) -> None:
        super().__init__()
        assert isinstance(model.decoder, WordDecoder)
        self.decoder = model.decoder

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
        decoder, weights = self.decoder, list[Tensor]()
        cache = _GrowingCache(list(word_keys), list(word_values), _view(seen))
        width = decoder.embed.embedding_dim
        where = sinusoidal(position.to(torch.float32).unsqueeze(0), width)  # (1, D)
        x = decoder._embed(words, where)  # (B, W, D)
        for index, layer in enumerate(decoder.layers):
            assert isinstance(layer, DecoderLayer)
            regions = region_keys[index], region_values[index], mask
            x = layer.self_residual(x, partial(_to_words, layer.self_attention, cache, index))
            x = layer.cross_residual(
                x, partial(_to_regions, layer.cross_attention, regions, weights)
            )
            x = layer.feedforward_residual(x, layer.feedforward)
        logits = decoder.logits(decoder.norm(x))
        return logits, weights[-1].mean(1), *cache.keys, *cache.values


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
    weights: list[Tensor],
    x: Tensor,
) -> Tensor:
    """Attends from the words `x`, (B, W, D), to keys and values, and appends the weights."""
    key, value, mask = regions
    weights.append(attention.attend.maps(attention._query(x, None), key, mask=mask).weights)
    return attention._join(weights[-1] @ value)


def _view(seen: Tensor) -> Tensor:
    """(B, 1, W, S + W) a mask to add to scores; a caption also sees its own new word."""
    slots = torch.arange(seen.shape[1])
    own = slots.unsqueeze(0) == slots.unsqueeze(1)
    visible = torch.cat((seen, own.expand(seen.shape[0], -1, -1)), -1)
    return torch.where(visible.unsqueeze(1), 0.0, -math.inf)


class Graph(NamedTuple):
    """A graph to write."""

    module: nn.Module
    inputs: list[str]
    outputs: list[str]
    example: Example
    constants: tuple[str, ...] = ()
    """Inputs that become constants with the values of the example. ONNX Runtime computes whatever
    depends on them alone once, when it opens the graph."""


def write_graphs(
    model: nn.Module, config: Any, folder: Path
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Writes the graphs of a captioner, a translator or an answerer.

    Args:
        model: The model, in single precision and evaluation mode; it is not changed.
        config: What it was built from.
        folder: Where to.

    Returns:
        inputs: The names of each graph's inputs, by file.
        outputs: The names of each graph's outputs, by file.

    Raises:
        ValueError: The model is too large for a file.
    """
    model = deepcopy(model)
    for module in model.modules():
        if isinstance(module, Attend):
            module.backend = "explicit"  # the fused one with a bias has no free shapes in ONNX
    if isinstance(model, CaptionerModel):
        graphs = _captioner_graphs(model, config)
    elif isinstance(model, TranslatorModel):
        graphs = _translator_graphs(model, config)
    else:
        assert isinstance(model, AnswererModel)
        graphs = {ANSWERER: _answerer_graph(model, config)}
    for name, graph in graphs.items():
        write_graph(graph.module.eval(), graph.example, graph.inputs, graph.outputs, folder / name)
        if graph.constants:
            values = dict(zip(graph.inputs, graph.example[0], strict=True))
            fix_inputs(folder / name, {what: values[what].numpy() for what in graph.constants})
    return (
        {
            name: [what for what in graph.inputs if what not in graph.constants]
            for name, graph in graphs.items()
        },
        {name: graph.outputs for name, graph in graphs.items()},
    )


def _captioner_graphs(captioner: CaptionerModel, config: CaptionerConfig) -> dict[str, Graph]:
    regions = layer_names("region", config.layers)
    graphs = {DECODER: _decoder_graph(captioner, config)}
    if isinstance(captioner.encoder, PhotoEncoder):
        fold_norms(captioner.encoder)
        backbone = BackboneGraph(captioner.encoder.backbone)
        graphs[BACKBONE] = Graph(backbone, ["images"], ["features"], _backbone_example(config))
        example = _cells_example(config, captioner.encoder.boxes)
        names = ["features", "boxes"]
        graphs[ENCODER] = Graph(CellsGraph(captioner), names, regions, example, ("boxes",))
    else:
        boxes = ["boxes"] if config.geometry != "none" else []
        names = ["features", "mask", *boxes]
        graphs[ENCODER] = Graph(EncoderGraph(captioner), names, regions, _encoder_example(config))
    return graphs


def _translator_graphs(translator: TranslatorModel, config: TranslatorConfig) -> dict[str, Graph]:
    sentences, words = torch.export.Dim("images"), torch.export.Dim("regions")
    shape = (_IMAGES, _REGIONS)
    source = torch.ones(shape, dtype=torch.long), torch.ones(shape, dtype=torch.bool)
    encoder = Graph(
        SentenceGraph(translator),
        ["source", "mask"],
        layer_names("region", config.layers),
        (source, ({0: sentences, 1: words},) * 2),
    )
    return {ENCODER: encoder, DECODER: _decoder_graph(translator, config)}


def _decoder_graph(
    model: CaptionerModel | TranslatorModel, config: CaptionerConfig | TranslatorConfig
) -> Graph:
    layers = config.layers
    return Graph(
        DecoderGraph(model),
        [
            *("words", "position", "seen"),
            *layer_names("word", layers),
            *layer_names("region", layers),
            "mask",
        ],
        ["logits", "attention", *layer_names("grown", layers)],
        _decoder_example(config),
    )


def _answerer_graph(answerer: AnswererModel, config: AnswererConfig) -> Graph:
    questions, regions = torch.export.Dim("questions"), torch.export.Dim("regions")
    inputs = ["words"]
    arguments = [torch.ones(_IMAGES, config.max_length, dtype=torch.long)]
    free = [{0: questions}]
    if config.regions != "none":
        inputs.append("features")
        arguments.append(torch.zeros(_IMAGES, _REGIONS, config.feature_dim))
        free.append({0: questions, 1: regions})
    if answerer.needs_boxes:
        inputs.append("boxes")
        arguments.append(torch.full((_IMAGES, _REGIONS, 4), 0.5))
        free.append({0: questions, 1: regions})
    outputs = ["logits", "word_weights", *(["region_weights"] if len(inputs) > 1 else [])]
    return Graph(AnswererGraph(answerer), inputs, outputs, (tuple(arguments), tuple(free)))


# Tracing hard-codes sizes that are 0, 1 or equal in its example, so these are larger and distinct.
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


def _cells_example(config: CaptionerConfig, boxes: Tensor) -> Example:
    features = torch.zeros(_IMAGES, len(boxes), config.feature_dim)
    return (features, boxes.unsqueeze(0)), ({0: torch.export.Dim("images")}, {})


def _decoder_example(config: CaptionerConfig | TranslatorConfig) -> Example:
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
