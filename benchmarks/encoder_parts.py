"""What a trained captioner needs of the self-attention in its encoder.

    python benchmarks/encoder_parts.py runs/ng_san --data coco --split test --images 500

takes one part out of every layer at a time, captions the images again without any new training,
and tells CIDEr. It also tells how much the two parts of the scores, content and geometry, differ
between the regions that a region may look at, and how well a linear map of a region's features
finds its place in the picture. The model may be one of regions, or one of photographs whose cells
are the features of the data (`ngsan extract --source photo:MODEL`). Every image must have as many
regions. Images are taken in the order of the captions' file.
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


class Instead(nn.Module):
    """Stands for the self-attention of a layer, with all that it has learned."""

    def __init__(self, whole: MultiHeadAttention) -> None:
        """Takes what it stands for."""
        super().__init__()
        self.whole = whole


class Itself(Instead):
    """Each region looks at itself alone."""

    def forward(self, x: Tensor, **_) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        return self.whole.output(self.whole.value(x))


class Alike(Instead):
    """Each region looks at all of them, at each as much."""

    def forward(self, x: Tensor, *, mask: Tensor | None = None, **_) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        real = x.new_ones(x.shape[:2]) if mask is None else mask.to(x.dtype)
        mean = torch.einsum("bn,bnd->bd", real, self.whole.value(x)) / real.sum(1, keepdim=True)
        return self.whole.output(mean).unsqueeze(1).expand_as(x)


class Nothing(Instead):
    """The residual alone is left."""

    def forward(self, x: Tensor, **_) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        return torch.zeros_like(x)


def layers_of(captioner: CaptionerModel) -> nn.ModuleList:
    """The encoder's layers; an encoder of photographs gives way to its part behind the backbone."""
    if isinstance(captioner.encoder, PhotoEncoder):
        captioner.encoder = captioner.encoder.regions
    return captioner.encoder.layers


def ways(layers: nn.ModuleList) -> dict[str, Callable[[], None]]:
    """What can be done to the layers, by what is told of it."""

    def drop(name: str) -> Callable[[], None]:
        def take_out() -> None:
            for layer in layers:
                setattr(layer.attention, name, None)

        return take_out

    def replace(kind: type[Instead]) -> Callable[[], None]:
        def put() -> None:
            for layer in layers:
                layer.attention = kind(layer.attention)

        return put

    found: dict[str, Callable[[], None]] = {"as it is": lambda: None}
    if layers[0].attention.score_bias is not None:
        found["without the geometric bias"] = drop("score_bias")
    if layers[0].attention.query_norm is not None:
        found["queries not normalised"] = drop("query_norm")
    return found | {
        "every region looks at all alike": replace(Alike),
        "every region looks at itself alone": replace(Itself),
        "self-attention left out": replace(Nothing),
    }


def spreads(
    captioner: CaptionerModel, features: Tensor, boxes: Tensor
) -> list[tuple[float, float]]:
    """By layer: deviation over the keys of the content's scores, and of the bias."""
    found = []

    def look(attention: MultiHeadAttention, given: tuple[Tensor, ...], more: dict) -> None:
        (x,) = given
        query, (key, _) = attention._query(x, None), attention._key_value(x, None)
        scores = query @ key.transpose(-1, -2) / key.shape[-1] ** 0.5
        bias = attention._bias(x, more.get("geometry"))
        parts = (scores, torch.zeros_like(scores) if bias is None else bias)
        found.append(tuple(float(part.std(-1).mean()) for part in parts))

    hooks = [
        layer.attention.register_forward_pre_hook(look, with_kwargs=True)
        for layer in captioner.encoder.layers
    ]
    with torch.no_grad():
        captioner.encoder(features, boxes, None)
    for hook in hooks:
        hook.remove()
    return found


def places(store: FeatureStore, images: list[str]) -> list[float]:
    """R² of the place of a region, across and down, on the half that the map has not seen."""
    halves = []
    for half in (images[::2], images[1::2]):
        some = [store[image] for image in half]
        features = np.concatenate([one.features.astype(np.float64) for one in some])
        middles = np.concatenate([one.boxes[:, :2] for one in some])
        halves.append((np.concatenate([features, np.ones((len(features), 1))], 1), middles))
    (learned, where), (others, wanted) = halves
    steady = 1e-3 * len(learned) * np.eye(learned.shape[1])
    found = others @ np.linalg.solve(learned.T @ learned + steady, learned.T @ where)
    rest = ((found - wanted) ** 2).sum(0) / ((wanted - wanted.mean(0)) ** 2).sum(0)
    return [float(1 - value) for value in rest]


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="the captioner's folder")
    parser.add_argument("--data", required=True, help="the dataset folder, with features")
    parser.add_argument("--split", default="test", help="of the data")
    parser.add_argument("--images", type=int, default=500, help="at most so many of the split")
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
    print("R² of a region's place, across and down: {:.2f}, {:.2f}".format(*figures["places"]))
    for name in ways(layers_of(load_model(options.model, "captioning")[0])):
        captioner, _, companions = load_model(options.model, "captioning")
        vocabulary = companions["vocabulary"]
        layers = layers_of(captioner)
        captioner.to(device).eval()
        if name == "as it is":
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
        ways(layers)[name]()
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
