"""Who sends what: clients, their shares of what is limited, and what they have used of late.

A client is its token if the server has several, else its address. Of an IPv6 address the network
counts, as a machine has all addresses of it.
"""

import ipaddress
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ngsan.app.errors import ApiError

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The client of the request that the current task answers."""

_HALF_LIFE = 10.0
"""Seconds after which half of what a client has used is forgotten."""

_HEAVY_SECONDS = 1.0
"""What a client may use of late before it can count as heavy."""

_LEAST = 0.01
"""Seconds below which a client counts as one that has used nothing of late."""

_REBASE = 1e-3
"""Scale at which what was used is scaled for good."""

_PAUSE = 1.0
"""Seconds after which work of a heavy client begins whatever others do."""


def client_name(address: str, token: str | None = None) -> str:
    """The name of a client.

    Args:
        address: Its IP address.
        token: Its token, where tokens tell clients apart.
    """
    if token is not None:
        return f"token {token}"
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


class Capacity:
    """A limit on how much is held at a time, in all and by one client; used by one event loop."""

    def __init__(self, size: int, share: int | None = None) -> None:
        """Sets the limits.

        Args:
            size: Of all clients together.
            share: Of one client; None for no limit of its own.
        """
        self.size, self.share = size, size if share is None else share
        self.used = 0
        self._by_client: Counter[str] = Counter()

    def has(self, count: int = 1) -> bool:
        """Whether `count` more of the current client fit."""
        own = self._by_client[CLIENT.get()] + count
        return self.used + count <= self.size and own <= self.share

    def take(self, count: int = 1) -> bool:
        """Reserves `count` if they fit; returns whether they did."""
        fits = self.has(count)
        if fits:
            self.used += count
            self._by_client[CLIENT.get()] += count
        return fits

    def free(self, count: int = 1) -> None:
        """Releases `count` of the current client."""
        self.used -= count
        self._by_client[CLIENT.get()] -= count
        if not self._by_client[CLIENT.get()]:
            del self._by_client[CLIENT.get()]

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


class Ledger:
    """What clients run, and what they have used of late, in seconds of threads.

    Work of the client that has used least comes first. A heavy client is one that has used more
    than twice as much as all others together; its work begins while none of theirs is running.
    All methods need the lock of `changed`.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Notified when there is more work, or some has ended."""
        self._running: Counter[str] = Counter()
        self._paused_since = 0.0
        # What was used counts more the later it was; all of it is scaled when it is read.
        self._used: dict[str, float] = {}
        self._total, self._start = 0.0, time.monotonic()

    def begin(self, client: str) -> None:
        """Work of a client begins; that of the server itself, which has no name, is not noted."""
        if not client:
            return
        if self.is_heavy(client):
            self._paused_since = time.monotonic()
        self._running[client] += 1

    def end(self, client: str, seconds: float) -> None:
        """Work of a client has ended after `seconds`."""
        self.changed.notify_all()
        if not client:
            return
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        scale = self._scale()
        if scale < _REBASE:
            used = {name: each * scale for name, each in self._used.items()}
            self._used = {name: each for name, each in used.items() if each > _LEAST / 10}
            self._total, self._start, scale = sum(self._used.values()), time.monotonic(), 1.0
        self._used[client] = self._used.get(client, 0.0) + seconds / scale
        self._total += seconds / scale

    def spent(self, client: str) -> float:
        """Seconds that a client has used of late."""
        return self._used.get(client, 0.0) * self._scale()

    def is_alone(self, client: str) -> bool:
        """Whether no other client runs anything, or did of late."""
        return self._others(client) < _LEAST and not self._others_run(client)

    def is_heavy(self, client: str) -> bool:
        """Whether others should go first."""
        if self.is_alone(client):
            return False
        return self.spent(client) > max(_HEAVY_SECONDS, 2 * self._others(client))

    def may_begin(self, client: str) -> bool:
        """Whether work of a client may begin now; without a change, it may after a while."""
        if not self._others_run(client) or not self.is_heavy(client):
            return True
        return time.monotonic() - self._paused_since > _PAUSE

    def _others(self, client: str) -> float:
        return (self._total - self._used.get(client, 0.0)) * self._scale()

    def _others_run(self, client: str) -> bool:
        return len(self._running) > (client in self._running)

    def _scale(self) -> float:
        return float(0.5 ** ((time.monotonic() - self._start) / _HALF_LIFE))
