"""CUDA graphs release their owner; a fake GPU records the operations."""

import contextlib
import gc
import weakref

import pytest
import torch

from ngsan.cuda_graph import Captured, _side_stream


class Owner:
    """An object that holds its own captured work, as searches do."""

    def __init__(self, device):
        self.done = []
        self.steps = Captured(self.work, torch.device(device), self.warm_up)

    def work(self):
        self.done.append("work")

    def warm_up(self):
        self.done.append("warm up")


class Stream:
    def __init__(self, device):
        pass

    def wait_stream(self, other):
        pass


class Graph:
    replayed = 0

    def replay(self):
        Graph.replayed += 1


def test_work_runs_directly_on_a_cpu():
    owner = Owner("cpu")
    owner.steps.prepare()
    owner.steps()
    owner.steps()
    assert owner.done == ["work", "work"]


@pytest.fixture
def fake_gpu(monkeypatch):
    """A fake GPU that only counts replays."""
    monkeypatch.setattr(Graph, "replayed", 0)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    streams = []

    def graph(graph, *, stream, **options):
        streams.append(stream)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.cuda, "graph", graph)
    _side_stream.cache_clear()
    yield streams
    _side_stream.cache_clear()


def test_all_graphs_are_captured_on_one_stream(fake_gpu):
    # Memory freed on a stream is reused only on that stream, even within one graph pool.
    for _ in range(3):
        Owner("cuda").steps.prepare()
    assert len(fake_gpu) == 3
    assert len(set(map(id, fake_gpu))) == 1


def test_owner_is_freed_without_garbage_collection(fake_gpu):
    owner = Owner("cuda")
    owner.steps.prepare()
    owner.steps.prepare()
    owner.steps()
    owner.steps()
    assert owner.done == ["warm up", "warm up", "work"]
    assert Graph.replayed == 2
    held = weakref.ref(owner)
    gc.disable()
    try:
        del owner
        assert held() is None
    finally:
        gc.enable()
