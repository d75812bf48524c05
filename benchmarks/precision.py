"""How often rounding changes a caption: the same images with and without padding.

    python benchmarks/precision.py

NG-SAN with random weights captions 100 images of 12 regions, then the same images with 9 padded
regions more. In exact arithmetic nothing changes.
"""

import argparse

import torch

from ngsan.config import DecodingConfig
from ngsan.models import build_captioner
from ngsan.predict.captioner import Captioner
from ngsan.text.vocabulary import Vocabulary

IMAGES, REGIONS, PADDING, WORDS = 100, 12, 9, 1000
PRECISIONS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def changed(dtype: torch.dtype, device: str, decoding: DecodingConfig) -> int:
    """How many of the images get another caption with padding."""
    torch.manual_seed(0)
    vocabulary = Vocabulary([f"word{number}" for number in range(WORDS - 1)])
    captioner = build_captioner("ng-san", vocab_size=WORDS, layers=2, feature_dim=64)
    predictor = Captioner.from_model(captioner.to(device, dtype), vocabulary)
    features = torch.randn(IMAGES, REGIONS + PADDING, 64)
    boxes = torch.rand(IMAGES, REGIONS + PADDING, 4) * 0.4 + 0.1
    mask = (torch.arange(REGIONS + PADDING) < REGIONS).expand(IMAGES, -1)
    short = (features[:, :REGIONS], boxes[:, :REGIONS], mask[:, :REGIONS])
    plain = predictor.caption_regions(*short, **vars(decoding))
    padded = predictor.caption_regions(features, boxes, mask, **vars(decoding))
    return sum(one.ids != other.ids for one, other in zip(plain, padded, strict=True))


def main() -> None:
    """Prints a line a precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    for dtype in PRECISIONS:
        counts = {
            method: changed(dtype, options.device, DecodingConfig(method=method))
            for method in ("beam", "greedy", "sample")
        }
        print(f"{str(dtype).removeprefix('torch.'):9} {counts} of {IMAGES} change", flush=True)


if __name__ == "__main__":
    main()
