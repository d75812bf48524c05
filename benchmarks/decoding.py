"""How fast captions are written, beside a plain search that recomputes every prefix.

    python benchmarks/decoding.py --json decoding.json
    python benchmarks/decoding.py --device cpu

On a GPU, which is the default if there is one: one image, and 5,000 images by beam search and by
sampling. On the CPU: one image on two cores, by PyTorch and by ONNX Runtime with the model exported
in single precision and in 8 bits, which takes a minute; and the search alone, with NumPy and with
torch, on one thread.

The model is the paper's NG-SAN with random weights whose captions never end, so every search takes
all steps. Features lie on the device; times include the encoder. The plain search is what public
captioners do: no cache, the images' memory repeated for every beam, attention spelled out.
"""

import argparse
import functools
import json
import math
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngsan import load
from ngsan.config import CaptionerConfig, DecodingConfig
from ngsan.export.write import export_model
from ngsan.models import CaptionerModel, build_captioner
from ngsan.models.checkpoint import save_model
from ngsan.predict.captioner import Captioner
from ngsan.search import build_search
from ngsan.text.vocabulary import UNKNOWN, Vocabulary

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BEAM = DecodingConfig(beam=3)
SAMPLES = DecodingConfig(method="sample", num_return=5)


def model(options: argparse.Namespace, backend: str) -> CaptionerModel:
    """The paper's NG-SAN; its captions never end."""
    torch.manual_seed(0)
    captioner = build_captioner("ng-san", layers=options.layers, backend=backend).eval()
    with torch.no_grad():
        captioner.decoder.output.bias[[0, -1]] = -1e4
    return captioner.to(options.device, PRECISIONS[options.precision])


def images(options: argparse.Namespace, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random features, boxes and a mask of real regions; all are real."""
    random = torch.Generator(options.device).manual_seed(1)
    shape = (count, options.regions)
    features = torch.randn(*shape, 2048, device=options.device, generator=random)
    boxes = torch.rand(*shape, 4, device=options.device, generator=random) * 0.4 + 0.1
    mask = torch.ones(shape, dtype=torch.bool, device=options.device)
    return features.to(PRECISIONS[options.precision]), boxes, mask


@torch.inference_mode()
def plain_beam(
    captioner: CaptionerModel,
    features: Tensor,
    boxes: Tensor,
    mask: Tensor,
    width: int,
    max_length: int,
) -> Tensor:
    """Beam search without a cache; a caption of the random model never ends."""
    count = len(features)
    memory = captioner.encode(features, boxes, mask).repeat_interleave(width, 0)
    mask = mask.repeat_interleave(width, 0)
    words = torch.zeros(count, width, 1, dtype=torch.long, device=features.device)
    totals = torch.full((count, width), -math.inf, device=features.device)
    totals[:, 0] = 0.0
    for _ in range(max_length):
        logits = captioner.decode(words.flatten(0, 1), memory, mask)[:, -1]
        log_probs = logits.float().log_softmax(-1).view(count, width, -1)
        totals, places = (totals.unsqueeze(2) + log_probs).flatten(1).topk(width)
        parents = (places // log_probs.shape[2]).unsqueeze(2).expand(-1, -1, words.shape[2])
        latest = (places % log_probs.shape[2]).unsqueeze(2)
        words = torch.cat((words.gather(1, parents), latest), 2)
    return words[:, 0, 1:]


@torch.inference_mode()
def plain_samples(
    captioner: CaptionerModel,
    features: Tensor,
    boxes: Tensor,
    mask: Tensor,
    width: int,
    max_length: int,
) -> Tensor:
    """Sampling without a cache."""
    memory = captioner.encode(features, boxes, mask).repeat_interleave(width, 0)
    mask = mask.repeat_interleave(width, 0)
    words = torch.zeros(len(memory), 1, dtype=torch.long, device=features.device)
    for _ in range(max_length):
        logits = captioner.decode(words, memory, mask)[:, -1]
        latest = torch.multinomial(logits.float().softmax(-1), 1)
        words = torch.cat((words, latest), 1)
    return words[:, 1:]


def wait(device: str) -> None:
    """Waits until the device has done its work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def seconds(work, device: str, repeat: int) -> float:
    """Median time of some work; it is done twice beforehand."""
    times = []
    for turn in range(repeat + 2):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        if turn >= 2:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def throughput(options: argparse.Namespace) -> dict[str, float]:
    """Beam search and sampling over many images, in batches."""
    found = {}
    ours = Captioner.from_model(model(options, options.backend), vocabulary())
    plain = model(options, "explicit")
    features, boxes, mask = images(options, options.images)
    for batch in options.batches:

        def whole(decoding: DecodingConfig, batch: int = batch) -> None:
            parts = zip(features.split(batch), boxes.split(batch), mask.split(batch), strict=True)
            for part in parts:
                ours.backend.search(*part, decoding=decoding)

        for name, decoding in (("beam 3", BEAM), ("5 samples", SAMPLES)):
            elapsed = seconds(lambda d=decoding: whole(d), options.device, options.repeat)
            found[f"{name}, batch {batch}, images/s"] = options.images / elapsed
    few = (features[: options.plain], boxes[: options.plain], mask[: options.plain])
    for name, search, width in (("beam 3", plain_beam, 3), ("5 samples", plain_samples, 5)):
        elapsed = seconds(lambda s=search, w=width: s(plain, *few, w, 20), options.device, 1)
        found[f"plain {name}, batch {options.plain}, images/s"] = options.plain / elapsed
    return found


def latency(options: argparse.Namespace) -> dict[str, float]:
    """One image, beam 3, from features to text."""
    ours = Captioner.from_model(model(options, options.backend), vocabulary())
    plain = model(options, "explicit")
    one = images(options, 1)
    fast = seconds(
        lambda: ours.caption_regions(*one, **vars(BEAM)), options.device, options.repeat * 3
    )
    slow = seconds(lambda: plain_beam(plain, *one, 3, 20), options.device, options.repeat)
    if options.precision == "float32" and not options.tf32:
        same = ours.backend.search(*one, decoding=BEAM).words[0, 0].tolist()
        assert same == plain_beam(plain, *one, 3, 20)[0].tolist()
    return {"one image, beam 3, ms": 1000 * fast, "plain one image, beam 3, ms": 1000 * slow}


def exported(options: argparse.Namespace) -> dict[str, float]:
    """One image, beam 3, by ONNX Runtime; on one thread, as more only wait for each other."""
    found = {}
    torch.set_num_threads(1)
    one = images(options, 1)
    with tempfile.TemporaryDirectory() as folder:
        config = CaptionerConfig(layers=options.layers)
        captioner = model(argparse.Namespace(**{**vars(options), "precision": "float32"}), "fused")
        save_model(Path(folder) / "model", captioner, config, {"vocabulary": vocabulary()})
        for precision in ("float32", "int8"):
            export_model(f"{folder}/model", f"{folder}/{precision}", precision=precision)
            captioner = load(f"{folder}/{precision}", threads=1)
            work = functools.partial(captioner.caption_regions, *one, **vars(BEAM))
            elapsed = seconds(work, options.device, options.repeat * 3)
            found[f"one image, beam 3, exported in {precision}, ms"] = 1000 * elapsed
    return found


class Recorded:
    """Logits drawn beforehand, to time a search without its model."""

    images, vocab_size = 1, 9490

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        logits = np.random.default_rng(0).standard_normal((20, 1, 3, 9490)).astype("f4")
        logits[..., 0] = -1e4  # no caption ends
        self._logits = logits if device is None else torch.from_numpy(logits)

    def start(self, rows: int, max_length: int) -> None:
        """Begins again."""
        self._place = -1

    def step(self, words: Any, parents: Any) -> Any:
        """The next logits."""
        self._place += 1
        return self._logits[self._place]


def alone() -> dict[str, float]:
    """The search without a model: one image, three captions of 20 words."""
    torch.set_num_threads(1)
    found = {}
    for backend, device in (("NumPy", None), ("torch", torch.device("cpu"))):
        for name, decoding in (("beam 3", BEAM), ("3 samples", SAMPLES)):
            decoding = replace(decoding, num_return=min(3, decoding.num_return))
            search = build_search(Recorded(device), decoding, vocabulary())
            elapsed = seconds(search.run, "cpu", 100)
            found[f"search alone, {name}, {backend}, ms"] = 1000 * elapsed
    return found


def vocabulary() -> Vocabulary:
    """9,487 words, the unknown one, which is never written, among them."""
    return Vocabulary([*(f"word{number}" for number in range(9486)), UNKNOWN])


def main() -> None:
    """Runs the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=PRECISIONS, help="float16 on a GPU, else float32")
    parser.add_argument("--tf32", action="store_true", help="let float32 matrix products use TF32")
    parser.add_argument("--backend", choices=("fused", "explicit"), default="fused")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--regions", type=int, default=36)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--batches", type=int, nargs="*", default=[500, 1000, 2500])
    parser.add_argument("--plain", type=int, default=200, help="images of the plain search")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    options = parser.parse_args()
    on_gpu = options.device != "cpu"
    options.precision = options.precision or ("float16" if on_gpu else "float32")
    torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    name = torch.cuda.get_device_name() if on_gpu else f"{options.threads} CPU threads"
    print(f"torch {torch.__version__}, {name}, {options.precision}", flush=True)
    found = latency(options)
    if on_gpu:
        found |= throughput(options)
    elif options.precision == "float32":
        found |= exported(options) | alone()
    for what, figure in found.items():
        print(f"{what:46} {figure:10,.1f}", flush=True)
    if options.json:
        setting = {"torch": torch.__version__, "device": name, "precision": options.precision}
        Path(options.json).write_text(json.dumps({**setting, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
