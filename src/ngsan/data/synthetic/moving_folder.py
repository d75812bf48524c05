"""Moving scenes as a dataset folder: a clip is an image whose regions are its frames."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngsan.data.captions import VOCABULARY, ImageCaptions, write_captions
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.data.synthetic.folder import UNSEEN_SEEDS
from ngsan.data.synthetic.moving import FRAMES, MovingScene, sample_moving_scenes
from ngsan.data.synthetic.moving_wording import all_moving_words, sample_moving_captions
from ngsan.data.synthetic.scene import COLOURS, SHAPES
from ngsan.text.vocabulary import TOKENIZERS, Origin, Vocabulary

FRAME_DIM = 2 * (len(COLOURS) + len(SHAPES) + 4)
"""Width of what `frame_codes` makes of a frame."""

_NOISE = 0.02
_SPREAD = 4.0


def moving_vocabulary() -> Vocabulary:
    """The vocabulary of captions of moving scenes."""
    return Vocabulary(all_moving_words(), origin=Origin(TOKENIZERS["plain"].version, 0, 0))


def sample_moving_splits(
    sizes: Mapping[str, int], *, frames: int = FRAMES, seed: int = 0
) -> dict[str, list[MovingScene]]:
    """Moving scenes for the splits of a dataset; each is followed by itself in reverse.

    Whoever looks at the frames and not at their order therefore cannot tell the two apart.

    Args:
        sizes: Scenes of each split; the first is for learning, the rest are unseen.
        frames: Frames of a scene.
        seed: Of the scenes.
    """
    found = {}
    for number, (split, size) in enumerate(sizes.items()):
        own = seed + number * UNSEEN_SEEDS
        made = sample_moving_scenes(-(-size // 2), frames=frames, seed=own)
        found[split] = [scene for one in made for scene in (one, one.reversed())][:size]
    return found


def frame_codes(scene: MovingScene) -> NDArray[np.float32]:
    """Features of frames without pixels: of each thing its colour, shape and box, and some noise.

    Args:
        scene: Of two things.

    Returns:
        (frames, FRAME_DIM), the same for the same scene.
    """
    looks = np.zeros((scene.frames, len(scene.things), len(COLOURS) + len(SHAPES)), np.float32)
    for place, thing in enumerate(scene.things):
        looks[:, place, COLOURS.index(thing.colour)] = 1
        looks[:, place, len(COLOURS) + SHAPES.index(thing.shape)] = 1
    boxes = np.array([thing.boxes for thing in scene.things], np.float32).swapaxes(0, 1)
    # As far from zero as the looks, so that a small model soon sees what moves.
    codes = np.concatenate((looks, _SPREAD * (boxes - 0.5)), 2).reshape(scene.frames, -1)
    noise = np.random.default_rng(scene.look).normal(0, _NOISE, codes.shape)
    return (codes + noise).astype(np.float32)


def _plain(scene: MovingScene) -> Regions:
    return Regions(frame_codes(scene), None, None)


def write_moving_folder(
    folder: str | Path,
    scenes: Mapping[str, Sequence[MovingScene]],
    *,
    seed: int = 0,
    describe: Callable[[MovingScene], Regions] | None = None,
    source: str = "built-in moving scenes",
) -> None:
    """Writes moving scenes with five captions each, features and, last of all, the vocabulary.

    Args:
        folder: The dataset folder; captions and features that are there are replaced.
        scenes: The scenes by split, which goes before a scene's id.
        seed: Of the captions' choice.
        describe: Makes the regions of a scene; None for a row of `frame_codes` a frame.
        source: What makes the features, told apart from all that would make others.
    """
    records = []
    with StoreWriter(folder, source=source, overwrite=True) as writer:
        for split, some in scenes.items():
            for number, scene in enumerate(some):
                identity = f"{split}-{number}"
                writer.add(identity, (describe or _plain)(scene))
                rng = random.Random(f"captions {seed}/{identity}")
                captions = tuple(sample_moving_captions(scene, rng))
                records.append(ImageCaptions(identity, split, captions))
    write_captions(folder, records, overwrite=True)
    moving_vocabulary().save(Path(folder) / VOCABULARY)
