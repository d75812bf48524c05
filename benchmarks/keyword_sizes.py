"""Whether keywords of small training copies and of photographs in full size are the same.

    python benchmarks/keyword_sizes.py val2017 [--photographs 200]

Each photograph is read as it is, and once more after it was squashed to 256 x 256 pixels and saved
as JPEG, as the copies are that keywords are learned on.
"""

import argparse
import io

import numpy as np
from PIL import Image

from ngsan.vision.images import find_images, open_image, to_square
from ngsan.vision.keywords import load_keywords

SIDE, QUALITY = 256, 90


def main() -> None:
    """Compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--photographs", type=int, default=200)
    options = parser.parse_args()
    model = load_keywords(threads=1)
    logits = []
    for path in [*find_images([options.folder])][: options.photographs]:
        picture = open_image(path)
        file = io.BytesIO()
        Image.fromarray(to_square(picture, SIDE)).save(file, "JPEG", quality=QUALITY)
        pair = (picture, Image.open(file).convert("RGB"))
        logits.append(model.logits(np.stack([to_square(one, model.size) for one in pair])))
    whole, copies = np.stack(logits, 1)
    first, second = model.confidences(whole), model.confidences(copies)
    best = np.argsort(-first, 1)[:, :10]
    again = np.argsort(-second, 1)[:, :10]
    shared = np.mean([len({*a} & {*b}) / 10 for a, b in zip(best, again, strict=True)])
    shown = np.take_along_axis(first, best, 1), np.take_along_axis(second, best, 1)
    print(f"{len(whole)} photographs")
    print(f"mean shift of log-odds {(copies - whole).mean():+.3f}")
    print(f"correlation of log-odds {np.corrcoef(whole.ravel(), copies.ravel())[0, 1]:.4f}")
    print(f"of the first 10 keywords, {shared:.1%} are the same")
    print(f"their mean confidence: {shown[0].mean():.4f}, of copies {shown[1].mean():.4f}")


if __name__ == "__main__":
    main()
