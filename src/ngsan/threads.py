"""How many threads suit a model, and threads for work in the background."""

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

SMALL_MODEL = 3_000_000
"""Parameters below which a second thread costs more time than it saves."""


def check_threads(threads: int) -> None:
    """Raises a `ValueError` unless a process may sensibly have this number of threads."""
    most = max(64, 4 * (os.cpu_count() or 1))
    if not 1 <= threads <= most:
        raise ValueError(f"threads: {threads} is not from 1 to {most}")


def limit_torch_threads(parameters: int) -> None:
    """Makes torch compute on one thread if the model is small; OMP_NUM_THREADS takes precedence.

    The setting holds for the whole process, so call it where training or a command starts.

    Args:
        parameters: The number of parameters of the largest model that the process runs.
    """
    if parameters < SMALL_MODEL and "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(1)


class WorkerThreads:
    """Threads that run calls in the order in which they were given.

    Note: Not `ThreadPoolExecutor`, whose threads Python waits for at exit: a picture that takes
        long must not keep a command or a server from stopping.
    """

    def __init__(self, count: int, name: str) -> None:
        """Threads start with the first call."""
        self._count, self._name, self._started = count, name, 0
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._calls = queue.SimpleQueue()

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Runs a call; it is skipped if its future is cancelled before its turn."""
        future: Future[T] = Future()
        if self._started < self._count:
            self._started += 1
            threading.Thread(target=self._loop, name=self._name, daemon=True).start()
        self._calls.put((future, lambda: call(*arguments)))
        return future

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """The result of a call, which is skipped if the task is cancelled before its turn."""
        import asyncio  # here, as it takes long and commands do not need it

        return await asyncio.wrap_future(self.submit(call, *arguments))

    def close(self) -> None:
        """Ends the threads after their current calls, without waiting; skips all others."""
        with suppress(queue.Empty):
            while given := self._calls.get_nowait():
                given[0].cancel()
        for _ in range(self._started):
            self._calls.put(None)

    def _loop(self) -> None:
        while given := self._calls.get():
            future, call = given
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except Exception as error:  # raised again where the result is awaited
                future.set_exception(error)
            del future, call, given  # or what they hold would live until the next call
