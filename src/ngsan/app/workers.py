"""Threads and queues: work of requests outside the event loop, and batches of photographs.

Shapes: `S` side of the square that photographs are resized to.
"""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.types import Receive

from ngsan.app.clients import CLIENT, Ledger
from ngsan.app.errors import ApiError, ClientDisconnected
from ngsan.app.options import open_captions
from ngsan.config import DecodingConfig
from ngsan.predict.captioner import Caption, Captioner

T = TypeVar("T")

_PATIENCE = 0.1
"""Seconds between looks at whether the pause of a heavy client is over."""

_ROWS = 4
"""Captions that the search of a batch follows, as a multiple of its size."""


class FairThreads:
    """Threads that clients share: the next call is that of the client that has used least."""

    def __init__(self, count: int, name: str, ledger: Ledger, *, share: int | None = None) -> None:
        """Threads start with the first calls.

        Args:
            count: Their number.
            name: Of the threads.
            ledger: Orders the clients.
            share: Largest number of threads of one client; None for all.
        """
        self._count, self._name, self._share = count, name, share or count
        self._ledger, self._changed, self._started = ledger, ledger.changed, 0
        self._waiting: dict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = {}
        self._running: Counter[str] = Counter()

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """The result of a call, which is skipped if the task is cancelled before its turn."""
        future: Future[T] = Future()
        with self._changed:
            calls = self._waiting.setdefault(CLIENT.get(), deque())
            calls.append((future, lambda: call(*arguments)))
            if self._started < self._count:
                self._started += 1
                threading.Thread(target=self._loop, name=self._name, daemon=True).start()
            self._changed.notify_all()
        return await asyncio.wrap_future(future)

    def _loop(self) -> None:
        while True:
            with self._changed:
                while (client := self._next_client()) is None:
                    self._changed.wait(_PATIENCE if self._waiting else None)
                future, call = self._waiting[client].popleft()
                if not self._waiting[client]:
                    del self._waiting[client]
                if not future.set_running_or_notify_cancel():
                    continue
                self._running[client] += 1
                self._ledger.begin(client)
            start = time.monotonic()
            try:
                future.set_result(call())
            except Exception as error:  # raised again where the result is awaited
                future.set_exception(error)
            del future, call  # or what they hold would live until the next call
            with self._changed:
                self._running[client] -= 1
                self._ledger.end(client, time.monotonic() - start)

    def _next_client(self) -> str | None:
        return min(
            (
                client
                for client in self._waiting
                if self._running[client] < self._share and self._ledger.may_begin(client)
            ),
            key=lambda client: (self._running[client], self._ledger.spent(client)),
            default=None,
        )


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

    squares: tuple[NDArray[np.uint8], ...]
    """(S, S, 3) with the sides that `Captioner.sides` names."""

    quality: str | None
    """See `ngsan.predict.quality`."""
    decoding: DecodingConfig
    attention: bool
    """Whether the caption carries the attention of its words."""

    number: int
    """Its index in its request; sampled words depend on it."""

    client: str
    future: "asyncio.Future[Caption]"

    def fits(self, batch: Sequence["Job"]) -> bool:
        """Whether it can be appended to a batch."""
        first = batch[0]
        mine = self.quality, self.decoding, self.attention
        if mine != (first.quality, first.decoding, first.attention):
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
        ledger: Ledger,
        size: int,
        workers: int = 1,
        on_batch: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Wraps a captioner; threads start with the first photographs.

        Args:
            captioner: Writes captions; several threads may call it.
            ledger: Orders the clients.
            size: Largest number of photographs of a batch.
            workers: Threads: while one searches, the graphs of another run.
            on_batch: Called in a thread with the number of photographs of each batch.
        """
        self._captioner, self._size, self._on_batch = captioner, size, on_batch
        self._workers, self._threads, self._closed = workers, 0, False
        self._jobs: list[Job] = []
        self._ledger, self._changed = ledger, ledger.changed
        self._running: Counter[str] = Counter()

    async def caption(
        self,
        squares: tuple[NDArray[np.uint8], ...],
        *,
        quality: str | None,
        decoding: DecodingConfig,
        attention: bool,
        number: int,
    ) -> Caption:
        """The caption of a photograph; see `Job`. A task that is cancelled leaves the queue.

        Raises:
            ValueError: No caption meets the constraints of `decoding`.
        """
        future = asyncio.get_running_loop().create_future()
        job = Job(squares, quality, decoding, attention, number, CLIENT.get(), future)
        with self._changed:
            if self._threads < self._workers:
                self._threads += 1
                # Daemons, so that a batch that takes long does not keep the process alive.
                threading.Thread(target=self._loop, name="captions", daemon=True).start()
            self._jobs.append(job)
            self._changed.notify_all()
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
                while not (batch := self._next_batch()):
                    if self._closed:
                        return
                    self._changed.wait(_PATIENCE if self._jobs else None)
                clients = {job.client for job in batch}
                self._running.update(clients)
                for client in clients:
                    self._ledger.begin(client)
            start, count = time.monotonic(), len(batch)
            parts = Counter(job.client for job in batch)
            self._run(batch)
            del batch  # or it would be held until the next one comes
            with self._changed:
                self._running.subtract(clients)
                seconds = (time.monotonic() - start) / count
                for client in clients:
                    self._ledger.end(client, seconds * parts[client])

    def _next_batch(self) -> list[Job]:
        """Removes a job and those that fit to it from the queue; none if none may begin.

        A heavy client has no part in batches of others, and its own are of one photograph.
        """
        clients = {job.client for job in self._jobs}
        heavy = {client for client in clients if self._ledger.is_heavy(client)}
        # Once for each client, as what was used fades between two looks at it.
        order = {
            client: (self._running[client], self._ledger.spent(client))
            for client in clients
            if self._may_begin(client)
        }
        if not order or self._closed:
            return []
        turn = min(order, key=order.__getitem__)
        first = next(job for job in self._jobs if job.client == turn)
        batch, size = [first], 1 if first.client in heavy else self._size
        rows = open_captions(first.decoding)
        for job in self._jobs:
            if job is first or job.client in heavy or len(batch) >= size:
                continue
            if job.fits(batch) and rows + open_captions(job.decoding) <= _ROWS * self._size:
                batch.append(job)
                rows += open_captions(job.decoding)
        self._jobs = [job for job in self._jobs if job not in batch]
        return batch

    def _may_begin(self, client: str) -> bool:
        """Whether a client may have one more batch; one worker is for others, if there are any."""
        alone = self._ledger.is_alone(client)
        share = self._workers if alone else max(1, self._workers - 1)
        return self._running[client] < share and self._ledger.may_begin(client)

    def _run(self, batch: list[Job]) -> None:
        first = batch[0]
        try:
            captions = self._captioner.caption_squares(
                [job.squares for job in batch],
                quality=first.quality,
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
