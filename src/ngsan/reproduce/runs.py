"""The runs of a table: which are wanted, which are finished, and how one is made."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ngsan import __version__
from ngsan.config import from_dict
from ngsan.reproduce.ledger import Entry, Ledger, Written, run_key
from ngsan.reproduce.tables import Row, Table
from ngsan.reproduce.task import Fitted, TableTask
from ngsan.reproduce.tasks import TASKS
from ngsan.train.keeping import LOG
from ngsan.train.log import Entry as LogEntry
from ngsan.train.progress import SettingsError
from ngsan.train.run import train

RUNS = "runs"
"""Where runs have their folders, which are removed when they are in the ledger."""

_REMOVED = ".removed"
"""How the folder of a run is called that is being removed."""


@dataclass(frozen=True)
class Wanted:
    """A run that a table needs."""

    label: str
    """The table's row."""

    phase: str
    """After which phase it is measured."""

    metric: str
    """What the table compares its rows by."""

    config: Any
    """All of it."""

    data: dict[str, str]
    """What is learned from, the same on every machine."""

    content: dict[str, str] = field(default_factory=dict)
    """Signatures of the same, to the byte."""

    measured: dict[str, str] = field(default_factory=dict)
    """What it is measured on beyond them, see `Fitted.measured`; not part of the key."""

    @property
    def task(self) -> TableTask:
        """What is learned."""
        return TASKS[self.config.task]

    @property
    def key(self) -> str:
        """Of the run up to the phase."""
        return self.key_after(self.phase)

    def key_after(self, phase: str) -> str:
        """Of the run up to a phase: what comes after it does not matter."""
        return run_key({**self.settings(phase), "data": self.data})

    def settings(self, phase: str) -> dict[str, Any]:
        """All of the configuration that decides the result after a phase."""
        values = dataclasses.asdict(self.config)
        for key in self.task.free(phase):
            *sections, last = key.split(".")
            inner = values
            for section in sections:
                inner = inner[section]
            del inner[last]
        made: dict[str, Any] = json.loads(json.dumps(values))
        return made


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
        base: What the rows change, such as the table's recipe with a folder of data.
        seeds: Of the runs.
        rows: Labels of the rows to make; None for all.
        fitted: Of `TableTask.fit` for the base, which takes a while, if it is at hand.

    Raises:
        ValueError: There is no such row, or the data do not fit.
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
    """The runs of a table, and those of every further seed of which one is finished.

    Args:
        wanted: The table's runs, seed by seed.
        ledger: Those that are finished, with others.
    """
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
    """Raises a `ValueError` if a table has no such rows, or a recipe lacks what it measures."""
    unknown = set(rows or ()) - {row.label for row in table.rows}
    if unknown:
        known = ", ".join(repr(row.label) for row in table.rows)
        raise ValueError(f"table {table.name} has no row {min(unknown)!r}; its rows are {known}")
    TASKS[base.task].until(base, table.phase)


def fitted_to_ledger(base: Any, ledger: Ledger) -> Fitted:
    """What `TableTask.fit` gave for the runs of a ledger, without their data.

    Args:
        base: What the rows of a table change, whatever its data.
        ledger: Finished runs, of which those of the same task have the same data.

    Raises:
        ValueError: There are none, or their data are not the same.
    """
    sizes = TASKS[base.task].sizes
    found: dict[str, tuple[dict[str, Any], Entry]] = {}
    for entry in ledger:
        if entry.settings.get("task") == base.task:
            model = {name: entry.model.get(name) for name in sizes}
            found[json.dumps([entry.data, model], sort_keys=True)] = model, entry
    if not found:
        raise ValueError(f"{ledger.folder}: no run of the task {base.task} is finished there")
    if len(found) > 1:
        raise ValueError(
            f"{ledger.folder}: its runs of the task {base.task} learned from {len(found)} sets of "
            "data; say which: --data DIR"
        )
    ((model, entry),) = found.values()
    config = dataclasses.replace(base, model=dataclasses.replace(base.model, **model))
    return Fitted(config, entry.data, entry.content)


def run_of(row: Row, base: Any, seed: int) -> Any:
    """The run of a row."""
    model = from_dict(type(base.model), {**dataclasses.asdict(base.model), **row.model})
    return dataclasses.replace(base, model=model, seed=seed)


def make_run(
    wanted: Wanted,
    folder: str | Path,
    *,
    listen: Callable[[LogEntry], None] = lambda entry: None,
) -> list[tuple[Entry, dict[str, Written]]]:
    """Makes a run, or goes on with it, and measures it after each phase.

    Args:
        wanted: The run.
        folder: Where tables are made; the run has a folder of its own in it, see `remove_run`.
        listen: Told what happens in training.

    Returns:
        What belongs into the ledger, for each phase: the entry, and what was written by split.
    """
    output = Path(folder) / RUNS / wanted.key
    try:
        train(wanted.config, output, resume=output.exists(), listen=listen)
    except SettingsError:
        # It was begun with other bytes of the same data, or in another precision.
        remove_run(wanted.key, folder)
        train(wanted.config, output, listen=listen)
    log = _read_log(output)
    done = [phase for phase in wanted.task.phases if (output / phase).is_dir()]
    return [_measured(wanted, output, phase, log) for phase in done]


def remove_run(key: str, folder: str | Path) -> None:
    """Removes the folder of a run, if there is one, and what kills left of other removals.

    It gets another name first: nobody takes a folder of which half is left for a run to go on with.
    """
    runs = Path(folder) / RUNS
    if (runs / key).is_dir():
        unseen = runs / f"{key}{_REMOVED}"
        shutil.rmtree(unseen, ignore_errors=True)
        (runs / key).rename(unseen)
    for left in runs.glob(f"*{_REMOVED}"):
        # Another process may be at it, too.
        shutil.rmtree(left, ignore_errors=True)


def add_all(ledger: Ledger, found: Sequence[tuple[Entry, dict[str, Written]]]) -> None:
    """Takes measured phases into a ledger."""
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
