"""Models without weights for search tests: tables of logits by prefix."""

import numpy as np
import torch

BACKEND = "torch"
"""The default backend; `conftest.py` runs every test with both."""


class Model:
    """Base class: converts logits to the arrays of the backend."""

    def __init__(self, images, vocab_size, backend):
        self.backend = backend or BACKEND
        self.images, self.vocab_size = images, vocab_size
        self.device = torch.device("cpu") if self.backend == "torch" else None

    def convert(self, logits):
        """Converts NumPy logits to an array of the backend."""
        return torch.from_numpy(logits) if self.backend == "torch" else logits


class TableModel(Model):
    """Logits that are a random function of the image and all words so far.

    Prefixes share nothing, so a search that mixes up two captions fails its test.
    """

    def __init__(self, *, images=1, vocab_size=4, seed=0, scale=1.5, first=0, backend=None):
        super().__init__(images, vocab_size, backend)
        self.seed, self.scale, self.first = seed, scale, first
        self._known = {}

    def logits(self, image, prefix):
        """The logits after a prefix, given without the boundary at its start."""
        key = (image + self.first, *prefix)
        if key not in self._known:
            random = np.random.default_rng((self.seed, len(key), *key))
            self._known[key] = (self.scale * random.standard_normal(self.vocab_size)).astype("f4")
        return self._known[key]

    def log_probs(self, image, prefix):
        """The log-probabilities after a prefix, in double precision."""
        logits = self.logits(image, prefix).astype(float)
        return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()

    def start(self, rows, max_length):
        self._prefixes = [[()] * rows for _ in range(self.images)]
        self._steps, self._max_length = 0, max_length

    def step(self, words, parents=None):
        assert self._steps < self._max_length, "more steps than max_length"
        self._steps += 1
        if self._steps > 1:  # the first word is the boundary
            kept = self._prefixes
            if parents is not None:
                pairs = zip(kept, parents.tolist(), strict=True)
                kept = [[row[parent] for parent in order] for row, order in pairs]
            self._prefixes = [
                [(*prefix, word) for prefix, word in zip(row, new, strict=True)]
                for row, new in zip(kept, words.tolist(), strict=True)
            ]
        table = [
            [self.logits(image, prefix) for prefix in row]
            for image, row in enumerate(self._prefixes)
        ]
        shape = (self.images, words.shape[1], self.vocab_size)
        return self.convert(np.array(table, dtype="f4").reshape(shape))


class PositionModel(Model):
    """Logits that depend only on the position, for many images at a time."""

    def __init__(self, logits, *, images=1, backend=None):
        self.table = np.atleast_2d(np.asarray(logits))
        if self.table.dtype == np.float64:
            self.table = self.table.astype("f4")
        super().__init__(images, self.table.shape[1], backend)

    def start(self, rows, max_length):
        self._position = 0

    def step(self, words, parents=None):
        row = self.table[min(self._position, len(self.table) - 1)]
        self._position += 1
        return self.convert(np.broadcast_to(row, (*words.shape, len(row))).copy())
