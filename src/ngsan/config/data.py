"""The data of a training run."""

from dataclasses import dataclass
from typing import Literal

from ngsan.config.schema import check_range, check_types


@dataclass(frozen=True)
class SceneConfig:
    """The built-in scenes: coloured shapes whose captions follow from geometry."""

    train: int = 8000
    """Training scenes."""

    test: int = 400
    """Unseen scenes for validation."""

    min_objects: int = 2
    """Fewest objects in a scene."""

    max_objects: int = 2
    """Most objects in a scene, at most 6."""

    seed: int = 0
    """Seed of the generator; the same seed gives the same scenes."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "train", "test", at_least=1)
        check_range(self, "min_objects", at_least=2, below=7)
        check_range(self, "max_objects", at_least=self.min_objects, below=7)


@dataclass(frozen=True)
class MovingConfig:
    """The built-in moving scenes: clips of two shapes, whose captions need the order of frames."""

    train: int = 4000
    """Training scenes; half of them are others in reverse."""

    test: int = 400
    """Unseen scenes for validation; half of them are others in reverse."""

    frames: int = 8
    """Frames of a scene."""

    seed: int = 0
    """Seed of the generator; the same seed gives the same scenes."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "train", "test", at_least=1)
        check_range(self, "frames", at_least=3)


@dataclass(frozen=True)
class DataConfig:
    """The dataset of a captioner."""

    folder: str = ""
    """The dataset folder, as `ngsan data` makes it; empty for the built-in scenes."""

    scenes: SceneConfig | None = None
    """The built-in scenes instead of a folder; null for none."""

    moving: MovingConfig | None = None
    """The built-in moving scenes instead of a folder; null for none."""

    train_split: str = "train"
    """The split to train on."""

    val_split: str = "val"
    """The split to validate on after each epoch."""

    max_length: int = 20
    """Most words of a training caption; longer ones are cut off."""

    captions_per_image: int = 5
    """Captions of an image in a step; further ones take turns from epoch to epoch. 0 for all."""

    skip_missing: bool = False
    """Whether to skip images without features; otherwise they are an error."""

    boxes: Literal["given", "permuted"] = "given"
    """The boxes of regions as they are, or, as a control, shuffled among the regions of each image,
    differently for each image and the same in all epochs and splits."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "max_length", at_least=1)
        check_range(self, "captions_per_image", at_least=0)
        given = [("folder", self.folder), ("scenes", self.scenes), ("moving", self.moving)]
        found = [name for name, value in given if value]
        if len(found) > 1:
            raise ValueError(
                f"{found[0]} and {found[1]} cannot both be the training data; remove one of them"
            )


@dataclass(frozen=True)
class ParallelConfig:
    """The dataset of a translator."""

    folder: str = ""
    """A folder of parallel text, as `ngsan data parallel` writes it."""

    train_split: str = "train"
    """The split to train on."""

    val_split: str = "val"
    """The split to validate on after each epoch."""

    max_buckets: int = 8
    """Most shapes of batches: sentences are batched with others of similar length. More shapes
    mean less padding; on a GPU, each takes a while to prepare."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "max_buckets", at_least=1)
        _check_splits(self)


@dataclass(frozen=True)
class AnswerDataConfig:
    """The dataset of an answerer."""

    folder: str = ""
    """The dataset folder, as `ngsan data questions` and `ngsan extract` make it."""

    scenes: SceneConfig | None = None
    """The built-in scenes instead of a folder; null for none."""

    train_split: str = "train"
    """The split to train on."""

    val_split: str = "val"
    """The split to validate on after each epoch."""

    word_vectors: str = ""
    """A text file of word vectors, such as GloVe's, model.word_dim wide, to initialise from; empty
    for random vectors."""

    skip_missing: bool = False
    """Whether to skip questions about images without features; otherwise they are an error."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.folder and self.scenes is not None:
            raise ValueError(
                "folder and scenes cannot both be the training data; remove one of them"
            )
        _check_splits(self)


def _check_splits(config: ParallelConfig | AnswerDataConfig) -> None:
    if config.train_split == config.val_split:
        raise ValueError(f"val_split: {config.val_split!r} is also the training split")
