"""Counters for Prometheus."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BATCHES = (1, 2, 4, 8, 16, 32)


class Metrics:
    """Counters of one server. Labels are routes and statuses, never what a client sent."""

    def __init__(self) -> None:
        self.registry = add = CollectorRegistry()
        ProcessCollector(registry=add)
        PlatformCollector(registry=add)
        self.requests = Counter(
            "ngsan_requests", "Requests by route and status.", ["route", "status"], registry=add
        )
        self.seconds = Histogram(
            "ngsan_request_seconds",
            "Time from the head of a request to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=add,
        )
        self.bytes = Counter("ngsan_received_bytes", "Bytes of request bodies.", registry=add)
        self.images = Counter("ngsan_photographs", "Captioned photographs.", registry=add)
        self.scenes = Counter("ngsan_scenes", "Captioned scenes.", registry=add)
        self.batches = Histogram(
            "ngsan_batch_photographs", "Photographs per batch.", buckets=_BATCHES, registry=add
        )
        self.waiting = Gauge(
            "ngsan_waiting_photographs", "Photographs in the queue and the model.", registry=add
        )
        self.decoding = Histogram(
            "ngsan_decoding_seconds",
            "Time to decode a photograph.",
            buckets=_SECONDS,
            registry=add,
        )
        self.lost = Counter(
            "ngsan_decoders_stopped",
            "Photographs that exceeded a limit of time or memory, or crashed their decoder.",
            ["reason"],
            registry=add,
        )
        for reason in ("time", "memory", "crash"):
            self.lost.labels(reason)
        self.open = Gauge("ngsan_open_requests", "Requests without an answer.", registry=add)
        self.disconnects = Counter(
            "ngsan_client_disconnects", "Clients that left before their answer.", registry=add
        )

    def page(self) -> bytes:
        """All counters in the text format of Prometheus."""
        return generate_latest(self.registry)
