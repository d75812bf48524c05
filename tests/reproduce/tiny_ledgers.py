"""Ledgers of fake runs, and tables made from them."""

import dataclasses

from ngsan.__main__ import main
from ngsan.config import read_recipe
from ngsan.reproduce.ledger import WRITTEN, Entry, Ledger, Written
from ngsan.reproduce.runs import wanted_runs
from ngsan.reproduce.tables import TABLES
from ngsan.reproduce.tasks import Fitted

TABLE = TABLES["models-cross-entropy"]
CIDER = {"SAN": (101.0, 103.0), "N-SAN": (104.0, 107.0), "G-SAN": (110.0, 111.0)}


def runs_of(table, seeds, rows, *, data="coco", feature_dim=8):
    """Runs of a table as if trained on some data."""
    base = read_recipe("reproduce")
    model = dataclasses.replace(base.model, vocab_size=50, feature_dim=feature_dim)
    fitted = Fitted(dataclasses.replace(base, model=model), {"train": data}, {})
    return wanted_runs(table, base, seeds, rows, fitted=fitted)


def add_run(ledger, run, cider, scores, ids=None, measured=None):
    """Adds a run with the CIDEr of each image, the same on both splits."""
    settings = run.settings(run.phase)
    entry = Entry(
        key=run.key,
        model=settings.pop("model"),
        phase=run.phase,
        seed=settings.pop("seed"),
        settings=settings,
        data=run.data,
        parameters=1_000_000,
        metrics={"test": {"CIDEr": cider}, "val": {"CIDEr": cider}},
        curve=[cider],
        seconds=1.0,
        device="CPU",
        version="0",
        measured=run.measured if measured is None else measured,
    )
    ids = ids or [str(number) for number in range(len(scores))]
    written = Written(ids, ["a caption"] * len(ids), [[score] for score in scores])
    ledger.add(entry, {"test": written, "val": written})


def add_runs(folder, *, table=TABLE, rows=tuple(CIDER), seeds=2, **about):
    """Adds two (at most three) runs of each row, with scores of ten images."""
    ledger = Ledger(folder)
    for run in runs_of(table, range(seeds), rows, **about):
        cider = (*CIDER.get(run.label, (108.0, 109.0)), 105.0)[run.config.seed]
        add_run(ledger, run, cider, [cider + place for place in range(10)])


def add_runs_with_scores(folder, scores):
    """Adds runs of `TABLE` with the given CIDEr of each image, by row and seed."""
    ledger = Ledger(folder)
    for run in runs_of(TABLE, range(4), list(scores)):
        if run.config.seed in scores[run.label]:
            mine = [float(score) for score in scores[run.label][run.config.seed]]
            add_run(ledger, run, round(sum(mine) / len(mine), 4), mine)


def remove_outputs(folder, label, *seeds):
    """Removes the outputs of runs of `TABLE`."""
    for run in runs_of(TABLE, seeds, [label]):
        for split in ("test", "val"):
            (folder / WRITTEN / f"{run.key}-{split}.json.gz").unlink()


def report(folder, *words, name=TABLE.name):
    """Creates a table of the finished runs."""
    return main(["reproduce", name, "--report-only", "--output", str(folder), *words])


def table_text(folder):
    """`TABLE` as Markdown."""
    return (folder / f"{TABLE.name}.md").read_text()


def difference_rows(folder):
    """The cells of each difference in the Markdown table, by its name."""
    lines = [line for line in table_text(folder).splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {row[0]: row[1:] for row in rows if " − " in row[0]}
