"""Checks before a run starts."""

import dataclasses

import pytest

from ngsan.config import CaptionerConfig
from ngsan.train.run import FEW_STEPS, too_few_steps
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


def test_runs_that_are_far_too_short_are_warned_about():
    """200 images in steps of 64 for 15 epochs ended in captions of one word."""
    short = [{"epochs": 15, "steps": 4}]
    assert "60 steps are far too few for a model of 41,300,000" in too_few_steps(
        short, 41_300_000, ""
    )
    assert not too_few_steps(short, 41_300_000, "DIR")
    assert not too_few_steps(short, 500_000, "")
    assert not too_few_steps([{"epochs": FEW_STEPS, "steps": 1}], 41_300_000, "")
