"""Threads, queues and limits: work of requests outside the event loop, and batches of photographs.

Shapes: `S` side of the square that photographs are resized to.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.types import Receive

from ngsan.app.errors import ApiError, ClientDisconnected
from ngsan.config import DecodingConfig
from ngsan.predict.captioner import Caption, Captioner

T = TypeVar("T")


class Capacity:
    """A limit on how much is held at a time, used by the tasks of one event loop."""

    def __init__(self, size: int) -> None:
        self.size, self.used = size, 0

    def has(self, count: int = 1) -> bool:
        """Whether `count` more fit."""
        return self.used + count <= self.size

    def take(self, count: int = 1) -> bool:
        """Reserves `count` if they fit; returns whether they did."""
        fits = self.has(count)
        self.used += count if fits else 0
        return fits

    def free(self, count: int = 1) -> None:
        """Releases `count`."""
        self.used -= count

    @contextmanager
    def reserved(self, count: int = 1) -> Iterator[None]:
        """Reserves `count` for a block.

        Raises:
            ApiError: They do not fit.
        """
        if not self.take(count):
            raise busy()
        try:
            yield
        finally:
            self.free(count)


def busy() -> ApiError:
    """The error of a server at full capacity."""
    return ApiError(429, "the server is busy; try again later")


async def run_unless_disconnected(
    work: Coroutine[Any, Any, T], receive: Receive, *, timeout: float
) -> T:
    """Awaits some work, which is cancelled if the client disconnects or the time is over.

    Args:
        work: To be awaited; the body of the request has been read.
        receive: Reports that the client is gone.
        timeout: Seconds for the work.

    Raises:
        ClientDisconnected: The client is gone.
        ApiError: It took too long.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientDisconnected
        raise ApiError(503, f"no answer within {timeout:g} seconds; try again later")
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, eq=False)
class Job:
    """A photograph that waits for its caption."""

    square: NDArray[np.uint8]
    """(S, S, 3)."""

    decoding: DecodingConfig
    attention: bool
    """Whether the caption carries the attention of its words."""

    number: int
    """Its index in its request; sampled words depend on it."""

    future: "asyncio.Future[Caption]"

    def fits(self, batch: Sequence["Job"]) -> bool:
        """Whether it can be appended to a batch."""
        first = batch[0]
        if (self.decoding, self.attention) != (first.decoding, first.attention):
            return False
        # Samples depend on the position in a batch, and must not depend on other requests.
        return self.decoding.method != "sample" or self.number == first.number + len(batch)


class Batcher:
    """Captions photographs of requests that arrive together in batches.

    While the model works on a batch the next one gathers, so nobody waits for a batch to fill.
    """

    def __init__(
        self,
        captioner: Captioner,
        *,
        size: int,
        workers: int = 1,
        on_batch: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Wraps a captioner; threads start with the first photographs.

        Args:
            captioner: Writes captions; several threads may call it.
            size: Largest number of photographs of a batch.
            workers: Threads: while one searches, the graphs of another run.
            on_batch: Called in a thread with the number of photographs of each batch.
        """
        self._captioner, self._size, self._on_batch = captioner, size, on_batch
        self._workers, self._threads, self._closed = workers, 0, False
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()

    async def caption(
        self, square: NDArray[np.uint8], *, decoding: DecodingConfig, attention: bool, number: int
    ) -> Caption:
        """The caption of a photograph; see `Job`. A task that is cancelled leaves the queue.

        Raises:
            ValueError: No caption meets the constraints of `decoding`.
        """
        future = asyncio.get_running_loop().create_future()
        job = Job(square, decoding, attention, number, future)
        with self._changed:
            if self._threads < self._workers:
                self._threads += 1
                # Daemons, so that a batch that takes long does not keep the process alive.
                threading.Thread(target=self._loop, name="captions", daemon=True).start()
            self._jobs.append(job)
            self._changed.notify()
        try:
            caption: Caption = await future
            return caption
        finally:
            if future.cancelled():
                with self._changed:
                    if job in self._jobs:
                        self._jobs.remove(job)

    def __len__(self) -> int:
        """Photographs in the queue, without those in the model."""
        return len(self._jobs)

    def close(self) -> None:
        """Ends the threads after their current batches."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if self._closed:
                    return
                batch = self._next_batch()
            self._run(batch)
            del batch  # or it would be held until the next one comes

    def _next_batch(self) -> list[Job]:
        """Removes the first job and those that fit to it from the queue."""
        batch = [self._jobs.popleft()]
        left: deque[Job] = deque()
        for job in self._jobs:
            (batch if len(batch) < self._size and job.fits(batch) else left).append(job)
        self._jobs = left
        return batch

    def _run(self, batch: list[Job]) -> None:
        first = batch[0]
        try:
            captions = self._captioner.caption_pixels(
                np.stack([job.square for job in batch]),
                attention=first.attention,
                first=first.number,
                **vars(first.decoding),
            )
        except Exception as error:  # the thread survives any error
            if len(batch) == 1:
                _settle(first, error)
                return
            for job in batch:  # so that only the one that fails gets the error
                self._run([job])
            return
        self._on_batch(len(batch))
        for job, found in zip(batch, captions, strict=True):
            _settle(job, found)


def _settle(job: Job, outcome: Caption | Exception) -> None:
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
