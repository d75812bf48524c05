"""Checks before a run starts."""

import dataclasses

import pytest

from ngsan.config import CaptionerConfig
from ngsan.train.task import check_initial, check_norm


def test_batch_norm_needs_one_process():
    check_norm("batch", 1, "images")
    check_norm("instance", 8, "images")
    with pytest.raises(ValueError, match="of the sentences of one of 2 processes"):
        check_norm("batch", 2, "sentences")


def test_initial_model_mismatch_names_all_differing_keys():
    given = CaptionerConfig()
    check_initial("DIR", given, dataclasses.replace(given, dropout=0.5), ("dropout", "backend"))
    other = dataclasses.replace(given, layers=2, dim=256, dropout=0.5)
    with pytest.raises(ValueError, match=r"init_from: DIR is .* model: model\.dim, model\.layers$"):
        check_initial("DIR", given, other, ("dropout",))
