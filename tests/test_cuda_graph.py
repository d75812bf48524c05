"""Captured work lets go of what it no longer needs; the GPU is played by a list of what it did."""

import contextlib
import gc
import weakref

import pytest
import torch

from ngsan.cuda_graph import Captured, _side_stream


class Owner:
    """Something that holds its own captured work, as searches do."""

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


def test_on_a_cpu_the_work_is_done_anew():
    owner = Owner("cpu")
    owner.steps.prepare()
    owner.steps()
    owner.steps()
    assert owner.done == ["work", "work"]


@pytest.fixture
def played(monkeypatch):
    """A GPU that only counts what it replays."""
    monkeypatch.setattr(Graph, "replayed", 0)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    taken = []

    def graph(graph, *, stream, **options):
        taken.append(stream)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.cuda, "graph", graph)
    _side_stream.cache_clear()
    yield taken
    _side_stream.cache_clear()


def test_all_is_captured_on_one_stream(played):
    # What is given back on a stream serves that stream alone, also within one pool of graphs.
    for _ in range(3):
        Owner("cuda").steps.prepare()
    assert len(played) == 3
    assert len(set(map(id, played))) == 1


def test_on_a_gpu_an_owner_goes_when_it_is_dropped(played):
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
