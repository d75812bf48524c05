"""The address and the limits of the server."""

import dataclasses
import ipaddress
from dataclasses import dataclass

from ngsan.config import check_range, check_types
from ngsan.threads import check_threads

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
"""Names of this machine itself."""

_FROM_ZERO = ("port", "drain_delay", "drain_timeout")


@dataclass(frozen=True)
class ServeSettings:
    """The address and the limits of the server; times are in seconds."""

    host: str = "127.0.0.1"
    """The address to listen on; any other than this machine's own needs a token."""

    port: int = 8080
    """The port to listen on; 0 for any free one."""

    model: str | None = None
    """Folder of a model of photographs; by default the model in the package."""

    token: str | None = None
    """What clients must send as `Authorization: Bearer TOKEN`; by default, no token is needed. Of
    several, separated by spaces, each is that of one client."""

    insecure: bool = False
    """Whether to listen on other addresses without a token."""

    allowed_hosts: str = ""
    """Host names that clients may use, separated by commas; `*` for all. By default this machine's
    own names when listening there, and all names otherwise."""

    quiet: bool = False
    """Whether to log no line for each request."""

    threads: int | None = None
    """Threads of ONNX Runtime; by default one per core."""

    batch_size: int = 4
    """Photographs, of one or more requests, in a batch; larger batches are hardly faster."""

    workers: int = 2
    """Batches that are captioned at the same time."""

    queue_size: int = 64
    """Photographs of a client that may wait or be in work; four times as many of all clients."""

    decoders: int = 3
    """Processes that decode photographs; a client has at most all but one of them."""

    decode_timeout: float = 5.0
    """Processor time to decode a photograph."""

    max_connections: int = 512
    """Connections at the same time; a client has at most half of them."""

    max_upload_bytes: int = 32 * 1024 * 1024
    """Bytes of a request with photographs."""

    max_json_bytes: int = 64 * 1024
    """Bytes of any other request, and of one with photographs in JSON besides the photographs."""

    max_total_bytes: int = 80 * 1024 * 1024
    """Bytes of all requests and large answers at the same time; of a client, two thirds of it."""

    max_images: int = 16
    """Photographs of a request."""

    max_pixels: int = 50_000_000
    """Width times height of a photograph."""

    max_beam: int = 16
    """Largest beam, and largest number of samples, of a photograph."""

    max_open_captions: int = 32
    """Captions that a search follows at the same time: the beam times one more than the number of
    required words."""

    max_words: int = 50
    """Words of a caption, of its prefix, and of the forbidden words."""

    explain_queue_size: int = 4
    """Explain requests of a client that may wait or be in work; one runs at a time."""

    scene_queue_size: int = 64
    """Scenes of a client that may wait or be in work; one runs at a time."""

    header_timeout: float = 10.0
    """Time for a client to send the head of a request."""

    upload_timeout: float = 20.0
    """Time for a client to send the body of a request, besides that for its bytes."""

    min_upload_rate: int = 32 * 1024
    """Bytes of a body that give a client another second."""

    send_timeout: float = 30.0
    """Time for a client to receive an answer."""

    request_timeout: float = 60.0
    """Time to answer a request that was read."""

    keep_alive_timeout: float = 15.0
    """Time that an idle connection is kept open."""

    drain_delay: float = 0.0
    """At shutdown: time for which `/healthz` reports it before the port is closed."""

    drain_timeout: float = 30.0
    """At shutdown: time for open requests to finish."""

    def __post_init__(self) -> None:
        check_types(self)
        for item in dataclasses.fields(self):
            if item.name in _FROM_ZERO:
                check_range(self, item.name, at_least=0)
            elif item.type is int:
                check_range(self, item.name, at_least=1)
            elif item.type is float:
                check_range(self, item.name, above=0)
        if self.port > 65535:
            raise ValueError(f"port: {self.port} is above 65535")
        if self.threads is not None:
            check_threads(self.threads)
        check_range(self, "workers", "decoders", at_most=64)
        if self.token is not None and not (self.tokens and all(map(_is_token, self.tokens))):
            raise ValueError("token: it must have 8 or more ASCII letters, digits or signs")
        if not self.host:
            raise ValueError("host: pass an address, such as 127.0.0.1, or 0.0.0.0 for all")
        if not (self.is_local or self.token or self.insecure):
            raise ValueError(
                f"host: other machines can reach {self.host}, so a token is needed; pass --token, "
                "or --insecure if everybody may use it"
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
    def tokens(self) -> tuple[str, ...]:
        """The tokens of clients; none if everyone may use the server."""
        return tuple((self.token or "").split())

    @property
    def names(self) -> frozenset[str] | None:
        """Host names that clients may use, in lower case; None for all."""
        given = {name.strip().lower().strip("[]") for name in self.allowed_hosts.split(",")} - {""}
        if "*" in given or not (given or self.is_local):
            return None
        if given and not self.is_local:
            return frozenset(given)
        return frozenset({*given, *LOCAL_NAMES, self.host.lower()})


def _is_token(text: str) -> bool:
    return len(text) >= 8 and text.isascii() and text.isprintable()
