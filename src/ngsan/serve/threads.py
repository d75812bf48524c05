"""Work that would keep the event loop waiting, in threads of its own."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """A few threads that do what they are given in its order.

    Note: Not `ThreadPoolExecutor`, for whose threads Python waits at its end: a picture that takes
        long must not keep a server from stopping.
    """

    def __init__(self, count: int, name: str) -> None:
        """Takes how many, and what they are called; they start with the first piece of work."""
        self._count, self._name = count, name
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._started = 0

    async def do(self, call: Callable[..., T], *arguments: Any) -> T:
        """The result of a call; if the task is cancelled before its turn, it is never made."""
        future: Future[T] = Future()
        if self._started < self._count:
            self._started += 1
            threading.Thread(target=self._loop, name=self._name, daemon=True).start()
        self._work.put((future, lambda: call(*arguments)))
        return await asyncio.wrap_future(future)

    def _loop(self) -> None:
        while True:
            future, call = self._work.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except Exception as error:  # whatever it is, it is for whoever waits
                future.set_exception(error)
            del future, call  # or what they hold would live until the next piece of work
