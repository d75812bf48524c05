"""The server's life: it listens, cuts off who is too slow, and stops without losing requests."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from ngsan.serve.front import LOG, Presence
from ngsan.serve.security import HEADERS
from ngsan.serve.settings import ServeSettings

_SWEEP_SECONDS = 0.5
_BACKLOG = 256
_LAST_SECONDS = 2.0
"""Time to send what is written when requests have finished or were given up."""


class Line(H11Protocol):
    """A connection that knows since when it waits for the client."""

    most = 512
    """Connections at a time."""

    head_since: float | None = None
    """When the head of a request began to come, or the connection was made."""

    taking_since: float | None = None
    """Since when the client has not taken all that was written."""

    _taking: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request."""
        super().connection_made(transport)
        self.head_since = self.loop.time()
        if len(self.connections) > self.most:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of a request."""
        if self.head_since is None:
            self.head_since = self.loop.time()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.head_since = None  # a request is being answered

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP."""
        self._last_words(400, "This is no request of HTTP.")

    def sweep(self, settings: ServeSettings) -> None:
        """Cuts the client off if it is too slow."""
        now = self.loop.time()
        if self.head_since is not None and now - self.head_since > settings.header_seconds:
            # A connection that is closing may still be taking the answer.
            if not self.transport.is_closing():
                self._last_words(408, "The request came too slowly, and was given up.")
            self.head_since = None
        if not self.transport.get_write_buffer_size():
            self.taking_since = None
        elif self.taking_since is None or self._taking is not self.cycle:
            self.taking_since, self._taking = now, self.cycle
        elif now - self.taking_since > settings.send_seconds:
            self.transport.abort()

    def _last_words(self, status: int, sentence: str) -> None:
        """Answers where no request was understood, and closes."""
        body = json.dumps({"error": sentence}).encode()
        told = {
            **HEADERS,
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = h11.Response(status_code=status, headers=list(told.items()))
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class StudioServer(uvicorn.Server):
    """A server that finishes what it has accepted before it stops."""

    def __init__(self, app: FastAPI, settings: ServeSettings, ready: Callable[[], None]) -> None:
        """Takes the application, and what to call when it answers."""

        class LimitedLine(Line):
            most = settings.most_connections

        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedLine,
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=int(max(1, settings.idle_seconds)),
                timeout_graceful_shutdown=int(_LAST_SECONDS),
                h11_max_incomplete_event_size=16 * 1024,
            )
        )
        self._settings, self._ready = settings, ready
        self._presence: Presence = app.state.desk.presence
        self._told: float | None = None
        self._swept = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to answer."""
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets requests finish; a second Ctrl-C does not."""
        if self._told is None:
            self._told = time.monotonic()
            self._presence.draining = True
        elif sig == signal.SIGINT:
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether it is time to end."""
        now = time.monotonic()
        if now - self._swept > _SWEEP_SECONDS:
            self._swept = now
            for line in list(self.server_state.connections):
                if isinstance(line, Line):
                    line.sweep(self._settings)
        if self._told is not None:
            waited = now - self._told
            finished = not self._presence.open and waited >= self._settings.notice_seconds
            if finished or waited >= self._settings.drain_seconds:
                self.should_exit = True
        return await super().on_tick(counter)


def listen(settings: ServeSettings) -> socket.socket:
    """Takes the port.

    Raises:
        ValueError: The address is none of this machine's, or the port is taken.
    """
    host = "127.0.0.1" if settings.host == "localhost" else settings.host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # With its protocol, as asyncio lets small packets go at once only where it is told.
        taken = socket.socket(family, kind, protocol)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(address)
        except OSError:
            taken.close()
            raise
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(
            f"{settings.host}, port {settings.port} cannot be listened on: {why}; choose another "
            "with --port or --host"
        ) from None
    return taken


def address_of(taken: socket.socket, settings: ServeSettings) -> str:
    """Where a browser finds it."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{taken.getsockname()[1]}/"


def run(
    app: FastAPI, settings: ServeSettings, taken: socket.socket, ready: Callable[[], None]
) -> None:
    """Serves until told to stop by Ctrl-C or SIGTERM, and until requests have finished.

    Args:
        app: The application.
        settings: Its own.
        taken: The port, of `listen`.
        ready: Called when requests are answered.
    """
    _set_up_log(settings)
    StudioServer(app, settings, ready).run(sockets=[taken])


def leave() -> NoReturn:
    """Ends the process with status 0, whatever threads are still at.

    A batch or a model that is being opened cannot be stopped, and tearing ONNX Runtime down under
    it would end the process with a crash.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(0)


def _set_up_log(settings: ServeSettings) -> None:
    """One line a request to standard error; of uvicorn only what is wrong with the server."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    LOG.handlers[:] = [handler]
    LOG.setLevel(logging.WARNING if settings.quiet else logging.INFO)
    LOG.propagate = False
    of_uvicorn: Any = logging.getLogger("uvicorn")
    of_uvicorn.handlers[:] = [handler]
    of_uvicorn.propagate = False
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
