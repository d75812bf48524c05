"""Photographs of requests that arrive together, captioned together.

While the model works on a batch the next one gathers, so nobody waits for a batch to fill.

Shapes: `S` side of the square that photographs are squashed to.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ngsan.config import DecodingConfig
from ngsan.light.photos import PhotoCaption, PhotoModel


@dataclass(frozen=True, eq=False)
class Job:
    """A photograph that waits for its caption."""

    square: NDArray[np.uint8]
    """(S, S, 3)."""

    decoding: DecodingConfig
    """How the caption is to be written."""

    attention: bool
    """Whether it is to carry the attention of its words."""

    number: int
    """Its place among the photographs of its request, of which sampled words depend."""

    future: "asyncio.Future[PhotoCaption]"
    """Where the caption goes."""

    def goes_with(self, batch: Sequence["Job"]) -> bool:
        """Whether it can be captioned together with others, and after them."""
        first = batch[0]
        if (self.decoding, self.attention) != (first.decoding, first.attention):
            return False
        # A batch counts on from its first number, and nobody's samples may depend on who else asks.
        return self.decoding.method != "sample" or self.number == first.number + len(batch)


class Batcher:
    """A queue and the threads that work it off."""

    def __init__(
        self,
        model: PhotoModel,
        *,
        size: int,
        workers: int = 1,
        tell: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Takes the model.

        Args:
            model: What writes captions; several threads may call it.
            size: Photographs to give it at a time.
            workers: Threads that do so: while one searches, another one's graphs run.
            tell: Called with the number of photographs of each batch, in a thread.
        """
        self._model, self._size, self._tell = model, size, tell
        self._workers = workers
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._closed = False

    async def caption(
        self, square: NDArray[np.uint8], *, decoding: DecodingConfig, attention: bool, number: int
    ) -> PhotoCaption:
        """The caption of a photograph; a task that is cancelled leaves the queue.

        Args:
            square: (S, S, 3).
            decoding: How.
            attention: Whether it carries the attention of its words.
            number: Its place among the photographs of its request.

        Raises:
            ValueError: There is no caption that meets the conditions of `decoding`.
        """
        future = asyncio.get_running_loop().create_future()
        job = Job(square, decoding, attention, number, future)
        with self._changed:
            if self._threads < self._workers:
                self._threads += 1
                # Daemons, so that a batch that takes long keeps nothing from stopping.
                threading.Thread(target=self._loop, name="captions", daemon=True).start()
            self._jobs.append(job)
            self._changed.notify()
        try:
            caption: PhotoCaption = await future
            return caption
        finally:
            if future.cancelled():
                with self._changed:
                    if job in self._jobs:
                        self._jobs.remove(job)

    def __len__(self) -> int:
        """Photographs that wait; those in the model do not count."""
        return len(self._jobs)

    def close(self) -> None:
        """Ends the threads after the batches they are at."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if self._closed:
                    return
                batch = self._take()
            self._work(batch)
            del batch  # or it would be held until the next one comes

    def _take(self) -> list[Job]:
        """The first that waits and those that go with it, taken out of the queue."""
        batch = [self._jobs.popleft()]
        left: deque[Job] = deque()
        for job in self._jobs:
            if len(batch) < self._size and job.goes_with(batch):
                batch.append(job)
            else:
                left.append(job)
        self._jobs = left
        return batch

    def _work(self, batch: list[Job]) -> None:
        try:
            captions = self._model.caption(
                np.stack([job.square for job in batch]),
                decoding=batch[0].decoding,
                attention=batch[0].attention,
                first=batch[0].number,
            )
        except Exception as error:  # the thread goes on whatever happens
            if len(batch) == 1:
                _settle(batch[0], error)
                return
            for job in batch:  # so that it strikes only whose it is
                self._work([job])
            return
        self._tell(len(batch))
        for job, found in zip(batch, captions, strict=True):
            _settle(job, PhotoCaption.of(found))


def _settle(job: Job, outcome: PhotoCaption | Exception) -> None:
    """Hands a caption or an error to the task that waits for it."""

    def settle() -> None:
        if job.future.done():  # it was cancelled meanwhile
            return
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)

    loop = job.future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)
