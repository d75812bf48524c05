"""A small backbone, and a small limit for the size of quantized matrices."""

import pytest

from tests.export.worlds import STAGES


@pytest.fixture(scope="module", autouse=True)
def small_network():
    """Fewer layers than any EfficientNet has, and matrices that are rounded though small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ngsan.vision.backbone.STAGES", STAGES)
        patch.setattr("ngsan.models.quantize.MIN_SIZE", 500)
        yield
