import os
import shutil
import signal
import tempfile
from pathlib import Path

# Two OpenMP threads on tiny tensors are up to eight times slower than one; child processes
# inherit the setting.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

from ngsan.vision.decoding import shared_service

# No deadline, because machines may be busy; in CI, examples are the same in every run.
settings.register_profile("ngsan", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("ngsan")

# Shells start background jobs with SIGINT ignored, which child processes of tests would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def closed_folder():
    """A folder that this process cannot read, even if it is root's."""
    shared_service().start()  # the other user may be unable to run this Python
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o777)
        folder = Path(above) / "closed"
        folder.mkdir(mode=0o000)
        user = os.geteuid()
        if not user:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(user)
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
