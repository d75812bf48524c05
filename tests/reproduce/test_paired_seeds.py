"""The test by images where what some runs wrote is lost, against all swaps of twelve images."""

import itertools

import numpy as np
import pytest

from ngsan.reproduce.ledger import Ledger, Written
from ngsan.reproduce.report import build_report
from tests.reproduce.tiny_ledgers import (
    TABLE,
    chances,
    enter_scores,
    lose,
    report,
    runs_of,
    table_text,
)

IMAGES = 12
SHIFTS = {"SAN": (0, 0, 0), "N-SAN": (10, -15, 25), "G-SAN": (20, 5, -20)}
"""What is added to the scores of each seed: which seeds are tested decides the chance."""


@pytest.fixture
def scores():
    random = np.random.default_rng(74)
    return {
        label: {seed: random.normal(100 + shift, 40, IMAGES) for seed, shift in enumerate(shifts)}
        for label, shifts in SHIFTS.items()
    }


def exact(first, second):
    """The share of all swaps with a difference at least as large, of scores of each seed."""
    difference = np.mean(first, axis=0) - np.mean(second, axis=0)
    signs = np.array(list(itertools.product((-1, 1), repeat=len(difference))))
    return (np.abs(signs @ difference) >= abs(difference.sum()) - 1e-9).mean()


def expected(scores, label, seeds, its_seeds=None):
    return exact(
        [scores[label][seed] for seed in seeds],
        [scores["SAN"][seed] for seed in its_seeds or seeds],
    )


def sentence(folder):
    """What the Markdown says of the test, below the table."""
    after = table_text(folder).split("|\n")[-1].strip().splitlines()
    return next((line for line in after if line.startswith("The test by")), None)


CLOSE = 0.015
"""Ten thousand swaps are drawn, of 4,096."""


@pytest.mark.parametrize(
    ("lost", "of_n", "of_g"),
    [
        ({"N-SAN": (2,)}, (0, 1), (0, 1, 2)),
        ({"SAN": (2,)}, (0, 1), (0, 1)),
        ({"SAN": (0,), "N-SAN": (2,), "G-SAN": (1,)}, (1,), (2,)),
        ({"SAN": (1, 2)}, (0,), (0,)),
    ],
)
def test_the_test_is_of_the_seeds_at_hand_in_both_rows(tmp_path, scores, lost, of_n, of_g):
    enter_scores(tmp_path, scores)
    for label, seeds in lost.items():
        lose(tmp_path, label, *seeds)
    assert report(tmp_path) == 0
    found = {label: float(cells[0]) for label, cells in chances(tmp_path).items() if cells[0]}
    for label, seeds in (("N-SAN", of_n), ("G-SAN", of_g)):
        wanted = expected(scores, label, seeds)
        assert found[label] == pytest.approx(wanted, abs=CLOSE)
        for number in (1, 2, 3):  # no other choice of seeds would do
            for others in itertools.combinations(range(3), number):
                if others != seeds:
                    assert abs(expected(scores, label, others) - wanted) > 2 * CLOSE
    lines = build_report(TABLE, runs_of(TABLE, range(3), list(scores)), Ledger(tmp_path)).lines
    assert [line.paired_seeds for line in lines[1:]] == [of_n, of_g]


def test_without_a_seed_in_common_the_cell_is_empty(tmp_path, scores):
    enter_scores(tmp_path, scores)
    assert report(tmp_path) == 0
    whole = chances(tmp_path)
    lose(tmp_path, "SAN", 0, 1)
    lose(tmp_path, "N-SAN", 2)
    lose(tmp_path, "G-SAN", 2)
    assert report(tmp_path) == 0
    assert chances(tmp_path) == {label: ["", cells[1]] for label, cells in whole.items()}
    assert sentence(tmp_path) is None


def test_where_all_are_available_rows_have_all_of_their_seeds(tmp_path, scores):
    del scores["N-SAN"][1], scores["G-SAN"][2]
    enter_scores(tmp_path, scores)
    assert report(tmp_path) == 0
    found = chances(tmp_path)
    for label, seeds in (("N-SAN", (0, 2)), ("G-SAN", (0, 1))):
        wanted = expected(scores, label, seeds, (0, 1, 2))
        assert float(found[label][0]) == pytest.approx(wanted, abs=CLOSE)
    assert sentence(tmp_path) is None
    assert table_text(tmp_path).endswith("|\n\n5 runs are not finished.\n")


END = "; the outputs of the other runs are not available."


@pytest.mark.parametrize(
    ("lost", "told"),
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
def test_table_and_terminal_say_of_which_seeds_the_test_is(tmp_path, capsys, scores, lost, told):
    enter_scores(tmp_path, scores)
    for label, seeds in lost.items():
        lose(tmp_path, label, *seeds)
    assert report(tmp_path) == 0
    assert sentence(tmp_path) == f"The test by images uses {told}{END}"
    assert f"The test by images uses {told}{END}" in " ".join(capsys.readouterr().out.split())


def test_a_lost_seed_of_the_row_compared_with_is_told_though_the_other_never_had_it(
    tmp_path, scores
):
    del scores["N-SAN"][2], scores["G-SAN"]
    enter_scores(tmp_path, scores)
    lose(tmp_path, "SAN", 2)
    assert report(tmp_path) == 0
    assert sentence(tmp_path) == f"The test by images uses seeds 0 and 1 only{END}"


def rewrite(folder, label, seed, order, names=str):
    """Puts what a run of `TABLE` wrote of each image into another order, or leaves some out."""
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
def test_the_same_images_in_another_order_are_compared_each_with_itself(
    tmp_path, scores, label, seed
):
    enter_scores(tmp_path, scores)
    rewrite(tmp_path, label, seed, np.random.default_rng(3).permutation(IMAGES))
    assert report(tmp_path) == 0
    found = chances(tmp_path)
    for other in ("N-SAN", "G-SAN"):
        wanted = expected(scores, other, (0, 1, 2))
        assert float(found[other][0]) == pytest.approx(wanted, abs=CLOSE)


@pytest.mark.parametrize(("label", "seed"), [("SAN", 1), ("N-SAN", 0)])
@pytest.mark.parametrize(
    ("images", "names"), [(IMAGES - 1, str), (IMAGES, lambda image: f"other-{image}")]
)
def test_other_images_are_refused_by_the_names_of_the_runs(
    tmp_path, capsys, scores, label, seed, images, names
):
    enter_scores(tmp_path, scores)
    key = rewrite(tmp_path, label, seed, range(images), names)
    (first,) = runs_of(TABLE, [0], ["SAN"])
    assert report(tmp_path) == 2
    told = capsys.readouterr().err
    assert (
        f"the runs {first.key} and {key} have outputs of different ids on the split 'test'" in told
    )
    assert f"(12 and {images}), so they cannot be compared" in told
