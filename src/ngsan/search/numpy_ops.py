"""The array operations of a search, in NumPy.

Everything else that a search does with its arrays is the same in NumPy and in torch: arithmetic,
comparisons, slices, writing through slices, `reshape`, `sum`, `any`, `all`, `clip` and `argmax`.
All operations work on the last axis unless they say otherwise.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""A NumPy array, or a tensor where the operations are torch's."""

_COMB = 64
"""Numbers of which only the largest is looked at to find out how large the best are."""

_LOWEST = np.finfo(np.float32).min
_TYPES: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float32}


class NumpyOps:
    """NumPy's. Looking at a value costs nothing here, so searches may take shortcuts."""

    steps_between_looks = 1
    """After how many steps a search checks whether all captions have ended."""

    where: Callable[..., Array] = staticmethod(np.where)
    exp: Callable[..., Array] = staticmethod(np.exp)
    logaddexp: Callable[..., Array] = staticmethod(np.logaddexp)
    cat: Callable[..., Array] = staticmethod(np.concatenate)
    stack: Callable[..., Array] = staticmethod(np.stack)
    arange: Callable[..., Array] = staticmethod(np.arange)

    def session(self) -> AbstractContextManager[Any]:
        """What a search runs in. NaN is reported at the end and gives no warnings before."""
        return np.errstate(all="ignore")

    def capture(self, work: Callable[[], None], warm_up: Callable[[], None]) -> None:
        """On a GPU, a `Captured` that does some work; else None."""
        return

    def maybe(self, condition: Array) -> bool:
        """Whether a condition holds anywhere. May return True without looking."""
        return bool(condition.any())

    def full(self, shape: Sequence[int], value: bool | int | float) -> Array:
        """An array of one value: booleans, 64-bit integers or 32-bit floats, as the value is."""
        return np.full(shape, value, _TYPES[type(value)])

    def array(self, values: Any, kind: type = int) -> Array:
        """An array of 64-bit integers, or of 32-bit floats, from any numbers."""
        return np.asarray(values, _TYPES[kind])

    def copy(self, array: Array) -> Array:
        """A copy that outlives the session."""
        return array.copy()

    def floats(self, integers: Array) -> Array:
        """Integers as 32-bit floats."""
        return integers.astype(np.float32)

    def log_softmax(self, logits: Array) -> Array:
        """Log-probabilities in float32, in an array that may be changed."""
        log_probs = np.subtract(logits, logits.max(-1, keepdims=True), dtype=np.float32)
        log_probs -= np.log(np.exp(log_probs).sum(-1, keepdims=True))
        return log_probs

    def cumsum(self, values: Array) -> Array:
        """Running sums, rounded to float32 only once, as torch does on a CPU."""
        return np.cumsum(values, -1, dtype=np.float64).astype(np.float32)

    def just_below(self, bound: Array) -> Array:
        """The next smaller float32 of each number above 0."""
        return np.nextafter(bound, np.float32(0))

    def largest(self, values: Array) -> Array:
        """The largest number."""
        return values.max(-1)

    def kth(self, values: Array, count: int) -> Array:
        """(..., 1) the `count`-th largest number."""
        place = values.shape[-1] - count
        return np.partition(values, place)[..., place, None]

    def sort(self, values: Array) -> Array:
        """The numbers, the largest first."""
        return -np.sort(-values)

    def top(self, values: Array, count: int) -> tuple[Array, Array]:
        """The `count` largest numbers, the largest first, and their places.

        Of equals the first comes first. The place of minus infinity may be any.
        """
        size = values.shape[-1]
        if size // _COMB < count:
            places = np.argsort(-values, kind="stable")[..., :count]
            return self.take(values, places), places
        found, places = _best_of(values.reshape(-1, size), count)
        shape = (*values.shape[:-1], count)
        return found.reshape(shape), places.reshape(shape)

    def falses_first(self, flags: Array, count: int) -> Array:
        """The places of the first `count` in an order that puts False before True."""
        return np.argsort(flags, kind="stable")[..., :count]

    def take(self, array: Array, places: Array) -> Array:
        """The values at places, (..., Q), of (..., X)."""
        return np.take_along_axis(array, places, -1)

    def rows(self, array: Array, rows: Array) -> Array:
        """(B, Q, T) the rows, (B, Q), of (B, R, T)."""
        return array[np.arange(len(rows))[:, None], rows]

    def at(self, array: Array, position: Array) -> Array:
        """The value at one position, which is a whole number without an axis."""
        return array[..., int(position)]

    def put(self, array: Array, position: Array, values: Array) -> None:
        """Writes values at one position, in place."""
        array[..., int(position)] = values

    def fill(self, array: Array, places: Array, value: float) -> None:
        """Writes one value at the places, (Q,), in place."""
        array[..., places] = value

    def fill_at(self, array: Array, places: Array, value: float) -> None:
        """Writes one value at places, (..., Q), of (..., X), in place."""
        np.put_along_axis(array, places, value, -1)

    def add_at(self, array: Array, places: Array, values: Array) -> None:
        """Adds values, (..., Q), at places, (..., Q), in place; places may repeat."""
        size, count = array.shape[-1], places.shape[-1]
        row = np.arange(places.size // max(count, 1))[:, None]
        np.add.at(
            array.reshape(-1, size),
            (row, places.reshape(-1, count)),
            values.reshape(-1, count).astype(array.dtype),
        )

    def blocks(self, values: Array, size: int) -> Array:
        """(..., blocks, size) the values cut into blocks; the last is filled with zeros."""
        count = values.shape[-1]
        padded = np.zeros((*values.shape[:-1], count + -count % size), np.float32)
        padded[..., :count] = values
        return padded.reshape(*values.shape[:-1], -1, size)


def _best_of(values: Array, count: int) -> tuple[Array, Array]:
    """The same as `NumpyOps.top` for few of many: (rows, X) to twice (rows, count)."""
    rows, size = values.shape
    places = np.zeros((rows, count), np.int64)
    best = np.full((rows, count), -math.inf, np.float32)
    flat = np.flatnonzero(values >= _lower_bound(values, count))
    found, row = values.reshape(-1)[flat], flat // size
    order = np.lexsort((-found, row))
    row = row[order]
    rank = np.arange(len(row)) - np.searchsorted(row, np.arange(rows))[row]
    kept = rank < count
    row, rank, order = row[kept], rank[kept], order[kept]
    places[row, rank], best[row, rank] = flat[order] % size, found[order]
    return best, places


def _lower_bound(values: Array, count: int) -> Array:
    """(rows, 1) a finite number that the `count` largest of a row reach, and few others.

    It is the largest number of some part of the row, of which `count` parts have none that is less.
    """
    parts = values.shape[1] // _COMB
    # Part p consists of every place that is p in steps of `parts`: long rows are compared at once.
    largest = values[:, : parts * _COMB].reshape(-1, _COMB, parts).max(1)
    bound = np.partition(largest, parts - count, axis=1)[:, parts - count, None]
    return np.maximum(bound, _LOWEST)
