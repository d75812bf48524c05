"""What a run learns from."""

from dataclasses import dataclass

from ngsan.config.checks import check_range, check_types


@dataclass(frozen=True)
class SceneConfig:
    """The built-in scenes: coloured shapes whose captions follow from geometry."""

    train: int = 8000
    """Scenes to learn from."""

    test: int = 400
    """Unseen scenes to be scored on."""

    fewest: int = 2
    """Fewest objects in a scene."""

    most: int = 2
    """Most objects in a scene, 6 at most."""

    seed: int = 0
    """Seed of the generator; the same seed gives the same scenes."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        for name in ("train", "test"):
            check_range(self, name, at_least=1)
        check_range(self, "fewest", at_least=2, below=7)
        check_range(self, "most", at_least=self.fewest, below=7)


@dataclass(frozen=True)
class MovingConfig:
    """The built-in moving scenes: clips of two shapes, whose captions need the order of frames."""

    train: int = 4000
    """Scenes to learn from; half of them are others in reverse."""

    test: int = 400
    """Unseen scenes to be scored on, likewise."""

    frames: int = 8
    """Frames of a scene."""

    seed: int = 0
    """Seed of the generator; the same seed gives the same scenes."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        for name in ("train", "test"):
            check_range(self, name, at_least=1)
        check_range(self, "frames", at_least=3)


@dataclass(frozen=True)
class DataConfig:
    """The dataset and what is taken of it."""

    folder: str = ""
    """The dataset folder, as `ngsan data` makes it; empty for the built-in scenes."""

    scenes: SceneConfig | None = None
    """The built-in scenes, in the place of a folder; null for none."""

    moving: MovingConfig | None = None
    """The built-in moving scenes, in the place of a folder; null for none."""

    train: str = "train"
    """The split to learn from."""

    validation: str = "val"
    """The split that tells after each epoch how good the model is."""

    longest: int = 20
    """Words of a caption to learn; what comes after them is cut off."""

    captions_per_image: int = 5
    """Captions of an image in a step; of more, some take turns from epoch to epoch. 0 for all."""

    skip_missing: bool = False
    """Whether to leave out images without features rather than to refuse the dataset."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names the key."""
        check_types(self)
        check_range(self, "longest", at_least=1)
        check_range(self, "captions_per_image", at_least=0)
        if self.folder and self.scenes is not None:
            raise ValueError(f"folder: {self.folder!r} and scenes cannot both be learned from")
        if self.moving is not None and (self.folder or self.scenes is not None):
            other = f"folder: {self.folder!r}" if self.folder else "scenes"
            raise ValueError(f"{other} and moving cannot both be learned from")
