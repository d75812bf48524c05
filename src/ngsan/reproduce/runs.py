"""The runs of a table: which are wanted, which are finished, and how one is made."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngsan import __version__
from ngsan.config import CaptionerConfig, TrainConfig, from_dict
from ngsan.data.dataset import CaptionDataset
from ngsan.evaluate import caption_images, score_results
from ngsan.metrics.bleu import Bleu
from ngsan.metrics.cider import Cider
from ngsan.metrics.meteor import Meteor
from ngsan.metrics.metric import Metric
from ngsan.metrics.rouge import RougeL
from ngsan.models.saved import load_captioner
from ngsan.plots import read_curve
from ngsan.predict import Predictor, best_device
from ngsan.reproduce.ledger import Entry, Ledger, Written, run_key
from ngsan.reproduce.tables import CROSS_ENTROPY, SELF_CRITICAL, Row, Table
from ngsan.train.log import Entry as LogEntry
from ngsan.train.run import train

RUNS = "runs"
"""Where runs have their folders, which are removed when they are finished."""

METRICS: tuple[Metric, ...] = (Bleu(), Meteor(), RougeL(), Cider())

_INDIFFERENT = ("data.folder", "vision", "validation.batch_size", "machine", "initial")
"""Keys of a run that decide nothing here."""


@dataclass(frozen=True)
class Wanted:
    """A run that a table needs."""

    label: str
    """The table's row."""

    phase: str
    """After which phase it is measured."""

    config: TrainConfig
    """All of it."""

    data: dict[str, str]
    """Signatures of what is learned from."""

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
        for key in _INDIFFERENT:
            *sections, last = key.split(".")
            inner = values
            for section in sections:
                inner = inner[section]
            del inner[last]
        if phase == CROSS_ENTROPY:
            del values["self_critical"]
        made: dict[str, Any] = json.loads(json.dumps(values))
        return made


def wanted_runs(
    table: Table, base: TrainConfig, seeds: Sequence[int], rows: Sequence[str] | None = None
) -> list[Wanted]:
    """The runs of a table, seed by seed, so that a first seed of all rows is done first.

    Args:
        table: The table.
        base: What the rows change.
        seeds: Of the runs.
        rows: Labels of the rows to make; None for all.

    Raises:
        ValueError: There is no such row, or the data do not fit.
    """
    chosen = [row for row in table.rows if rows is None or row.label in rows]
    unknown = set(rows or ()) - {row.label for row in table.rows}
    if unknown:
        known = ", ".join(repr(row.label) for row in table.rows)
        raise ValueError(f"table {table.name} has no row {min(unknown)!r}; its rows are {known}")
    if table.phase == SELF_CRITICAL and not base.self_critical.epochs:
        raise ValueError(
            f"self_critical.epochs: 0 leaves out what table {table.name} measures; give 1 or more"
        )
    base, data = fit_to_data(base)
    return [
        Wanted(row.label, table.phase, run_of(row, base, table.phase, seed), data)
        for seed in seeds
        for row in chosen
    ]


def fit_to_data(base: TrainConfig) -> tuple[TrainConfig, dict[str, str]]:
    """Gives a run the sizes of its data, and tells the data's signatures."""
    learned, validated = (
        CaptionDataset(base.data.folder, split, longest=base.data.longest)
        for split in (base.data.train, base.data.validation)
    )
    model = dataclasses.replace(
        base.model,
        vocab_size=len(learned.vocabulary),
        feature_dim=learned.store.feature_dim,
    )
    signatures = {"train": learned.signature, "validation": validated.signature}
    return dataclasses.replace(base, model=model), signatures


def run_of(row: Row, base: TrainConfig, phase: str, seed: int) -> TrainConfig:
    """The run of a row."""
    model = from_dict(CaptionerConfig, {**dataclasses.asdict(base.model), **row.model})
    critical = base.self_critical
    if phase == CROSS_ENTROPY:
        critical = dataclasses.replace(critical, epochs=0)
    return dataclasses.replace(base, model=model, self_critical=critical, seed=seed)


def make_run(
    wanted: Wanted,
    folder: str | Path,
    *,
    listen: Callable[[LogEntry], None] = lambda entry: None,
    keep: bool = False,
) -> list[tuple[Entry, dict[str, Written]]]:
    """Makes a run, or goes on with it, and measures it after each phase.

    Args:
        wanted: The run.
        folder: Where tables are made; the run has a folder of its own in it meanwhile.
        listen: Told what happens in training.
        keep: Whether the run's folder stays.

    Returns:
        What belongs into the ledger, for each phase: the entry, and what was written by split.
    """
    output = Path(folder) / RUNS / wanted.key
    train(wanted.config, output, resume=output.exists(), listen=listen)
    about = _about(output)
    phases = (CROSS_ENTROPY, SELF_CRITICAL)
    found = []
    for phase in phases:
        if (output / phase).is_dir():
            found.append(_measured(wanted, output, phase, about))
    if not keep:
        shutil.rmtree(output)
    return found


def add_all(ledger: Ledger, found: Sequence[tuple[Entry, dict[str, Written]]]) -> None:
    """Takes measured phases into a ledger."""
    for entry, captions in found:
        if entry.key not in ledger:
            ledger.add(entry, captions)


def _measured(
    wanted: Wanted, output: Path, phase: str, about: dict[str, Any]
) -> tuple[Entry, dict[str, Written]]:
    config = wanted.config
    captioner, _, vocabulary = load_captioner(output / phase)
    device = best_device() if config.machine.device == "auto" else config.machine.device
    predictor = Predictor(captioner.to(device), vocabulary)
    metrics, written = {}, {}
    for split in _splits(config):
        dataset = CaptionDataset(config.data.folder, split, longest=config.data.longest)
        references = {image: dataset.captions(place) for place, image in enumerate(dataset.ids)}
        captions = caption_images(
            predictor,
            dataset.store,  # type: ignore[arg-type]
            dataset.ids,
            decoding=config.validation.decoding,
            batch_size=config.validation.batch_size,
        )
        texts = {image: best.text for image, (best, *_) in captions.items()}
        scores = score_results(texts, references, METRICS)
        metrics[split] = {name: round(value, 4) for name, value in scores.values.items()}
        cider = [round(float(value), 3) for value in scores.per_image["CIDEr"]]
        written[split] = Written(list(scores.ids), [texts[image] for image in scores.ids], cider)
    epochs = config.cross_entropy.epochs
    curve = read_curve(output / "log.jsonl", "CIDEr", "").values
    entry = Entry(
        key=wanted.key_after(phase),
        model=dataclasses.asdict(config.model),
        phase=phase,
        seed=config.seed,
        settings={
            key: value
            for key, value in wanted.settings(phase).items()
            if key not in ("model", "seed")
        },
        data=wanted.data,
        parameters=about["parameters"],
        metrics=metrics,
        curve=list(curve[:epochs] if phase == CROSS_ENTROPY else curve),
        seconds=round(about["seconds"], 1),
        device=about["device"],
        version=__version__,
    )
    return entry, written


def _without_model(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in ("model", "seed")}


def _splits(config: TrainConfig) -> list[str]:
    """What runs are measured on: the validation split, and the test split if there is one."""
    splits = [config.data.validation]
    try:
        CaptionDataset(config.data.folder, "test", longest=config.data.longest)
    except ValueError:
        return splits
    return [*splits, "test"]


def _about(output: Path) -> dict[str, Any]:
    """What the log of a run says of it."""
    entries = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    start = next(entry for entry in entries if entry["event"] == "start")
    end = next(entry for entry in entries if entry["event"] == "end")
    return {
        "parameters": start["parameters"],
        "device": start["device"],
        "seconds": end["seconds"],
    }
