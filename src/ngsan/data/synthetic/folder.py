"""Scenes as a dataset folder, to try the commands on."""

from pathlib import Path

from ngsan.data.batch import CaptionBatch
from ngsan.data.captions import VOCABULARY, ImageCaptions, write_captions
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.text.vocabulary import Vocabulary


def write_scene_folder(
    folder: str | Path, batch: CaptionBatch, vocabulary: Vocabulary, *, split: str = "test"
) -> None:
    """Writes scenes with captions, features and vocabulary.

    Args:
        folder: The dataset folder; captions and features that are there are replaced.
        batch: The scenes.
        vocabulary: Their words.
        split: What they are for.
    """
    if batch.boxes is None:
        raise ValueError("scenes have boxes, and this batch has none")
    records = []
    with StoreWriter(folder, source="built-in scenes", overwrite=True) as writer:
        for index, identity in enumerate(batch.ids):
            real = batch.mask[index]
            features, boxes = batch.features[index][real], batch.boxes[index][real]
            writer.add(identity, Regions(features.numpy(), boxes.numpy(), None))
            written = batch.targets[index][batch.caption_mask[index]].tolist()
            captions = tuple(" ".join(vocabulary.decode(words)) for words in written)
            records.append(ImageCaptions(identity, split, captions))
    write_captions(folder, records, overwrite=True)
    vocabulary.save(Path(folder) / VOCABULARY)
