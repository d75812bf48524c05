"""Where the server listens, and every limit that it keeps."""

import ipaddress
from dataclasses import dataclass

from ngsan.config.checks import check_range, check_types

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
"""What a machine is called by itself."""

_COUNTS = (
    "batch_size",
    "workers",
    "queue",
    "readers",
    "most_connections",
    "most_bytes",
    "most_small_bytes",
    "most_held_bytes",
    "most_images",
    "most_pixels",
    "most_beam",
    "most_words",
    "explain_queue",
    "scene_queue",
    "slowest_upload",
)
_TIMES = ("header_seconds", "upload_seconds", "send_seconds", "answer_seconds", "idle_seconds")


@dataclass(frozen=True)
class ServeSettings:
    """Where the server listens, and every limit that it keeps."""

    host: str = "127.0.0.1"
    """The address to listen on; anything but this machine's own needs a token."""

    port: int = 8080
    """The port to listen on; 0 for any that is free."""

    model: str | None = None
    """Folder of a model of photographs; without it, the model that ships."""

    token: str | None = None
    """What clients must send as `Authorization: Bearer TOKEN`; without it, nothing."""

    insecure: bool = False
    """Whether to listen on other addresses without a token."""

    hosts: str = ""
    """Names that clients may call the server by, with commas between them; `*` for all. Without it,
    this machine's own names when listening there, and all names otherwise."""

    quiet: bool = False
    """Whether to write no line for each request."""

    threads: int | None = None
    """Threads of ONNX Runtime; without it, one a core."""

    batch_size: int = 4
    """Photographs of one or more requests that the model is given at a time; more are hardly
    faster, and later."""

    workers: int = 2
    """Batches that are worked on at a time."""

    queue: int = 64
    """Photographs that may wait for the model or be in it."""

    readers: int = 2
    """Photographs that are decoded at a time."""

    most_connections: int = 512
    """Clients that may be connected at a time."""

    most_bytes: int = 32 * 1024 * 1024
    """Bytes of a request with photographs."""

    most_small_bytes: int = 64 * 1024
    """Bytes of any other request."""

    most_held_bytes: int = 256 * 1024 * 1024
    """Bytes of all requests that are being read or answered."""

    most_images: int = 16
    """Photographs of a request."""

    most_pixels: int = 50_000_000
    """Width times height of a photograph."""

    most_beam: int = 16
    """Captions of a photograph that are followed or drawn."""

    most_words: int = 50
    """Words of a caption, of its prefix, and of those that are forbidden."""

    explain_queue: int = 4
    """Requests to explain that may wait or be in work; one is worked on at a time."""

    scene_queue: int = 64
    """Scenes that may wait or be in work; one is worked on at a time."""

    header_seconds: float = 10.0
    """Time that a client has for the head of a request."""

    upload_seconds: float = 20.0
    """Time that a client has for the body of a request, besides that for its bytes."""

    slowest_upload: int = 32 * 1024
    """Bytes of a body for which a client has another second."""

    send_seconds: float = 30.0
    """Time that a client has to take an answer."""

    answer_seconds: float = 60.0
    """Time within which a request that was read is answered or given up."""

    idle_seconds: float = 15.0
    """Time that a connection is kept for another request."""

    notice_seconds: float = 0.0
    """When told to stop: time for which `/healthz` says so before the port is closed."""

    drain_seconds: float = 30.0
    """When told to stop: time that requests have to finish."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        for name in _COUNTS:
            check_range(self, name, at_least=1)
        for name in _TIMES:
            check_range(self, name, above=0)
        for name in ("notice_seconds", "drain_seconds", "port"):
            check_range(self, name, at_least=0)
        if self.port > 65535:
            raise ValueError(f"port: {self.port} is above 65535")
        if self.threads is not None:
            check_range(self, "threads", at_least=1)
        if self.token is not None and not _is_token(self.token):
            raise ValueError(
                "token: it must be 8 or more letters, digits and signs, without spaces"
            )
        if not self.host:
            raise ValueError("host: name an address, such as 127.0.0.1, or 0.0.0.0 for all")
        if not (self.is_local or self.token or self.insecure):
            raise ValueError(
                f"host: {self.host} can be reached by others, so a token is needed; give one, or "
                "insecure if all who reach it may use it"
            )

    @property
    def is_local(self) -> bool:
        """Whether it listens to this machine alone."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def names(self) -> frozenset[str] | None:
        """Names that clients may call it by, in small letters; None for all."""
        given = {name.strip().lower().strip("[]") for name in self.hosts.split(",")} - {""}
        if "*" in given or not (given or self.is_local):
            return None
        if given and not self.is_local:
            return frozenset(given)
        return frozenset({*given, *LOCAL_NAMES, self.host.lower()})


def _is_token(text: str) -> bool:
    return len(text) >= 8 and text.isascii() and text.isprintable() and " " not in text
