"""Differences are paired by seed, and the test over seeds and images needs all outputs."""

import statistics

import numpy as np
import pytest

from ngsan.reproduce.ledger import Ledger, Written
from ngsan.reproduce.report import build_report
from ngsan.reproduce.statistics import MixedModel, critical_value, student_tail
from ngsan.reproduce.tables import Row, Table
from tests.reproduce.tiny_ledgers import (
    TABLE,
    add_runs_with_scores,
    difference_rows,
    remove_outputs,
    report,
    runs_of,
    table_text,
)

IMAGES = 12
SHIFTS = {"SAN": (0, 0, 0, 0), "N-SAN": (10, -15, 25, 5), "G-SAN": (20, 5, -20, 30)}
"""Added to the scores of each seed."""


@pytest.fixture
def scores():
    random = np.random.default_rng(74)
    return {
        label: {seed: random.normal(100 + shift, 40, IMAGES) for seed, shift in enumerate(shifts)}
        for label, shifts in SHIFTS.items()
    }


def found(folder):
    """The differences of the table, by name."""
    seeds = range(4)
    wanted = runs_of(TABLE, seeds, list(SHIFTS))
    return {each.name: each for each in build_report(TABLE, wanted, Ledger(folder)).differences}


def mean(scores, label, seed):
    return round(sum(map(float, scores[label][seed])) / IMAGES, 4)


@pytest.mark.parametrize(
    ("missing", "of_n", "of_g"),
    [
        ({}, (0, 1, 2, 3), (0, 1, 2, 3)),
        ({"SAN": (1,)}, (0, 2, 3), (0, 2, 3)),
        ({"N-SAN": (0,), "G-SAN": (2,)}, (1, 2, 3), (0, 1, 3)),
        ({"SAN": (0,), "N-SAN": (3,)}, (1, 2), (1, 2, 3)),
    ],
)
def test_only_common_seeds_are_compared(tmp_path, scores, missing, of_n, of_g):
    for label, seeds in missing.items():
        for seed in seeds:
            del scores[label][seed]
    add_runs_with_scores(tmp_path, scores)
    differences = found(tmp_path)
    assert report(tmp_path) == 0
    shown = difference_rows(tmp_path)
    for label, seeds in (("N-SAN", of_n), ("G-SAN", of_g)):
        each = differences[f"{label} − SAN"]
        values = [mean(scores, label, seed) - mean(scores, "SAN", seed) for seed in seeds]
        assert each.seeds == seeds
        assert each.values == pytest.approx(values)
        assert each.mean == pytest.approx(statistics.mean(values))
        if len(seeds) < 3:
            assert each.interval is each.over_seeds is each.over_both is None
            continue
        error = statistics.stdev(values) / len(seeds) ** 0.5
        tail = student_tail(abs(each.mean) / error, len(seeds) - 1)
        assert each.over_seeds == pytest.approx(2 * tail)
        by_image = [scores[label][seed] - scores["SAN"][seed] for seed in seeds]
        model = MixedModel.fit(np.array(by_image))
        assert each.over_both == pytest.approx(model.p)
        ends = each.mean - model.half_width, each.mean + model.half_width
        assert each.interval == pytest.approx(ends)
        assert shown[each.name][1] == f"{each.mean:+.1f}"
        assert shown[each.name][2] == f"{each.interval[0]:+.1f} to {each.interval[1]:+.1f}"
        assert shown[each.name][3:] == [f"{each.over_seeds:.3f}", f"{each.over_both:.3f}"]


def test_test_over_images_needs_the_outputs_of_all_seeds(tmp_path, capsys, scores):
    add_runs_with_scores(tmp_path, scores)
    whole = found(tmp_path)
    remove_outputs(tmp_path, "N-SAN", 2)
    differences = found(tmp_path)
    assert differences["G-SAN − SAN"] == whole["G-SAN − SAN"]
    each = differences["N-SAN − SAN"]
    assert each.over_both is None
    assert each.over_seeds == whole[each.name].over_seeds
    half = critical_value(3) * statistics.stdev(each.values) / 2
    assert each.interval == pytest.approx((each.mean - half, each.mean + half))
    assert report(tmp_path) == 0
    text = "Where outputs of a run are missing, the interval is that of the t-test over seeds"
    assert text in table_text(tmp_path)
    assert text in " ".join(capsys.readouterr().out.split())


def test_two_seeds_have_no_interval(tmp_path, capsys, scores):
    for label in scores:
        del scores[label][1], scores[label][3]
    add_runs_with_scores(tmp_path, scores)
    assert report(tmp_path) == 0
    assert all(row[2:] == ["", "", ""] for row in difference_rows(tmp_path).values())
    assert "An interval needs 3 seeds that both rows have." in table_text(tmp_path)
    assert "80 %" not in table_text(tmp_path)


def test_rows_without_a_common_seed_have_no_difference(tmp_path, scores):
    del scores["SAN"][2], scores["SAN"][3], scores["N-SAN"][0], scores["N-SAN"][1]
    add_runs_with_scores(tmp_path, scores)
    assert list(found(tmp_path)) == ["G-SAN − SAN"]
    assert report(tmp_path) == 0


def test_rows_are_compared_with_their_own_row_and_by_contrasts():
    rows = tuple(Row(label, {}, against="B" if label == "C" else "") for label in "ABC")
    table = Table("small", "Three", "Table 0", rows, contrasts=(("C", "A"),))
    pairs = [(row.label, row.against) for row in table.rows]
    assert pairs == [("A", ""), ("B", ""), ("C", "B")]
    with pytest.raises(ValueError, match="table small: it has no row 'D'"):
        Table("small", "Three", "Table 0", rows, contrasts=(("C", "D"),))
    with pytest.raises(ValueError, match="it has no row 'D'"):
        Table("small", "Three", "Table 0", (*rows, Row("E", {}, against="D")))


def rewrite(folder, label, seed, order, names=str):
    """Reorders the outputs of a run of `TABLE`, or removes some."""
    (run,) = runs_of(TABLE, [seed], [label])
    ledger = Ledger(folder)
    for split in ("test", "val"):
        written = ledger.written(run.key, split)
        found = Written(
            [names(written.ids[place]) for place in order],
            [written.texts[place] for place in order],
            [written.scores[place] for place in order],
        )
        ledger.add(ledger[run.key], {split: found})
    return run.key


@pytest.mark.parametrize(("label", "seed"), [("SAN", 0), ("N-SAN", 1)])
def test_images_are_matched_by_id(tmp_path, scores, label, seed):
    add_runs_with_scores(tmp_path, scores)
    rewrite(tmp_path, label, seed, np.random.default_rng(3).permutation(IMAGES))
    assert report(tmp_path) == 0
    for other in ("N-SAN", "G-SAN"):
        by_image = [scores[other][seed] - scores["SAN"][seed] for seed in range(4)]
        expected = MixedModel.fit(np.array(by_image)).p
        assert found(tmp_path)[f"{other} − SAN"].over_both == pytest.approx(expected)


@pytest.mark.parametrize(("label", "seed"), [("SAN", 1), ("N-SAN", 0)])
@pytest.mark.parametrize(
    ("images", "names"), [(IMAGES - 1, str), (IMAGES, lambda image: f"other-{image}")]
)
def test_comparing_runs_with_different_images_raises(
    tmp_path, capsys, scores, label, seed, images, names
):
    add_runs_with_scores(tmp_path, scores)
    key = rewrite(tmp_path, label, seed, range(images), names)
    (first,) = runs_of(TABLE, [0], ["SAN"])
    assert report(tmp_path) == 2
    error = capsys.readouterr().err
    assert (
        f"the runs {first.key} and {key} have outputs of different ids on the split 'test'" in error
    )
    assert f"(12 and {images}), so they cannot be compared" in error
