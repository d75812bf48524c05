"""Search over captions."""

from ngsan.decoding.greedy import greedy

__all__ = ["greedy"]
