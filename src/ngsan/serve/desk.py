"""What the addresses of a server share: models, queues and counts."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ngsan.export.loading import SHIPPED, load
from ngsan.light.manifest import cell_boxes
from ngsan.light.photos import PhotoCaptioner
from ngsan.serve.batching import Batcher
from ngsan.serve.front import Presence
from ngsan.serve.limits import Room
from ngsan.serve.meters import Meters
from ngsan.serve.refusals import Refusal
from ngsan.serve.settings import ServeSettings
from ngsan.serve.threads import Threads


@dataclass(frozen=True)
class PhotoModelCard:
    """A model of photographs, and what is said of it."""

    name: str
    """What clients call it."""

    folder: Path
    """Where it is."""

    captioner: PhotoCaptioner
    """What writes captions."""

    grid: tuple[int, int]
    """Rows and columns of the cells that it sees."""

    @classmethod
    def open(cls, settings: ServeSettings) -> "PhotoModelCard":
        """Opens the model of the settings.

        Raises:
            ValueError: It is not there, or no model of photographs.
        """
        folder = SHIPPED if settings.model is None else Path(settings.model)
        captioner = load(folder, threads=settings.threads)
        if not isinstance(captioner, PhotoCaptioner):
            raise ValueError(f"model: {folder} is a model of regions and not of photographs")
        boxes = cell_boxes(captioner.image_size).tolist()
        grid = len({box[1] for box in boxes}), len({box[0] for box in boxes})
        return cls(folder.resolve().name, folder, captioner, grid)

    def about(self) -> dict[str, Any]:
        """What `/v1/models` says of it."""
        signature, metrics = (self._file(name) for name in ("signature.json", "metrics.json"))
        return {
            "name": self.name,
            "kind": "photo",
            "default": True,
            "image_size": self.captioner.image_size,
            "grid": list(self.grid),
            "vocabulary": len(self.captioner.vocabulary),
            "signature": None if signature is None else signature.get("signature"),
            "metrics": metrics,
        }

    def _file(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name
        if not path.is_file():
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else None


@dataclass(frozen=True)
class Desk:
    """What the addresses of a server share."""

    settings: ServeSettings
    """Its limits."""

    model: PhotoModelCard
    """The model of photographs."""

    meters: Meters
    """What it counts."""

    presence: Presence
    """Whether it is stopping."""

    batcher: Batcher
    """The queue to the model of photographs."""

    readers: Threads
    """Where photographs are decoded."""

    places: Room
    """Photographs that may be there at a time."""

    explaining: Room
    """Requests to explain that may be there at a time."""

    explainers: Threads = field(default_factory=lambda: Threads(1, "explain"))
    """Where photographs are explained."""

    @classmethod
    def of(cls, settings: ServeSettings, model: PhotoModelCard) -> "Desk":
        """Sets everything up; threads start when there is work."""
        meters = Meters()
        places = Room(settings.queue)
        meters.waiting.set_function(lambda: places.taken)

        def tell(count: int) -> None:
            meters.batches.observe(count)
            meters.images.inc(count)

        return cls(
            settings,
            model,
            meters,
            Presence(),
            Batcher(
                model.captioner.model,
                size=settings.batch_size,
                workers=settings.workers,
                tell=tell,
            ),
            Threads(settings.readers, "pictures"),
            places,
            Room(settings.explain_queue),
        )

    def check_room(self, room: Room, count: int = 1) -> None:
        """Raises a `Refusal` if so many more are too many; before a body is read at all."""
        if not room.has(count):
            raise Refusal(429, "there is too much to do at the moment; try again")

    def check_model(self, name: str | None) -> None:
        """Raises a `Refusal` unless the name is that of the model of photographs."""
        if name not in (None, self.model.name):
            raise Refusal(
                422, f"model: {name!r} is not served for photographs, only {self.model.name!r}"
            )
