"""A small backbone, and a small limit for the size of quantized matrices."""

import pytest

from tests.export.helpers import STAGES


@pytest.fixture(scope="module", autouse=True)
def small_network():
    """Uses fewer layers than any EfficientNet, and quantizes small matrices too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ngsan.vision.backbone.STAGES", STAGES)
        patch.setattr("ngsan.models.quantize.MIN_SIZE", 500)
        yield
