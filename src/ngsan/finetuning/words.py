"""New words: which ones captions have, and their rows in a model.

Shapes: `T` words of a caption, `V` vocabulary, `D` model width.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ngsan.data.dataset import CaptionDataset
from ngsan.models.captioner import CaptionerModel
from ngsan.models.decoder import WordDecoder
from ngsan.text.vocabulary import BOUNDARY, UNKNOWN, Vocabulary

MIN_CAPTIONS = 3
"""A new word is learned if at least this many captions have it,"""

MIN_PICTURES = 2
"""of at least this many pictures: a word of one picture cannot be told from the picture."""

_OCCURRENCES = 32
"""Occurrences of a new word that its row is made from."""

_NEIGHBOURS = 20
"""Known words whose rows are mixed."""

_BATCH = 16

_NOISE = 0.05
"""Random part of a new row, as a share of its length."""


@dataclass(frozen=True)
class WordReport:
    """The words of captions compared with a vocabulary."""

    new: tuple[tuple[str, int], ...]
    """Words that will be learned, and how many captions have each, the most frequent first."""

    rare: tuple[tuple[str, int], ...]
    """Other words that the vocabulary does not have: too rare to be learned."""

    unknown_share: float
    """Share of all words that the vocabulary does not have."""


def report_words(captions: Mapping[str, Sequence[str]], vocabulary: Vocabulary) -> WordReport:
    """Finds the new words of captions.

    Args:
        captions: Of each picture, by its id.
        vocabulary: The words of the model.
    """
    counts: Counter[str] = Counter()
    pictures: defaultdict[str, set[str]] = defaultdict(set)
    total = unknown = 0
    for picture, texts in captions.items():
        for text in texts:
            words = vocabulary.tokenize(text)
            outside = [word for word in words if word not in vocabulary]
            total, unknown = total + len(words), unknown + len(outside)
            for word in set(outside):
                counts[word] += 1
                pictures[word].add(picture)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    frequent = {
        word
        for word, count in ordered
        if count >= MIN_CAPTIONS and len(pictures[word]) >= MIN_PICTURES and word != UNKNOWN
    }
    return WordReport(
        tuple(item for item in ordered if item[0] in frequent),
        tuple(item for item in ordered if item[0] not in frequent),
        unknown / max(1, total),
    )


@torch.no_grad()
def add_words(
    model: CaptionerModel, top: CaptionerModel, data: CaptionDataset, known: int, *, seed: int = 0
) -> None:
    """Adds rows for new words to the embedding and the output of a model, in place.

    A new word begins as a mixture of the words that the model itself would have written in its
    place, given the picture and the caption so far. So "Bella" begins near "dog".

    Args:
        model: The model.
        top: The part of it that reads the data.
        data: The training captions, whose vocabulary has the new words behind the known ones.
        known: V of the model: the ids of new words begin there.
        seed: Seed of the random part of the rows.
    """
    decoder = model.decoder
    assert isinstance(decoder, WordDecoder)
    assert decoder.output is not None
    count = len(data.vocabulary) - known
    if not count:
        return
    shares = _neighbours(top, data, known)  # (count, V)
    generator = torch.Generator().manual_seed(seed)
    vectors = _mixed(decoder.embed.weight, shares, generator)
    rows = _mixed(decoder.output.weight, shares, generator)
    biases = shares @ decoder.output.bias
    embed = nn.Embedding(known + count, vectors.shape[1])
    embed.weight.copy_(torch.cat((decoder.embed.weight, vectors)))
    output = nn.Linear(vectors.shape[1], known + count)
    output.weight.copy_(torch.cat((decoder.output.weight, rows)))
    output.bias.copy_(torch.cat((decoder.output.bias, biases)))
    # The decoder of `top` is the same object.
    decoder.embed, decoder.output = embed, output


def _mixed(rows: Tensor, shares: Tensor, generator: torch.Generator) -> Tensor:
    """(count, D) mixtures of rows, a little apart from each other."""
    mixed: Tensor = shares @ rows
    noise = torch.randn(mixed.shape, generator=generator) / mixed.shape[1] ** 0.5
    lengths = mixed.square().sum(1, keepdim=True).sqrt()
    moved: Tensor = mixed + _NOISE * lengths * noise
    return moved


def _neighbours(top: CaptionerModel, data: CaptionDataset, known: int) -> Tensor:
    """(count, V) the words that the model would have written in place of each new one."""
    count = len(data.vocabulary) - known
    unknown = data.vocabulary.encode([UNKNOWN])[0]
    unknown = unknown if unknown < known else BOUNDARY  # a model may have none
    sums = torch.zeros(count, known)
    seen = np.zeros(count, np.int64)
    for images in _batches(data, known):
        batch = data.batch(images)
        is_new = (batch.targets >= known) & batch.target_mask
        words = torch.where(batch.words >= known, unknown, batch.words)
        logits = top(batch.features, None, None, words)  # (B, C, T, V)
        logits[..., [BOUNDARY, unknown]] = -torch.inf
        chances = logits[is_new].softmax(-1)
        for word, chance in zip(batch.targets[is_new].tolist(), chances, strict=True):
            if seen[word - known] < _OCCURRENCES:
                sums[word - known] += chance
                seen[word - known] += 1
    values, places = sums.topk(min(_NEIGHBOURS, known), dim=1)
    best: Tensor = torch.zeros_like(sums).scatter(1, places, values)
    total: Tensor = best.sum(1, keepdim=True)
    return best / total.clamp(min=1e-9)


def _batches(data: CaptionDataset, known: int) -> Iterable[list[int]]:
    """Images with new words, as few as show each word often enough, in batches."""
    left = np.full(len(data.vocabulary) - known, _OCCURRENCES)
    chosen: list[int] = []
    offsets, tokens = data.tokens.offsets.numpy(), data.tokens.tokens.numpy()
    for image in range(len(data)):
        first, last = data.rows.offsets[image], data.rows.offsets[image + 1]
        words = tokens[offsets[first] : offsets[last]]
        new = words[words >= known] - known
        if (left[new] > 0).any():
            chosen.append(image)
            np.subtract.at(left, new, 1)
        if len(chosen) == _BATCH:
            yield chosen
            chosen = []
    if chosen:
        yield chosen
