"""How much may be held at a time."""

from collections.abc import Iterator
from contextlib import contextmanager


class Room:
    """A number of places, taken and given back by the tasks of one event loop."""

    def __init__(self, size: int) -> None:
        """Takes the number of places."""
        self.size, self.taken = size, 0

    def has(self, count: int = 1) -> bool:
        """Whether so many more are free."""
        return self.taken + count <= self.size

    def take(self, count: int = 1) -> bool:
        """Takes places if they are free, and tells whether they were."""
        free = self.has(count)
        self.taken += count if free else 0
        return free

    def free(self, count: int = 1) -> None:
        """Gives places back."""
        self.taken -= count

    @contextmanager
    def held(self, count: int = 1) -> Iterator[bool]:
        """Takes places for a block; tells whether they were free."""
        taken = self.take(count)
        try:
            yield taken
        finally:
            self.free(count if taken else 0)
