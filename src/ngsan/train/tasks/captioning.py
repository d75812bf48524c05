"""Captioning: cross-entropy, then self-critical training, on regions or pixels.

Shapes: `B` images, `N` regions, `C` captions per image, `T` words, `V` vocabulary.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.config import (
    CROSS_ENTROPY,
    MODELS,
    SELF_CRITICAL,
    PhaseConfig,
    TrainConfig,
    ValidationConfig,
    VisionConfig,
)
from ngsan.data.batch import CaptionBatch
from ngsan.data.dataset import CaptionDataset
from ngsan.data.resident import ResidentDataset
from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.scores import score_captions
from ngsan.models import CaptionerModel, build_captioner, resolve_backbone
from ngsan.models.captioner import PhotoEncoder
from ngsan.models.checkpoint import load_model
from ngsan.nn.losses import word_cross_entropy_sum
from ngsan.nn.masks import Packing
from ngsan.predict.captioner import Captioner
from ngsan.predict.evaluate import FAST_METRICS
from ngsan.search import Constraints
from ngsan.train.distributed import (
    StoppedError,
    gather,
    inference_dtype,
    is_compiled,
    share_of,
)
from ngsan.train.loader import BatchLoader, StoreFiles, hold, open_data, sample_epoch
from ngsan.train.self_critical import (
    GREEDY_EVERY,
    SelfCritical,
    SelfCriticalLoss,
    build_reward,
    set_dropout,
)
from ngsan.train.step import Inputs
from ngsan.train.task import (
    Phase,
    Task,
    TrainingSetup,
    check_initial,
    check_norm,
)
from ngsan.vision.backbone import build_backbone
from ngsan.vision.detector_weights import load_detector_weights
from ngsan.vision.photos import augment


class CrossEntropyLoss(nn.Module):
    """The trained model and its loss on reference captions."""

    def __init__(
        self,
        captioner: CaptionerModel,
        *,
        label_smoothing: float = 0.0,
        capacity: int | None = None,
    ) -> None:
        """Holds the model.

        Args:
            captioner: The model.
            label_smoothing: Share of the probability spread over the vocabulary.
            capacity: Most real targets of a batch, so that shapes do not depend on values; None
                to count them, which waits for the device.
        """
        super().__init__()
        self.captioner = captioner
        self.label_smoothing, self.capacity = label_smoothing, capacity

    def forward(
        self,
        features: Tensor,
        boxes: Tensor | None,
        mask: Tensor | None,
        words: Tensor,
        targets: Tensor,
        target_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The sum over the real targets of a `CaptionBatch`, and their number."""
        packing = Packing.of(target_mask, self.capacity)
        logits = self.captioner(features, boxes, mask, words, packing=packing)  # (M, V)
        chosen = targets.flatten().index_select(0, packing.places)
        total = word_cross_entropy_sum(
            logits, chosen, packing.real, label_smoothing=self.label_smoothing
        )
        return total, packing.real.sum()


class _ImagePhase(Phase):
    unit = "images"

    def __init__(
        self, config: PhaseConfig, module: nn.Module, loader: BatchLoader, fabric: Fabric, seed: int
    ) -> None:
        super().__init__(config, module, len(loader.dataset))
        self._loader, self._fabric, self._seed = loader, fabric, seed

    def batches(self, epoch: int, position: int) -> Iterator[tuple[CaptionBatch, Tensor]]:
        """See `Phase.batches`; each batch with the indices (B,) of its images in the dataset."""
        size = self.config.batch_size
        sampler = sample_epoch(self._fabric, self._seed, self.size, size, epoch, position)
        return self._loader.batches(sampler)

    def _images(self, batch: CaptionBatch) -> dict[str, Tensor | None]:
        mask = None if self._loader.full else batch.mask
        return {"features": batch.features, "boxes": batch.boxes, "mask": mask}


class CrossEntropyPhase(_ImagePhase):
    """Teacher-forced training on reference captions."""

    name = CROSS_ENTROPY

    def prepare(self, batch: tuple[CaptionBatch, Tensor], step: int) -> tuple[Inputs, Tensor]:
        given, _ = batch
        inputs = {
            **self._images(given),
            "words": given.words,
            "targets": given.targets,
            "target_mask": given.target_mask,
        }
        return inputs, torch.zeros(0, dtype=torch.double, device=given.words.device)


class SelfCriticalPhase(_ImagePhase):
    """The self-critical (REINFORCE) phase."""

    name = SELF_CRITICAL
    uses_eval_model = True

    def __init__(
        self,
        config: PhaseConfig,
        module: SelfCriticalLoss,
        loader: BatchLoader,
        fabric: Fabric,
        seed: int,
        method: SelfCritical,
    ) -> None:
        super().__init__(config, module, loader, fabric, seed)
        self._method = method

    def prepare(self, batch: tuple[CaptionBatch, Tensor], step: int) -> tuple[Inputs, Tensor]:
        """See `Phase.prepare`; now and then greedy captions are rewarded for the log."""
        given, places = batch
        greedy = step % GREEDY_EVERY == 0
        sampled = self._method.prepare(given, places, step, greedy=greedy)
        real = given.caption_mask.any(1)  # images without references have no reward
        inputs = {
            **self._images(given),
            "words": sampled.words,
            "targets": sampled.targets,
            "target_mask": sampled.target_mask & real[:, None, None],
            "advantages": sampled.advantages.masked_fill(~real.unsqueeze(1), 0.0),
        }
        zero = torch.zeros((), device=real.device)
        found = sampled.greedy_rewards
        sums = (
            sampled.rewards.masked_fill(~real.unsqueeze(1), 0.0).sum(),
            sampled.lengths.masked_fill(~real.unsqueeze(1), 0).sum(),
            real.sum() * self._method.num_samples,
            zero if found is None else found.masked_fill(~real, 0.0).sum(),
            zero if found is None else real.sum(),
        )
        return inputs, torch.stack([part.double() for part in sums])

    def numbers(self, sums: Sequence[float]) -> dict[str, float]:
        total, count, entropy, reward, length, captions, greedy, images = sums
        numbers = {
            "loss": total / max(1.0, count),
            "reward": reward / max(1.0, captions),
            "length": length / max(1.0, captions),
            "entropy": entropy / max(1.0, count),
        }
        return numbers | ({"greedy_reward": greedy / images} if images else {})


class Validation:
    """Captions a split with a model, and scores the captions."""

    def __init__(
        self,
        eval_model: CaptionerModel,
        dataset: CaptionDataset,
        resident: ResidentDataset | None,
        config: ValidationConfig,
        fabric: Fabric,
        stop: Event,
    ) -> None:
        """Holds the parts.

        Args:
            eval_model: The model, whose weights may change from call to call.
            dataset: The split.
            resident: The same in the device's memory, or None.
            config: The decoding.
            fabric: The processes, which share the work.
            stop: Set to ask for a stop.
        """
        self._captioner = Captioner.from_model(eval_model, dataset.vocabulary)
        self._dataset, self._config, self._fabric = dataset, config, fabric
        self._stop, self._files = stop, StoreFiles(dataset) if resident is None else None
        self._images: CaptionDataset | ResidentDataset = dataset if resident is None else resident
        references = dataset.references()
        self._references = TokenizedCaptions.tokenize(dict.fromkeys(references, ""), references)
        Constraints.of(config.decoding, dataset.vocabulary)  # reports unknown words early

    def __call__(self) -> dict[str, float]:
        """The scores by name, 0 to 100 (CIDEr 0 to 1000), the same in every process.

        Raises:
            StoppedError: It was asked to stop.
            OSError: The features are gone.
        """
        captions: dict[str, str] = {}
        for part in gather(self._fabric, self._captions()):
            captions |= part
        scores = score_captions(self._references.with_hypotheses(captions), FAST_METRICS)
        return dict(scores.values)

    def _captions(self) -> dict[str, str]:
        """The captions of this process's share of the images."""
        places = share_of(self._fabric, len(self._dataset))
        whole = min(self._config.batch_size, len(places))
        captions: dict[str, str] = {}
        for start in range(0, len(places), max(1, whole)):
            if self._stop.is_set():
                raise StoppedError
            if self._files is not None:
                self._files.check()
            mine = places[start : start + whole]
            # All batches have one shape, so that one CUDA graph serves all of them.
            padded = np.pad(mine, (0, whole - len(mine)), mode="edge")
            batch = self._images.batch(padded)
            found = self._captioner.caption_regions(
                batch.features,
                batch.boxes,
                batch.mask,
                **vars(self._config.decoding),
                first=int(mine[0]),
            )
            for image, caption in zip(batch.ids[: len(mine)], found, strict=False):
                captions[image] = caption.text
        return captions


class CaptioningTask(Task):
    """Training of a captioner; see `Task`."""

    free = ("data.folder", "vision.images", "validation.batch_size")
    config: TrainConfig
    train: CaptionDataset
    val: CaptionDataset

    def __init__(
        self,
        fabric: Fabric,
        config: TrainConfig,
        output: Path,
        *,
        fresh: bool,
        datasets: tuple[CaptionDataset, CaptionDataset] | None = None,
    ) -> None:
        check_norm(config.model.norm, fabric.world_size, "images")
        config = dataclasses.replace(config, model=resolve_backbone(config.model))
        train, val = datasets or open_data(fabric, config, output, fresh=fresh)
        super().__init__(fabric, train, val, config.validation.metric)
        self.config = fit_sizes(config, train)
        self.companions = {"vocabulary": train.vocabulary}
        self.features = train.store.source if config.model.backbone == "none" else ""

    def build(self, *, fresh: bool) -> CaptionerModel:
        config, model, dataset = self.config, self.config.model, self.train
        torch.manual_seed(config.seed)
        captioner = build_captioner(model)
        encoder = captioner.encoder
        if encoder.needs_boxes and not dataset.store.has_boxes:
            raise ValueError(
                f"model.geometry: {model.geometry} needs boxes, and the features of "
                f"{dataset.folder} have none: --model.geometry none"
            )
        if isinstance(encoder, PhotoEncoder) and config.vision.pretrained and fresh:
            pretrained = build_backbone(
                model.backbone,
                size=model.image_size,
                pretrained=config.vision.weights == "own",
                description=model.backbone_config,
            )
            if config.vision.weights == "detector":
                load_detector_weights(pretrained)
            encoder.backbone.load_state_dict(pretrained.state_dict())
        if config.init_from and fresh:
            given, its_config, companions = load_model(config.init_from, "captioning")
            dataset.require_vocabulary(companions["vocabulary"])
            check_initial(config.init_from, its_config, model, ("dropout", "backend"))
            captioner.load_state_dict(given.float().state_dict())
        return captioner

    def setup(self, model: nn.Module, stop: Event) -> TrainingSetup:
        assert isinstance(model, CaptionerModel)
        config, device = self.config, self.fabric.device
        eval_model = copy.deepcopy(model).eval().requires_grad_(False)
        eval_model.to(inference_dtype(config.runtime, device.type))
        compiled, where = is_compiled(config.runtime, device), config.runtime.data
        loader = BatchLoader(
            self.train,
            hold(self.train, device, where, static=compiled),
            device,
            workers=config.runtime.workers,
            static=compiled,
        )
        resident = hold(self.val, device, where, static=True)
        encoder = model.encoder
        phases: list[tuple[PhaseConfig, Callable[[], Phase]]] = [
            (config.cross_entropy, partial(self._cross_entropy, model, eval_model, loader)),
            (config.self_critical, partial(self._self_critical, model, eval_model, loader)),
        ]
        return TrainingSetup(
            eval_model=eval_model,
            phases=[build for phase, build in phases if phase.epochs],
            validate=Validation(
                eval_model, self.val, resident, config.validation, self.fabric, stop
            ),
            slow=encoder.backbone if isinstance(encoder, PhotoEncoder) else None,
            slow_lr_scale=config.vision.lr_scale,
        )

    def _cross_entropy(
        self, captioner: CaptionerModel, eval_model: CaptionerModel, loader: BatchLoader
    ) -> Phase:
        config, chosen = self.config, self.config.cross_entropy
        set_dropout(captioner, config.model.dropout)
        set_vision(captioner, config.vision, trains=True)
        capacity = None
        if is_compiled(config.runtime, self.fabric.device):
            size = len(loader.dataset)
            sampler = sample_epoch(self.fabric, config.seed, size, chosen.batch_size)
            capacity = loader.max_targets(sampler, chosen.epochs)
        module = CrossEntropyLoss(
            captioner, label_smoothing=chosen.label_smoothing, capacity=capacity
        )
        loader = _precomputed(loader, captioner, eval_model)
        return CrossEntropyPhase(chosen, module, loader, self.fabric, config.seed)

    def _self_critical(
        self, captioner: CaptionerModel, eval_model: CaptionerModel, loader: BatchLoader
    ) -> Phase:
        config, chosen = self.config, self.config.self_critical
        set_dropout(captioner, chosen.dropout)
        set_vision(captioner, config.vision, trains=False)
        method = SelfCritical(
            eval_model,
            build_reward(loader.dataset, chosen, self.fabric.device),
            loader.dataset.vocabulary,
            num_samples=chosen.num_samples,
            baseline=chosen.baseline,
            temperature=chosen.temperature,
            allow_unknown=chosen.allow_unknown,
            max_length=config.data.max_length,
            seed=config.seed,
        )
        static = is_compiled(config.runtime, self.fabric.device)
        module = SelfCriticalLoss(captioner, method, static=static)
        loader = _precomputed(loader, captioner, eval_model)
        return SelfCriticalPhase(chosen, module, loader, self.fabric, config.seed, method)

    def describe(self) -> dict[str, Any]:
        config, images = self.config, len(self.train)
        names = {tuple(keys.values()): name for name, keys in MODELS.items()}
        name = names.get((config.model.norm, config.model.geometry), "captioner")
        phases = ((CROSS_ENTROPY, config.cross_entropy), (SELF_CRITICAL, config.self_critical))
        return {
            "model": name if config.model.decoder == "transformer" else config.model.decoder,
            "images": images,
            "validation_images": len(self.val),
            "phases": [
                {"phase": name, "epochs": phase.epochs, "steps": -(-images // phase.batch_size)}
                for name, phase in phases
                if phase.epochs
            ],
        }


def _precomputed(
    loader: BatchLoader, captioner: CaptionerModel, eval_model: CaptionerModel
) -> BatchLoader:
    """The loader of a phase: of cells if the backbone sees the same pixels in every epoch."""
    encoder, its_copy = captioner.encoder, eval_model.encoder
    if not (isinstance(encoder, PhotoEncoder) and isinstance(its_copy, PhotoEncoder)):
        return loader
    if not encoder.frozen or encoder.augment is not None:
        return loader
    return loader.precomputed(its_copy.backbone)


def set_vision(captioner: CaptionerModel, config: VisionConfig, *, trains: bool) -> None:
    """Prepares a model of pixels for a phase; another model stays as it is.

    Args:
        captioner: The model.
        config: How it is trained from pixels.
        trains: Whether its backbone is trained, too, on augmented images.
    """
    encoder = captioner.encoder
    if not isinstance(encoder, PhotoEncoder):
        return
    encoder.freeze(not trains or not config.lr_scale)
    encoder.augment = None
    if trains and (config.min_crop < 1 or config.color_jitter):
        encoder.augment = partial(
            augment, min_crop=config.min_crop, color_jitter=config.color_jitter
        )


def fit_sizes(config: TrainConfig, dataset: CaptionDataset) -> TrainConfig:
    """The run with the sizes of its training data.

    Raises:
        ValueError: The model reads frames of clips, and these are regions of images.
    """
    model = config.model
    # Frames that are one vector each have no boxes; the cells of a frame have them.
    if model.positions != "none" and not model.frame_grid and dataset.store.has_boxes:
        raise ValueError(
            f"model.positions: {model.positions} is for the frames of clips, and {dataset.folder} "
            "has regions with boxes; pass clips, with --model.frame_grid if their frames have "
            "cells, or --model.positions none"
        )
    fitted = dataclasses.replace(
        model, vocab_size=len(dataset.vocabulary), feature_dim=dataset.store.feature_dim
    )
    return dataclasses.replace(config, model=fitted)
