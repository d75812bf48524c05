"""Compares importing a bottom-up-attention TSV with just reading and decoding it.

    python benchmarks/tsv_import.py [--images 400] [--regions 36] [--rounds 3] [--json FILE]

A file of random features is written into a temporary folder. Each round reads it line by line and
decodes its two base64 columns with the standard library, then runs the reader alone, then imports
into a store. The best round of each counts. The file is in the page cache.
"""

import argparse
import base64
import binascii
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from ngsan.data.importers.features import import_features
from ngsan.data.importers.tsv import read_tsv, tsv_total
from ngsan.data.problems import Problems
from ngsan.data.store import FeatureStore
from ngsan.data.store_writer import StoreWriter

WIDTH, HEIGHT = 640, 480


def write_tsv(path: Path, images: int, regions: int, dim: int) -> None:
    """Writes images of random regions."""
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        for image in range(images):
            corner = generator.uniform(0, 200, (regions, 2))
            extent = generator.uniform(20, 250, (regions, 2))
            boxes = np.concatenate((corner, corner + extent), axis=1).astype(np.float32)
            features = generator.random((regions, dim), dtype=np.float32) * 10
            cells = [str(number).encode() for number in (image + 1, WIDTH, HEIGHT, regions)]
            cells += [base64.b64encode(boxes.tobytes()), base64.b64encode(features.tobytes())]
            file.write(b"\t".join(cells) + b"\n")


def decode_only(path: Path) -> None:
    """Reads the lines and decodes the two columns."""
    with path.open("rb", buffering=4 * 2**20) as file:
        for line in file:
            last = line.rfind(b"\t")
            before = line.rfind(b"\t", 0, last)
            view = memoryview(line)  # a plain split would copy the line once more
            binascii.a2b_base64(view[before + 1 : last])
            binascii.a2b_base64(view[last + 1 : -1])


def import_whole(path: Path, folder: Path) -> int:
    """Imports into a new store."""
    with StoreWriter(folder, source=f"tsv {path.name} {tsv_total(path)} bytes") as writer:
        return import_features(read_tsv(path, problems=Problems()), writer, Problems())


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--regions", type=int, default=36)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    decoding, reading, importing = [], [], []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "features.tsv"
        write_tsv(path, options.images, options.regions, options.dim)
        megabytes = path.stat().st_size / 1e6
        for number in range(options.rounds):
            begin = time.perf_counter()
            decode_only(path)
            decoding.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            for _ in read_tsv(path, problems=Problems()):
                pass
            reading.append(time.perf_counter() - begin)
            folder = Path(name) / f"round{number}"
            begin = time.perf_counter()
            added = import_whole(path, folder)
            importing.append(time.perf_counter() - begin)
            if not added == len(FeatureStore(folder)) == options.images:
                raise RuntimeError(f"{added} of {options.images} images were imported")
    figures = {
        "megabytes": megabytes,
        "decode_megabytes_per_s": megabytes / min(decoding),
        "reader_megabytes_per_s": megabytes / min(reading),
        "import_megabytes_per_s": megabytes / min(importing),
        "ratio": min(decoding) / min(importing),
    }
    print(f"{options.images} images of {options.regions} x {options.dim}, {megabytes:.0f} MB")
    print(f"read and decode  {figures['decode_megabytes_per_s']:7.0f} MB/s")
    print(f"reader alone     {figures['reader_megabytes_per_s']:7.0f} MB/s")
    print(f"import           {figures['import_megabytes_per_s']:7.0f} MB/s")
    print(f"import / decode  {figures['ratio']:7.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
