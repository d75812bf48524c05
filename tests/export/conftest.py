"""A small network in the place of the backbones', and small limits for what is rounded."""

import pytest

from tests.export.worlds import STAGES


@pytest.fixture(scope="module", autouse=True)
def small_network():
    """Fewer layers than any EfficientNet has, and matrices that are rounded though small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ngsan.vision.efficientnet.STAGES", STAGES)
        patch.setattr("ngsan.models.rounded.FEWEST", 500)
        yield
