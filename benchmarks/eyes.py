"""What each step of the second eye gives, on photographs that the detector was not trained on.

    python benchmarks/eyes.py val2017 --data coco --boxes boxes.json --split test -o eyes.json

Each photograph is looked at once; then only the searches are repeated: the captioner alone, with
keywords, with objects, with both (`good`), with three views, and with all of it (`best`). Every row
is compared with the captioner alone, by paired bootstrap. `boxes.json` has class names by image id,
as for `ngsan score --boxes`; only its images of the split that are in the folder count. Document
frequencies of CIDEr are those of these images. The captions are written beside the scores.

    python benchmarks/eyes.py val2017 --times 40

measures the CPU time of a photograph in each quality, in turns and with one thread, without that of
reading it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ngsan
from ngsan.atomic_io import write_text
from ngsan.data.boxes import read_object_names
from ngsan.data.captions import read_captions
from ngsan.data.pictures import PictureStore
from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.hallucination import Hallucination
from ngsan.metrics.scores import Scores, build_metrics, compare, score_captions
from ngsan.predict.agreement import Evidence
from ngsan.predict.captioner import PHOTO_DECODING
from ngsan.predict.quality import BEST, QUALITIES, views_of, whole_side
from ngsan.search import Ensemble, build_search
from ngsan.text.articles import with_articles
from ngsan.vision.decoding import shared_service
from ngsan.vision.images import find_images

STEPS = ("fast", "keywords", "objects", "good", "views", "best")
SHOWN = ("BLEU-1", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "CHAIR-i", "CHAIR-s", "object recall")
BATCH = 10


def caption(folder: str, ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """The captions of each step by image."""
    captioner, pictures = ngsan.load(threads=1), PictureStore(folder)
    backend, eye, agreement = captioner.backend, captioner.eye, captioner.agreement
    assert agreement is not None
    words, size = Evidence(eye, captioner.vocabulary), captioner.image_size
    parts = {
        "keywords": replace(agreement, limit=0.0, count_weight=0.0),
        "objects": replace(agreement, keyword_weight=0.0),
        "good": agreement,
        "best": agreement,
    }
    found: dict[str, dict[str, str]] = {step: {} for step in STEPS}
    for start in range(0, len(ids), BATCH):
        images = ids[start : start + BATCH]
        squares = []
        for image in images:
            read = shared_service().squares(
                pictures.read(image), tuple({size, *eye.sides, whole_side(size)})
            )
            squares.append({len(one): one for one in read.squares})
        each = [views_of(one[size], one[whole_side(size)]) for one in squares]
        views = [backend.encode(*backend.describe(np.stack(v))) for v in zip(*each, strict=True)]
        sights = [eye.look(one) for one in squares]
        for step in STEPS:
            used = views if step in ("views", "best") else views[:1]
            models = [backend.steps(one) for one in used]
            model = models[0] if len(models) == 1 else Ensemble(models)
            evidence: NDArray[Any] | None = None
            if step in parts:
                evidence = words(parts[step], sights)
            search = build_search(model, PHOTO_DECODING, backend.vocabulary, evidence=evidence)
            written = search.run()
            for place, image in enumerate(images):
                kept = written.words[place, 0, : int(written.lengths[place, 0])]
                text = with_articles(backend.vocabulary.decode(kept.tolist()))
                found[step][image] = " ".join(text)
        print(f"{start + len(images)} of {len(ids)}", flush=True)
    return found


def times(folder: str, count: int) -> dict[str, float]:
    """Median milliseconds of CPU time of a photograph by quality."""
    captioner, found = ngsan.load(threads=1), {quality: [] for quality in QUALITIES}
    sides = captioner.sides(BEST)
    for path in [*find_images([folder])][:count]:
        squares = dict(zip(sides, shared_service().squares(path, sides).squares, strict=True))
        for quality, spent in found.items():
            mine = [squares[side] for side in captioner.sides(quality)]
            start = time.process_time()
            captioner.caption_squares([mine], quality=quality)
            spent.append(1000 * (time.process_time() - start))
    return {quality: round(statistics.median(spent[3:]), 1) for quality, spent in found.items()}


def main() -> None:
    """Captions, scores and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--data")
    parser.add_argument("--boxes")
    parser.add_argument("--split", default="val")
    parser.add_argument("-o", "--output")
    parser.add_argument("--times", type=int)
    options = parser.parse_args()
    if options.times:
        print(json.dumps(times(options.folder, options.times)))
        return
    objects, pictures = read_object_names(options.boxes), PictureStore(options.folder)
    references = {
        record.id: tuple(record.captions)
        for record in read_captions(options.data)
        if record.split == options.split and record.id in objects and record.id in pictures
    }
    captions = caption(options.folder, list(references))
    metrics, _ = build_metrics(("BLEU", "METEOR", "ROUGE-L", "CIDEr"))
    metrics.append(Hallucination({image: objects[image] for image in references}))
    scores: dict[str, Scores] = {}
    rows: dict[str, Any] = {}
    for step, texts in captions.items():
        scores[step] = score_captions(TokenizedCaptions.tokenize(texts, references), metrics)
        rows[step] = row_of(scores[step], scores["fast"], texts, captions["fast"])
    content = {
        "split": options.split,
        "images": len(references),
        "rows": rows,
        "captions": captions,
    }
    write_text(Path(options.output), json.dumps(content, indent=1) + "\n")


def row_of(
    mine: Scores, alone: Scores, texts: Mapping[str, str], before: Mapping[str, str]
) -> dict[str, Any]:
    """The scores of a step, and their differences to the captioner alone with intervals."""
    row: dict[str, Any] = {name: round(mine.values[name], 2) for name in SHOWN}
    row["words"] = len({word for text in texts.values() for word in text.split()})
    row["changed"] = sum(texts[image] != before[image] for image in texts)
    if mine is not alone:
        row["differences"] = {
            name: [round(one.difference, 2), *(round(end, 2) for end in one.interval)]
            for name, one in compare(mine, alone).items()
            if name in SHOWN
        }
    print(json.dumps(row))
    return row


if __name__ == "__main__":
    main()
