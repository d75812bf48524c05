"""What is in a dataset folder: counts, coverage, gaps. Reads captions as a stream, no torch."""

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
    """Counts what a dataset folder holds; parts that it does not have are None.

    Args:
        folder: The dataset folder; captions or features alone are enough.
        verify: Whether to read all features and compare them with their checksums.

    Returns:
        Plain values, ready for JSON:

        - `splits`: of each split `images` and `captions`;
        - `vocabulary`: the number of its words;
        - `vocabulary_facts`: `ids`, `signature`, and `coverage`, the share of each split's words
          that it knows;
        - `captions`: `words` in a caption: `fewest`, `mean`, `most` and `histogram`, which counts
          the captions of each length. Words are cut as for the vocabulary, else as PTB does;
        - `regions`: the number of regions of all images;
        - `region_facts`: `images`, `fewest`, `mean` and `most` regions an image, `feature_dim`,
          `boxes`, `signature`;
        - `missing`: captioned images without features, `count` and the `first`;
        - `orphaned`: images with features but no captions, likewise;
        - `problems`: sentences.
    """
    folder = Path(folder)
    problems: list[str] = []
    store = _open_store(folder, problems)
    vocabulary = _open_vocabulary(folder, problems)
    has_captions = (folder / CAPTIONS).exists()
    if store is None and not has_captions:
        raise ValueError(
            f"{folder} is no dataset folder: it holds neither {CAPTIONS} nor readable features. "
            + " ".join(problems)
        )
    counts = _Counts(vocabulary)
    if has_captions:
        try:
            for record in read_captions(folder):
                counts.add(record)
        except ValueError as error:
            problems.append(f"the captions were read up to a bad line only: {error}")
    if counts.caption_lengths[0]:
        problems.append(f"{counts.caption_lengths[0]} captions have no words")
    if store is not None and verify:
        damage = store.verify()
        problems += damage
        store = None if damage else store  # what is damaged tells nothing
    return {
        "splits": counts.splits(),
        "vocabulary": None if vocabulary is None else len(vocabulary.words),
        "vocabulary_facts": _about_vocabulary(vocabulary, counts),
        "captions": counts.lengths() if has_captions else None,
        "regions": None if store is None else int(store.counts().sum()),
        "region_facts": _about_regions(store),
        **_gaps(counts.ids if has_captions else None, store),
        "problems": problems,
    }


class _Counts:
    """What is counted while captions stream by."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self.known = frozenset(vocabulary.words if vocabulary else ()) - {UNKNOWN}
        self.tokenize = vocabulary.tokenize if vocabulary else ptb.tokenize
        self.ids: dict[str, None] = {}  # a set that keeps the order of the file
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


def _open_store(folder: Path, problems: list[str]) -> FeatureStore | None:
    """The feature store, or None; what is wrong with it becomes a problem."""
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
        vocabulary.tokenize("")  # it may be made with a tokenizer that is not known
    except (OSError, ValueError) as error:
        problems.append(str(error))
        return None
    return vocabulary


def _about_vocabulary(vocabulary: Vocabulary | None, counts: _Counts) -> dict[str, Any] | None:
    if vocabulary is None:
        return None
    return {
        "ids": len(vocabulary),
        "coverage": {
            split: counts.known_words[split] / counts.words[split]
            for split in SPLITS
            if counts.words[split]
        },
        "signature": vocabulary.signature,
    }


def _about_regions(store: FeatureStore | None) -> dict[str, Any] | None:
    if store is None:
        return None
    counts = Counter(store.counts().tolist())
    return {
        "images": len(store),
        **_range(counts),
        "feature_dim": store.feature_dim,
        "boxes": store.has_boxes,
        "signature": store.signature,
    }


def _gaps(captioned: dict[str, None] | None, store: FeatureStore | None) -> dict[str, Any]:
    """Images with captions or features alone, where there are both."""
    if captioned is None or store is None:
        return {"missing": None, "orphaned": None}
    return {
        "missing": _some(image for image in captioned if image not in store),
        "orphaned": _some(image for image in store.ids() if image not in captioned),
    }


def _range(counts: Counter[int]) -> dict[str, float | int | None]:
    """Fewest, mean and most of numbers that were counted; None of none."""
    present = [number for number, times in counts.items() if times]
    if not present:
        return {"fewest": None, "mean": None, "most": None}
    mean = sum(number * counts[number] for number in present) / counts.total()
    return {"fewest": min(present), "mean": mean, "most": max(present)}


def _some(ids: Iterable[str]) -> dict[str, Any]:
    """How many ids there are, and the first of them."""
    ids = iter(ids)
    first = list(islice(ids, _NAMED))
    return {"count": len(first) + sum(1 for _ in ids), "first": first}
