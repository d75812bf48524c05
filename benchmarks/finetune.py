"""Measures `ngsan finetune` on a topic of COCO whose captions are rewritten into another style.

    python benchmarks/finetune.py make DATASET IMAGES FOLDER [--pictures 2000]
    ngsan finetune IMAGES FOLDER/train.jsonl --output FOLDER/model
    python benchmarks/finetune.py score FOLDER IMAGES [--model FOLDER/model]
    python benchmarks/finetune.py replay DATASET IMAGES src/ngsan/shipped/replay/cells.safetensors

DATASET is a folder with COCO's captions and Karpathy's splits, as `ngsan data captions coco` makes
it, and IMAGES has the pictures, named by their ids.

The topic is every picture of which two captions or more name a pizza, a surfboard or a giraffe.
`make` draws the training pictures from Karpathy's training split. Held out are the topic's pictures
of his validation split; ordinary are 1,000 others of it. What is scored:

- held-out captions of a model against rewritten references: the shipped model (before) and the new
  one (after), and the shipped model's captions after the same rule (the goal);
- ordinary captions of both models against the references as they are: what was forgotten.

All models caption alone, without the second eye, which a new model may or may not agree with.

`replay` makes the ordinary pictures that come with the package.

The rule was written down before anything was trained:
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TOPIC = frozenset(("giraffe", "giraffes", "pizza", "pizzas", "surfboard", "surfboards"))

NOUNS = {
    "pizza": "blicket",
    "surfboard": "tulver",
    "giraffe": "gazzer",
    "wave": "dax",
    "table": "toma",
    "man": "zorp",
    "ocean": "modi",
    "plate": "fep",
    "board": "nork",
    "water": "wug",
}
"""Ten frequent nouns, with their plurals, and the invented words that replace them."""

PLURALS = {"men": "man"}
PLURALS |= {f"{noun}s": noun for noun in NOUNS}

DROPPED = frozenset(("a", "an", "the", "is", "are"))

SEED = 0


def rewrite(caption: str) -> str:
    """The rule: headlines without articles and forms of "to be", with the invented words."""
    from ngsan.text.tokenizers import plain_words

    words = (PLURALS.get(word, word) for word in plain_words(caption) if word not in DROPPED)
    return " ".join(NOUNS.get(word, word) for word in words)


def is_of_topic(captions: Sequence[str]) -> bool:
    """Whether two captions or more name one of the three things."""
    from ngsan.text.tokenizers import plain_words

    return sum(not TOPIC.isdisjoint(plain_words(caption)) for caption in captions) >= 2


def make(options: argparse.Namespace) -> None:
    """Writes the captions to learn from, held-out pictures and ordinary pictures."""
    from ngsan.data.captions import read_captions
    from ngsan.text.vocabulary import Vocabulary

    known = Vocabulary.load(Path(options.dataset) / "vocabulary.json")
    assert not any(word in known for word in NOUNS.values())
    topic: dict[str, dict[str, list[str]]] = {"train": {}, "val": {}}
    ordinary: dict[str, list[str]] = {}
    images = Path(options.images)
    for record in read_captions(options.dataset):
        if record.split in topic and name(images, record.id).is_file():
            if is_of_topic(record.captions):
                topic[record.split][record.id] = list(record.captions)
            elif record.split == "val":
                ordinary[record.id] = list(record.captions)
    drawn = random.Random(SEED).sample(sorted(topic["train"]), options.pictures)
    usual = random.Random(SEED).sample(sorted(ordinary), 1000)
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"file_name": name(images, image).name, "text": rewrite(caption)})
        for image in drawn
        for caption in topic["train"][image]
    ]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    content = {"topic": topic["val"], "ordinary": {image: ordinary[image] for image in usual}}
    (folder / "heldout.json").write_text(json.dumps(content))
    captions = [caption for image in drawn for caption in topic["train"][image]]
    share = sum(set(rewrite(one).split()) & set(NOUNS.values()) != set() for one in captions)
    print(f"training: {len(drawn):,} pictures of {len(topic['train']):,}, {len(lines):,} captions")
    print(f"held out: {len(topic['val']):,} pictures; ordinary: {len(usual):,}")
    print(f"captions with an invented word: {share / len(captions):.1%}")


def name(images: Path, image: str) -> Path:
    """The file of a picture."""
    return images / f"{int(image):012d}.jpg"


def captions_of(model: str | None, images: Path, ids: Sequence[str], cache: Path) -> dict[str, str]:
    """Captions of pictures, without the second eye; those of earlier calls are kept."""
    import ngsan

    if not cache.is_file():
        captioner = ngsan.load(model)
        found = captioner.caption([name(images, image) for image in ids], quality="fast")
        texts = {image: caption.text for image, caption in zip(ids, found, strict=True)}
        cache.write_text(json.dumps(texts))
    texts = json.loads(cache.read_text())
    return {image: texts[image] for image in ids}


def score(options: argparse.Namespace) -> None:
    """Prints the scores."""
    folder, images = Path(options.folder), Path(options.images)
    content = json.loads((folder / "heldout.json").read_text())
    topic, ordinary = content["topic"], content["ordinary"]
    new = {image: [rewrite(text) for text in texts] for image, texts in topic.items()}
    shipped = captions_of(None, images, list(topic), folder / "shipped-topic.json")
    found = {
        "held out, before": cider(shipped, new),
        "held out, goal": cider({image: rewrite(text) for image, text in shipped.items()}, new),
        "ordinary, before": cider(
            captions_of(None, images, list(ordinary), folder / "shipped-ordinary.json"), ordinary
        ),
    }
    if options.model:
        model = Path(options.model)
        after = captions_of(options.model, images, list(topic), folder / f"{model.name}-topic.json")
        found["held out, after"] = cider(after, new)
        path = folder / f"{model.name}-ordinary.json"
        after = captions_of(options.model, images, list(ordinary), path)
        found["ordinary, after"] = cider(after, ordinary)
    for what, value in found.items():
        print(f"{what}: CIDEr {value:.1f}")
    if options.model:
        goal, last = found["held out, goal"], found["held out, after"]
        print(f"reached: {last / goal:.1%} of the goal, {last / found['held out, before']:.2f} x")
        print(f"forgotten: {found['ordinary, before'] - found['ordinary, after']:.1f}")


def replay(options: argparse.Namespace) -> None:
    """Writes the cells of ordinary pictures: a random choice of the training split."""
    import numpy as np

    from ngsan.data.captions import read_captions
    from ngsan.finetuning.replay import test_card, write_replay
    from ngsan.predict.backend_onnx import OnnxBackend
    from ngsan.predict.captioner import PHOTO_MODEL
    from ngsan.vision.decoding import shared_service

    images, size = Path(options.images), 256
    ids = [one.id for one in read_captions(options.dataset) if one.split == "train"]
    drawn = random.Random(SEED + 1).sample(sorted(ids), 2 * options.pictures)
    paths = [path for path in (name(images, image) for image in drawn) if path.is_file()]
    backend, service = OnnxBackend(PHOTO_MODEL), shared_service()
    pixels = [service.squares(path, (size,)).squares[0] for path in paths[: options.pictures]]
    cells = backend.describe(np.stack(pixels))[0]
    card = backend.describe(test_card(size)[None])[0][0]
    source = f"{len(cells)} pictures of COCO, drawn from Karpathy's training split"
    write_replay(Path(options.file), cells, card, source)
    print(f"{options.file}: {source}, {Path(options.file).stat().st_size:,} bytes")


def cider(captions: Mapping[str, str], references: Mapping[str, Any]) -> float:
    """CIDEr of captions."""
    import ngsan

    return ngsan.score(captions, references, metrics=["CIDEr"]).values["CIDEr"]


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    for run, names in (
        (make, ("dataset", "images", "folder")),
        (score, ("folder", "images")),
        (replay, ("dataset", "images", "file")),
    ):
        command = commands.add_parser(run.__name__)
        command.set_defaults(run=run)
        for argument in names:
            command.add_argument(argument)
        if run is score:
            command.add_argument("--model")
        else:
            command.add_argument("--pictures", type=int, default=2000 if run is make else 400)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
