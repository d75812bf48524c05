"""Runs every test of this folder with the NumPy and the torch backend."""

import pytest

from tests.search import models


@pytest.fixture(autouse=True, params=["numpy", "torch"])
def backend(request, monkeypatch):
    """The array backend of the models in a test."""
    if request.param != "both":  # such tests name the backend themselves
        monkeypatch.setattr(models, "BACKEND", request.param)
    return request.param
