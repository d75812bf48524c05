"""Work for a client that may hang up, and that has to end in time."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from ngsan.serve.refusals import ClientGoneError, Refusal

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T], receive: Receive, *, seconds: float) -> T:
    """Does some work unless the client hangs up or the time is over; it is then cancelled.

    Args:
        work: What to do; the body of the request has been read.
        receive: What tells that the client is gone.
        seconds: Time for it.

    Raises:
        ClientGoneError: Nobody waits for it any more.
        Refusal: It took too long.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_hung_up(receive))
    try:
        await asyncio.wait((task, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientGoneError
        raise Refusal(503, f"there was no answer within {seconds:g} seconds; try again")
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
