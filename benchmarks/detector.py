"""How well a detector finds the objects of val2017: average precision by pycocotools.

    pip install pycocotools
    python benchmarks/detector.py val2017 boxes.npz -o detections.npz

Photographs in full size are squashed to the detector's square. `boxes.npz` holds COCO's boxes
relative to the image (`image_id`, `is_val2017`, `karpathy_split`, `offset`, `cls`, `box`) without
crowd regions and mask areas: a box in a crowd counts as wrong, and there is no AP by size.

The detections are written as they come, and a run resumes them: `image_id`, `offset` (those of
image k are rows `offset[k]:offset[k + 1]`), `boxes`, `scores`, `classes`, `class_scores`, `size`.
The photographs of Karpathy's validation split come first, then those of its training split.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.atomic_io import replace_output
from ngsan.vision.detector import Detector, load_detector
from ngsan.vision.images import open_picture, to_square

SAVE_EVERY = 200
COLUMNS = ("boxes", "scores", "classes")
LOWEST = 0.01
"""Boxes with lower scores hardly change the average precision."""


def detect(
    detector: Detector, folder: Path, ids: list[int], output: Path
) -> dict[str, NDArray[Any]]:
    """The detections of photographs, resumed from a file."""
    rows: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "class_scores", "size")}
    done: list[int] = []
    if output.is_file():
        with np.load(output) as held:
            done = held["image_id"].tolist()
            for name in rows:
                each = np.split(held[name], held["offset"][1:-1]) if name in COLUMNS else held[name]
                rows[name] = list(each)
    assert done == ids[: len(done)], f"{output} is of other photographs"
    table: dict[str, NDArray[Any]] = {}
    begun, first = time.perf_counter(), len(done)
    for image_id in ids[len(done) :]:
        picture = open_picture(folder / f"{image_id:012d}.jpg", min_side=2 * detector.size)
        found = detector.detect(to_square(picture.image, detector.size), min_score=LOWEST)
        for name in (*COLUMNS, "class_scores"):
            rows[name].append(getattr(found, name))
        rows["size"].append(picture.size)
        done.append(image_id)
        if len(done) % SAVE_EVERY == 0 or len(done) == len(ids):
            table = save(done, rows, output)
            each = 1000 * (time.perf_counter() - begun) / (len(done) - first)
            print(f"{len(done):,} of {len(ids):,} photographs, {each:.0f} ms each", flush=True)
    return table or save(done, rows, output)


def save(done: list[int], rows: dict[str, list[Any]], output: Path) -> dict[str, NDArray[Any]]:
    """Writes all detections so far."""
    counts = [len(scores) for scores in rows["scores"]]
    table = {
        "image_id": np.array(done),
        "offset": np.concatenate(([0], np.cumsum(counts))),
        **{name: np.concatenate(rows[name]) for name in COLUMNS},
        **{name: np.stack(rows[name]) for name in ("class_scores", "size")},
    }
    with replace_output(output) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **table)
    return table


def average_precision(
    table: dict[str, NDArray[Any]], truth: dict[str, NDArray[Any]], names: tuple[str, ...]
) -> dict[str, float]:
    """AP from 0 to 100 over thresholds 0.5 to 0.95, and at 0.5 and 0.75."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    columns = {int(image): number for number, image in enumerate(truth["image_id"])}
    classes = [names.index(str(name)) for name in truth["names"]]
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for number, image in enumerate(table["image_id"].tolist()):
        sides = np.tile(table["size"][number], 2)
        column = columns.get(image)
        rows = range(0) if column is None else range(*truth["offset"][column : column + 2])
        for row in rows:
            box = corner(truth["box"][row] / 65535 * sides)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": classes[truth["cls"][row]],
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
        results += [
            {
                "image_id": image,
                "category_id": int(table["classes"][row]),
                "bbox": corner(table["boxes"][row] * sides),
                "score": float(table["scores"][row]),
            }
            for row in range(*table["offset"][number : number + 2])
        ]
    coco = COCO()
    coco.dataset = {
        "info": {},
        "images": [{"id": image} for image in table["image_id"].tolist()],
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for number, name in enumerate(names)],
    }
    coco.createIndex()
    scorer = COCOeval(coco, coco.loadRes(results), "bbox")
    scorer.evaluate()
    scorer.accumulate()
    scorer.summarize()
    return {name: 100 * scorer.stats[at] for name, at in (("AP", 0), ("AP50", 1), ("AP75", 2))}


def corner(box: NDArray[Any]) -> list[float]:
    """(cx, cy, w, h) as (left, top, w, h)."""
    centre_x, centre_y, width, height = box.tolist()
    return [centre_x - width / 2, centre_y - height / 2, width, height]


def main() -> None:
    """Detects and scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("photographs", type=Path)
    parser.add_argument("boxes", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--detector", help="as `load_detector` takes it; default: the shipped one")
    parser.add_argument("--limit", type=int, help="number of photographs")
    options = parser.parse_args()
    detector = load_detector(options.detector, threads=1)
    with np.load(options.boxes) as held:
        truth = {name: held[name] for name in held.files}
    splits = dict(zip(truth["image_id"].tolist(), truth["karpathy_split"].tolist(), strict=True))
    order = {1: 0, 0: 1, 2: 2, None: 3}
    ids = sorted(
        (int(path.stem) for path in options.photographs.glob("*.jpg")),
        key=lambda image: (order[splits.get(image)], image),
    )[: options.limit]
    table = detect(detector, options.photographs, ids, options.output)
    scores = average_precision(table, truth, detector.names)
    print(", ".join(f"{name} {score:.2f}" for name, score in scores.items()))


if __name__ == "__main__":
    main()
