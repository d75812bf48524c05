"""What fine-tuning does, by the amount of data: all that a user would otherwise have to choose."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ngsan.config import (
    CaptionerConfig,
    CrossEntropyConfig,
    DecodingConfig,
    RuntimeConfig,
    ScheduleConfig,
    SelfCriticalConfig,
    TrainConfig,
    ValidationConfig,
)
from ngsan.finetuning.reading import CaptionedPhoto
from ngsan.predict.captioner import PHOTO_DECODING

MIN_PHOTOS = 20
"""Fewer captioned pictures are refused: a held-out part of them says nothing."""

HELD_OUT, MIN_HELD_OUT, MAX_HELD_OUT = 0.15, 5, 200
"""Share of the pictures that is held out, and its bounds."""

FEW = 300
"""Fewer pictures are mirrored, too, and pass by more often."""

SHOWN = 15_000
"""Captions that pass by in all epochs together,"""

MAX_EPOCHS = 12
"""in at most this many epochs."""

REPLAY = 0.65
"""Ordinary pictures for each of the user's."""

MAX_LENGTH = 40
"""The longest captions that are learned whole, in words."""

_SIDES = {"left", "right", "links", "rechts", "gauche", "droite", "izquierda", "derecha"}


@dataclass(frozen=True)
class Plan:
    """The choices."""

    epochs: int
    patience: int
    """Epochs without a better validation after which training ends."""
    batch_size: int
    peak_lr: float
    captions_per_image: int
    """Captions of a picture in a step; further ones take turns."""
    layers: int
    """Trained layers of the encoder, from the top; the decoder is always trained."""
    mirror: bool
    """Whether mirrored pictures are learned from, too."""
    replay: int
    """Pictures that the model captioned itself and that are mixed in, so that it does not forget
    them."""
    copies: int
    """Times that each of them passes by in an epoch, with other captions."""
    max_length: int
    """Words after which a caption is cut off."""

    def config(
        self, model: CaptionerConfig, folder: str, *, bfloat16: bool, threads: int
    ) -> TrainConfig:
        """The training run.

        Args:
            model: The model with the new words.
            folder: Where it is.
            bfloat16: Whether matrix products are in bfloat16.
            threads: CPU threads; 0 for one per core.
        """
        return TrainConfig(
            model=model,
            cross_entropy=CrossEntropyConfig(
                epochs=self.epochs,
                patience=self.patience,
                batch_size=self.batch_size,
                schedule=ScheduleConfig(
                    shape="cosine", peak_lr=self.peak_lr, warmup_epochs=min(1.0, self.epochs / 10)
                ),
                clip_grad_value=0.0,
                clip_grad_norm=1.0,
                weight_decay=0.01,
                label_smoothing=0.1,
            ),
            self_critical=SelfCriticalConfig(epochs=0),
            validation=ValidationConfig(decoding=self.decoding, batch_size=50),
            runtime=RuntimeConfig(
                device="cpu",
                precision="bfloat16" if bfloat16 else "float32",
                threads=threads,
                workers=0,
                save_seconds=300.0,
                log_steps=5,
            ),
            init_from=folder,
        )

    @property
    def decoding(self) -> DecodingConfig:
        """How captions are written."""
        return PHOTO_DECODING


def make_plan(photos: int, captions: int, lengths: Sequence[int], *, replay: int) -> Plan:
    """Chooses.

    Args:
        photos: Pictures to learn from, without the held-out ones.
        captions: Their captions.
        lengths: Words of each caption.
        replay: Pictures to replay that there are.
    """
    few = photos < FEW
    replayed = min(replay, max(60, round(REPLAY * photos)))
    most = sorted(lengths)[int(0.98 * (len(lengths) - 1))] if lengths else 0
    return Plan(
        epochs=min(MAX_EPOCHS, max(1, round(SHOWN / max(1, captions)))),
        patience=4,
        batch_size=16 if few else 32,
        peak_lr=2e-4,
        captions_per_image=min(5, -(-captions // photos)),
        layers=0,
        mirror=few,
        replay=replayed,
        copies=max(1, min(3, round(REPLAY * photos / max(1, replayed)))),
        max_length=min(MAX_LENGTH, max(20, most)),
    )


def names_a_side(caption: str) -> bool:
    """Whether a caption is wrong for a mirrored picture."""
    return not _SIDES.isdisjoint(caption.lower().replace(".", " ").replace(",", " ").split())


def hold_out(
    photos: Sequence[CaptionedPhoto],
) -> tuple[list[CaptionedPhoto], list[CaptionedPhoto]]:
    """The pictures to learn from, and those to judge by.

    The captions' own split counts if it has validation pictures; pictures for test are left out.
    Otherwise names decide, so that the same pictures are held out when others are added.
    """
    judged = [photo for photo in photos if photo.split == "val"]
    rest = [photo for photo in photos if photo.split not in ("val", "test")]
    if len(judged) >= MIN_HELD_OUT and len(rest) >= MIN_PHOTOS - MIN_HELD_OUT:
        return rest, sorted(judged, key=_key)[:MAX_HELD_OUT]
    rest = [photo for photo in photos if photo.split != "test"]
    count = min(MAX_HELD_OUT, max(MIN_HELD_OUT, round(HELD_OUT * len(rest))))
    chosen = {photo.path for photo in sorted(rest, key=_key)[:count]}
    return (
        [photo for photo in rest if photo.path not in chosen],
        [photo for photo in rest if photo.path in chosen],
    )


def _key(photo: CaptionedPhoto) -> str:
    return hashlib.sha256(photo.path.name.encode("utf-8", "surrogateescape")).hexdigest()
