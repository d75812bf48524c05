"""`ngsan score`: scores a file of captions against references."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from ngsan.commands import score_translation
from ngsan.commands.command_line import Parser
from ngsan.commands.score_inputs import (
    ALL,
    check_level,
    make_metrics,
    metric_names,
    read_inputs,
    training_captions,
)
from ngsan.commands.score_outputs import (
    Outcome,
    System,
    check_outputs,
    print_outcome,
    write_per_image,
    write_report,
    write_scores,
)
from ngsan.data.submission import check_submission
from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.diversity import measure_diversity
from ngsan.metrics.frequencies import DocumentFrequencies
from ngsan.metrics.metric import Metric
from ngsan.metrics.report import Scores, compare, intervals, score_captions

DESCRIPTION = """Scores captions with the metrics of the COCO caption tools: BLEU, METEOR, ROUGE-L,
CIDEr, CIDEr-D and SPICE, times 100, with intervals, figures about the captions, and a signature of
each score."""

Captions = list[list[list[str]]]


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(prog="ngsan score", description=DESCRIPTION)
    parser.add_argument(
        score_translation.FLAG,
        action="store_true",
        help="score a file of translations instead; see ngsan score --translation --help",
    )
    parser.add_argument("results", type=str, help="captions: COCO result format, JSON lines or CSV")
    text = str | None
    for name, about in {
        "references": "COCO annotation format, JSON lines, CSV or a dataset folder",
        "split": "split of a dataset folder (default: test)",
        "images": "score exactly these images: a file with an id a line",
        "metrics": f"some of {', '.join(ALL)}, with commas (default: all that can be computed)",
        "compare": "captions of another system for the same images",
        "document-frequencies": "for CIDEr-D: saved (.npz), or captions to count them in",
        "train": "training captions, to tell which captions are novel: a file or dataset folder",
        "json": "write the scores to this file, as one flat object",
        "per-image": "write the scores of each image to this file (.json, .jsonl or .csv)",
        "report": "write everything to this file, as JSON",
    }.items():
        parser.add_argument(f"--{name}", type=text, help=about)
    parser.add_argument("--resamples", type=int, default=1000, help="of the bootstrap; 0: none")
    parser.add_argument("--level", type=float, default=95.0, help="of the intervals, in percent")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap")
    parser.add_argument("--no-intervals", action="store_true", help="the same as --resamples 0")
    parser.add_argument(
        "--check-submission",
        action="store_true",
        help="score nothing; check a file or archive for COCO's test server",
    )
    return parser


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    if score_translation.FLAG in arguments:
        score_translation.main(arguments)
        return
    options = make_parser().parse_args(arguments)
    console = Console()
    if options.check_submission:
        others = ("compare", "json", "per_image", "report", "metrics", "train", "images")
        if given := [name for name in others if options[name] is not None]:
            raise ValueError(
                f"--check-submission scores nothing, so --{given[0].replace('_', '-')} has no use"
            )
        _check_submission(console, options.results, options.references)
        return
    if options.references is None:
        raise ValueError("say what to score against: --references FILE")
    outputs = {
        "--json": options.json,
        "--per-image": options.per_image,
        "--report": options.report,
    }
    inputs = ("results", "references", "compare", "images", "train", "document_frequencies")
    check_outputs(outputs, [options[name] for name in inputs])
    with console.status("reading") as status:
        outcome = _score(options, status)
    print_outcome(console, outcome)
    if options.json:
        write_scores(options.json, outcome.system.scores)
    if options.per_image:
        write_per_image(options.per_image, outcome.system.scores)
    if options.report:
        write_report(options.report, outcome)


def _score(options: Any, status: Status) -> Outcome:
    """Reads, scores and compares, and tells on the way what it does."""
    level = check_level(options.level)
    resamples = 0 if options.no_intervals else options.resamples
    if resamples < 0:
        raise ValueError(f"--resamples: {resamples} is below 0; give 0 for no intervals")
    if options.seed < 0:
        raise ValueError(f"--seed: {options.seed} is below 0")
    names = metric_names(options.metrics)
    if options.document_frequencies and names is not None and "CIDEr-D" not in names:
        raise ValueError("--document-frequencies are for CIDEr-D, which --metrics does not name")
    inputs = read_inputs(
        options.results,
        options.references,
        split=options.split,
        images=options.images,
        other=options.compare,
    )
    trained = None if options.train is None else training_captions(options.train)
    frequencies = _frequencies(options.document_frequencies, options.train, trained)
    metrics, reasons = make_metrics(names, frequencies)
    chance = {"resamples": resamples, "level": level, "seed": options.seed}
    scorer = _Scorer(metrics, names is None, reasons, trained, chance, status)
    system = scorer.score(options.results, inputs.captions)
    other = None
    comparison = {}
    if inputs.other is not None:
        other = scorer.score(options.compare, inputs.other)
        if resamples:
            comparison = dict(compare(system.scores, other.scores, **chance))
    return Outcome(
        system=system,
        other=other,
        comparison=comparison,
        not_computed=reasons,
        references=options.references,
        counts={
            "images": len(inputs.captions.ids),
            "references": sum(map(len, inputs.captions.references)),
            "images_with_results": inputs.results,
            "images_with_references": inputs.referenced,
        },
        settings={**chance, "level": options.level} if resamples else {},
    )


def _frequencies(
    path: str | None, train: str | None, trained: Captions | None
) -> DocumentFrequencies | None:
    """Document frequencies that were saved, or those of captions, which may be read already."""
    if path is None:
        return None
    if Path(path).suffix == ".npz":
        return DocumentFrequencies.load(path)
    known = trained if path == train else None
    return DocumentFrequencies.count(training_captions(path) if known is None else known)


@dataclass(frozen=True)
class _Scorer:
    """Scores systems in the same way."""

    metrics: list[Metric]
    """How."""

    lenient: bool
    """Whether a metric whose program fails is left out, so that the other scores are not lost."""

    reasons: dict[str, str]
    """Takes why it was, by name."""

    trained: Captions | None
    """The words of the training captions by image, if they are known."""

    chance: dict[str, Any]
    """Of the intervals."""

    status: Status
    """Told what is done."""

    def score(self, path: str, captions: TokenizedCaptions) -> System:
        """Scores the captions of a file."""
        parts = []
        for metric in self.metrics:
            self.status.update(f"{escape(path)}: {metric.names[0]}")
            try:
                parts.append(score_captions(captions, [metric]))
            except ChildProcessError as error:
                if not self.lenient:
                    raise
                self.reasons[metric.names[0]] = str(error)
        scores = Scores(
            ids=captions.ids,
            values=dict(chain.from_iterable(part.values.items() for part in parts)),
            per_image=dict(chain.from_iterable(part.per_image.items() for part in parts)),
            signatures=dict(chain.from_iterable(part.signatures.items() for part in parts)),
            metrics=tuple(chain.from_iterable(part.metrics for part in parts)),
            rows=tuple(chain.from_iterable(part.rows for part in parts)),
        )
        self.status.update(f"{escape(path)}: intervals")
        seen = None if self.trained is None else chain.from_iterable(self.trained)
        return System(
            path=path,
            scores=scores,
            intervals=intervals(scores, **self.chance) if self.chance["resamples"] else {},
            statistics=measure_diversity(captions.hypotheses, seen),
        )


def _check_submission(console: Console, path: str, references: str | None) -> None:
    """Tells all that is wrong with a file for the test server."""
    found = check_submission(path, references)
    plain: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    for line in found.checked:
        console.print(f"checked {line}", **plain)
    for line in found.warnings:
        console.print(f"warning: {line}", **plain)
    for line in found.problems:
        console.print(f"problem: {line}", style="red", **plain)
    if found.problems:
        raise ValueError(f"{path} is not ready for the test server; see the problems above")
    console.print("nothing is wrong", **plain)
