"""Parallel text: files of sentences and their translations, as flat arrays of word pieces."""

from ngsan.data.parallel.batch import PairTable, TranslationBatch
from ngsan.data.parallel.batches import Share, TokenBatches
from ngsan.data.parallel.dataset import INDEX, ParallelSplit
from ngsan.data.parallel.prepare import Split, prepare

__all__ = [
    "INDEX",
    "PairTable",
    "ParallelSplit",
    "Share",
    "Split",
    "TokenBatches",
    "TranslationBatch",
    "prepare",
]
