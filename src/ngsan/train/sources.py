"""What a run begins with: its data and its model."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from ngsan.config import DataConfig, MovingConfig, TrainConfig, VisionConfig
from ngsan.data.captions import VOCABULARY
from ngsan.data.dataset import CaptionDataset
from ngsan.data.pictures import PictureStore
from ngsan.data.synthetic import scene_vocabulary
from ngsan.data.synthetic.folder import sample_splits, write_scene_folder
from ngsan.data.synthetic.moving_folder import sample_moving_splits, write_moving_folder
from ngsan.models import Captioner, build_captioner
from ngsan.models.photo import PhotoEncoder
from ngsan.models.saved_captioner import load_captioner
from ngsan.train.fitting import check_initial
from ngsan.train.machine import half_of
from ngsan.train.scenes import place_scenes
from ngsan.vision.augment import augment
from ngsan.vision.backbone import build_backbone
from ngsan.vision.photos import PhotoDataset


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
    if data.scenes is not None or data.moving is not None:
        write = partial(_write_scenes, data)
        folder = place_scenes(fabric, output, last=VOCABULARY, fresh=fresh, write=write)
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


def _write_scenes(data: DataConfig, folder: Path) -> None:
    """Writes the built-in scenes, still or moving."""
    if data.train == data.validation:
        raise ValueError(f"data.validation: {data.validation!r} is also what is learned from")
    chosen = data.scenes or data.moving
    assert chosen is not None
    sizes = {data.train: chosen.train, data.validation: chosen.test}
    if isinstance(chosen, MovingConfig):
        moving = sample_moving_splits(sizes, frames=chosen.frames, seed=chosen.seed)
        write_moving_folder(folder, moving, seed=chosen.seed)
    else:
        batches = sample_splits(sizes, fewest=chosen.fewest, most=chosen.most, seed=chosen.seed)
        write_scene_folder(folder, batches, scene_vocabulary())


def fit_sizes(config: TrainConfig, dataset: CaptionDataset) -> TrainConfig:
    """The run with the sizes of a model that learns from a dataset, whatever it says of them.

    Raises:
        ValueError: The model reads the frames of clips, and these are the regions of images.
    """
    model = config.model
    # Frames that are one vector each have no boxes; the cells of a frame have them.
    if model.positions != "none" and not model.frame_grid and dataset.store.has_boxes:
        raise ValueError(
            f"model.positions: {model.positions} is for the frames of clips, and {dataset.folder} "
            "has regions with boxes: give clips, with --model.frame_grid if their frames have "
            "cells, or --model.positions none"
        )
    fitted = dataclasses.replace(
        model, vocab_size=len(dataset.vocabulary), feature_dim=dataset.store.feature_dim
    )
    return dataclasses.replace(config, model=fitted)


def build_model(config: TrainConfig, dataset: CaptionDataset, *, fresh: bool) -> Captioner:
    """The model.

    Args:
        config: The run, of `fit_sizes`.
        dataset: What it learns from.
        fresh: Whether the run has just begun: then with the weights that it is to begin with.

    Raises:
        ValueError: The model does not fit the dataset, or the initial weights do not fit it.
    """
    model = config.model
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
        check_initial(config.initial, its_config, model, ("dropout", "backend"))
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
