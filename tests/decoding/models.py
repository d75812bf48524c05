"""Models without weights for the tests of searches: tables that all prefixes are looked up in."""

import numpy as np
import torch


class TableModel:
    """Logits that are a random function of the image and of all words so far.

    Nothing is shared between prefixes, so a search that mixes up two captions gives itself away.
    """

    def __init__(self, *, images=1, vocab_size=4, seed=0, scale=1.5, first=0):
        self.images, self.vocab_size = images, vocab_size
        self.device = torch.device("cpu")
        self.seed, self.scale, self.first = seed, scale, first
        self._known = {}

    def logits(self, image, prefix):
        """The logits after some words, the boundary at the beginning not among them."""
        key = (image + self.first, *prefix)
        if key not in self._known:
            random = np.random.default_rng((self.seed, len(key), *key))
            self._known[key] = (self.scale * random.standard_normal(self.vocab_size)).astype("f4")
        return self._known[key]

    def log_probs(self, image, prefix):
        """The log-probabilities after some words, in double precision."""
        logits = self.logits(image, prefix).astype(float)
        return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()

    def start(self, width, longest):
        self._prefixes = [[()] * width for _ in range(self.images)]
        self._steps, self._longest = 0, longest

    def step(self, words):
        assert self._steps < self._longest, "more steps than were asked for"
        self._steps += 1
        if self._steps > 1:  # the first word is the boundary
            self._prefixes = [
                [(*prefix, word) for prefix, word in zip(row, new, strict=True)]
                for row, new in zip(self._prefixes, words.tolist(), strict=True)
            ]
        table = [
            [self.logits(image, prefix) for prefix in row]
            for image, row in enumerate(self._prefixes)
        ]
        shape = (self.images, words.shape[1], self.vocab_size)
        return torch.from_numpy(np.array(table, dtype="f4").reshape(shape))

    def reorder(self, parents):
        self._prefixes = [
            [row[parent] for parent in order]
            for row, order in zip(self._prefixes, parents.tolist(), strict=True)
        ]


class PositionModel:
    """Logits that depend on the position alone, for many images at a time."""

    def __init__(self, logits, *, images=1):
        self.table = torch.as_tensor(logits)
        if self.table.ndim == 1:
            self.table = self.table.unsqueeze(0)
        self.images, self.vocab_size = images, self.table.shape[1]
        self.device = self.table.device

    def start(self, width, longest):
        self._position = 0

    def step(self, words):
        row = self.table[min(self._position, len(self.table) - 1)]
        self._position += 1
        return row.expand(*words.shape, -1).clone()

    def reorder(self, parents):
        pass
