"""Ablates the encoder's self-attention of a trained captioner.

    python benchmarks/encoder_parts.py runs/ng_san --data coco --split test --images 500

It removes one part from every layer at a time, captions the images again without training, and
prints CIDEr. It also prints the standard deviation over the keys of both parts of the attention
scores, content and geometry, and how well a linear map of a region's features predicts where it is.
The model is a region model, or a photo model whose cells are the features of the data
(`ngsan extract --source photo:MODEL`). All images must have the same number of regions. They are
used in the order of the captions file.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ngsan.config import DecodingConfig
from ngsan.data.captions import read_captions
from ngsan.data.store import FeatureStore
from ngsan.metrics.cider import Cider
from ngsan.models.captioner import CaptionerModel, PhotoEncoder
from ngsan.models.checkpoint import load_model
from ngsan.nn.attention import MultiHeadAttention
from ngsan.predict.backend_torch import best_device
from ngsan.predict.captioner import Captioner
from ngsan.predict.evaluate import caption_dataset, score_results


class Replacement(nn.Module):
    """Replaces the self-attention of a layer and keeps its weights."""

    def __init__(self, whole: MultiHeadAttention) -> None:
        """Keeps the replaced attention."""
        super().__init__()
        self.whole = whole


class SelfOnly(Replacement):
    """Each region attends only to itself."""

    def forward(self, x: Tensor, **_) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        return self.whole.output(self.whole.value(x))


class Uniform(Replacement):
    """Each region attends to all regions with equal weight."""

    def forward(self, x: Tensor, *, mask: Tensor | None = None, **_) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        real = x.new_ones(x.shape[:2]) if mask is None else mask.to(x.dtype)
        mean = torch.einsum("bn,bnd->bd", real, self.whole.value(x)) / real.sum(1, keepdim=True)
        return self.whole.output(mean).unsqueeze(1).expand_as(x)


class NoAttention(Replacement):
    """Only the residual connection remains."""

    def forward(self, x: Tensor, **_) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        return torch.zeros_like(x)


def layers_of(captioner: CaptionerModel) -> nn.ModuleList:
    """The encoder's layers; a photo encoder is replaced by its part after the backbone."""
    if isinstance(captioner.encoder, PhotoEncoder):
        captioner.encoder = captioner.encoder.regions
    return captioner.encoder.layers


def ablations(layers: nn.ModuleList) -> dict[str, Callable[[], None]]:
    """The ablations by their printed names."""

    def drop(name: str) -> Callable[[], None]:
        def remove_part() -> None:
            for layer in layers:
                setattr(layer.attention, name, None)

        return remove_part

    def replace(kind: type[Replacement]) -> Callable[[], None]:
        def apply() -> None:
            for layer in layers:
                layer.attention = kind(layer.attention)

        return apply

    found: dict[str, Callable[[], None]] = {"unchanged": lambda: None}
    if layers[0].attention.score_bias is not None:
        found["without the geometric bias"] = drop("score_bias")
    if layers[0].attention.query_norm is not None:
        found["queries not normalised"] = drop("query_norm")
    return found | {
        "uniform attention": replace(Uniform),
        "attention to itself only": replace(SelfOnly),
        "no self-attention": replace(NoAttention),
    }


def spreads(
    captioner: CaptionerModel, features: Tensor, boxes: Tensor
) -> list[tuple[float, float]]:
    """By layer: standard deviation over the keys of the content scores and of the bias."""
    found = []

    def record(attention: MultiHeadAttention, given: tuple[Tensor, ...], more: dict) -> None:
        (x,) = given
        query, (key, _) = attention._query(x, None), attention._key_value(x, None)
        scores = query @ key.transpose(-1, -2) / key.shape[-1] ** 0.5
        bias = attention._bias(x, more.get("geometry"))
        parts = (scores, torch.zeros_like(scores) if bias is None else bias)
        found.append(tuple(float(part.std(-1).mean()) for part in parts))

    hooks = [
        layer.attention.register_forward_pre_hook(record, with_kwargs=True)
        for layer in captioner.encoder.layers
    ]
    with torch.no_grad():
        captioner.encoder(features, boxes, None)
    for hook in hooks:
        hook.remove()
    return found


def places(store: FeatureStore, images: list[str]) -> list[float]:
    """R² of a region's x and y, predicted linearly, on the half not used for the fit."""
    halves = []
    for half in (images[::2], images[1::2]):
        some = [store[image] for image in half]
        features = np.concatenate([one.features.astype(np.float64) for one in some])
        middles = np.concatenate([one.boxes[:, :2] for one in some])
        halves.append((np.concatenate([features, np.ones((len(features), 1))], 1), middles))
    (fitted, where), (others, wanted) = halves
    ridge = 1e-3 * len(fitted) * np.eye(fitted.shape[1])
    found = others @ np.linalg.solve(fitted.T @ fitted + ridge, fitted.T @ where)
    rest = ((found - wanted) ** 2).sum(0) / ((wanted - wanted.mean(0)) ** 2).sum(0)
    return [float(1 - value) for value in rest]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="the captioner's folder")
    parser.add_argument("--data", required=True, help="the dataset folder, with features")
    parser.add_argument("--split", default="test", help="split of the data")
    parser.add_argument("--images", type=int, default=500, help="maximum number of images")
    parser.add_argument("--beam", type=int, default=3, help="beam search; 1 is greedy")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    store = FeatureStore(options.data)
    known = (one for one in read_captions(options.data) if one.split == options.split)
    references = {one.id: one.captions for one in known if one.id in store}
    images = list(references)[: options.images]
    references = {image: references[image] for image in images}
    device = best_device("auto")
    figures: dict[str, object] = {"images": len(images), "beam": options.beam}
    figures["places"] = places(store, images)
    print("R² of a region's x and y: {:.2f}, {:.2f}".format(*figures["places"]))
    for name in ablations(layers_of(load_model(options.model, "captioning")[0])):
        captioner, _, companions = load_model(options.model, "captioning")
        vocabulary = companions["vocabulary"]
        layers = layers_of(captioner)
        captioner.to(device).eval()
        if name == "unchanged":
            some = [store[image] for image in images[:32]]
            figures["spreads"] = spreads(
                captioner,
                torch.tensor(np.stack([one.features for one in some]), dtype=torch.float32).to(
                    device
                ),
                torch.tensor(np.stack([one.boxes for one in some]), dtype=torch.float32).to(device),
            )
            for number, (content, bias) in enumerate(figures["spreads"], start=1):
                print(f"layer {number}: content {content:.2f}, bias {bias:.2f}", flush=True)
        ablations(layers)[name]()
        found = caption_dataset(
            Captioner.from_model(captioner, vocabulary),
            store,
            images,
            decoding=DecodingConfig(beam=options.beam),
        )
        texts = {image: caption.text for image, caption in found.items()}
        figures[name] = score_results(texts, references, (Cider(),)).values["CIDEr"]
        print(f"{name:36} {figures[name]:7.1f}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
