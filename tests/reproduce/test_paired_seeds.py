"""The paired test when outputs of some runs are missing, against all swaps of twelve images."""

import itertools

import numpy as np
import pytest

from ngsan.reproduce.ledger import Ledger, Written
from ngsan.reproduce.report import build_report
from tests.reproduce.tiny_ledgers import (
    TABLE,
    add_runs_with_scores,
    p_values,
    remove_outputs,
    report,
    runs_of,
    table_text,
)

IMAGES = 12
SHIFTS = {"SAN": (0, 0, 0), "N-SAN": (10, -15, 25), "G-SAN": (20, 5, -20)}
"""Added to the scores of each seed, so that the p-value shows which seeds were used."""


@pytest.fixture
def scores():
    random = np.random.default_rng(74)
    return {
        label: {seed: random.normal(100 + shift, 40, IMAGES) for seed, shift in enumerate(shifts)}
        for label, shifts in SHIFTS.items()
    }


def exact(first, second):
    """The exact p-value of the scores of each seed, over all swaps."""
    difference = np.mean(first, axis=0) - np.mean(second, axis=0)
    signs = np.array(list(itertools.product((-1, 1), repeat=len(difference))))
    return (np.abs(signs @ difference) >= abs(difference.sum()) - 1e-9).mean()


def expected(scores, label, seeds, its_seeds=None):
    return exact(
        [scores[label][seed] for seed in seeds],
        [scores["SAN"][seed] for seed in its_seeds or seeds],
    )


def sentence(folder):
    """The sentence about the test below the Markdown table."""
    after = table_text(folder).split("|\n")[-1].strip().splitlines()
    return next((line for line in after if line.startswith("The test by")), None)


TOLERANCE = 0.015
"""For 10,000 random swaps of the 4,096 possible ones."""


@pytest.mark.parametrize(
    ("lost", "of_n", "of_g"),
    [
        ({"N-SAN": (2,)}, (0, 1), (0, 1, 2)),
        ({"SAN": (2,)}, (0, 1), (0, 1)),
        ({"SAN": (0,), "N-SAN": (2,), "G-SAN": (1,)}, (1,), (2,)),
        ({"SAN": (1, 2)}, (0,), (0,)),
    ],
)
def test_test_uses_the_seeds_available_in_both_rows(tmp_path, scores, lost, of_n, of_g):
    add_runs_with_scores(tmp_path, scores)
    for label, seeds in lost.items():
        remove_outputs(tmp_path, label, *seeds)
    assert report(tmp_path) == 0
    found = {label: float(cells[0]) for label, cells in p_values(tmp_path).items() if cells[0]}
    for label, seeds in (("N-SAN", of_n), ("G-SAN", of_g)):
        wanted = expected(scores, label, seeds)
        assert found[label] == pytest.approx(wanted, abs=TOLERANCE)
        for number in (1, 2, 3):  # other choices of seeds give other p-values
            for others in itertools.combinations(range(3), number):
                if others != seeds:
                    assert abs(expected(scores, label, others) - wanted) > 2 * TOLERANCE
    lines = build_report(TABLE, runs_of(TABLE, range(3), list(scores)), Ledger(tmp_path)).lines
    assert [line.paired_seeds for line in lines[1:]] == [of_n, of_g]


def test_cell_is_empty_without_a_common_seed(tmp_path, scores):
    add_runs_with_scores(tmp_path, scores)
    assert report(tmp_path) == 0
    whole = p_values(tmp_path)
    remove_outputs(tmp_path, "SAN", 0, 1)
    remove_outputs(tmp_path, "N-SAN", 2)
    remove_outputs(tmp_path, "G-SAN", 2)
    assert report(tmp_path) == 0
    assert p_values(tmp_path) == {label: ["", cells[1]] for label, cells in whole.items()}
    assert sentence(tmp_path) is None


def test_all_seeds_are_used_when_all_outputs_are_available(tmp_path, scores):
    del scores["N-SAN"][1], scores["G-SAN"][2]
    add_runs_with_scores(tmp_path, scores)
    assert report(tmp_path) == 0
    found = p_values(tmp_path)
    for label, seeds in (("N-SAN", (0, 2)), ("G-SAN", (0, 1))):
        wanted = expected(scores, label, seeds, (0, 1, 2))
        assert float(found[label][0]) == pytest.approx(wanted, abs=TOLERANCE)
    assert sentence(tmp_path) is None
    assert table_text(tmp_path).endswith("|\n\n5 runs are not finished.\n")


END = "; the outputs of the other runs are not available."


@pytest.mark.parametrize(
    ("lost", "seeds_text"),
    [
        ({"SAN": (2,)}, "seeds 0 and 1 only"),
        ({"SAN": (0, 2)}, "seed 1 only"),
        ({"N-SAN": (0,), "G-SAN": (0,)}, "seeds 1 and 2 only"),
        ({"N-SAN": (2,)}, 'seeds 0 and 1 only for "N-SAN"'),
        ({"SAN": (2,), "G-SAN": (0, 1)}, "seeds 0 and 1 only"),
        (
            {"SAN": (0,), "G-SAN": (2,)},
            'seeds 1 and 2 only for "N-SAN", and seed 1 only for "G-SAN"',
        ),
    ],
)
def test_table_and_terminal_name_the_seeds_of_the_test(tmp_path, capsys, scores, lost, seeds_text):
    add_runs_with_scores(tmp_path, scores)
    for label, seeds in lost.items():
        remove_outputs(tmp_path, label, *seeds)
    assert report(tmp_path) == 0
    assert sentence(tmp_path) == f"The test by images uses {seeds_text}{END}"
    assert f"The test by images uses {seeds_text}{END}" in " ".join(capsys.readouterr().out.split())


def test_missing_seed_of_the_baseline_is_reported(tmp_path, scores):
    del scores["N-SAN"][2], scores["G-SAN"]
    add_runs_with_scores(tmp_path, scores)
    remove_outputs(tmp_path, "SAN", 2)
    assert report(tmp_path) == 0
    assert sentence(tmp_path) == f"The test by images uses seeds 0 and 1 only{END}"


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
    found = p_values(tmp_path)
    for other in ("N-SAN", "G-SAN"):
        wanted = expected(scores, other, (0, 1, 2))
        assert float(found[other][0]) == pytest.approx(wanted, abs=TOLERANCE)


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
