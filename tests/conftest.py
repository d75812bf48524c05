import ctypes
import os
import shutil
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path

# Two OpenMP threads on tiny tensors are up to eight times slower than one; child processes
# inherit the setting.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

# No deadline, because machines may be busy; in CI, examples are the same in every run.
settings.register_profile("ngsan", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("ngsan")

# Shells start background jobs with SIGINT ignored, which child processes of tests would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@contextmanager
def _without_override():
    """Takes root's right to read everything, which its own files do not need."""
    if os.geteuid():
        yield
        return
    libc = ctypes.CDLL(None)
    head = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    rights = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, twice 32 bits
    assert libc.capget(head, rights) == 0
    before = rights[0]
    rights[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert libc.capset(head, rights) == 0
    try:
        yield
    finally:
        rights[0] = before
        assert libc.capset(head, rights) == 0


@pytest.fixture
def closed_folder():
    """A folder that this process cannot read, even if it is root's."""
    with tempfile.TemporaryDirectory() as above:
        folder = Path(above) / "closed"
        folder.mkdir(mode=0o000)
        with _without_override():
            yield folder
        folder.chmod(0o700)
        shutil.rmtree(folder)


@pytest.fixture
def make_boxes():
    """Random boxes (B, N, 4) in float64, relative to the image."""

    def make(images, regions):
        centre = torch.rand(images, regions, 2, dtype=torch.float64)
        size = 0.05 + 0.5 * torch.rand(images, regions, 2, dtype=torch.float64)
        return torch.cat((centre, size), dim=-1)

    return make
