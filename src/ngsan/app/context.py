"""What the routes of a server share: the model, queues, limits and counters."""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ngsan.app.clients import Capacity, Ledger, busy
from ngsan.app.errors import ApiError
from ngsan.app.maps import Explainer
from ngsan.app.metrics import Metrics
from ngsan.app.settings import ServeSettings
from ngsan.app.workers import Batcher, FairThreads
from ngsan.predict.captioner import PHOTO_MODEL, Captioner, load
from ngsan.predict.quality import FAST, QUALITIES
from ngsan.vision.decode_worker import release_memory
from ngsan.vision.decoding import DecodingService, Limits


@dataclass(frozen=True)
class ServedModel:
    """The model of photographs."""

    name: str
    folder: Path
    captioner: Captioner
    grid: tuple[int, int]
    """Rows and columns of its cells."""

    @classmethod
    def open(cls, settings: ServeSettings) -> "ServedModel":
        """Opens the model of the settings.

        Raises:
            ValueError: It is missing, or not a model of photographs.
        """
        folder = PHOTO_MODEL if settings.model is None else Path(settings.model)
        captioner = load(folder, threads=settings.threads)
        if captioner.image_size is None:
            raise ValueError(f"model: {folder} captions {captioner.kind}, not photographs")
        assert captioner.backend.config is not None  # the model is one of a folder
        grid = captioner.backend.config.grid
        model = cls(folder.resolve().name, folder, captioner, (grid, grid))
        model.info()  # now, as it fails if a file is damaged
        return model

    @property
    def image_size(self) -> int:
        """Side of the square that photographs are resized to."""
        assert self.captioner.image_size is not None
        return self.captioner.image_size

    def info(self) -> dict[str, Any]:
        """Its entry in `/v1/models`."""
        signature, metrics = (self._read(name) for name in ("signature.json", "metrics.json"))
        return {
            "name": self.name,
            "kind": "photo",
            "default": True,
            "image_size": self.image_size,
            "grid": list(self.grid),
            "vocabulary": len(self.captioner.vocabulary),
            "qualities": list(QUALITIES) if self.captioner.agreement else [FAST],
            "signature": None if signature is None else signature.get("signature"),
            "metrics": metrics,
        }

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: damaged: {error}") from None
        return content if isinstance(content, dict) else None


LIMITS = Limits(seconds=50.0, memory=96 << 20, large_memory=368 << 20, quick_seconds=0.05)
"""Of the decoding of a photograph; the memory of the server depends on it."""

_CLIENTS = 4
"""Clients whose queues may be full at the same time."""


def queue_of(size: int) -> Capacity:
    """The limit of a queue in which a client has `size` places."""
    return Capacity(_CLIENTS * size, size)


@dataclass
class ServerState:
    """Whether the server is shutting down, and how many requests are open."""

    draining: bool = False
    open_requests: int = 0


class Context:
    """What the routes of a server share; threads start when there is work."""

    def __init__(
        self,
        settings: ServeSettings,
        model: ServedModel,
        decoding: DecodingService | None = None,
    ) -> None:
        self.settings, self.model = settings, model
        self.state, self.metrics = ServerState(), Metrics()
        self.ledger = Ledger()
        self.photos = queue_of(settings.queue_size)
        self.metrics.waiting.set_function(lambda: self.photos.used)
        self.explain_requests = queue_of(settings.explain_queue_size)
        self.sides: dict[tuple[str | None, bool, bool], tuple[int, ...]] = {}
        """Sides of the squares that are needed, by quality, objects and keywords."""
        count = settings.decoders
        self.decoding = decoding or DecodingService(
            count,
            replace(LIMITS, cpu_seconds=settings.decode_timeout),
            on_lost=lambda reason: self.metrics.lost.labels(reason).inc(),
        )
        self.decoders = FairThreads(count, "decode", self.ledger, share=max(1, count - 1))
        self.explainers = FairThreads(1, "explain", self.ledger)
        self.detectors = FairThreads(1, "objects", self.ledger)

        def on_batch(count: int) -> None:
            self.metrics.batches.observe(count)
            self.metrics.images.inc(count)

        self.batcher = Batcher(
            model.captioner,
            ledger=self.ledger,
            size=settings.batch_size,
            workers=settings.workers,
            on_batch=on_batch,
        )

    @cached_property
    def explainer(self) -> Explainer:
        """Computes maps; opened when it is first used, by the thread of `explainers`."""
        opened = Explainer.open(self.model.folder, threads=self.settings.threads)
        release_memory()  # of its files
        return opened

    def check_capacity(self, capacity: Capacity) -> None:
        """Raises an `ApiError` if nothing more fits, before a body is read."""
        if not capacity.has():
            raise busy()

    def check_model(self, name: str | None) -> None:
        """Raises an `ApiError` unless the name is that of the model of photographs."""
        if name not in (None, self.model.name):
            raise ApiError(422, f"model: {name!r} is not available, only {self.model.name!r}")
