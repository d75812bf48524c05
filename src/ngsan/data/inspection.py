"""Counts what is in a dataset folder. Reads captions as a stream, without torch."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from ngsan.data.captions import CAPTIONS, SPLITS, VOCABULARY, ImageCaptions, read_captions
from ngsan.data.shards import PARTIAL, STORE
from ngsan.data.store import FeatureStore
from ngsan.text import ptb
from ngsan.text.vocabulary import UNKNOWN, Vocabulary

_NAMED = 10


def inspect(folder: str | Path, *, verify: bool = False) -> dict[str, Any]:
    """Counts what a dataset folder holds; missing parts are None.

    Args:
        folder: The dataset folder; captions or features alone are enough.
        verify: Whether to read all features and compare them with their checksums.

    Returns:
        Plain values, ready for JSON:

        - `splits`: `images` and `captions` of each split;
        - `vocabulary`: the number of its words;
        - `vocabulary_facts`: `ids`, `signature`, and `coverage`, the share of each split's words
          that it has;
        - `captions`: `words` per caption: `min`, `mean`, `max` and `histogram`, the number of
          captions of each length. Words are those of the vocabulary's tokenizer, or PTB's;
        - `regions`: the number of regions of all images;
        - `region_facts`: `images`, `min`, `mean` and `max` regions per image, `feature_dim`,
          `boxes`, `signature`;
        - `missing`: captioned images without features, `count` and the `first`;
        - `orphaned`: images with features but no captions, in the same form;
        - `problems`: sentences.
    """
    folder = Path(folder)
    problems: list[str] = []
    store = _open_store(folder, problems)
    vocabulary = _open_vocabulary(folder, problems)
    has_captions = (folder / CAPTIONS).exists()
    if store is None and not has_captions:
        raise ValueError(
            f"{folder} is not a dataset folder: it holds neither {CAPTIONS} nor readable features. "
            + " ".join(problems)
        )
    counts = _Counts(vocabulary)
    if has_captions:
        try:
            for record in read_captions(folder):
                counts.add(record)
        except ValueError as error:
            problems.append(f"the captions were read only up to a bad line: {error}")
    if counts.caption_lengths[0]:
        problems.append(f"{counts.caption_lengths[0]} captions have no words")
    if store is not None and verify:
        damage = store.verify()
        problems += damage
        store = None if damage else store
    captioned = counts.ids if has_captions else None
    try:
        gaps = _gaps(captioned, store)
    except ValueError as error:
        problems.append(str(error))
        gaps = _gaps(captioned, None)
    return {
        "splits": counts.splits(),
        "vocabulary": None if vocabulary is None else len(vocabulary.words),
        "vocabulary_facts": None if vocabulary is None else counts.about(vocabulary),
        "captions": counts.lengths() if has_captions else None,
        "regions": None if store is None else int(store.counts().sum()),
        "region_facts": None if store is None else _about_regions(store),
        **gaps,
        "problems": problems,
    }


class _Counts:
    """Counts captions as they are read."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self.known = frozenset(vocabulary.words if vocabulary else ()) - {UNKNOWN}
        self.tokenize = vocabulary.tokenize if vocabulary else ptb.tokenize
        self.ids: dict[str, None] = {}  # a set in the order of the file
        self.images: Counter[str] = Counter()
        self.captions: Counter[str] = Counter()
        self.words: Counter[str] = Counter()
        self.known_words: Counter[str] = Counter()
        self.caption_lengths: Counter[int] = Counter()

    def add(self, record: ImageCaptions) -> None:
        self.ids[record.id] = None
        self.images[record.split] += 1
        self.captions[record.split] += len(record.captions)
        for caption in record.captions:
            words = self.tokenize(caption)
            self.caption_lengths[len(words)] += 1
            self.words[record.split] += len(words)
            self.known_words[record.split] += sum(word in self.known for word in words)

    def splits(self) -> dict[str, dict[str, int]]:
        return {
            split: {"images": self.images[split], "captions": self.captions[split]}
            for split in SPLITS
            if split in self.images
        }

    def lengths(self) -> dict[str, Any]:
        lengths = self.caption_lengths
        histogram = {str(length): lengths[length] for length in sorted(lengths)}
        return {"words": {**_range(lengths), "histogram": histogram}}

    def about(self, vocabulary: Vocabulary) -> dict[str, Any]:
        coverage = {
            split: self.known_words[split] / self.words[split]
            for split in SPLITS
            if self.words[split]
        }
        return {"ids": len(vocabulary), "coverage": coverage, "signature": vocabulary.signature}


def _open_store(folder: Path, problems: list[str]) -> FeatureStore | None:
    if not (folder / STORE).exists() and not (folder / PARTIAL).exists():
        return None
    try:
        return FeatureStore(folder)
    except (OSError, ValueError) as error:
        problems.append(str(error))
        return None


def _open_vocabulary(folder: Path, problems: list[str]) -> Vocabulary | None:
    if not (folder / VOCABULARY).exists():
        return None
    try:
        vocabulary = Vocabulary.load(folder / VOCABULARY)
        vocabulary.tokenize("")  # its tokenizer may be unknown
    except (OSError, ValueError) as error:
        problems.append(str(error))
        return None
    return vocabulary


def _about_regions(store: FeatureStore) -> dict[str, Any]:
    return {
        "images": len(store),
        **_range(Counter(store.counts().tolist())),
        "feature_dim": store.feature_dim,
        "boxes": store.has_boxes,
        "signature": store.signature,
    }


def _gaps(captioned: dict[str, None] | None, store: FeatureStore | None) -> dict[str, Any]:
    """Images with captions or features alone, if the folder has both."""
    if captioned is None or store is None:
        return {"missing": None, "orphaned": None}
    return {
        "missing": _some(image for image in captioned if image not in store),
        "orphaned": _some(image for image in store.ids() if image not in captioned),
    }


def _range(counts: Counter[int]) -> dict[str, float | int | None]:
    present = [number for number, times in counts.items() if times]
    if not present:
        return {"min": None, "mean": None, "max": None}
    mean = sum(number * counts[number] for number in present) / counts.total()
    return {"min": min(present), "mean": mean, "max": max(present)}


def _some(ids: Iterable[str]) -> dict[str, Any]:
    """The number of ids, and the first of them."""
    ids = iter(ids)
    first = list(islice(ids, _NAMED))
    return {"count": len(first) + sum(1 for _ in ids), "first": first}
