"""The HTTP server: it listens, disconnects slow clients, and shuts down without losing requests."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from ngsan.app.clients import client_name
from ngsan.app.context import ServerState
from ngsan.app.middleware import HEADERS, LOG
from ngsan.app.settings import ServeSettings

_CHECK_SECONDS = 0.5
_BACKLOG = 256
_FLUSH_SECONDS = 2.0
"""Time to send what is written after requests have finished or were cancelled."""


_PROBE_SECONDS = 0.4
"""Time between attempts to notice that a client which has ended its side is gone altogether."""


_HEAD_BYTES = 16 * 1024
"""Limit of the head of a request."""

_READ_BYTES = 64 * 1024
"""What is read from a connection at a time, so that others do not wait."""

_FREE_PIECES = 1000
"""Pieces of a body that may be of any size."""

_AHEAD = 32
"""Requests that a connection may send before the answer to the one before; then it is closed."""

_PIECE_BYTES = 512
"""Mean size that further pieces need; each costs as much time as thousands of bytes in one."""


class _Parser(h11.Connection):
    """Parses HTTP; rejects bodies in pieces of a few bytes."""

    _pieces = _bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._pieces, self._bytes = self._pieces + 1, self._bytes + len(event.data)
            if (self._pieces - _FREE_PIECES) * _PIECE_BYTES > self._bytes:
                raise h11.RemoteProtocolError("the pieces of the body are too small")
        return event


class TimedConnection(H11Protocol):
    """A connection with timeouts for the head of requests and for sending answers."""

    max_connections = 512
    by_client: Counter[str]

    head_since: float | None = None
    """When the head of a request began, or the connection was made; None during a request."""

    _unsent_since: float | None = None
    _unsent_cycle: object = None

    _ahead = 0
    """Requests that came before the answer to the one before."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn = _Parser(h11.SERVER, _HEAD_BYTES)
        transport.max_size = _READ_BYTES  # type: ignore[attr-defined]
        self.head_since = self.loop.time()
        self._client = client_name(self.client[0] if self.client else "")
        self.by_client[self._client] += 1
        full = self.by_client[self._client] > max(1, self.max_connections // 2)
        if full or len(self.connections) > self.max_connections:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.by_client[self._client] -= 1
        if not self.by_client[self._client]:
            del self.by_client[self._client]

    def data_received(self, data: bytes) -> None:
        if self.head_since is None:
            self.head_since = self.loop.time()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.head_since = None  # a request is being answered

    def on_response_complete(self) -> None:
        """Begins the next request; otherwise thousands of them could come in one packet."""
        self._ahead += bool(self.conn.trailing_data[0])
        super().on_response_complete()
        if self._ahead >= _AHEAD and self.cycle is not None:
            self.cycle.keep_alive = False

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keeps the connection for the answer if a client has only ended its own side of it."""
        waits = self.cycle is not None and not self.cycle.response_complete
        if not waits or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        self.loop.call_later(_PROBE_SECONDS, self._probe, self.cycle)
        return True

    def _probe(self, cycle: Any) -> None:
        """Finds out whether a client that ended its side is still there, by an interim answer.

        Where the client has gone, its machine answers with a reset.
        """
        if self.cycle is not cycle or cycle.response_started or self.transport.is_closing():
            return
        if cycle.scope["http_version"] == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.loop.call_later(_PROBE_SECONDS / 4, self._drop_if_reset)
        self.loop.call_later(_PROBE_SECONDS, self._probe, cycle)

    def _drop_if_reset(self) -> None:
        connection = self.transport.get_extra_info("socket")
        if not self.transport.is_closing() and connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_ERROR
        ):
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self._reject(400, "Malformed HTTP request.")

    def check_timeouts(self, settings: ServeSettings) -> None:
        """Disconnects a client that is too slow."""
        now = self.loop.time()
        if self.head_since is not None and now - self.head_since > settings.header_timeout:
            # A connection that is closing may still be sending the answer.
            if not self.transport.is_closing():
                self._reject(408, "The request came too slowly.")
            self.head_since = None
        if not self.transport.get_write_buffer_size():
            self._unsent_since = None
        elif self._unsent_since is None or self._unsent_cycle is not self.cycle:
            self._unsent_since, self._unsent_cycle = now, self.cycle
        elif now - self._unsent_since > settings.send_timeout:
            self.transport.abort()

    def _reject(self, status: int, message: str) -> None:
        """Answers where no request was parsed, and closes the connection."""
        body = json.dumps({"error": message}).encode()
        headers = {
            **HEADERS,
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = h11.Response(status_code=status, headers=list(headers.items()))
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class DrainingServer(uvicorn.Server):
    """A server that finishes the requests that it has accepted before it stops."""

    def __init__(self, app: FastAPI, settings: ServeSettings, on_ready: Callable[[], None]) -> None:
        class LimitedConnection(TimedConnection):
            max_connections = settings.max_connections

        LimitedConnection.by_client = Counter()

        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedConnection,
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=int(max(1, settings.keep_alive_timeout)),
                timeout_graceful_shutdown=int(_FLUSH_SECONDS),
            )
        )
        self._settings, self._on_ready = settings, on_ready
        self._state: ServerState = app.state.context.state
        self._stopping_since: float | None = None
        self._checked = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets requests finish; a second Ctrl-C does not."""
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self._state.draining = True
        elif sig == signal.SIGINT:
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Runs ten times a second; returns whether to stop."""
        now = time.monotonic()
        if now - self._checked > _CHECK_SECONDS:
            self._checked = now
            for connection in list(self.server_state.connections):
                if isinstance(connection, TimedConnection):
                    connection.check_timeouts(self._settings)
        if self._stopping_since is not None:
            waited = now - self._stopping_since
            idle = not self._state.open_requests and waited >= self._settings.drain_delay
            if idle or waited >= self._settings.drain_timeout:
                self.should_exit = True
        return await super().on_tick(counter)


def listen(settings: ServeSettings) -> socket.socket:
    """Binds the port.

    Raises:
        ValueError: The address does not belong to this machine, or the port is in use.
    """
    host = "127.0.0.1" if settings.host == "localhost" else settings.host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # With its protocol, as asyncio sets TCP_NODELAY only if it is given.
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(
            f"cannot listen on {settings.host}, port {settings.port}: {reason}; choose another "
            "with --port or --host"
        ) from None
    return bound


def address_of(bound: socket.socket, settings: ServeSettings) -> str:
    """The address for browsers."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{bound.getsockname()[1]}/"


def run(
    app: FastAPI, settings: ServeSettings, bound: socket.socket, on_ready: Callable[[], None]
) -> None:
    """Serves until Ctrl-C or SIGTERM, and until open requests have finished.

    Args:
        app: The application.
        settings: Its settings.
        bound: The port, from `listen`.
        on_ready: Called when requests are accepted.
    """
    _set_up_log(settings)
    DrainingServer(app, settings, on_ready).run(sockets=[bound])


def exit_process() -> NoReturn:
    """Ends the process with status 0, whatever its threads are doing.

    A batch, or the opening of a model, cannot be interrupted, and closing ONNX Runtime under it
    would end the process with a crash.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.flush()
    os._exit(0)


def _set_up_log(settings: ServeSettings) -> None:
    """Logs one line per request to standard error, and errors of uvicorn."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    LOG.handlers[:] = [handler]
    LOG.setLevel(logging.WARNING if settings.quiet else logging.INFO)
    LOG.propagate = False
    uvicorn_log: Any = logging.getLogger("uvicorn")
    uvicorn_log.handlers[:] = [handler]
    uvicorn_log.propagate = False
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
