"""The training of a captioner's upper part on encoded photographs.

Shapes: `B` images, `C` captions an image, `T` words, `M` packed words, `V` vocabulary.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.config import TrainConfig
from ngsan.data.batch import CaptionBatch
from ngsan.data.dataset import CaptionDataset
from ngsan.finetuning.encoded import Start, top_of, whole_name
from ngsan.models.captioner import CaptionerModel
from ngsan.models.checkpoint import save_model
from ngsan.nn.masks import Packing
from ngsan.train.loader import BatchLoader
from ngsan.train.self_critical import set_dropout
from ngsan.train.step import Inputs
from ngsan.train.task import Phase
from ngsan.train.tasks.captioning import CaptioningTask, CrossEntropyPhase

REPLAYED = "replay-"
"""Ids of ordinary pictures begin with this."""


class ReplayLoss(nn.Module):
    """Cross-entropy on the user's captions; on ordinary pictures, the words of the start model.

    There the target of each word is the start model's whole distribution (Hinton et al. 2015): a
    few pictures then say much about what is not to be forgotten.
    """

    def __init__(
        self,
        captioner: CaptionerModel,
        teacher: CaptionerModel,
        known: int,
        *,
        label_smoothing: float,
    ) -> None:
        """Holds the models.

        Args:
            captioner: What is trained.
            teacher: The same at the start, in evaluation mode.
            known: Words below this id are those that the start model knew.
            label_smoothing: For the user's captions.
        """
        super().__init__()
        self.captioner = captioner
        self._teacher = (teacher,)  # in a tuple, so that it is no part of what is trained
        self._known, self._label_smoothing = known, label_smoothing

    def forward(
        self,
        features: Tensor,
        boxes: Tensor | None,
        mask: Tensor | None,
        words: Tensor,
        targets: Tensor,
        target_mask: Tensor,
        replayed: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The sum over the real targets of a `CaptionBatch`, and their number.

        Args:
            features: See `CaptionBatch`, as the following ones.
            boxes: None.
            mask: None.
            words: (B, C, T).
            targets: (B, C, T).
            target_mask: (B, C, T).
            replayed: (B,) boolean, True = an ordinary picture.
        """
        packing = Packing.of(target_mask)
        logits = self.captioner(features, boxes, mask, words, packing=packing).float()  # (M, V)
        chosen = targets.flatten().index_select(0, packing.places)
        places = replayed[:, None, None].expand_as(target_mask).flatten()
        ordinary = places.index_select(0, packing.places)
        total = F.cross_entropy(
            logits[~ordinary],
            chosen[~ordinary],
            reduction="sum",
            label_smoothing=self._label_smoothing,
        )
        if bool(replayed.any()):
            wanted = self._wanted(features[replayed], words[replayed], target_mask[replayed])
            total = total - (wanted * logits[ordinary].log_softmax(-1)).sum()
        return total, packing.real.sum()

    @torch.no_grad()
    def _wanted(self, features: Tensor, words: Tensor, target_mask: Tensor) -> Tensor:
        """(M, V) the start model's probabilities; zero for new words."""
        packing = Packing.of(target_mask)
        logits = self._teacher[0](features, None, None, words, packing=packing).float()
        logits[:, self._known :] = -torch.inf
        wanted: Tensor = logits.softmax(-1)
        return wanted


class ReplayPhase(CrossEntropyPhase):
    """Training on captions, and on the start model's words for ordinary pictures."""

    def prepare(self, batch: tuple[CaptionBatch, Tensor], step: int) -> tuple[Inputs, Tensor]:
        """See `Phase.prepare`."""
        inputs, sums = super().prepare(batch, step)
        replayed = torch.tensor([name.startswith(REPLAYED) for name in batch[0].ids])
        return {**inputs, "replayed": replayed}, sums


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
        known: int,
    ) -> None:
        """Opens the model.

        Args:
            fabric: The process.
            config: The run; `init_from` is the model, whose words are those of the data.
            output: The run's folder.
            fresh: Whether the run is new.
            datasets: Training and validation pictures, encoded below the trained layers.
            layers: How many layers of the encoder are trained.
            known: Ids of new words begin here.
        """
        super().__init__(fabric, config, output, fresh=fresh, datasets=datasets)
        self.config, self._trained = config, layers  # the data's width is not the cells'
        self._start, self._known = Start.load(Path(config.init_from)), known

    def build(self, *, fresh: bool) -> CaptionerModel:
        """See `Task.build`."""
        return top_of(self._start.model, self._trained)

    def _cross_entropy(
        self, captioner: CaptionerModel, eval_model: CaptionerModel, loader: BatchLoader
    ) -> Phase:
        config, chosen = self.config, self.config.cross_entropy
        set_dropout(captioner, config.model.dropout)
        teacher = top_of(Start.load(Path(config.init_from)).model, self._trained)
        module = ReplayLoss(
            captioner,
            teacher.eval().requires_grad_(False),
            self._known,
            label_smoothing=chosen.label_smoothing,
        )
        return ReplayPhase(chosen, module, loader, self.fabric, config.seed)

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
