"""The paper's values are shown beside ours, in the right rows, with their source."""

import csv
import dataclasses

import pytest

from ngsan.reproduce import tables
from ngsan.reproduce.report import Cell, Line, Report, header, rows, to_markdown
from ngsan.reproduce.tables import TABLES
from tests.reproduce.tiny_ledgers import add_runs, report

PRINTED = {
    "layers": tables.PAPER_LAYERS,
    "norms": tables.PAPER_NORMS,
    "query-key": tables.PAPER_QUERY_KEY,
    "geometry": tables.PAPER_GEOMETRY,
    "models": tables.PAPER_MODELS,
    "others": tables.PAPER_MODELS,
    "video": tables.PAPER_VIDEO,
    "translation": tables.PAPER_TRANSLATION,
    "vqa": tables.PAPER_VQA,
}

LAYERS = "123.4 127.2 127.1 129.7 128.6 130.8 128.8 131.1"


def shown(name, **without):
    """A report of a table whose rows all have the same arbitrary values."""
    table = TABLES[name]
    lines = tuple(
        Line(
            row.label,
            parameters=1_000_000,
            seeds=(0,),
            cells={
                metric: Cell((50.0,), 50.0, None, row.paper.get(metric)) for metric in table.metrics
            },
            curves=((50.0,),),
        )
        for row in table.rows
    )
    made = Report(table, "val", "images", table.metrics, table.rows[0].label, lines, (), {}, 0)
    return dataclasses.replace(made, **without)


def test_paper_cider_of_the_four_models():
    found = {row.label: row.paper["CIDEr"] for row in TABLES["models"].rows if row.paper}
    post = {"SAN": 128.6, "N-SAN": 130.8, "G-SAN": 131.4, "NG-SAN": 132.1}
    assert found == post | {f"{label}, pre-norm": value for label, value in post.items()}


def test_paper_values_agree_between_tables():
    by_model = {}
    for name in ("layers", "norms", "query-key", "geometry", "models"):
        for row in TABLES[name].rows:
            model = {"layers": 4, **row.model}
            if row.paper:
                by_model.setdefault(str(sorted(model.items())), []).append(dict(row.paper))
    assert max(map(len, by_model.values())) == 5  # SAN is in all of them
    assert all(value == values[0] for values in by_model.values() for value in values)


@pytest.mark.parametrize("name", PRINTED)
def test_every_paper_value_has_a_row(name):
    table = TABLES[name]
    wanted = {row.label for row in table.rows}
    for label, values in PRINTED[name].items():
        if PRINTED[name] is not tables.PAPER_MODELS:  # shared by two tables
            assert label in wanted
        assert set(values) <= set(table.metrics)
    assert table.paper_of


@pytest.mark.parametrize(
    ("name", "head", "cells"),
    [
        ("layers", "CIDEr, paper", f"{LAYERS} {LAYERS}"),  # post-norm, then pre-norm
        ("vqa", "accuracy, paper", " 70.8  71.3"),
        ("translation", "tokenised BLEU, paper", "27.6 27.9"),
    ],
)
def test_tables_show_the_paper_values(name, head, cells):
    made = shown(name)
    place = header(made).index(head)
    assert " ".join(row[place] for row in rows(made)) == cells
    caption_line = f"The paper's values are of {TABLES[name].paper_of}."
    assert caption_line in to_markdown(made)


def test_rows_missing_in_the_paper_are_empty():
    made = shown("geometry")
    place = header(made).index("CIDEr, paper")
    found = {row[0]: row[place] for row in rows(made)}
    assert found["query-dependent (G-SAN)"] == "131.4"
    assert found["query-dependent, signed"] == found["relation network"] == ""


def test_tables_without_paper_values_have_no_paper_column():
    made = shown("curve")
    assert not [head for head in header(made) if "paper" in head]
    assert "The paper's values" not in to_markdown(made)


def test_terminal_and_csv_show_the_paper_values(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    table = TABLES["norms"]
    add_runs(tmp_path, table=table, rows=("none (SAN)", "batch norm"))
    assert report(tmp_path, name="norms") == 0
    caption_line = capsys.readouterr().out.splitlines()
    assert f"The paper's values are of {table.paper_of}." in caption_line
    assert "26 runs are not finished." in caption_line  # of ten rows with three seeds
    with (tmp_path / "norms.csv").open() as file:
        found = {row["row"]: row["paper"] for row in csv.DictReader(file)}
    assert found == {"none (SAN)": "128.6", "batch norm": "129.4"}
