"""The runs of a table: which are wanted, which are finished, and how to make one."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ngsan import __version__
from ngsan.config import from_dict
from ngsan.reproduce.ledger import Entry, Ledger, Written, run_key
from ngsan.reproduce.tables import Row, Table
from ngsan.reproduce.tasks import TASKS, Fitted, TableTask
from ngsan.train.log import LOG
from ngsan.train.log import Entry as LogEntry
from ngsan.train.run import train
from ngsan.train.state import SettingsError, differences, remove_keys

RUNS = "runs"
"""The folder of the runs' own folders, which are removed when the runs are in the ledger."""

_REMOVED = ".removed"
"""Suffix of the folder of a run that is being removed."""

_ADDED = {
    "data.boxes": "given",
    "model.geometry_init": "constant",
    "model.backbone_config": "",
    "model.image_size": 0,
    "model.objects": 0,
    "vision.weights": "own",
}
"""Dotted keys that the first ledgers lack, with the value that these ledgers' runs had. A key with
this value is not part of a run's key, so that older runs are found."""


@dataclass(frozen=True)
class Wanted:
    """A run that a table needs."""

    label: str
    """The table's row."""

    phase: str
    """The phase after which the model is evaluated."""

    metric: str
    """The metric that compares the table's rows."""

    config: Any
    data: dict[str, str]
    """See `Fitted` for this and the next two."""

    content: dict[str, str] = field(default_factory=dict)
    measured: dict[str, str] = field(default_factory=dict)

    @property
    def task(self) -> TableTask:
        return TASKS[self.config.task]

    @property
    def key(self) -> str:
        """The key of the run up to the phase."""
        return self.key_after(self.phase)

    def key_after(self, phase: str) -> str:
        """The key of the run up to a phase; it does not depend on later phases."""
        settings = self.settings(phase)
        # The signatures stand for the section of the data; permuted boxes are beyond them.
        moved = {key: value for key, value in settings["data"].items() if key == "boxes"}
        return run_key({**settings, **moved, "data": self.data})

    def settings(self, phase: str) -> dict[str, Any]:
        """The part of the configuration that decides the result after a phase."""
        values = dataclasses.asdict(self.config)
        remove_keys(values, self.task.free(phase))
        remove_keys(values, [key for key, old in _ADDED.items() if _value(values, key) == old])
        made: dict[str, Any] = json.loads(json.dumps(values))
        return made


def _value(values: Mapping[str, Any], dotted: str) -> Any:
    """The value of a dotted key; None if there is none."""
    section, name = dotted.split(".")
    return values.get(section, {}).get(name)


def wanted_runs(
    table: Table,
    base: Any,
    seeds: Sequence[int],
    rows: Sequence[str] | None = None,
    *,
    fitted: Fitted | None = None,
) -> list[Wanted]:
    """The runs of a table, seed by seed, so that a first seed of all rows is done first.

    Args:
        table: The table.
        base: The run that the rows change, such as the table's recipe with a folder of data.
        seeds: The seeds.
        rows: Labels of the rows to make; None for all.
        fitted: The result of `TableTask.fit` for the base, which takes a while, if available.

    Raises:
        ValueError: The row does not exist, or the data do not fit.
    """
    check_wanted(table, base, rows)  # before all data are read
    chosen = [row for row in table.rows if rows is None or row.label in rows]
    task = TASKS[base.task]
    fitted = fitted or task.fit(base, [run_of(row, base, 0).model for row in chosen])
    config = task.until(fitted.config, table.phase)
    return [
        Wanted(
            row.label,
            table.phase,
            table.metric,
            run_of(row, config, seed),
            fitted.data,
            fitted.content,
            fitted.measured,
        )
        for seed in seeds
        for row in chosen
    ]


def with_finished_seeds(wanted: Sequence[Wanted], ledger: Ledger) -> list[Wanted]:
    """The runs of a table, seed by seed, and those of every further seed with a finished run."""
    last = wanted[-1].config.seed
    rows = [run for run in wanted if run.config.seed == last]
    found = list(wanted)
    for seed in sorted({entry.seed for entry in ledger if entry.seed > last}):
        further = [
            dataclasses.replace(run, config=dataclasses.replace(run.config, seed=seed))
            for run in rows
        ]
        if any(run.key in ledger for run in further):
            found += further
    return found


def check_wanted(table: Table, base: Any, rows: Sequence[str] | None = None) -> None:
    """Raises a `ValueError` if a table has no such rows, or a recipe lacks its phase."""
    unknown = set(rows or ()) - {row.label for row in table.rows}
    if unknown:
        known = ", ".join(repr(row.label) for row in table.rows)
        raise ValueError(f"table {table.name} has no row {min(unknown)!r}; its rows are {known}")
    TASKS[base.task].until(base, table.phase)


def fitted_to_ledger(base: Any, ledger: Ledger) -> Fitted:
    """What `TableTask.fit` returned for the runs of a ledger, without their data.

    Args:
        base: The run that the rows of a table change, whatever its data.
        ledger: Finished runs; those of the same task have the same data.

    Raises:
        ValueError: There are none, or their data differ.
    """
    sizes = TASKS[base.task].sizes
    found: dict[str, tuple[dict[str, Any], Entry]] = {}
    for entry in ledger:
        if entry.settings.get("task") == base.task:
            model = {name: entry.model.get(name) for name in sizes}
            found[json.dumps([entry.data, model], sort_keys=True)] = model, entry
    if not found:
        raise ValueError(f"{ledger.folder}: it has no finished run of the task {base.task}")
    if len(found) > 1:
        raise ValueError(
            f"{ledger.folder}: its runs of the task {base.task} were trained on {len(found)} sets "
            "of data; choose one with --data DIR"
        )
    ((model, entry),) = found.values()
    config = dataclasses.replace(base, model=dataclasses.replace(base.model, **model))
    return Fitted(config, entry.data, entry.content)


def run_of(row: Row, base: Any, seed: int) -> Any:
    """The run of a row."""
    values = dataclasses.asdict(base.model)
    twice = {name: 2 * values[name] for name in row.doubled}
    model = from_dict(type(base.model), {**values, **twice, **row.model})
    data = dataclasses.replace(base.data, **row.data)
    return dataclasses.replace(base, model=model, data=data, seed=seed)


def make_run(
    wanted: Wanted,
    folder: str | Path,
    *,
    listen: Callable[[LogEntry], None] = lambda entry: None,
) -> list[tuple[Entry, dict[str, Written]]]:
    """Starts or resumes a run, and evaluates it after each phase.

    Args:
        wanted: The run.
        folder: The ledger's folder, where the run has its own, see `remove_run`.
        listen: Receives the entries of the training log.

    Returns:
        The entry of the ledger for each phase, and the outputs by split.
    """
    output = Path(folder) / RUNS / wanted.key
    try:
        train(wanted.config, output, resume=output.exists(), listen=listen)
    except SettingsError:
        # It was started with other bytes of the same data, or in another precision.
        remove_run(wanted.key, folder)
        train(wanted.config, output, listen=listen)
    log = _read_log(output)
    done = [phase for phase in wanted.task.phases if (output / phase).is_dir()]
    return [_measured(wanted, output, phase, log) for phase in done]


def remove_run(key: str, folder: str | Path) -> None:
    """Removes the folder of a run, if there is one, and what kills left of other removals.

    It is renamed first, so that a half-removed folder is never resumed.
    """
    runs = Path(folder) / RUNS
    if (runs / key).is_dir():
        unseen = runs / f"{key}{_REMOVED}"
        shutil.rmtree(unseen, ignore_errors=True)
        (runs / key).rename(unseen)
    for left in runs.glob(f"*{_REMOVED}"):
        # Another process may be removing it, too.
        shutil.rmtree(left, ignore_errors=True)


def add_all(ledger: Ledger, found: Sequence[tuple[Entry, dict[str, Written]]]) -> None:
    """Adds evaluated phases to a ledger."""
    for entry, written in found:
        if entry.key not in ledger:
            ledger.add(entry, written)


def _measured(
    wanted: Wanted, output: Path, phase: str, log: Sequence[LogEntry]
) -> tuple[Entry, dict[str, Written]]:
    config = wanted.config
    measured = wanted.task.measure(config, output / phase)
    start = next(entry for entry in log if entry["event"] == "start")
    end = next(entry for entry in log if entry["event"] == "end")
    settings = wanted.settings(phase)
    entry = Entry(
        key=wanted.key_after(phase),
        model=settings.pop("model"),
        phase=phase,
        seed=settings.pop("seed"),
        settings=settings,
        data=wanted.data,
        parameters=start["parameters"],
        metrics={
            split: {name: round(value, 4) for name, value in found.metrics.items()}
            for split, found in measured.items()
        },
        curve=_curve(wanted, phase, log),
        seconds=round(end["seconds"], 1),
        device=start["device"],
        version=__version__,
        content=wanted.content,
        measured=wanted.measured,
    )
    return entry, {split: found.written for split, found in measured.items()}


def _curve(wanted: Wanted, phase: str, log: Sequence[LogEntry]) -> list[float]:
    """The main metric by epoch, up to the end of a phase."""
    phases = wanted.task.phases
    so_far = phases[: phases.index(phase) + 1]
    # An epoch that was logged twice, as after a kill, counts as it was logged last.
    values = {
        entry["epoch"]: entry["metrics"][wanted.metric]
        for entry in log
        if entry["event"] == "epoch" and entry["phase"] in so_far
    }
    return [values[epoch] for epoch in sorted(values)]


def _read_log(output: Path) -> list[LogEntry]:
    return [json.loads(line) for line in (output / LOG).read_text(encoding="utf-8").splitlines()]


def check_made(wanted: Sequence[Wanted], ledger: Ledger) -> None:
    """Raises a `ValueError` if finished runs on the same data had another test split."""
    for run in wanted:
        alike = [entry for entry in ledger if entry.data == run.data]
        for split, origin in run.measured.items():
            _compare_with_data(alike, split, origin, ledger)


def check_reported(
    entries: Iterable[Entry], split: str, now: Mapping[str, str], ledger: Ledger
) -> None:
    """Raises a `ValueError` if runs were evaluated on different splits of the same name.

    Args:
        entries: The runs; old ones without a signature pass.
        split: The split to show.
        now: `Wanted.measured`; empty if the data are not available.
        ledger: The ledger of the runs.
    """
    telling = [entry for entry in entries if split in entry.measured]
    if split in now:
        _compare_with_data(telling, split, now[split], ledger)
    for entry in telling[1:]:
        if entry.measured[split] != telling[0].measured[split]:
            raise ValueError(
                f"{ledger.folder}: the runs {telling[0].key} and {entry.key} were evaluated on "
                f"different splits {split!r}, so they cannot share a table; train the table's "
                "models on the same data, in another --output"
            )


def _compare_with_data(entries: Iterable[Entry], split: str, origin: str, ledger: Ledger) -> None:
    for entry in entries:
        if entry.measured.get(split, origin) != origin:
            raise ValueError(
                f"{ledger.folder}: the run {entry.key} there was evaluated on another split "
                f"{split!r} than the data's, so their scores cannot be compared; use another "
                "--output for these data"
            )


_MOST = 3
"""Differences to list; other recipes may have dozens."""


def describe_others(table: Table, wanted: Sequence[Wanted], ledger: Ledger) -> str:
    """The end of a message that no run of a table is finished in a ledger.

    It describes the ledger's runs of the same task, and how to ask for them; empty without any.
    """
    task = wanted[0].config.task
    entries = [entry for entry in ledger if entry.settings.get("task") == task]
    if not entries:
        return ""
    held = f", which has {len(entries)} {'run' if len(entries) == 1 else 'runs'} of the task {task}"
    found = _candidates(table, wanted, entries)
    if not found:
        return f"{held}, of other rows or evaluated after another phase"
    nearest = min(found, key=len)
    listed = ", ".join(nearest[:_MOST])
    if len(nearest) > _MOST:
        listed += f" and {len(nearest) - _MOST} more"
    return (
        f"{held}, perhaps of another recipe or of other data"
        f"{f' (the nearest has {listed})' if listed else ''}; pass the keys, or the --config, that "
        "they were trained with"
    )


def _candidates(
    table: Table, wanted: Sequence[Wanted], entries: Sequence[Entry]
) -> list[list[str]]:
    """The differences of finished runs from wanted ones of the same row, pair by pair."""
    rows = {row.label: row for row in table.rows}
    seed = wanted[0].config.seed  # the same runs are wanted for all seeds
    return [
        _differing(run, entry)
        for run in wanted
        if run.config.seed == seed
        for entry in entries
        if entry.phase == run.phase
        and rows[run.label].fits(entry.model, entry.settings.get("data", {}))
    ]


def _differing(run: Wanted, entry: Entry) -> list[str]:
    """The differences of a finished run from a wanted one, except for the seed."""
    asked = run.settings(run.phase)
    del asked["seed"]
    made = {**entry.settings, "model": dict(entry.model)}
    for size in run.task.sizes:  # decided by the data
        asked["model"].pop(size, None)
        made["model"].pop(size, None)
    return ["other data"] * (entry.data != run.data) + differences(made, asked)
