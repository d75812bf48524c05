"""The outermost layer: what a client may send and how slowly, and what becomes of every request.

It keeps the limits on bytes and time before anything is parsed, turns whatever goes wrong into a
sentence, counts, and writes one line a request: route, status and time, nothing that was sent.
"""

import asyncio
import logging
import time
import traceback
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ngsan.serve.limits import Room
from ngsan.serve.meters import Meters
from ngsan.serve.refusals import ClientGoneError, Refusal, problem
from ngsan.serve.security import add_headers
from ngsan.serve.settings import ServeSettings

LOG = logging.getLogger("ngsan.serve")

_LARGE = ("/v1/caption", "/v1/explain")
"""Addresses that take photographs."""

_ALWAYS = ("/healthz", "/metrics")
"""Addresses that answer while the server stops."""

_LINGER_SECONDS = 2.0
_GONE = 499


@dataclass
class Presence:
    """Whether the server is stopping, and how many requests are not answered yet."""

    draining: bool = False
    """Whether it was told to stop."""

    open: int = 0
    """Requests that are not answered."""


class Front:
    """The layer around the application."""

    def __init__(
        self, app: ASGIApp, settings: ServeSettings, meters: Meters, presence: Presence
    ) -> None:
        """Takes what lies within, and what is shared with it."""
        self._app, self._settings = app, settings
        self._meters, self._presence = meters, presence
        self._held = Room(settings.most_held_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        body = _Body(scope, receive, self._settings, self._held)
        reply = _Reply(send, body, self._presence)
        self._presence.open += 1
        self._meters.open.inc()
        try:
            await self._answer(scope, body, reply)
        finally:
            self._presence.open -= 1
            self._meters.open.dec()
            self._held.free(body.held)
            self._meters.bytes.inc(body.size)
            self._note(scope, reply.status, time.perf_counter() - started)

    async def _answer(self, scope: Scope, body: "_Body", reply: "_Reply") -> None:
        app = self._app
        if self._presence.draining and scope["path"] not in _ALWAYS:
            app = _refused(Refusal(503, "the server is stopping; try again"))
        try:
            await app(scope, body.receive, reply.send)
        except ClientGoneError:
            reply.status = _GONE
            self._meters.gone.inc()
        except Refusal as refusal:
            await reply.end_with(scope, refusal)
        except asyncio.CancelledError:
            # Only at the end, when the time for requests to finish is over.
            await reply.end_with(scope, Refusal(503, "the server stopped before this was done"))
        except Exception as error:  # the last line: a client never sees more of it than this
            LOG.error("%s", _whereabouts(error))
            sentence = "something went wrong in the server; it has been noted, without the request"
            await reply.end_with(scope, Refusal(500, sentence))

    def _note(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        """Counts a request and writes its line; an address that is not known is not told."""
        route = getattr(scope.get("route"), "path", None) or "other"
        self._meters.requests.labels(route, str(status)).inc()
        self._meters.seconds.labels(route).observe(seconds)
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
        LOG.info("%s %s %d %.0f ms", method, route, status, 1000 * seconds)


class _Body:
    """The body of a request, as far as it may come."""

    def __init__(self, scope: Scope, receive: Receive, settings: ServeSettings, held: Room) -> None:
        self._receive, self._room, self._settings = receive, held, settings
        large = scope["path"] in _LARGE
        self._most = settings.most_bytes if large else settings.most_small_bytes
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"")
        self._announced = int(announced) if announced.isdigit() else 0
        self.expected = b"expect" in headers
        self.complete = not self._announced and b"transfer-encoding" not in headers
        self.size = self.held = 0
        self._started: float | None = None

    async def receive(self) -> Message:
        """The next piece, or that the client is gone.

        Raises:
            Refusal: It is too large or too slow.
        """
        if self.complete:
            return await self._receive()
        self._check(self._announced)
        message = await self._in_time()
        if message["type"] == "http.disconnect":
            self.complete = True
            raise ClientGoneError
        piece = len(message.get("body", b""))
        self.size += piece
        self.complete = not message.get("more_body", False)
        self._check(self.size)
        if not self._room.take(piece):
            raise Refusal(429, "too many bytes are being read at the moment; try again")
        self.held += piece
        return message

    async def _in_time(self) -> Message:
        clock = asyncio.get_running_loop().time
        self._started = clock() if self._started is None else self._started
        allowed = self._settings.upload_seconds + self.size / self._settings.slowest_upload
        try:
            async with asyncio.timeout_at(self._started + allowed):
                return await self._receive()
        except TimeoutError:
            raise Refusal(408, "the request came too slowly, and was given up") from None

    def _check(self, size: int) -> None:
        if size > self._most:
            raise Refusal(413, f"{size:,} bytes are more than the {self._most:,} that are taken")

    async def linger(self) -> None:
        """Lets what is still being sent go by, for a while, so that the answer is not lost.

        A client that has asked first whether to send it has not begun, and need not.
        """
        if self.expected:
            return
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self.complete and self.size < 2 * self._most:
                    message = await self._receive()
                    self.size += len(message.get("body", b""))
                    self.complete = not message.get("more_body", False)
        except TimeoutError:
            return


class _Reply:
    """The answer of a request."""

    def __init__(self, send: Send, body: _Body, presence: Presence) -> None:
        self._send, self._body, self._presence = send, body, presence
        self.status = 0

    async def send(self, message: Message) -> None:
        """Sends a piece; the connection is closed after it if there is more that nobody reads."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = add_headers(message)
            unread = not self._body.complete
            if unread:
                await self._body.linger()
            if unread or self._presence.draining:
                headers["connection"] = "close"
        await self._send(message)

    async def end_with(self, scope: Scope, refusal: Refusal) -> None:
        """Answers with an error, unless an answer has begun."""
        if not self.status:
            await _refused(refusal)(scope, self._body.receive, self.send)


def _refused(refusal: Refusal) -> ASGIApp:
    return problem(refusal.status_code, str(refusal.detail), refusal.headers)


def _whereabouts(error: Exception) -> str:
    """What went wrong and where, without the message, which may hold what was sent."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places}"
