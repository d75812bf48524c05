"""The task of captioning: cross-entropy, then self-critical learning."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.config import MODELS, TrainConfig
from ngsan.config.phases import CROSS_ENTROPY, SELF_CRITICAL
from ngsan.data.dataset import CaptionDataset
from ngsan.models import Captioner
from ngsan.models.photo import PhotoEncoder
from ngsan.models.saved_captioner import load_captioner, save_captioner
from ngsan.train.feed import Feed, hold
from ngsan.train.fitting import check_norm
from ngsan.train.log import Entry
from ngsan.train.machine import half_of, is_compiled
from ngsan.train.phases import (
    CrossEntropyPhase,
    SelfCriticalPhase,
    Shuffle,
)
from ngsan.train.self_critical import SelfCritical, build_reward, set_dropout
from ngsan.train.sources import build_model, fit_sizes, open_data, set_vision
from ngsan.train.task import Lesson, Phase
from ngsan.train.validation import Validation


class CaptioningTask:
    """Learning to caption images, by their regions or by their pixels."""

    free: Sequence[str] = ("data.folder", "vision.images", "validation.batch_size")

    def __init__(
        self,
        fabric: Fabric,
        config: TrainConfig,
        output: Path,
        *,
        fresh: bool,
        datasets: tuple[CaptionDataset, CaptionDataset] | None = None,
    ) -> None:
        """Opens what is learned from.

        Args:
            fabric: The processes.
            config: The run.
            output: Its folder, where built-in scenes are written.
            fresh: Whether the run has just begun.
            datasets: To learn from and to validate on, in the place of those that are configured.

        Raises:
            ValueError: The settings do not fit each other, or there is no such dataset.
            OSError: It cannot be read.
        """
        check_norm(config.model.norm, fabric.world_size, "images")
        self._fabric = fabric
        data = datasets or open_data(fabric, config, output, fresh=fresh)
        self._learned, self._validated = data
        self.config: TrainConfig = fit_sizes(config, self._learned)
        self.signatures: Mapping[str, str] = {
            "train": self._learned.signature,
            "validation": self._validated.signature,
        }
        self.metric: str = config.validation.metric

    def build(self, *, fresh: bool) -> Captioner:
        """See `Task.build`."""
        return build_model(self.config, self._learned, fresh=fresh)

    def teach(self, model: nn.Module, stop: Event) -> Lesson:
        """See `Task.teach`."""
        assert isinstance(model, Captioner)
        config, device = self.config, self._fabric.device
        writer = copy.deepcopy(model).eval().requires_grad_(False)
        writer.to(half_of(config.machine, device.type))
        compiled, where = is_compiled(config.machine, device), config.machine.data
        feed = Feed(
            self._learned,
            hold(self._learned, device, where, static=compiled),
            device,
            workers=config.machine.workers,
            static=compiled,
        )
        resident = hold(self._validated, device, where, static=True)
        encoder = model.encoder
        return Lesson(
            writer=writer,
            phases=self._phases(model, writer, feed, compiled=compiled),
            validate=Validation(
                writer, self._validated, resident, config.validation, self._fabric, stop
            ),
            slow=encoder.backbone if isinstance(encoder, PhotoEncoder) else None,
            slow_rate=config.vision.rate,
        )

    def save(
        self,
        folder: Path,
        model: nn.Module,
        weights: Mapping[str, Tensor],
        metrics: Mapping[str, Any],
    ) -> None:
        """See `Task.save`."""
        assert isinstance(model, Captioner)
        save_captioner(
            folder,
            model,
            self.config.model,
            self._learned.vocabulary,
            run=self.config,
            metrics=metrics,
            tensors=weights,
        )

    def load(self, folder: Path) -> dict[str, Tensor]:
        """See `Task.load`."""
        captioner, _, _ = load_captioner(folder)
        return captioner.state_dict()

    def about(self, model: nn.Module) -> Entry:
        """See `Task.about`."""
        config, images = self.config, len(self._learned)
        names = {tuple(keys.values()): name for name, keys in MODELS.items()}
        model_name = names.get((config.model.norm, config.model.geometry), "captioner")
        if config.model.decoder != "transformer":
            model_name = config.model.decoder
        phases = ((CROSS_ENTROPY, config.cross_entropy), (SELF_CRITICAL, config.self_critical))
        return {
            "model": model_name,
            "images": images,
            "validation_images": len(self._validated),
            "phases": [
                {"phase": name, "epochs": phase.epochs, "steps": -(-images // phase.batch_size)}
                for name, phase in phases
                if phase.epochs
            ],
        }

    def _phases(
        self, captioner: Captioner, writer: Captioner, feed: Feed, *, compiled: bool
    ) -> list[Callable[[], Phase]]:
        """The phases of the run; what they need is made when their turn has come."""
        config, fabric = self.config, self._fabric
        shuffle = Shuffle(config.seed, fabric.global_rank, fabric.world_size)

        def cross_entropy() -> Phase:
            set_dropout(captioner, config.model.dropout)
            set_vision(captioner, config.vision, learns=True)
            capacity = None
            if compiled:
                chosen = config.cross_entropy
                sampler = shuffle.sampler(len(feed.dataset), chosen.batch_size)
                capacity = feed.most_targets(sampler, chosen.epochs)
            described = _described(feed, captioner, writer)
            return CrossEntropyPhase(
                captioner, config.cross_entropy, described, shuffle, capacity=capacity
            )

        def self_critical() -> Phase:
            chosen = config.self_critical
            set_dropout(captioner, chosen.dropout)
            set_vision(captioner, config.vision, learns=False)
            method = SelfCritical(
                writer,
                build_reward(feed.dataset, chosen, fabric.device),
                feed.dataset.vocabulary,
                samples=chosen.samples,
                baseline=chosen.baseline,
                temperature=chosen.temperature,
                unknown=chosen.unknown,
                longest=config.data.longest,
                seed=config.seed,
            )
            described = _described(feed, captioner, writer)
            return SelfCriticalPhase(captioner, chosen, described, shuffle, method, static=compiled)

        made: list[Callable[[], Phase]] = []
        if config.cross_entropy.epochs:
            made.append(cross_entropy)
        if config.self_critical.epochs:
            made.append(self_critical)
        return made


def _described(feed: Feed, captioner: Captioner, writer: Captioner) -> Feed:
    """What a phase learns from: cells where the backbone sees the same in every epoch."""
    encoder, its_copy = captioner.encoder, writer.encoder
    if not (isinstance(encoder, PhotoEncoder) and isinstance(its_copy, PhotoEncoder)):
        return feed
    if not encoder.frozen or encoder.augment is not None:
        return feed
    return feed.described(its_copy.backbone)
