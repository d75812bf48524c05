"""Tables of tiny runs on the built-in scenes: training, kills, resuming, reports."""

import csv
import dataclasses
import errno
import io
import json
import shutil
import statistics

import numpy as np
import pytest

from ngsan.__main__ import main
from ngsan.atomic_io import folder_lock
from ngsan.config import (
    CROSS_ENTROPY,
    SELF_CRITICAL,
    CaptionerConfig,
    CrossEntropyConfig,
    DataConfig,
    RuntimeConfig,
    ScheduleConfig,
    SelfCriticalConfig,
    TrainConfig,
    read_recipe,
)
from ngsan.data.dataset import CaptionDataset
from ngsan.data.store import FeatureStore, Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.data.synthetic.folders import sample_splits, scene_vocabulary, write_scene_folder
from ngsan.reproduce.figures import choose_examples, examples_page
from ngsan.reproduce.ledger import LEDGER, Ledger, Written
from ngsan.reproduce.making import make_runs, missing_runs
from ngsan.reproduce.report import build_report, to_csv, to_markdown
from ngsan.reproduce.runs import add_all, make_run, wanted_runs
from ngsan.reproduce.tables import TABLES, Row, Table
from ngsan.reproduce.tasks import Fitted


class KilledError(BaseException):
    """An exception that no part of a run handles."""


TABLE = Table(
    "small",
    "Two models",
    "nowhere",
    (
        Row("SAN", {"norm": "none", "geometry": "none"}, {"CIDEr": 128.6}),
        Row("N-SAN", {"norm": "instance", "geometry": "none"}, {"CIDEr": 130.8}),
    ),
    phase=SELF_CRITICAL,
    split="test",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    sizes = {"train": 64, "val": 12, "test": 12}
    write_scene_folder(
        folder, sample_splits(sizes, min_objects=2, max_objects=2, seed=1), scene_vocabulary()
    )
    return folder


def base(data, **changes):
    phase = {"epochs": 1, "batch_size": 16, "clip_grad_value": 0.0, "clip_grad_norm": 1.0}
    rate = ScheduleConfig("constant", 5e-3, 0.0)
    parts = {
        "model": CaptionerConfig(dim=16, heads=2, hidden_dim=16, layers=1, dropout=0.0),
        "data": DataConfig(folder=str(data)),
        "cross_entropy": CrossEntropyConfig(schedule=rate, **{**phase, "epochs": 2}),
        "self_critical": SelfCriticalConfig(schedule=rate, **phase),
        "runtime": RuntimeConfig(device="cpu", threads=1, save_seconds=0.0),
    }
    return TrainConfig(**{**parts, **changes})


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    """The ledger of the table's runs with two seeds."""
    ledger = Ledger(tmp_path_factory.mktemp("made"))
    make_runs(wanted_runs(TABLE, base(data), range(2)), ledger)
    return ledger


def without_times(ledger):
    lines = [json.loads(line) for line in (ledger.folder / LEDGER).read_text().splitlines()]
    found = {line["key"]: {**line, "seconds": 0} for line in lines}
    assert len(found) == len(lines)
    return found


def test_ledger_has_every_run_after_each_phase(made, data):
    assert len(made) == 2 * 2 * 2
    for run in wanted_runs(TABLE, base(data), range(2)):
        for phase in (CROSS_ENTROPY, SELF_CRITICAL):
            entry = made[run.key_after(phase)]
            assert (entry.phase, entry.seed) == (phase, run.config.seed)
            assert set(entry.metrics) == {"val", "test"}
            assert entry.measured == {"test": CaptionDataset(data, "test").origin}
            assert len(entry.curve) == (2 if phase == CROSS_ENTROPY else 3)
            written = made.written(entry.key, "test")
            # CIDEr of a set is the mean over its images.
            assert entry.metrics["test"]["CIDEr"] == pytest.approx(
                statistics.mean(score for (score,) in written.scores), abs=0.01
            )
    assert not list((made.folder / "runs").iterdir())


def test_cross_entropy_table_reuses_the_first_phase_of_longer_runs(made, data):
    shorter = dataclasses.replace(TABLE, phase=CROSS_ENTROPY)
    wanted = wanted_runs(shorter, base(data), range(2))
    assert all(run.config.self_critical.epochs == 0 for run in wanted)
    assert all(run.key in made for run in wanted)


def test_run_key_depends_on_recipe_seed_and_model(data):
    (run, *_) = wanted_runs(TABLE, base(data), [0])
    others = [
        wanted_runs(TABLE, base(data), [1])[0],
        wanted_runs(TABLE, base(data), [0])[1],
        wanted_runs(
            TABLE,
            base(data, self_critical=dataclasses.replace(base(data).self_critical, num_samples=3)),
            [0],
        )[0],
    ]
    assert run.key not in {other.key for other in others}
    assert others[2].key_after(CROSS_ENTROPY) == run.key_after(CROSS_ENTROPY)
    quick = dataclasses.replace(base(data), runtime=RuntimeConfig(device="cpu", log_steps=3))
    assert wanted_runs(TABLE, quick, [0])[0].key == run.key


def test_run_key_ignores_younger_keys_at_their_old_values(data):
    (run, *_) = wanted_runs(TABLE, base(data), [0])
    settings = run.settings(CROSS_ENTROPY)
    assert "boxes" not in settings["data"]
    assert "geometry_init" not in settings["model"]
    plain = dataclasses.replace(base(data).model, geometry_init="plain")
    permuted = dataclasses.replace(base(data).data, boxes="permuted")
    keys = {run.key}
    for changed in (
        base(data),
        base(data, model=plain),
        dataclasses.replace(base(data), data=permuted),
    ):
        model = dataclasses.replace(
            changed.model,
            vocab_size=run.config.model.vocab_size,
            feature_dim=run.config.model.feature_dim,
        )
        fitted = Fitted(dataclasses.replace(changed, model=model), run.data, {})
        keys.add(wanted_runs(TABLE, changed, [0], fitted=fitted)[0].key)
    assert len(keys) == 3


@pytest.mark.parametrize("step", [1, 6, 10])
def test_killed_run_resumes_with_the_same_result(made, data, tmp_path, step):
    ledger = Ledger(tmp_path)
    wanted = wanted_runs(TABLE, base(data), [0])

    def listen(entry):
        if entry["event"] == "checkpoint" and entry["step"] >= step:
            raise KilledError

    with pytest.raises(KilledError):
        make_runs(wanted, ledger, listen=listen)
    assert len(ledger) == 0
    again = Ledger(tmp_path)
    logged = []
    make_runs(wanted, again, listen=logged.append)
    assert any(entry.get("resumed_at") for entry in logged)
    whole = without_times(made)
    assert {key: whole[key] for key in without_times(again)} == without_times(again)


@pytest.mark.slow
def test_parallel_runs_equal_sequential_ones(made, data, tmp_path):
    ledger = Ledger(tmp_path)
    wanted = wanted_runs(TABLE, base(data), [0])
    done = []
    make_runs(wanted, ledger, jobs=2, on_run=lambda run, number, of: done.append((number, of)))
    assert done == [(1, 2), (2, 2)]
    whole = without_times(made)
    assert {key: whole[key] for key in without_times(ledger)} == without_times(ledger)


def test_finished_runs_are_not_repeated(made, data):
    before = (made.folder / LEDGER).read_bytes()
    make_runs(wanted_runs(TABLE, base(data), range(2)), made, listen=pytest.fail)
    assert (made.folder / LEDGER).read_bytes() == before
    (run, *_) = wanted_runs(TABLE, base(data), [0])
    add_all(made, [(made[run.key], {})])
    assert (made.folder / LEDGER).read_bytes() == before


def test_report_equals_the_ledger(made, data):
    wanted = wanted_runs(TABLE, base(data), range(3))
    report = build_report(TABLE, wanted, made)
    assert report.missing == 2
    assert [line.label for line in report.lines] == ["SAN", "N-SAN"]
    entries = [json.loads(line) for line in (made.folder / LEDGER).read_text().splitlines()]
    for line, norm in zip(report.lines, ("none", "instance"), strict=True):
        values = [
            entry["metrics"]["test"]["CIDEr"]
            for entry in sorted(entries, key=lambda entry: entry["seed"])
            if entry["phase"] == SELF_CRITICAL and entry["model"]["norm"] == norm
        ]
        cell = line.cells["CIDEr"]
        assert list(cell.values) == values
        assert cell.mean == pytest.approx(statistics.mean(values))
        assert cell.deviation == pytest.approx(statistics.stdev(values))
    text = to_markdown(report)
    assert "| N-SAN | 0.0 | 2 |" in text
    assert "| 130.8 |" in text
    assert "2 runs are not finished" in text
    table = [row for row in csv.DictReader(io.StringIO(to_csv(report))) if row["value"]]
    assert len(table) == 2 * 2 * (len(TABLE.metrics) - 1)  # without SPICE
    first = next(row for row in table if row["metric"] == "CIDEr" and row["seed"] == "1")
    assert float(first["value"]) == report.lines[0].cells["CIDEr"].values[1]


def test_command_writes_the_files_and_prints_the_table(data, tmp_path, capsys):
    options = [
        "--model.dim=16", "--model.heads=2", "--model.hidden_dim=16", "--cross_entropy.epochs=1",
        "--cross_entropy.batch_size=32", "--runtime.device=cpu", "--runtime.threads=1",
    ]  # fmt: skip
    line = [
        "reproduce",
        "curve-cross-entropy",
        "--data",
        str(data),
        "--output",
        str(tmp_path),
        "--seeds",
        "1",
    ]
    assert main([*line, *options]) == 0
    shown = capsys.readouterr().out
    assert "One-layer SAN and N-SAN by epoch" in shown
    assert "model.safetensors" not in shown  # the file is removed
    for ending in ("md", "csv", "png"):
        assert (tmp_path / f"curve-cross-entropy.{ending}").stat().st_size > 50
    assert main([*line, *options, "--report-only"]) == 0
    assert "finished" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["layers"], "--data is missing; pass the dataset folder"),
        (["layers", "--data", "DATA", "--seeds", "0"], "seeds: 0 must be at least 1"),
        (["layers", "--data", "DATA", "--rows", "SAM"], "table layers has no row 'SAM'"),
        (["layers", "--data", "DATA", "--report-only"], "no run of table layers is finished"),
        (
            ["models", "--data", "DATA", "--self_critical.epochs=0"],
            "skips the phase that the table measures",
        ),
        (["layers", "--data", "DATA", "--jobs", "0"], "jobs: 0 must be at least 1"),
        (["layers", "--data", "nowhere"], "data.folder: folder not found: nowhere"),
        (["layers", "--data=DATA", "--split", "dev"], "split: 'dev' is not measured"),
        (["layers", "norms", "--data", "DATA", "--rows", "SAN"], "--rows needs one table"),
        (["layers", "vqa", "--data", "DATA"], "layers, vqa have different data and recipes"),
        (["curve", "video", "--data", "DATA"], "curve, video have different data and recipes"),
        (["examples", "--rows", "SAN", "--data", "DATA"], "examples needs all of its runs"),
        (["examples", "--data", "DATA", "--report-only"], ": SAN, G-SAN; without --report-only"),
    ],
)
def test_invalid_command_lines_raise(data, tmp_path, capsys, words, message):
    words = [word.replace("DATA", str(data)) for word in words]
    assert main(["reproduce", *words, "--output", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_help_describes_the_options_of_the_command(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "norms", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    assert "--data DIR dataset folder" in help_text
    assert (
        "--seeds N make runs of the seeds 0 to N - 1; a table shows all finished seeds" in help_text
    )
    assert "make the runs of these rows only; a table shows all finished rows" in help_text
    assert "--seed " not in help_text


def test_output_that_is_a_file_raises(data, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert (
        main(["reproduce", "layers", "--data", str(data), "--output", str(tmp_path / "file")]) == 2
    )
    assert capsys.readouterr().err.endswith("file is not a folder\n")


def test_concurrent_commands_in_one_folder_raise(data, tmp_path, capsys):
    line = ["reproduce", "curve-cross-entropy", "--data", str(data), "--output", str(tmp_path)]
    with folder_lock(tmp_path / ".lock"):
        assert main(line) == 2
        assert "another ngsan reproduce in" in capsys.readouterr().err
        assert main([*line, "--report-only"]) == 2
        assert "no run of table curve-cross-entropy is finished" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_runs_of_every_table_can_be_built(data):
    for table in TABLES.values():
        if table.task != "captioning":
            continue
        wanted = wanted_runs(table, reproduction_run_on(data), [0])
        assert [run.label for run in wanted] == [row.label for row in table.rows]
        assert len({run.key for run in wanted}) == len(wanted)


def reproduction_run_on(data):
    return dataclasses.replace(read_recipe("reproduce"), data=DataConfig(folder=str(data)))


def test_tables_share_their_runs(data):
    keys = {
        name: {run.label: run.key for run in wanted_runs(table, reproduction_run_on(data), [0])}
        for name, table in TABLES.items()
        if table.recipe == "reproduce"
    }
    assert (
        keys["layers"]["SAN, L = 4"]
        == keys["norms"]["none (SAN)"]
        == keys["geometry"]["none (SAN)"]
    )
    assert keys["norms"]["instance norm (N-SAN)"] == keys["query-key"]["query (N-SAN)"]
    assert keys["models"]["G-SAN"] == keys["geometry"]["query-dependent (G-SAN)"]


def test_examples_are_images_with_different_relations():
    written = {
        "SAN": Written(
            ["1", "2", "3"], ["a dog on a bed", "a cat", "a cup by a <b>"], [[10], [20], [30]]
        ),
        "G-SAN": Written(
            ["1", "2", "3"], ["a dog under a bed", "a cow", "a cup on it"], [[50], [0], [20]]
        ),
    }
    found = choose_examples(written)
    assert [example.image for example in found] == ["1", "3"]
    models = ["SAN", "G-SAN"]
    page = examples_page(found, {"1": ["a dog & a bed"]}, None, models=models, compared=3)
    assert "<b>under</b>" in page
    assert "a cup <b>by</b> a &lt;b&gt;" in page
    assert "a dog &amp; a bed" in page
    assert "http" not in page.replace("http-equiv", "")
    empty = examples_page([], {}, None, models=models, compared=3)
    assert "<h1>Captions of SAN and G-SAN</h1>" in empty
    assert "0 of 3 images" in empty


def test_examples_are_balanced_between_the_models():
    ids = [str(number) for number in range(100)]
    written = {
        "SAN": Written(ids, ["a dog on it"] * 100, [[50.0]] * 100),
        "G-SAN": Written(ids, ["a dog by it"] * 100, [[float(number)] for number in range(100)]),
    }
    found = [int(example.image) for example in choose_examples(written, max_examples=10)]
    assert found == [99, 98, 97, 96, 95, 0, 1, 2, 3, 4]


def test_run_folder_can_be_kept(data, tmp_path):
    (run, *_) = wanted_runs(dataclasses.replace(TABLE, phase=CROSS_ENTROPY), base(data), [0])
    ledger = Ledger(tmp_path)
    make_runs([run], ledger, keep=[run.key])
    assert [entry.phase for entry in ledger] == [CROSS_ENTROPY]
    assert (tmp_path / "runs" / run.key / "model.safetensors").is_file()


def test_run_is_kept_when_the_ledger_cannot_be_written(data, tmp_path, monkeypatch):
    (run, *_) = wanted_runs(dataclasses.replace(TABLE, phase=CROSS_ENTROPY), base(data), [0])

    def full(ledger, entry, found):
        raise OSError(errno.ENOSPC, "No space left on device", str(ledger.folder))

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "add", full)
        with pytest.raises(OSError, match="No space left"):
            make_runs([run], Ledger(tmp_path))
    logged = []
    ledger = Ledger(tmp_path)
    make_runs([run], ledger, listen=logged.append)
    assert run.key in ledger
    assert not [entry for entry in logged if entry["event"] == "step"]


def test_kill_while_removing_a_run_leaves_no_partial_run(data, tmp_path, monkeypatch):
    table = dataclasses.replace(TABLE, phase=CROSS_ENTROPY)
    first, second = wanted_runs(table, base(data), [0])
    remove, runs = shutil.rmtree, tmp_path / "runs"

    def killed(path, **options):
        if path.parent == runs and path.is_dir():
            raise KilledError
        remove(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KilledError):
            make_runs([first], Ledger(tmp_path))
    (left,) = runs.iterdir()
    assert left.name != first.key
    make_runs([second], Ledger(tmp_path))
    assert not list(runs.iterdir())


def test_run_with_recomputed_features_starts_again(data, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    for path in data.iterdir():
        if path.is_file():
            (again / path.name).write_bytes(path.read_bytes())
    store = FeatureStore(data)
    with StoreWriter(again, source=store.source) as writer:
        for image in store.ids():
            features = np.nextafter(store[image].features, np.float16(9))
            writer.add(image, Regions(features, store[image].boxes, store[image].size))
    table = dataclasses.replace(TABLE, phase=CROSS_ENTROPY)
    (started, *_), (run, *_) = (wanted_runs(table, base(where), [0]) for where in (data, again))
    assert started.key == run.key
    assert started.content != run.content

    def listen(entry):
        if entry["event"] == "checkpoint" and entry["step"] >= 2:
            raise KilledError

    with pytest.raises(KilledError):
        make_run(started, tmp_path, listen=listen)
    logged = []
    ((entry, _),) = make_run(run, tmp_path, listen=logged.append)
    assert next(line for line in logged if line["event"] == "start")["resumed_at"] is None
    assert entry.content == run.content


def test_runs_shared_by_tables_are_trained_once(data, tmp_path):
    def wanted(name):
        return wanted_runs(TABLES[name], reproduction_run_on(data), range(2))

    # Five norms and five models of both norm places, of which SAN and N-SAN are the same; the runs
    # after cross-entropy are the first phases of these.
    both = [*wanted("norms"), *wanted("models"), *wanted("norms-cross-entropy")]
    missing = missing_runs(both, Ledger(tmp_path))
    assert [run.config.seed for run in missing] == [0] * 16 + [1] * 16
    assert len({run.key for run in missing}) == 32
    assert {run.phase for run in missing} == {SELF_CRITICAL}
    labels = {run.label for run in missing}
    assert {"SAN", "NG-SAN, pre-norm", "layer norm", "batch norm, pre-norm"} <= labels
    every = [*wanted("norms"), *wanted("models")]
    reached = {run.key_after(phase) for run in missing for phase in run.task.phases}
    assert {run.key for run in every} <= reached
