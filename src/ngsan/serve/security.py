"""Who may ask: names, other sites, the token; and what browsers are told of the answers."""

import hmac

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ngsan.serve.refusals import problem
from ngsan.serve.settings import ServeSettings

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What pages may load: only what comes from here."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Of every answer; none of them lets another site read anything."""

_GUARDED = ("/v1/", "/metrics")
"""Addresses that need the token. The page must come without it, as browsers load it bare."""


def add_headers(message: Message) -> MutableHeaders:
    """Adds what browsers are told to the beginning of an answer; returns all its headers."""
    headers = MutableHeaders(scope=message)
    for name, value in HEADERS.items():
        headers[name] = value
    headers.setdefault("cache-control", "no-store")
    return headers


class Guard:
    """A layer of the application that answers what may not pass."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        """Takes what lies within."""
        self._app, self._names = app, settings.names
        self._token = None if settings.token is None else settings.token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers or passes on a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        app = self._refusal(scope["path"], Headers(scope=scope)) or self._app
        await app(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> ASGIApp | None:
        """The answer to what may not pass."""
        host = headers.get("host", "")
        name = _name(host)
        # A site that has its own name point here must not use a visitor's server.
        if self._names is not None and name not in self._names:
            return problem(400, "This server does not answer to that name; see --hosts.")
        origin = headers.get("origin")
        other = origin is not None and origin.lower().partition("://")[2] != host.lower()
        other |= headers.get("sec-fetch-site") == "cross-site"
        if other and path.startswith(_GUARDED):  # a link to the page is no harm
            return problem(400, "Pages of other sites may not use this server.")
        if self._token is not None and path.startswith(_GUARDED) and not self._knows(headers):
            return problem(
                401,
                "A token is needed: send it as Authorization: Bearer TOKEN.",
                {"www-authenticate": "Bearer"},
            )
        return None

    def _knows(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "replace")
        assert self._token is not None
        # In a time that does not tell how much of it was right.
        return hmac.compare_digest(given, self._token) and scheme.lower() == "bearer"


def _name(host: str) -> str:
    """The name of a Host header without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
