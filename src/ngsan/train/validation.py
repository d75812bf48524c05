"""How good a model is, on a split that it does not learn from."""

import time
from threading import Event

import numpy as np
import torch
from lightning_fabric import Fabric

from ngsan.config import ValidationConfig
from ngsan.data.dataset import CaptionDataset
from ngsan.data.resident import ResidentDataset
from ngsan.evaluate import FAST_METRICS
from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.report import score_captions
from ngsan.models.captioner import Captioner
from ngsan.predict import Predictor, constraints_of
from ngsan.train.feed import StoreFiles
from ngsan.train.machine import StoppedError


class Validation:
    """Captions a split with a model, and scores the captions."""

    def __init__(
        self,
        writer: Captioner,
        dataset: CaptionDataset,
        resident: ResidentDataset | None,
        config: ValidationConfig,
        fabric: Fabric,
        stop: Event,
    ) -> None:
        """Takes the parts.

        Args:
            writer: The model, whose weights may change from call to call.
            dataset: The split.
            resident: The same in the device's memory, or None.
            config: How captions are written.
            fabric: The processes, which share the work.
            stop: Set to ask for a stop.
        """
        self._predictor = Predictor(writer, dataset.vocabulary)
        self._dataset, self._config, self._fabric = dataset, config, fabric
        self._stop, self._files = stop, StoreFiles(dataset) if resident is None else None
        self._images: CaptionDataset | ResidentDataset = dataset if resident is None else resident
        references = dataset.references()
        self._references = TokenizedCaptions.tokenize(dict.fromkeys(references, ""), references)
        constraints_of(config.decoding, dataset.vocabulary)  # words that it lacks are found early

    def __call__(self) -> tuple[dict[str, float], float]:
        """Validates.

        Returns:
            The scores by name, 0 to 100 (CIDEr 0 to 1000), the same in every process; and the
            seconds it took.

        Raises:
            StoppedError: It was asked to stop.
            OSError: The features have gone.
        """
        start = time.perf_counter()
        captions = self._captions()
        if self._fabric.world_size > 1:
            parts: list[dict[str, str]] = [{} for _ in range(self._fabric.world_size)]
            torch.distributed.all_gather_object(parts, captions)
            captions = {image: text for part in parts for image, text in part.items()}
        scores = score_captions(self._references.with_hypotheses(captions), FAST_METRICS)
        return dict(scores.values), time.perf_counter() - start

    def _captions(self) -> dict[str, str]:
        """The captions of this process's share of the images."""
        # Shares in a row, so that all together they are in the order of one process.
        shares = np.array_split(np.arange(len(self._dataset)), self._fabric.world_size)
        places = shares[self._fabric.global_rank]
        whole = min(self._config.batch_size, len(places))
        captions: dict[str, str] = {}
        for start in range(0, len(places), max(1, whole)):
            if self._stop.is_set():
                raise StoppedError
            if self._files is not None:
                self._files.check()
            mine = places[start : start + whole]
            # All batches have one shape, so that work captured on a GPU serves all of them.
            filled = np.pad(mine, (0, whole - len(mine)), mode="edge")
            batch = self._images.batch(filled)
            found = self._predictor.caption(
                batch.features,
                batch.boxes,
                batch.mask,
                decoding=self._config.decoding,
                first=int(mine[0]),
            )
            captions.update(
                (image, best.text)
                for image, (best, *_) in zip(batch.ids[: len(mine)], found, strict=False)
            )
        return captions
