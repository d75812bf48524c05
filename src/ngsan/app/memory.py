"""Settings that keep the memory of a server small."""

import ctypes
from contextlib import suppress
from importlib import import_module
from typing import Any

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3
_ARENAS = 2
_LARGE = 1 << 20
"""Bytes from which a piece of memory goes back to the system as soon as it is freed."""


def limit_memory() -> None:
    """Makes all graphs share what they reserve, and threads share what they free.

    Call it before a model is opened. Otherwise each graph keeps the most that it ever needed.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, _ARENAS)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE)
    runtime: Any = import_module("onnxruntime")
    info = runtime.OrtMemoryInfo(
        "Cpu", runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT
    )
    # The defaults; it doubles as it grows, as many small parts could not be used for large arrays.
    growth = {
        "max_mem": 0,
        "arena_extend_strategy": 0,
        "initial_chunk_size_bytes": -1,
        "max_dead_bytes_per_chunk": -1,
        "initial_growth_chunk_size_bytes": -1,
    }
    runtime.create_and_register_allocator(info, runtime.OrtArenaCfg(growth))
