"""Work that is captured once on a GPU and replayed ever after, so that neither waits for Python."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


class Captured:
    """Some work on tensors that stay where they are: plain on a CPU, a CUDA graph on a GPU.

    The work reads and writes the same buffers at every call, has shapes that never change, and
    does not wait for the device. On a GPU it is let go once it is captured, as it often belongs to
    who holds this, and the two would keep each other and the graph's memory; so the buffers must
    be held elsewhere.
    """

    def __init__(
        self,
        work: Callable[[], None],
        device: torch.device,
        warm_up: Callable[[], None],
        *,
        pool: Any = None,
    ) -> None:
        """Takes the work; it is captured when first called.

        Args:
            work: What to do.
            device: Where its tensors are.
            warm_up: Called before the capture, some times, with work of the same kind, in which
                libraries choose their methods and allocate their space; it may leave the buffers
                in any state.
            pool: Of `torch.cuda.graph_pool_handle`, for works that are never done at the same time
                and leave nothing to each other: they share their memory. None for memory of its
                own.
        """
        self._work, self._device, self._warm_up, self._pool = work, device, warm_up, pool
        self._graph: torch.cuda.CUDAGraph | None = None

    def prepare(self) -> None:
        """Captures the work, unless that has been done or the device is no GPU."""
        if self._device.type != "cuda" or self._graph is not None:
            return
        main = torch.cuda.current_stream(self._device)
        side = _side_stream(self._device)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(2):
                self._warm_up()
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as a loader's, may go on allocating meanwhile.
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
    """Where all work of a device is captured: memory that one stream gives back serves no other."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream
