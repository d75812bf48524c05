"""Optional graphs that return what a captioner looks at, for the explain page and the studio.

`attention.onnx` takes `features` (B, N, F), `mask` (B, N), with a geometry also `boxes` (B, N, 4),
and `words` (B, T), the boundary id first. It returns, of the encoder's layers, the `content` scores
(B, L, H, N, N), the attention `weights` and, with a geometric bias, the `bias` of Eq. 11-13 of the
same shape and the `inputs` (B, L, N, D) that the bias computes Q' and K' from; of the decoder's
layers the `word_attention` (B, L, H, T, N), and the `probabilities` (B, T) of each next word, at
last of the end.

`bias.onnx` returns the `bias` (L, H, M) between M pairs of regions, given their `boxes` (M, 2, 4)
and one pair of `inputs` (L, 2, D); the first of a pair attends.

Unlike the graphs that write captions, these multiply in single precision even when packed.

Shapes: `B` images, `N` regions, `F` features, `T` words, `L` layers, `H` heads, `D` model width,
`M` pairs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ngsan.config import CaptionerConfig
from ngsan.export.external_weights import externalize_weights
from ngsan.export.graphs import BackboneGraph
from ngsan.export.tracing import write_graph
from ngsan.models.captioner import CaptionerModel, PhotoEncoder, RegionEncoder
from ngsan.nn.attend import Attend, AttentionMaps
from ngsan.nn.geometry import relative_geometry
from ngsan.nn.masks import zero_padding
from ngsan.predict.manifest import ATTENTION, BACKBONE, BIAS
from ngsan.text.vocabulary import BOUNDARY


class AttentionGraph(nn.Module):
    """The maps of `attention.onnx`, in the order of `outputs`."""

    def __init__(self, captioner: CaptionerModel) -> None:
        super().__init__()
        self.encoder, self.decoder = region_encoder(captioner), captioner.decoder
        encoder_outputs = ["content", "weights"]
        if self.encoder.relative:
            encoder_outputs += ["bias", "inputs"]
        self.outputs = (*encoder_outputs, "word_attention", "probabilities")
        self.inputs = ("features", "mask", *(["boxes"] * self.encoder.needs_boxes), "words")

    def forward(self, features: Tensor, mask: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """See the module; `rest` is boxes, if the model needs them, and words."""
        *boxes, words = rest
        looked, read, inputs = list[AttentionMaps](), list[AttentionMaps](), list[Tensor]()
        with _recorded_inputs(self.encoder, inputs):
            encoded = self.encoder(features, boxes[0] if boxes else None, mask, record=looked)
        logits = self.decoder(words, zero_padding(encoded, mask), mask, record=read)
        found = [torch.stack([maps.content for maps in looked], 1)]
        found.append(torch.stack([maps.weights for maps in looked], 1))
        biases = [maps.bias for maps in looked if maps.bias is not None]
        if biases:
            found += [torch.stack(biases, 1), torch.stack(inputs, 1)]
        following = torch.cat((words[:, 1:], torch.full_like(words[:, :1], BOUNDARY)), 1)
        probabilities = logits.softmax(-1).gather(-1, following.unsqueeze(-1)).squeeze(-1)
        return *found, torch.stack([maps.weights for maps in read], 1), probabilities


class BiasGraph(nn.Module):
    """The geometric bias between pairs of regions, of every layer."""

    inputs = ("boxes", "inputs")
    outputs = ("bias",)

    def __init__(self, captioner: CaptionerModel) -> None:
        super().__init__()
        encoder = region_encoder(captioner)
        if not encoder.relative:
            raise ValueError("this model has no geometric bias")
        self.signed, self.plus_one = encoder.signed_geometry, encoder.plus_one
        self.biases = nn.ModuleList(deepcopy(bias) for bias in _score_biases(encoder))
        for bias in self.biases:
            for name in ("query", "key"):
                if getattr(bias, name) is not None:
                    setattr(bias, name, _OfFirst(getattr(bias, name)))

    def forward(self, boxes: Tensor, inputs: Tensor) -> Tensor:
        """(M, 2, 4) and (L, 2, D) to (L, H, M)."""
        geometry = relative_geometry(boxes, signed=self.signed, plus_one=self.plus_one)
        found = [
            bias(geometry, x.expand(boxes.shape[0], -1, -1))[:, :, 0, 1].t()
            for bias, x in zip(self.biases, inputs.unbind(0), strict=True)
        ]
        return torch.stack(found)


class _OfFirst(nn.Module):
    """Projects the first of a batch of equal inputs and repeats the result."""

    def __init__(self, projection: nn.Module) -> None:
        super().__init__()
        self.projection = projection

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.projection(x[:1])
        return projected.expand(x.shape[0], -1, -1)  # not `len`, which tracing would fix


def region_encoder(captioner: CaptionerModel) -> RegionEncoder:
    """The encoder of regions, which in a model of photographs follows the backbone."""
    encoder = captioner.encoder
    regions = encoder.regions if isinstance(encoder, PhotoEncoder) else encoder
    assert isinstance(regions, RegionEncoder)
    return regions


def _score_biases(encoder: RegionEncoder) -> list[Any]:
    layers: Any = encoder.layers
    return [layer.attention.score_bias for layer in layers]


@contextmanager
def _recorded_inputs(encoder: RegionEncoder, inputs: list[Tensor]) -> Iterator[None]:
    """Appends what each layer's bias reads besides geometry, (B, N, D)."""
    hooks = [
        bias.register_forward_pre_hook(lambda _, given: inputs.append(given[1]))
        for bias in _score_biases(encoder)
        if bias is not None
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def write_attention(
    captioner: CaptionerModel,
    config: CaptionerConfig,
    folder: Path,
    tensors: Mapping[str, NDArray[Any]],
) -> tuple[dict[str, list[str]], dict[str, list[str]], dict[str, dict[str, Any]]]:
    """Writes `attention.onnx` and, for a model with a geometric bias, `bias.onnx`.

    Args:
        captioner: The model, in single precision and evaluation mode; it is not changed.
        config: What it was built from.
        folder: The packed model.
        tensors: Its weights, which the graphs share.

    Returns:
        inputs: The names of the inputs of each graph, by file.
        outputs: The names of the outputs of each graph, by file.
        weights: What `externalize_weights` returns, by file.
    """
    captioner = deepcopy(captioner)
    for module in captioner.modules():
        if isinstance(module, Attend):
            module.backend = "explicit"  # the fused one with a bias has no free shapes in ONNX
    attention = AttentionGraph(captioner)
    # No two sizes are equal, and none is 0 or 1, or tracing would treat them as fixed.
    images, regions, words, pairs = (
        torch.export.Dim(name) for name in ("images", "regions", "words", "pairs")
    )
    values = {
        "features": torch.zeros(2, 5, config.feature_dim),
        "mask": torch.ones(2, 5, dtype=torch.bool),
        "boxes": torch.full((2, 5, 4), 0.5),
        "words": torch.zeros(2, 7, dtype=torch.long),
    }
    free: dict[str, Any] = {name: {0: images, 1: regions} for name in values}
    free["words"] = {0: images, 1: words}
    arguments = tuple(values[name] for name in attention.inputs)
    axes = tuple(free[name] for name in attention.inputs)
    # `forward` takes what follows the mask as one argument, whose axes are a tuple of their own.
    graphs: dict[str, tuple[Any, Any]] = {
        ATTENTION: (attention, (arguments, (*axes[:2], axes[2:])))
    }
    if attention.encoder.relative:
        given = torch.full((11, 2, 4), 0.5), torch.zeros(config.layers, 2, config.dim)
        graphs[BIAS] = BiasGraph(captioner), (given, ({0: pairs}, {}))
    inputs, outputs, weights = {}, {}, {}
    for name, (graph, example) in graphs.items():
        inputs[name], outputs[name] = list(graph.inputs), list(graph.outputs)
        write_graph(graph.eval(), example, inputs[name], outputs[name], folder / name)
        weights[name] = externalize_weights(folder / name, tensors, exact=True)
    return inputs, outputs, weights


def torch_graphs(
    captioner: CaptionerModel,
) -> tuple[dict[str, Callable[[Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]]], Any]:
    """The graphs by file name, computed by torch, without files.

    Args:
        captioner: The model, which is put into single precision and evaluation mode.

    Returns:
        graphs: Functions from named inputs to named outputs; with the backbone, if there is one.
        cells: (N, 4) boxes of the cells of the backbone, or None.
    """
    captioner.float().eval()
    attention, encoder = AttentionGraph(captioner), captioner.encoder
    graphs = {ATTENTION: _function(attention, attention.inputs, attention.outputs)}
    if attention.encoder.relative:
        graphs[BIAS] = _function(BiasGraph(captioner), BiasGraph.inputs, BiasGraph.outputs)
    if not isinstance(encoder, PhotoEncoder):
        return graphs, None
    backbone = BackboneGraph(encoder.backbone)
    graphs[BACKBONE] = _function(backbone, ("images",), ("features",))
    return graphs, encoder.boxes.numpy()


def _function(module: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Any:
    @torch.inference_mode()
    def run(given: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        values = module(*(torch.tensor(given[name]) for name in inputs))
        values = values if isinstance(values, tuple) else (values,)
        return {name: value.numpy() for name, value in zip(outputs, values, strict=True)}

    return run
