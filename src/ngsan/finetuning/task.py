"""The training of a captioner's upper part on encoded photographs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.config import TrainConfig
from ngsan.data.dataset import CaptionDataset
from ngsan.finetuning.encoded import Start, top_of, whole_name
from ngsan.models.captioner import CaptionerModel
from ngsan.models.checkpoint import save_model
from ngsan.train.tasks.captioning import CaptioningTask


class FinetuneTask(CaptioningTask):
    """Training that starts from a whole model, trains its upper part and saves whole models."""

    def __init__(
        self,
        fabric: Fabric,
        config: TrainConfig,
        output: Path,
        *,
        fresh: bool,
        datasets: tuple[CaptionDataset, CaptionDataset],
        layers: int,
    ) -> None:
        """Opens the model.

        Args:
            fabric: The process.
            config: The run; `init_from` is the model, whose words are those of the data.
            output: The run's folder.
            fresh: Whether the run is new.
            datasets: Training and validation pictures, encoded below the trained layers.
            layers: How many layers of the encoder are trained.
        """
        super().__init__(fabric, config, output, fresh=fresh, datasets=datasets)
        self.config, self._trained = config, layers  # the data's width is not the cells'
        self._start = Start.load(Path(config.init_from))

    def build(self, *, fresh: bool) -> CaptionerModel:
        """See `Task.build`."""
        return top_of(self._start.model, self._trained)

    def save(
        self,
        folder: Path,
        model: nn.Module,
        weights: Mapping[str, Tensor],
        metrics: Mapping[str, Any],
    ) -> None:
        """See `Task.save`."""
        whole = dict(self._start.model.state_dict())
        named = {self._whole(name): tensor for name, tensor in weights.items()}
        if missing := named.keys() - whole.keys():
            raise ValueError(f"{min(missing)} is not a weight of the model")
        save_model(
            folder,
            self._start.model,
            self.config.model,
            self.companions,
            metrics=metrics,
            tensors=whole | named,
        )

    def load(self, folder: Path) -> dict[str, Tensor]:
        """See `Task.load`."""
        found = super().load(folder)
        part = top_of(self._start.model, self._trained).state_dict()
        return {name: found[self._whole(name)] for name in part}

    def _whole(self, name: str) -> str:
        return whole_name(name, self._start.layers, self._trained)
