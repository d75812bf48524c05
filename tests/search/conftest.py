"""Runs every test of this folder with the NumPy search and with torch's."""

import pytest

from tests.search import models


@pytest.fixture(autouse=True, params=["numpy", "torch"])
def backend(request, monkeypatch):
    """The backend of the models that a test makes."""
    if request.param != "both":  # such tests name the backend themselves
        monkeypatch.setattr(models, "BACKEND", request.param)
    return request.param
