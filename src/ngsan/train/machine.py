"""The processes and devices of a run."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import FrameType

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy

from ngsan.config import MachineConfig

_LAUNCHER = "NGSAN_LAUNCHER"
"""In the environment of processes that the first one has started: its number."""

_LAST_SECONDS = 2.0
"""How long other processes have to tell what went wrong with them."""

_ORPHAN_SECONDS = 10.0
"""How long a process has to notice by itself that the one that started it has gone."""


class StoppedError(Exception):
    """The run was asked to stop, and its state is saved."""


def build_fabric(config: MachineConfig) -> Fabric:
    """The processes of a run; those that `torchrun` has started, or as many as configured.

    Raises:
        ValueError: There are no such devices.
    """
    if config.nodes > 1 and "WORLD_SIZE" not in os.environ:
        raise ValueError(
            f"machine.nodes: {config.nodes} machines are started with torchrun on each of them; "
            "see docs/training.md"
        )
    local = int(os.environ.get("LOCAL_WORLD_SIZE", config.processes))
    world = int(os.environ.get("WORLD_SIZE", local * config.nodes))
    nodes = max(1, world // local)
    cuda = torch.cuda.is_available()
    if config.device == "cuda" and not cuda:
        raise ValueError("machine.device: there is no GPU here that torch can use; take cpu")
    kind = "cuda" if config.device == "cuda" or (config.device == "auto" and cuda) else "cpu"
    if kind == "cuda" and local > torch.cuda.device_count():
        raise ValueError(
            f"machine.processes: {local} processes need as many GPUs, and there are "
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


def precision_of(config: MachineConfig, device: str) -> str:
    """The precision of matrix products on a kind of device."""
    if config.precision != "auto":
        return config.precision
    return "bfloat16" if device == "cuda" else "float32"


def half_of(config: MachineConfig, device: str) -> torch.dtype:
    """The type of what is not learned, features and weights that write: half where that is fast."""
    half = device == "cuda" and precision_of(config, device) == "bfloat16"
    return torch.float16 if half else torch.float32


def is_compiled(config: MachineConfig, device: torch.device) -> bool:
    """Whether steps are compiled, and so have few shapes."""
    return config.compile and device.type == "cuda"


@contextmanager
def launched(fabric: Fabric) -> Iterator[None]:
    """Starts the other processes; when this one fails, those that it started end, too."""
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
        # The launcher looks after them, too, and would kill this process before it tells why.
        started.clear()
        for other in others:
            other.terminate()
        end = time.monotonic() + _LAST_SECONDS
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


def is_of_processes(error: RuntimeError) -> bool:
    """Whether an error tells that another process cannot be reached."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)


def loss_of(error: RuntimeError) -> str:
    """What such an error says, less where in the library and what to do about it."""
    return str(error).partition("] ")[2].partition(". ")[0] or str(error)


def _follow_parent() -> None:
    """Sees to it that a process that another has started does not outlive it.

    A lost connection tells it so, but only once there has been one.
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
    """Leaves attention on a GPU to the kernel that is fastest for some tens of words or regions.

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
    """What a device is called."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


@contextmanager
def stop_on_signals(event: Event, *, first: bool) -> Iterator[list[int]]:
    """Sets an event on SIGTERM or SIGINT, so that a run can save its state before it stops.

    Args:
        event: The event.
        first: Whether this is the first process. The others leave the stop to it: they end when
            it has gone.

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
