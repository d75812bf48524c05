"""The paper's values are shown beside ours, in the right rows, with their source."""

import csv
import dataclasses

import pytest

from ngsan.reproduce.report import Cell, Line, Report, header, rows, to_markdown
from ngsan.reproduce.tables import PRE_NORM, TABLES
from tests.reproduce.tiny_ledgers import add_runs, report

CAPTIONS = ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE")

PRINTED = {
    "layers": """
        SAN, L = 1: 36.8/28.0/57.6/123.4/21.8; N-SAN, L = 1: 38.2/28.6/58.2/127.2/22.2
        SAN, L = 2: 38.2/28.5/58.3/127.1/22.3; N-SAN, L = 2: 38.9/28.9/58.6/129.7/22.6
        SAN, L = 4: 38.4/28.6/58.4/128.6/22.6; N-SAN, L = 4: 39.3/29.1/58.9/130.8/23.0
        SAN, L = 6: 38.6/28.6/58.5/128.8/22.5; N-SAN, L = 6: 39.3/29.2/59.1/131.1/23.0""",
    "norms": """
        none (SAN): 38.4/28.6/58.4/128.6/22.6; layer norm: 38.5/28.6/58.3/128.2/22.5
        batch norm: 38.8/28.9/58.7/129.4/22.8
        instance norm with affine: 39.4/29.2/59.0/130.7/23.0
        instance norm (N-SAN): 39.3/29.1/58.9/130.8/23.0""",
    "query-key": """
        neither (SAN): 38.4/28.6/58.4/128.6/22.6; query (N-SAN): 39.3/29.1/58.9/130.8/23.0
        key: 39.2/29.0/58.8/130.1/22.8; query and key: 39.4/29.1/58.8/130.7/23.1""",
    "geometry": """
        none (SAN): 38.4/28.6/58.4/128.6/22.6; absolute: 38.3/28.5/58.4/128.4/22.6
        content-independent: 39.2/29.1/58.9/131.0/22.9; key-dependent: 38.9/29.0/58.8/129.5/22.8
        query-dependent (G-SAN): 39.3/29.2/59.0/131.4/23.0""",
    "others": """
        Up-Down: 36.3/27.7/56.9/120.1/21.4; CAVP: 38.6/28.3/58.5/126.3/21.6
        SGAE: 39.0/28.4/58.9/129.1/22.2; VSUA: 38.4/28.5/58.4/128.6/22.0
        ORT with its box-scale bug: 38.6/28.7/58.4/128.3/22.6; AoA: 38.9/29.2/58.8/129.8/22.4
        MT: 39.8/29.1/59.1/130.9; SAN: 38.4/28.6/58.4/128.6/22.6
        N-SAN: 39.3/29.1/58.9/130.8/23.0; G-SAN: 39.3/29.2/59.0/131.4/23.0
        NG-SAN: 39.9/29.3/59.2/132.1/23.3""",
    "video": """
        VATEX LSTM: 28.2/21.7/46.9/45.7; Transformer: 30.6/22.3/48.4/53.4
        Transformer + NSA: 31.0/22.7/49.0/57.1""",
    "translation": """
        Transformer, published: 27.30; Transformer-Big: 28.40
        Transformer: 27.56; Transformer + NSA: 27.92""",
    "vqa": """
        MLIN: 70.18/70.28; DFAF: 70.22/70.34; MCAN, published: 70.63/70.90
        MCAN: 70.54/70.83; MCAN + GSA: 70.76/71.28""",
}
"""The paper's tables, in the order of their columns."""

COLUMNS = {"translation": ("tokenised BLEU",), "vqa": ("test-dev accuracy", "accuracy")}


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
def test_tables_hold_all_values_of_the_paper(name):
    printed = dict(
        row.strip().rsplit(": ", 1)
        for row in PRINTED[name].replace("\n", ";").split(";")
        if row.strip()
    )
    columns = COLUMNS.get(name, CAPTIONS)
    expected = {
        label: dict(zip(columns, map(float, values.split("/")), strict=False))
        for label, values in printed.items()
    }
    table = TABLES[name]
    found = {
        label: {column: row[column] for column in columns if column in row}
        for label, row in table.published.items()
    }
    assert found == expected
    assert table.paper_of


def test_values_of_the_server_and_parameters():
    found = {
        label: (row.get("M"), row.get("c5"), row.get("c40"))
        for label, row in TABLES["others"].published.items()
        if "c5" in row or "M" in row
    }
    assert found == {
        "Up-Down": (None, 117.9, 120.5),
        "CAVP": (None, 121.6, 123.8),
        "SGAE": (None, 122.7, 125.5),
        "VSUA": (None, 123.1, 125.5),
        "MT": (57.0, None, None),
        "SAN": (40.2, None, None),
        "N-SAN": (40.2, None, None),
        "G-SAN": (41.5, None, None),
        "NG-SAN": (41.5, 126.3, 128.6),
    }


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_rows_have_the_values_of_their_labels(table):
    for row in table.rows:
        assert not row.paper or row.paper == table.published[row.label.replace(PRE_NORM, "")]
    only_listed = {"CAVP", "SGAE", "VSUA", "MLIN", "DFAF", "MCAN, published"}
    only_listed |= {"Transformer, published"}
    if any(row.paper for row in table.rows):
        trained = {row.label for row in table.rows}
        if not table.name.startswith("models"):  # the other systems have a table of their own
            assert set(table.published) - trained <= only_listed | {"N-SAN", "G-SAN"}


@pytest.mark.parametrize(
    ("name", "head", "cells"),
    [
        ("layers", "CIDEr, paper", f"{LAYERS} {LAYERS}"),  # post-norm, then pre-norm
        ("vqa", "accuracy, paper", " 70.8  71.3"),
        ("translation", "tokenised BLEU, paper", "27.6 27.9 28.4"),
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


def test_curve_has_no_values_of_the_paper():
    assert "The paper's values" not in to_markdown(shown("curve"))


def test_terminal_and_csv_show_the_paper_values(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    table = TABLES["norms"]
    add_runs(tmp_path, table=table, rows=("none (SAN)", "batch norm"))
    assert report(tmp_path, name="norms") == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"The paper's values are of {table.paper_of}." in lines
    assert "26 runs are not finished." in lines  # of ten rows with three seeds
    assert ["layer", "norm", "38.5", "28.6", "58.3", "128.2", "22.5"] in map(str.split, lines)
    with (tmp_path / "norms.csv").open() as file:
        found = [
            (row["row"], row["metric"], row["value"], row["paper"]) for row in csv.DictReader(file)
        ]
    assert ("none (SAN)", "CIDEr", "108.0", "128.6") in found
    assert ("none (SAN)", "SPICE", "", "22.6") in found  # SPICE was not computed
    assert ("layer norm", "CIDEr", "", "128.2") in found  # no run is finished
    values = {(label, metric): float(paper) for label, metric, _, paper in found}
    assert values == {
        (label, metric): value
        for label, row in table.published.items()
        for metric, value in row.items()
    }


@pytest.mark.parametrize("columns", [80, 100])
def test_paper_values_fit_the_terminal(tmp_path, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    add_runs(tmp_path, table=TABLES["others"], rows=("SAN",))
    assert report(tmp_path, name="others") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["SGAE", "39.0", "28.4", "58.9", "129.1", "22.2", "122.7", "125.5"] in lines
