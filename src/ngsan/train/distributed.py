"""The processes and devices of a run."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from numpy.typing import NDArray

from ngsan.config import RuntimeConfig

T = TypeVar("T")

_LAUNCHER = "NGSAN_LAUNCHER"
"""The environment variable with the id of the first process, for those that it starts."""

_GRACE_SECONDS = 2.0
"""Time for other processes to report what went wrong."""

_ORPHAN_SECONDS = 10.0
"""Time for a process to notice by itself that its parent is gone."""


class StoppedError(Exception):
    """The run was asked to stop, and its state is saved."""


def build_fabric(config: RuntimeConfig) -> Fabric:
    """The processes of a run; those that `torchrun` started, or as many as configured.

    Raises:
        ValueError: The devices do not exist.
    """
    if config.nodes > 1 and "WORLD_SIZE" not in os.environ:
        raise ValueError(
            f"runtime.nodes: {config.nodes} machines need torchrun on each of them; "
            "see docs/training.md"
        )
    local = int(os.environ.get("LOCAL_WORLD_SIZE", config.processes))
    world = int(os.environ.get("WORLD_SIZE", local * config.nodes))
    nodes = max(1, world // local)
    cuda = torch.cuda.is_available()
    if config.device == "cuda" and not cuda:
        raise ValueError("runtime.device: torch finds no GPU on this machine; use cpu")
    kind = "cuda" if config.device == "cuda" or (config.device == "auto" and cuda) else "cpu"
    if kind == "cuda" and local > torch.cuda.device_count():
        raise ValueError(
            f"runtime.processes: {local} processes need as many GPUs, and there are "
            f"{torch.cuda.device_count()}"
        )
    backend = "nccl" if kind == "cuda" else "gloo"
    return Fabric(
        accelerator=kind,
        devices=local,
        num_nodes=nodes,
        strategy=DDPStrategy(process_group_backend=backend) if local * nodes > 1 else "auto",
        precision="bf16-mixed" if precision_of(config, kind) == "bfloat16" else "32-true",
    )


def precision_of(config: RuntimeConfig, device: str) -> str:
    """The precision of matrix products on a kind of device."""
    if config.precision != "auto":
        return config.precision
    return "bfloat16" if device == "cuda" else "float32"


def inference_dtype(config: RuntimeConfig, device: str) -> torch.dtype:
    """The type of features and of weights in evaluation: float16 where that is fast."""
    half = device == "cuda" and precision_of(config, device) == "bfloat16"
    return torch.float16 if half else torch.float32


def is_compiled(config: RuntimeConfig, device: torch.device) -> bool:
    """Whether steps are compiled, and so have few shapes."""
    return config.compile and device.type == "cuda"


def share_of(fabric: Fabric, count: int) -> NDArray[np.intp]:
    """This process's share of `count` indices; contiguous, so that shares join in order."""
    return np.array_split(np.arange(count), fabric.world_size)[fabric.global_rank]


def gather(fabric: Fabric, mine: T) -> list[T]:
    """What all processes have, in their order."""
    if fabric.world_size == 1:
        return [mine]
    parts: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(parts, mine)
    return parts


@contextmanager
def launched(fabric: Fabric) -> Iterator[None]:
    """Starts the other processes; if this one fails, it ends those that it started."""
    if int(os.environ.get("LOCAL_RANK", 0)):
        _follow_parent()
    else:
        os.environ[_LAUNCHER] = str(os.getpid())
    fabric.launch()
    try:
        yield
    except BaseException:
        started: list[subprocess.Popen[bytes]] = getattr(fabric.strategy.launcher, "procs", [])
        others = list(started)
        # The launcher watches them, too, and would kill this process before it reports the error.
        started.clear()
        for other in others:
            other.terminate()
        end = time.monotonic() + _GRACE_SECONDS
        for other in others:
            try:
                other.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                other.kill()  # it waits for this process, and has nothing to save
                other.wait()
        raise


def leave_others() -> None:
    """Closes the connections to the other processes, if there are any."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def is_connection_error(error: RuntimeError) -> bool:
    """Whether an error means that another process cannot be reached."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)


def connection_reason(error: RuntimeError) -> str:
    """The message of such an error without the library's source position and advice."""
    return str(error).partition("] ")[2].partition(". ")[0] or str(error)


def _follow_parent() -> None:
    """Ends this process soon after the one that started it.

    A lost connection ends it, too, but only once there has been one.
    """
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    parent = os.getppid() if by_torchrun else int(os.environ.get(_LAUNCHER, os.getppid()))

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        time.sleep(_ORPHAN_SECONDS)
        os._exit(1)

    Thread(target=follow, daemon=True).start()


@contextmanager
def short_attention() -> Iterator[None]:
    """Selects the attention kernel that is fastest on a GPU for some tens of words or regions.

    For captions of 21 words the memory-efficient kernel takes 0.58 ms forward and backward, where
    cuDNN's takes 0.83 and flash attention 1.25; for their attention to 36 regions 0.48, 0.74 and
    0.44 (an H200, 256 images of five captions, dropout).
    """
    before = (
        torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
    )
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_flash_sdp(before[0])
        torch.backends.cuda.enable_cudnn_sdp(before[1])


def device_name(device: torch.device) -> str:
    """The name of a device, for people."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


@contextmanager
def stop_on_signals(event: Event, *, first: bool) -> Iterator[list[int]]:
    """Sets an event on SIGTERM or SIGINT, so that a run can save its state before it stops.

    Args:
        event: The event.
        first: Whether this is the first process. The others leave the stop to it: they end after
            it.

    Yields:
        A list to which the signal's number is appended.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if first:
            event.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
