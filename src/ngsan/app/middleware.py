"""The layers around the application: who may send what, how much and how slowly.

They keep the limits on bytes and time before anything is parsed, turn every error into a sentence,
count, and log one line per request: route, status and time, nothing that was sent.
"""

import asyncio
import hmac
import logging
import time
import traceback
from collections.abc import MutableMapping, Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ngsan.app.clients import CLIENT, Capacity, client_name
from ngsan.app.context import ServerState
from ngsan.app.errors import ApiError, ClientDisconnected, error_response
from ngsan.app.metrics import Metrics
from ngsan.app.settings import ServeSettings

LOG = logging.getLogger("ngsan.app")

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What pages may load: only files of this server."""

HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Of every answer; none of them lets another site read anything."""

_PROTECTED = ("/v1/", "/metrics")
"""Routes that need the token. Browsers load the page itself without one."""

_UPLOADS = ("/v1/caption", "/v1/explain")
"""Routes that accept photographs."""

_ALWAYS = ("/healthz", "/metrics")
"""Routes that answer during shutdown."""

_PIECE = 64 * 1024
"""Bytes of an answer that are sent at a time; the next ones wait until the client receives them."""

_LINGER_SECONDS = 2.0
_CLIENT_CLOSED = 499


class AccessControl:
    """Rejects requests with a wrong host name or token, and those of other sites' pages."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self._app, self._names = app, settings.names
        self._tokens = settings.tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            app = self._rejection(scope["path"], Headers(scope=scope)) or app
        await app(scope, receive, send)

    def _rejection(self, path: str, headers: Headers) -> ASGIApp | None:
        host = headers.get("host", "")
        # A site whose name points to this address must not use a visitor's server.
        if self._names is not None and _host_name(host) not in self._names:
            return error_response(400, "Unknown host name; see --allowed-hosts.")
        origin = headers.get("origin")
        foreign = origin is not None and origin.lower().partition("://")[2] != host.lower()
        # Another port of the same name counts as the same site, but is another page.
        foreign |= headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if foreign and path.startswith(_PROTECTED):  # a link to the page is harmless
            return error_response(400, "Pages of other sites may not use this server.")
        if self._tokens and path.startswith(_PROTECTED) and not token_of(headers, self._tokens):
            return error_response(
                401,
                "A token is needed: send it as Authorization: Bearer TOKEN.",
                {"www-authenticate": "Bearer"},
            )
        return None


def token_of(headers: Headers, tokens: Sequence[str]) -> str | None:
    """Which of the server's tokens a request has; None without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given, found = token.strip().encode("utf-8", "replace"), None
    for known in tokens:  # all, in constant time, which reveals nothing about a part that is right
        if hmac.compare_digest(given, known.encode()) and scheme.lower() == "bearer":
            found = known
    return found


def _host_name(host: str) -> str:
    """The name of a Host header without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


class RequestLimits:
    """The outermost layer: limits, errors, counters and the log."""

    def __init__(
        self, app: ASGIApp, settings: ServeSettings, metrics: Metrics, state: ServerState
    ) -> None:
        self._app, self._settings = app, settings
        self._metrics, self._state = metrics, state
        self._bytes = Capacity(settings.max_total_bytes, settings.max_total_bytes * 2 // 3)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        client = CLIENT.set(self._client(scope))
        body = _Body(scope, receive, self._settings, self._bytes)
        reply = _Reply(send, body, self._state, self._bytes)
        self._state.open_requests += 1
        self._metrics.open.inc()
        try:
            await self._answer(scope, body, reply)
        finally:
            self._state.open_requests -= 1
            self._metrics.open.dec()
            self._bytes.free(body.held + reply.held)
            CLIENT.reset(client)
            self._metrics.bytes.inc(body.size)
            self._log(scope, reply.status, time.perf_counter() - started)

    def _client(self, scope: Scope) -> str:
        """Its token, if clients have tokens of their own, else its address."""
        tokens = self._settings.tokens
        token = token_of(Headers(scope=scope), tokens) if len(tokens) > 1 else None
        return client_name((scope.get("client") or ("",))[0], token)

    async def _answer(self, scope: Scope, body: "_Body", reply: "_Reply") -> None:
        try:
            if self._state.draining and scope["path"] not in _ALWAYS:
                raise ApiError(503, "the server is shutting down; try again later")
            await self._app(scope, body.receive, reply.send)
        except ClientDisconnected:
            reply.status = _CLIENT_CLOSED
            self._metrics.disconnects.inc()
        except ApiError as error:
            await reply.end_with(scope, error)
        except asyncio.CancelledError:
            # Only at shutdown, when the time for requests to finish is over.
            await reply.end_with(scope, ApiError(503, "the server was shut down before the end"))
        except Exception as error:  # a client sees nothing of it
            LOG.error("%s", _location(error))
            message = "internal error; it was logged without your data"
            await reply.end_with(scope, ApiError(500, message))

    def _log(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        """Counts a request and logs its line; unknown addresses are not written."""
        route = getattr(scope.get("route"), "path", None) or "other"
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
        LOG.info("%s %s %d %.0f ms", method, route, status, 1000 * seconds)


class _Body:
    """The body of a request, within the limits."""

    def __init__(
        self, scope: Scope, receive: Receive, settings: ServeSettings, total: Capacity
    ) -> None:
        self._receive, self._total, self._settings = receive, total, settings
        is_upload = scope["path"] in _UPLOADS
        self._max = settings.max_upload_bytes if is_upload else settings.max_json_bytes
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"")
        self._announced = int(announced) if announced.isdigit() else 0
        self.expects_continue = b"expect" in headers
        self.complete = not self._announced and b"transfer-encoding" not in headers
        self.size = self.held = 0
        self._started: float | None = None

    async def receive(self) -> Message:
        """The next part, or the message that the client is gone.

        Raises:
            ApiError: It is too large or too slow.
        """
        if self.complete:
            return await self._receive()
        self._check(self._announced)
        message = await self._in_time()
        if message["type"] == "http.disconnect":
            self.complete = True
            raise ClientDisconnected
        length = len(message.get("body", b""))
        self.size += length
        self.complete = not message.get("more_body", False)
        self._check(self.size)
        if not self._total.take(length):
            raise ApiError(429, "too many bytes are being received; try again later")
        self.held += length
        return message

    async def _in_time(self) -> Message:
        clock = asyncio.get_running_loop().time
        self._started = clock() if self._started is None else self._started
        allowed = self._settings.upload_timeout + self.size / self._settings.min_upload_rate
        try:
            async with asyncio.timeout_at(self._started + allowed):
                return await self._receive()
        except TimeoutError:
            raise ApiError(408, "the request came too slowly") from None

    def _check(self, size: int) -> None:
        if size > self._max:
            raise ApiError(413, f"{size:,} bytes are more than the limit of {self._max:,}")

    async def linger(self) -> None:
        """Reads what is still being sent, for a while, so that the answer is not lost.

        A client that expects 100-continue has sent nothing yet.
        """
        if self.expects_continue:
            return
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self.complete and self.size < 2 * self._max:
                    message = await self._receive()
                    self.size += len(message.get("body", b""))
                    self.complete = not message.get("more_body", False)
        except TimeoutError:
            return


class _Reply:
    """The answer to a request."""

    def __init__(self, send: Send, body: _Body, state: ServerState, total: Capacity) -> None:
        self._send, self._body, self._state, self._total = send, body, state, total
        self.status = self.held = 0
        self._start: Message = {}
        self._replaced = False

    async def send(self, message: Message) -> None:
        """Sends a part; the connection is closed after it if the body was not read to its end.

        A large one counts with the bytes of requests until the client has received it.
        """
        if message["type"] == "http.response.start":
            self._start = message  # sent with the first part, as that may not fit
            return
        if self._replaced:
            return
        content = message.get("body", b"")
        if not self.status:
            if len(content) > _PIECE and not self._total.take(len(content)):
                content, message = self._replace(ApiError(429, "too many bytes are being sent"))
            self.held += len(content) if len(content) > _PIECE else 0
            await self._send_start(self._start)
        for start in range(0, len(content) or 1, _PIECE):
            piece = content[start : start + _PIECE]
            more = start + _PIECE < len(content) or message.get("more_body", False)
            await self._send({**message, "body": piece, "more_body": more})

    def _replace(self, error: ApiError) -> tuple[bytes, Message]:
        """An error in place of the answer, of which nothing was sent."""
        response = error_response(error.status_code, str(error.detail), error.headers)
        self._replaced = True
        self._start = {**self._start, "status": response.status_code}
        self._start["headers"] = response.raw_headers
        return bytes(response.body), {"type": "http.response.body"}

    async def _send_start(self, message: Message) -> None:
        self.status = message["status"]
        headers = MutableHeaders(scope=message)
        headers.update(HEADERS)
        headers.setdefault("cache-control", "no-store")
        unread = not self._body.complete
        if unread:
            await self._body.linger()
        if unread or self._state.draining:
            headers["connection"] = "close"
        await self._send(message)

    async def end_with(self, scope: Scope, error: ApiError) -> None:
        """Answers with an error, unless an answer has begun."""
        if not self.status:
            response = error_response(error.status_code, str(error.detail), error.headers)
            await response(scope, self._body.receive, self.send)


def _location(error: Exception) -> str:
    """The kind and place of an error, without its message, which may hold what was sent."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places}"
