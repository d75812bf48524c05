"""What the server counts, for Prometheus."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BATCHES = (1, 2, 4, 8, 16, 32)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Meters:
    """Counts of one server. Labels are routes and statuses, never what a client has sent."""

    def __init__(self) -> None:
        """Begins at zero."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        add = self.registry
        self.requests = Counter(
            "ngsan_requests", "Requests by route and status.", ["route", "status"], registry=add
        )
        self.seconds = Histogram(
            "ngsan_request_seconds",
            "Time from a request's head to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=add,
        )
        self.bytes = Counter("ngsan_received_bytes", "Bytes of bodies.", registry=add)
        self.images = Counter("ngsan_photographs", "Photographs that were captioned.", registry=add)
        self.scenes = Counter("ngsan_scenes", "Scenes that were captioned.", registry=add)
        self.batches = Histogram(
            "ngsan_batch_photographs",
            "Photographs that the model was given at a time.",
            buckets=_BATCHES,
            registry=add,
        )
        self.waiting = Gauge(
            "ngsan_waiting_photographs", "Photographs in the queue and in the model.", registry=add
        )
        self.open = Gauge("ngsan_open_requests", "Requests that are not answered.", registry=add)
        self.gone = Counter(
            "ngsan_gone_clients", "Requests whose client hung up before the answer.", registry=add
        )

    def page(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)
