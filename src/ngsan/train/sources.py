"""What a run begins with: its data and its model."""

import dataclasses
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from ngsan.config import MovingConfig, SceneConfig, TrainConfig, VisionConfig
from ngsan.data.captions import VOCABULARY
from ngsan.data.dataset import CaptionDataset
from ngsan.data.pictures import PictureStore
from ngsan.data.shards import PARTIAL
from ngsan.data.synthetic import scene_vocabulary
from ngsan.data.synthetic.folder import sample_splits, write_scene_folder
from ngsan.data.synthetic.moving_folder import sample_moving_splits, write_moving_folder
from ngsan.models import Captioner, build_captioner
from ngsan.models.photo import PhotoEncoder
from ngsan.models.saved_captioner import load_captioner
from ngsan.train.machine import half_of
from ngsan.vision.augment import augment
from ngsan.vision.backbone import build_backbone
from ngsan.vision.photos import PhotoDataset

_SCENES = "scenes"


def open_data(
    fabric: Fabric, config: TrainConfig, output: Path, *, fresh: bool
) -> tuple[CaptionDataset, CaptionDataset]:
    """The splits to learn from and to validate on.

    Args:
        fabric: The processes.
        config: The run.
        output: The run's folder, where the built-in scenes are put if it learns from them.
        fresh: Whether the run has just begun: scenes that are there may be another's.

    Raises:
        ValueError: There is no such dataset, or it is damaged.
        OSError: It cannot be read.
    """
    data = config.data
    folder = Path(data.folder)
    if data.scenes is not None:
        folder = output / _SCENES
        if fabric.is_global_zero and (fresh or not (folder / VOCABULARY).is_file()):
            _write_scenes(folder, data.scenes, data.train, data.validation)
        fabric.barrier()
    elif data.moving is not None:
        folder = output / _SCENES
        if fabric.is_global_zero and (fresh or not (folder / VOCABULARY).is_file()):
            _write_moving(folder, data.moving, data.train, data.validation)
        fabric.barrier()
    elif not data.folder:
        raise ValueError(
            "data.folder: say which dataset to learn from, as ngsan data makes it: "
            "--data.folder DIR"
        )
    if not folder.is_dir():
        raise FileNotFoundError(f"data.folder: there is no folder {folder}")
    options: dict[str, Any] = {
        "longest": data.longest,
        "captions_per_image": data.captions_per_image or None,
        "seed": config.seed,
        "dtype": half_of(config.machine, fabric.device.type),
        "skip_missing": data.skip_missing,
    }
    if config.model.backbone == "none":
        return (
            CaptionDataset(folder, data.train, **options),
            CaptionDataset(folder, data.validation, **options),
        )
    if not config.vision.images:
        raise ValueError(
            f"vision.images: a model with the backbone {config.model.backbone} learns from "
            "pictures; say where they are: --vision.images DIR"
        )
    model = config.model
    backbone = build_backbone(model.backbone, size=model.image_size, pretrained=False)
    pictures = PictureStore(config.vision.images)
    return (
        PhotoDataset(folder, data.train, pictures, backbone, **options),
        PhotoDataset(folder, data.validation, pictures, backbone, **options),
    )


def _write_scenes(folder: Path, scenes: SceneConfig, train: str, validation: str) -> None:
    # What a kill left half written would be taken up, and has some of the scenes already.
    shutil.rmtree(folder / PARTIAL, ignore_errors=True)
    if train == validation:
        raise ValueError(f"data.validation: {validation!r} is also what is learned from")
    sizes = {train: scenes.train, validation: scenes.test}
    batches = sample_splits(sizes, fewest=scenes.fewest, most=scenes.most, seed=scenes.seed)
    write_scene_folder(folder, batches, scene_vocabulary())


def _write_moving(folder: Path, moving: MovingConfig, train: str, validation: str) -> None:
    shutil.rmtree(folder / PARTIAL, ignore_errors=True)
    if train == validation:
        raise ValueError(f"data.validation: {validation!r} is also what is learned from")
    sizes = {train: moving.train, validation: moving.test}
    scenes = sample_moving_splits(sizes, frames=moving.frames, seed=moving.seed)
    write_moving_folder(folder, scenes, seed=moving.seed)


def build_model(config: TrainConfig, dataset: CaptionDataset, *, fresh: bool) -> Captioner:
    """The model.

    Args:
        config: The run.
        dataset: What it learns from.
        fresh: Whether the run has just begun: then with the weights that it is to begin with.

    Raises:
        ValueError: The model does not fit the dataset, or the initial weights do not fit it.
    """
    model = config.model
    needed = {
        "vocab_size": len(dataset.vocabulary),
        "feature_dim": dataset.store.feature_dim,
    }
    wrong = {key: value for key, value in needed.items() if getattr(model, key) != value}
    if wrong:
        told = ", ".join(f"model.{key}: {getattr(model, key)}" for key in wrong)
        mended = " ".join(f"--model.{key} {value}" for key, value in wrong.items())
        raise ValueError(f"{told} does not fit {dataset.folder}: {mended}")
    torch.manual_seed(config.seed)
    captioner = build_captioner(model)
    if captioner.encoder.needs_boxes and not dataset.store.has_boxes:
        raise ValueError(
            f"model.geometry: {model.geometry} needs boxes, and the features of {dataset.folder} "
            "have none: --model.geometry none"
        )
    encoder = captioner.encoder
    if isinstance(encoder, PhotoEncoder) and config.vision.pretrained and fresh:
        learned = build_backbone(model.backbone, size=model.image_size, pretrained=True)
        encoder.backbone.load_state_dict(learned.state_dict())
    if config.initial and fresh:
        given, its_config, vocabulary = load_captioner(config.initial)
        dataset.require_vocabulary(vocabulary)
        if its_config != model:
            changed = [
                item.name
                for item in dataclasses.fields(model)
                if getattr(model, item.name) != getattr(its_config, item.name)
                and item.name not in ("dropout", "backend")
            ]
            if changed:
                raise ValueError(
                    f"initial: {config.initial} is of another shape than the model: "
                    f"{', '.join(f'model.{name}' for name in changed)}"
                )
        captioner.load_state_dict(given.float().state_dict())
    return captioner


def set_vision(captioner: Captioner, config: VisionConfig, *, learns: bool) -> None:
    """Makes a model of pixels ready for a phase; another model is left as it is.

    Args:
        captioner: The model.
        config: How it learns from pixels.
        learns: Whether its backbone learns, too, from ever other views of the images.
    """
    encoder = captioner.encoder
    if not isinstance(encoder, PhotoEncoder):
        return
    encoder.freeze(not learns or not config.rate)
    encoder.augment = None
    if learns and (config.smallest_crop < 1 or config.light):
        encoder.augment = partial(augment, smallest=config.smallest_crop, light=config.light)
