"""Small models use one thread, unless the environment sets another number."""

import torch

from ngsan.threads import SMALL_MODEL, limit_torch_threads


def test_small_models_use_one_thread(monkeypatch):
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    limit_torch_threads(10)
    assert set_to == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_torch_threads(SMALL_MODEL)
    assert set_to == []
    limit_torch_threads(SMALL_MODEL - 1)
    assert set_to == [1]
