"""Kills training, import, extraction and export at random times: nothing may be lost.

    python benchmarks/kills.py 300
    python benchmarks/kills.py 40 --only training --seed 7

Commands run in processes that SIGKILL ends after a random part of the time that the command takes;
the same command then runs again, until it ends. After every kill, what was saved before must still
be there, and no process may be left. In the end, every file must have the same bytes as those of an
undisturbed run (of the log: the same entries, without times). It prints the number of kills, and
exits with 1 at the first difference.
"""

import argparse
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ngsan.__main__ import main as ngsan
from ngsan.cli import extract
from ngsan.config import CaptionerConfig
from ngsan.data.shards import MANIFEST, PARTIAL, STORE, Manifest
from ngsan.data.store_writer import StoreWriter
from ngsan.models import build_captioner
from ngsan.models.checkpoint import save_model
from ngsan.predict.captioner import PHOTO_MODEL
from ngsan.text.vocabulary import Vocabulary
from ngsan.train.state import read_state

FORK = multiprocessing.get_context("fork")
EVENTS = {"before", "step", "epoch", "average", "end"}
TIMES = {"time", "seconds", "validation_seconds", "images_per_second", "seconds_left", "log"}
"""What differs from run to run; `log` is the length of the log, which holds times."""
TRAINING = """--model.dim 16 --model.heads 2 --model.hidden-dim 16 --model.layers 1
    --data.scenes.train 96 --data.scenes.test 16 --cross-entropy.epochs 2
    --cross-entropy.batch-size 16 --self-critical.epochs 2 --self-critical.batch-size 16
    --runtime.save-seconds 0 --runtime.log-steps 1 --device cpu --threads 1 --resume"""
HEAVY = (
    "ngsan.train.run",
    "ngsan.train.tasks.captioning",
    "ngsan.export.write",
    "ngsan.vision.extraction",
    "ngsan.predict.answerer",
    "ngsan.data.importers.features",
    "onnxscript",
    "onnxruntime",
    "torch.onnx._internal.exporter",
)
"""Imported once, so that kills fall into the work."""


@dataclass(frozen=True)
class Work:
    """A command that is killed."""

    words: list[str]
    """Of the command line, without `-o FOLDER`."""

    saved: Callable[[Path], int]
    """How much of the result is safe; a kill may not make it less."""


def step_of(run: Path) -> int:
    """The step of a run's newest state."""

    def damaged(text: str) -> None:
        raise AssertionError(text)

    state = read_state(run / "training", damaged)
    return int(state.progress["progress"]["step"]) + 1 if state else 0


def images_of(folder: Path) -> int:
    """Images in the complete shards of a store, which may be unfinished."""
    for path in (folder / STORE / MANIFEST, folder / PARTIAL / "state.json"):
        if path.exists():
            return Manifest.read(path).images
    return 0


def content(folder: Path) -> dict[str, str]:
    """Hashes of all files by name, those of a run without times and older states."""
    states = [path for path in folder.glob("training/step-*") if path.is_dir()]
    newest = max(
        states, key=lambda path: [int(part) for part in path.name.split("-")[1:]], default=None
    )
    found = {}
    for path in sorted(
        path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"
    ):
        data, name = path.read_bytes(), str(path.relative_to(folder))
        if path.parent in states:
            name = f"training/newest/{path.name}"
            if path.parent != newest or path.name == "manifest.json":  # of hashes with times
                continue
        if name == "log.jsonl":
            entries = [json.loads(line) for line in data.splitlines()]
            entries = [one for one in entries if one["event"] in EVENTS]
            data = json.dumps([without_times(one) for one in entries]).encode()
        elif path.name == "progress.json":
            value = json.loads(data)
            data = json.dumps({**value, "progress": without_times(value["progress"])}).encode()
        found[name] = hashlib.sha256(data).hexdigest()
    return found


def without_times(entry: dict[str, object]) -> dict[str, object]:
    """An entry without what differs from run to run."""
    return {name: value for name, value in entry.items() if name not in TIMES}


def whole_exports(folder: Path) -> int:
    """1 if there is an export; it is complete, as its seal and hashes are checked."""
    if not folder.exists():
        return 0
    from ngsan.predict.manifest import MANIFEST as EXPORT

    manifest = json.loads((folder / EXPORT).read_text())
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
    return 1


def make_work(folder: Path) -> dict[str, Work]:
    """Writes small inputs of each command."""
    rng = np.random.default_rng(0)
    (folder / "npz").mkdir()
    (folder / "photos").mkdir()
    for number in range(300):
        features = rng.random((4, 64), np.float32)
        boxes = np.tile(np.float32([4, 4, 40, 30]), (4, 1))
        np.savez(
            folder / f"npz/{number}.npz", features=features, bbox=boxes, image_w=64, image_h=48
        )
    for number in range(60):
        pixels = rng.integers(0, 256, (96, 128, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"photos/{number}.jpg", quality=90)
    torch.manual_seed(0)
    vocabulary = Vocabulary([f"word{number}" for number in range(40)])
    config = CaptionerConfig(
        vocab_size=len(vocabulary), dim=32, heads=2, hidden_dim=48, layers=1, feature_dim=36
    )
    save_model(folder / "model", build_captioner(config), config, {"vocabulary": vocabulary})
    photos, arrays, model = (str(folder / name) for name in ("photos", "npz", "model"))
    reading = ["extract", photos, "--extractor", f"photo:{PHOTO_MODEL}", "--device", "cpu"]
    return {
        "training": Work(["train", "toy-scenes", *TRAINING.split()], step_of),
        "import": Work(["data", "features", "npz", arrays], images_of),
        "extraction": Work([*reading, "--batch-size", "4"], images_of),
        "export": Work(["export", model], whole_exports),
    }


def start(work: Work, output: Path) -> multiprocessing.process.BaseProcess:
    """Starts the command in a process of its own."""

    def run() -> None:
        # Small shards: what is not in a shard is made again.
        StoreWriter.__init__.__kwdefaults__["shard_bytes"] = 20_000  # type: ignore[index]
        extract._SHARD_BYTES = 20_000
        os.setsid()
        log = os.open(output.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.exit(ngsan([*work.words, "-o", str(output), "--quiet"]))

    process = FORK.Process(target=run)
    process.start()
    return process


def members(group: int) -> list[int]:
    """Processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == group and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def no_process_left(group: int) -> None:
    """Waits until the helpers of a killed process have ended."""
    end = time.monotonic() + 20
    while left := members(group):
        assert time.monotonic() < end, f"processes {left} are left"
        time.sleep(0.02)


def kill(name: str, work: Work, kills: int, folder: Path, rng: random.Random) -> tuple[int, int]:
    """Kills a command; returns the numbers of kills, and of results that were compared."""
    output, done, compared = folder / name, 0, 0
    for _ in range(2):  # the second time is the one without cold caches
        shutil.rmtree(output, ignore_errors=True)
        begun = time.monotonic()
        process = start(work, output)
        process.join()
        assert process.exitcode == 0, output.with_suffix(".log").read_text()[-2000:]
        length, whole = time.monotonic() - begun, content(output)
    while done < kills:
        shutil.rmtree(output, ignore_errors=True)
        safe = 0
        while True:
            process = start(work, output)
            # The last run of a result may end; earlier ones are killed sooner or later.
            process.join(rng.uniform(0, 0.8 * length) if done < kills else None)
            process.kill()
            process.join()
            assert process.pid is not None
            no_process_left(process.pid)
            if process.exitcode == 0:
                length *= 0.9 if done < kills else 1  # the machine is less busy than before
                break
            length *= 1.05
            assert process.exitcode == -9, output.with_suffix(".log").read_text()[-2000:]
            done += 1
            now = work.saved(output)
            assert now >= safe, f"{name}: {safe} were saved, and {now} after a kill"
            safe = now
            if (output / STORE).exists():  # it was complete, and is not written again
                break
        found = content(output)
        different = [file for file in {*whole, *found} if whole.get(file) != found.get(file)]
        assert not different, f"{name}, after kill {done}: {sorted(different)} differ"
        compared += 1
        print(f"{name}: {done} kills, {compared} results equal", flush=True)
    return done, compared


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int, help="number of kills, shared by the four commands")
    parser.add_argument("--only", help="one of training, import, extraction, export")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for module in HEAVY:
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        chosen = make_work(Path(folder))
        if options.only:
            chosen = {options.only: chosen[options.only]}
        total = 0
        for name, work in chosen.items():
            share = -(-options.kills // len(chosen))
            rng = random.Random(f"{options.seed} {name}")
            done, compared = kill(name, work, share, Path(folder), rng)
            print(f"{name:12} {done:5} kills, {compared:4} results, all equal", flush=True)
            total += done
    print(f"{total} kills, nothing lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
