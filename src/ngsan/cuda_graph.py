"""Work that is captured once as a CUDA graph and then replayed, so that the GPU need not wait."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


class Captured:
    """Repeated work on fixed buffers: called directly on a CPU, replayed as a CUDA graph on a GPU.

    The work must read and write the same buffers at every call, keep all shapes, and not wait for
    the device. On a GPU the function is released after the capture, because it often belongs to the
    owner of this object and the cycle would keep the graph's memory alive; so something else must
    hold the buffers.
    """

    def __init__(
        self,
        work: Callable[[], None],
        device: torch.device,
        warm_up: Callable[[], None],
        *,
        pool: Any = None,
    ) -> None:
        """Keeps the work for `prepare`.

        Args:
            work: The function.
            device: The device of its tensors.
            warm_up: Similar work that is run before the capture, so that libraries choose their
                algorithms and allocate memory; it may leave the buffers in any state.
            pool: A `torch.cuda.graph_pool_handle` for works that never run at the same time and
                pass nothing to each other: they share memory. None for memory of its own.
        """
        self._work, self._device, self._warm_up, self._pool = work, device, warm_up, pool
        self._graph: torch.cuda.CUDAGraph | None = None

    def prepare(self) -> None:
        """Captures the work on a GPU, unless that has been done."""
        if self._device.type != "cuda" or self._graph is not None:
            return
        main = torch.cuda.current_stream(self._device)
        side = _side_stream(self._device)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(2):
                self._warm_up()
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as a data loader's, may allocate meanwhile.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=side, capture_error_mode="thread_local"
            ):
                self._work()
        main.wait_stream(side)
        self._graph = graph
        self._work = self._warm_up = graph.replay

    def __call__(self) -> None:
        """Does the work; on a GPU `prepare` must have been called."""
        self._work()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all captures on a device; other streams do not reuse its freed memory."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream
