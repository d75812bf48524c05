"""Scenes as a dataset folder, to try the commands on."""

from collections.abc import Mapping
from pathlib import Path

from ngsan.data.batch import CaptionBatch
from ngsan.data.captions import VOCABULARY, ImageCaptions, write_captions
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.data.synthetic.scene import sample_scenes
from ngsan.data.synthetic.tensors import scene_vocabulary, scenes_to_batch
from ngsan.text.vocabulary import Vocabulary

UNSEEN_SEEDS = 1_000_003
"""What is added to the seed of training scenes to get that of unseen ones."""


def sample_splits(
    sizes: Mapping[str, int], *, fewest: int, most: int, seed: int
) -> dict[str, CaptionBatch]:
    """Scenes for the splits of a dataset; the first split is for learning, the rest are unseen.

    Args:
        sizes: Scenes of each split.
        fewest: Fewest objects in a scene.
        most: Most objects.
        seed: Of the scenes.
    """
    vocabulary = scene_vocabulary()
    batches = {}
    for number, (split, size) in enumerate(sizes.items()):
        # A seed of its own: the series of another seed shares no scene with that of training.
        own = seed + number * UNSEEN_SEEDS
        scenes = list(sample_scenes(size, fewest=fewest, most=most, seed=own))
        batches[split] = scenes_to_batch(scenes, vocabulary, seed=seed + number)
    return batches


def write_scene_folder(
    folder: str | Path, batches: Mapping[str, CaptionBatch], vocabulary: Vocabulary
) -> None:
    """Writes scenes with captions, features and, last of all, the vocabulary.

    Args:
        folder: The dataset folder; captions and features that are there are replaced.
        batches: The scenes by split; if there are several, the split goes before a scene's id.
        vocabulary: Their words.
    """
    records = []
    with StoreWriter(folder, source="built-in scenes", overwrite=True) as writer:
        for split, batch in batches.items():
            if batch.boxes is None or batch.mask is None:
                raise ValueError("scenes have boxes and a mask, and this batch lacks one")
            for index, name in enumerate(batch.ids):
                identity = f"{split}-{name}" if len(batches) > 1 else name
                real = batch.mask[index]
                features, boxes = batch.features[index][real], batch.boxes[index][real]
                writer.add(identity, Regions(features.numpy(), boxes.numpy(), None))
                written = batch.targets[index][batch.caption_mask[index]].tolist()
                captions = tuple(" ".join(vocabulary.decode(words)) for words in written)
                records.append(ImageCaptions(identity, split, captions))
    write_captions(folder, records, overwrite=True)
    vocabulary.save(Path(folder) / VOCABULARY)
