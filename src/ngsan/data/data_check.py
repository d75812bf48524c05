"""Compares features with their checksums while they are used.

A large store is read in the background. Until that has ended, training saves no state and keeps no
model, and an evaluation writes nothing; so nothing comes from damaged features.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from threading import Event

from ngsan.data.store import FeatureStore

_AT_ONCE = 256 << 20
"""Bytes that are read before anything else, in a second or less."""

_SOUND: set[tuple[object, ...]] = set()
"""Stamps of the stores that this process has read without finding damage."""


class DataCheck:
    """The check of some stores, in a thread of its own."""

    def __init__(self, stores: Iterable[FeatureStore]) -> None:
        """Starts the check.

        Raises:
            ValueError: A file of a small store is damaged or missing; names it.
        """
        chosen = list({store.folder.resolve(): store for store in stores}.values())
        self._stop, self._thread = Event(), ThreadPoolExecutor(1)
        self._reading: Future[None] = self._thread.submit(self._read, chosen)
        if sum(store.bytes for store in chosen) <= _AT_ONCE:
            self.wait()

    def _read(self, stores: Iterable[FeatureStore]) -> None:
        for store in stores:
            stamp = store.stamp()
            for problem in store.check_files():
                if problem:
                    raise ValueError(problem)
                if self._stop.is_set():
                    return
            _SOUND.add(stamp)

    def is_done(self) -> bool:
        """Whether all files have been read; a `ValueError` that names a damaged one."""
        if not self._reading.done():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Waits for the end of the check; a `ValueError` that names a damaged file."""
        try:
            self._reading.result()
        except ValueError:
            self.close()
            raise

    def close(self) -> None:
        """Ends the check early, if it has not ended."""
        self._stop.set()
        self._thread.shutdown()


@contextmanager
def checked_features(*data: object) -> Iterator[None]:
    """Checks the feature stores among `data` during a block; its end raises a `ValueError`.

    A store that this process has read before is not read again unless its files were written to.
    """
    stores = [one for one in data if isinstance(one, FeatureStore)]
    with closing(DataCheck(one for one in stores if one.stamp() not in _SOUND)) as check:
        yield
        check.wait()
