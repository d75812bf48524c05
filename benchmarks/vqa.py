"""Brings the questions of VQA and the images that they ask about into a dataset folder.

    python benchmarks/vqa.py prepare --questions FILES... --images DIRS... --data DATA
    python benchmarks/vqa.py pack --data DATA --images DIRS... --to DIR [--mib 45]

`prepare` imports the questions and describes the images that they ask about, and no others, with
the backbone of the captioner that ships; without --images it imports the questions alone. Images
are pictures or .tar files of them, named by id. `pack` writes the images that are asked about into
.tar files of bounded size, to be carried to another machine. Neither needs a package of the command
line. The models are trained and compared by `ngsan reproduce vqa --data DATA`.
"""

import argparse
import io
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ngsan.data.importers.questions import vqa_questions
from ngsan.data.pictures import PictureStore
from ngsan.data.problems import Problems
from ngsan.data.questions import (
    ANSWERS,
    WORDS,
    count_answers,
    count_words,
    read_questions,
    write_questions,
)
from ngsan.data.store_writer import StoreWriter
from ngsan.predict.answerer import PHOTO_MODEL, photo_source
from ngsan.vision.images import open_picture

_BATCH = 256


def prepare(options: argparse.Namespace) -> None:
    """Imports questions and describes their images."""
    data = Path(options.data)
    if not (data / ANSWERS).is_file():
        records = vqa_questions(options.questions, problems=Problems())
        print(write_questions(data, records, overwrite=True), flush=True)
        learned = [asked for asked in read_questions(data) if asked.split == "train"]
        count_words(learned, more_than=options.words_more_than).save(data / WORDS)
        count_answers(learned, more_than=options.answers_more_than).save(data / ANSWERS)
    if not options.images:
        return
    wanted = sorted({asked.image for asked in read_questions(data)})
    stores = [PictureStore(folder) for folder in options.images]
    source = photo_source(options.photo_model, options.device)
    started, done, lost = time.perf_counter(), 0, []
    text = f"extract {source.signature}"
    with StoreWriter(data, source=text) as writer, ThreadPoolExecutor(options.workers) as pool:
        left = [image for image in wanted if image not in writer]
        for start in range(0, len(left), _BATCH):
            batch = left[start : start + _BATCH]
            found = {
                image: store for image in batch for store in reversed(stores) if image in store
            }
            lost += [image for image in batch if image not in found]
            files = [store.read(image) for image, store in found.items()]
            pictures = pool.map(open_picture, files)
            squares = list(pool.map(source.prepare, (picture.image for picture in pictures)))
            for image, regions in zip(
                found, source.regions(squares) if squares else (), strict=True
            ):
                writer.add(image, regions)
            done += len(found)
            if start % (16 * _BATCH) == 0:
                rate = done / (time.perf_counter() - started)
                print(f"{done:,} of {len(left):,} images, {rate:,.0f} a second", flush=True)
    print(f"{done:,} images described, {len(lost):,} have no picture {lost[:5]}", flush=True)


def pack(options: argparse.Namespace) -> None:
    """Writes the images that are asked about into tar files."""
    wanted = sorted({asked.image for asked in read_questions(options.data)})
    stores = [PictureStore(folder) for folder in options.images]
    options.to.mkdir(parents=True, exist_ok=True)
    groups: list[list[str]] = []
    filled, lost = 0, 0
    for image in wanted:
        size = next((len(store.read(image)) for store in stores if image in store), 0)
        lost += not size
        need = 512 + -(-size // 512) * 512
        if not groups or filled + need + 10_240 > options.mib * 2**20:
            groups.append([])
            filled = 0
        if size:
            groups[-1].append(image)
            filled += need
    for number, group in enumerate(groups):
        with tarfile.open(options.to / f"{number:03d}.tar", "w") as archive:
            for image in group:
                content = next(store.read(image) for store in stores if image in store)
                about = tarfile.TarInfo(f"{image}.jpg")
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
    print(f"{len(wanted) - lost:,} of {len(wanted):,} images in {len(groups)} files")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("prepare", "pack"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--questions", nargs="+", default=[])
    parser.add_argument("--images", nargs="+", default=[])
    parser.add_argument("--to", type=Path)
    parser.add_argument("--mib", type=float, default=45)
    parser.add_argument("--photo-model", type=Path, default=PHOTO_MODEL)
    parser.add_argument("--words-more-than", type=int, default=0)
    parser.add_argument("--answers-more-than", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()
    if options.what == "pack" and options.to is None:
        parser.error("--to is missing; pass the output folder")
    {"prepare": prepare, "pack": pack}[options.what](options)


if __name__ == "__main__":
    main()
