"""`ngsan score`: scores a file of captions or translations against references."""

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngsan.cli.output import check_outputs, open_console, say
from ngsan.cli.parser import Command, Parser, number
from ngsan.cli.score_outputs import (
    PER_IMAGE,
    Outcome,
    System,
    print_outcome,
    print_translation_scores,
    write_per_image,
    write_report,
    write_scores,
    write_translation_scores,
)
from ngsan.data.boxes import read_object_names
from ngsan.data.parallel.prepare import language_of
from ngsan.data.results import check_submission, read_image_ids, read_references, read_results
from ngsan.data.splits import read_id_list
from ngsan.data.text_files import read_lines
from ngsan.metrics.captions import Metric, TokenizedCaptions
from ngsan.metrics.cider import DocumentFrequencies
from ngsan.metrics.diversity import measure_diversity
from ngsan.metrics.hallucination import Hallucination
from ngsan.metrics.scores import (
    METRICS,
    Scores,
    build_metrics,
    compare,
    intervals,
    score_captions,
)
from ngsan.metrics.translation import check_language, compound_bleu, sacre_bleu
from ngsan.text.ptb import tokenize_lines

if TYPE_CHECKING:
    from rich.status import Status

Captions = list[list[list[str]]]

_CAPTIONS_ONLY = (
    "split",
    "ids",
    "subset",
    "boxes",
    "compare",
    "document_frequencies",
    "train",
    "per_image",
    "spice",
    "spice_jars",
    "report",
)
_INPUTS = ("compare", "ids", "subset", "boxes", "train", "document_frequencies")
_TRANSLATIONS_ONLY = ("language", "tokenized")


def _add_options(parser: Parser) -> None:
    parser.add_argument(
        "results",
        metavar="RESULTS",
        help="captions in COCO's result format, JSON lines or CSV; with --translation, text",
    )
    parser.option(
        "references",
        metavar="FILE",
        action="append",
        help="COCO annotations, JSON lines, CSV or a dataset folder; with --translation, a file of "
        "text, and the option may be repeated",
    )
    parser.option("split", help="split of a dataset folder (default: test)")
    parser.option("ids", metavar="FILE", help="score exactly these images: one id per line")
    parser.option("subset")
    parser.option(
        "metrics",
        help=f"some of {', '.join(METRICS)}, separated by commas (default: all "
        "that are installed, but SPICE and CIDEr-plain)",
    )
    parser.option("spice")
    parser.option("spice-jars")
    parser.option(
        "boxes",
        metavar="FILE",
        help="objects of the images, as instances_val2014.json or {id: [class, ...]}, to count the "
        "objects that captions hallucinate (CHAIR)",
    )
    parser.option("compare", metavar="FILE", help="captions of another system, to compare with")
    parser.option(
        "document-frequencies",
        metavar="FILE",
        help="for CIDEr-D: saved frequencies (.npz), or captions to count them in",
    )
    parser.option(
        "train",
        metavar="FILE",
        help="training captions, a file or dataset folder, to count captions that are new",
    )
    parser.option("output", metavar="FILE", help="write the scores to this file, as JSON")
    parser.option(
        "per-image",
        metavar="FILE",
        help=f"write the scores of each image to this file ({', '.join(PER_IMAGE)})",
    )
    parser.option("report")
    parser.option(
        "resamples",
        type=int,
        metavar="N",
        default=1000,
        help="bootstrap resamples; 0: none",
    )
    parser.option(
        "level", type=number, metavar="X", default=95.0, help="level of the intervals, in percent"
    )
    parser.option("seed", default=0, help="seed of the bootstrap")
    parser.option("translation", action="store_true", help="score translations, one per line")
    parser.option(
        "language",
        metavar="CODE",
        help="with --translation: de, en or none, for tokenised BLEU (default: the ending of the "
        "references' name)",
    )
    parser.option(
        "tokenized",
        action="store_true",
        help="with --translation: both are tokenised by Moses; compute tokenised BLEU only",
    )
    parser.option(
        "check-submission",
        action="store_true",
        help="score nothing; check a file or archive for COCO's test server",
    )


def _run(options: argparse.Namespace) -> None:
    modes = [("check_submission", (*_CAPTIONS_ONLY[1:], "output", "metrics", *_TRANSLATIONS_ONLY)),
             ("translation", (*_CAPTIONS_ONLY, "metrics"))]  # fmt: skip
    mode, others = next(
        (one for one in modes if getattr(options, one[0])), ("captions", _TRANSLATIONS_ONLY)
    )
    for name in others:
        if getattr(options, name):
            given = f"--{mode.replace('_', '-')}" if mode != "captions" else "captions"
            raise ValueError(f"--{name.replace('_', '-')} does not apply to {given}")
    if mode == "check_submission":
        _check_submission(options)
        return
    if options.references is None:
        raise ValueError("--references is missing; pass --references FILE")
    if mode == "translation":
        _score_translation(options)
        return
    if len(options.references) > 1:
        raise ValueError("--references: captions have one file or dataset folder of references")
    score_file(options, options.results, options.references[0])


def score_file(options: argparse.Namespace, results: str, references: str) -> None:
    """Scores a file of captions, prints the scores and writes the files that are asked for.

    Args:
        options: The options of `ngsan score`.
        results: The captions.
        references: The file or dataset folder of references.

    Raises:
        ValueError: An option or a file is wrong.
    """
    outputs = {
        "--output": options.output,
        "--per-image": options.per_image,
        "--report": options.report,
    }
    inputs = [getattr(options, name) for name in _INPUTS]
    check_outputs(outputs, [results, references, *inputs])
    if options.per_image and Path(options.per_image).suffix.lower() not in PER_IMAGE:
        raise ValueError(f"--per-image: {options.per_image} must end in {', '.join(PER_IMAGE)}")
    console = open_console(results=True)
    subset = None if options.subset is None else listed_ids(options.subset)
    with open_console().status("reading") as status:
        outcome = _score(options, results, references, status)
        part = subset and _score(options, results, references, status, subset)
    print_outcome(console, outcome)
    if part:
        say(console, f"only the images of {options.subset}:")
        print_outcome(console, part)
    if options.output:
        write_scores(options.output, outcome.system.scores)
    if options.per_image:
        write_per_image(options.per_image, outcome.system.scores)
    if options.report:
        write_report(options.report, outcome, part or None)


def listed_ids(path: str) -> list[str]:
    """The image ids in a file: one a line, or COCO's JSON with a list of images."""
    return read_image_ids(path) if Path(path).suffix == ".json" else list(read_id_list(path))


def _score(
    options: argparse.Namespace,
    results: str,
    references: str,
    status: "Status",
    subset: Sequence[str] | None = None,
) -> Outcome:
    """Reads, scores and compares, of a subset only that; shows on the way what it does."""
    if not 0 < options.level < 100:
        raise ValueError(f"--level: {options.level:g} is not between 0 and 100")
    if options.resamples < 0:
        raise ValueError(f"--resamples: {options.resamples} is below 0; pass 0 for no intervals")
    names = metric_names(options.metrics)
    if options.document_frequencies and names is not None and "CIDEr-D" not in names:
        raise ValueError("--document-frequencies applies to CIDEr-D, which --metrics lacks")
    captions = read_results(results)
    split = options.split or ("test" if Path(references).is_dir() else None)
    truth = read_references(references, split=split)
    others = None if options.compare is None else read_results(options.compare)
    chosen = _choose(options, results, references, captions, truth, others)
    if subset is not None:
        chosen = set(chosen).intersection(subset)
        if not chosen:
            raise ValueError(f"--subset: no scored image is in {options.subset}")
    scored = {image: texts for image, texts in truth.items() if image in chosen}
    tokenized = TokenizedCaptions.tokenize({name: captions[name] for name in scored}, scored)
    trained = None if options.train is None else _training_captions(options.train)
    frequencies = _frequencies(options.document_frequencies, options.train, trained)
    jars = options.spice_jars
    metrics, reasons = build_metrics(names, document_frequencies=frequencies, spice_jars=jars)
    if (options.spice or jars) and "SPICE" not in (names or ()):
        metrics += build_metrics(["SPICE"], spice_jars=jars)[0]
    if options.boxes:
        metrics.append(Hallucination(read_object_names(options.boxes)))
    chance = {"resamples": options.resamples, "level": options.level / 100, "seed": options.seed}
    scorer = _Scorer(metrics, names is None, reasons, trained, chance, status)
    system = scorer.score(results, tokenized)
    other, comparison = None, {}
    if others is not None:
        words = tokenize_lines(others[name] for name in tokenized.ids)
        second = replace(tokenized, hypotheses=tuple(map(tuple, words)))
        other = scorer.score(options.compare, second)
        if options.resamples:
            comparison = dict(compare(system.scores, other.scores, **chance))
    return Outcome(
        system=system,
        other=other,
        comparison=comparison,
        not_computed=reasons,
        references=references,
        counts={
            "images": len(tokenized.ids),
            "references": sum(map(len, tokenized.references)),
            "images_with_results": len(captions),
            "images_with_references": len(truth),
        },
        settings={**chance, "level": options.level} if options.resamples else {},
    )


def metric_names(text: str | None) -> list[str] | None:
    """Names of metrics in any case, separated by commas, as `METRICS` spells them."""
    if text is None:
        return None
    by_lower = {name.lower(): name for name in METRICS}
    by_lower |= {f"bleu-{count}": "BLEU" for count in range(1, 5)}  # computed together
    names: dict[str, None] = {}
    for word in map(str.strip, text.split(",")):
        if word.lower() not in by_lower:
            raise ValueError(f"--metrics: {word!r} is not one of {', '.join(METRICS)}")
        names[by_lower[word.lower()]] = None
    return list(names)


def _choose(
    options: argparse.Namespace,
    results: str,
    references: str,
    captions: Mapping[str, str],
    truth: Mapping[str, object],
    others: Mapping[str, str] | None,
) -> Collection[str]:
    """The ids to score; raises a `ValueError` if captions or references of some are missing."""
    if options.ids is None:
        _reject_unknown(captions, truth, results, references)
        chosen: Collection[str] = captions
        if others is not None:
            _reject_missing(others, captions, results, options.compare)
    else:
        chosen = read_id_list(options.ids)
        _reject_missing(chosen, captions, results, options.ids)
        _reject_missing(chosen, truth, references, options.ids)
    if others is not None:
        _reject_missing(chosen, others, options.compare, options.ids or results)
    return chosen


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")


def _reject_unknown(
    captions: Mapping[str, str], truth: Mapping[str, object], results: str, references: str
) -> None:
    """Raises a `ValueError` for captions of images that have no references."""
    unknown = [image for image in captions if image not in truth]
    if len(unknown) == len(captions):
        raise ValueError(
            f"no image of {results} is in {references}: the ids are {_some(unknown)} here and "
            f"{_some(list(truth))} there"
        )
    if unknown:
        raise ValueError(
            f"{len(unknown):,} of {len(captions):,} images of {results} have no references in "
            f"{references}: {_some(unknown)}; remove them, or choose images with --ids"
        )


def _reject_missing(
    wanted: Iterable[str], found: Collection[str], where: str, source: str | None
) -> None:
    """Raises a `ValueError` for images of a source that another file lacks."""
    missing = [image for image in wanted if image not in found]
    if missing:
        raise ValueError(
            f"{len(missing):,} images of {source} are not in {where}: {_some(missing)}"
        )


def _training_captions(path: str) -> Captions:
    """The words of all captions by image; of a dataset folder, those of its training split."""
    references = read_references(path, split="train" if Path(path).is_dir() else None)
    words = iter(tokenize_lines(text for texts in references.values() for text in texts))
    return [[next(words) for _ in texts] for texts in references.values()]


def _frequencies(
    path: str | None, train: str | None, trained: Captions | None
) -> DocumentFrequencies | None:
    """Saved document frequencies, or those of captions, which may be read already."""
    if path is None:
        return None
    if Path(path).suffix == ".npz":
        return DocumentFrequencies.load(path)
    known = trained if path == train else None
    return DocumentFrequencies.count(_training_captions(path) if known is None else known)


@dataclass(frozen=True)
class _Scorer:
    """Scores systems in the same way."""

    metrics: list[Metric]
    lenient: bool
    """Whether to skip a metric whose program fails, to keep the other scores."""
    reasons: dict[str, str]
    """Gets the reason for each skipped metric."""
    trained: Captions | None
    """The words of the training captions by image, if known."""
    chance: dict[str, Any]
    """Settings of the intervals."""
    status: "Status"

    def score(self, path: str, captions: TokenizedCaptions) -> System:
        """Scores the captions of a file."""
        from rich.markup import escape

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


def _check_submission(options: argparse.Namespace) -> None:
    """Prints everything that is wrong with a file for the test server."""
    console = open_console(results=True)
    found = check_submission(options.results, (options.references or [None])[0])
    for line in found.checked:
        say(console, f"checked {line}")
    for line in found.warnings:
        say(console, f"warning: {line}")
    for line in found.problems:
        say(console, f"problem: {line}", style="red")
    if found.problems:
        raise ValueError(f"{options.results} is not ready for the test server; see the problems")
    say(console, "no problems found")


def _score_translation(options: argparse.Namespace) -> None:
    check_outputs({"--output": options.output}, [options.results, *options.references])
    results = _lines(options.results)
    references = [_lines(path) for path in options.references]
    for path, lines in zip(options.references, references, strict=True):
        if len(lines) != len(results):
            raise ValueError(
                f"{options.results} has {len(results):,} lines and {path} has {len(lines):,}: "
                "line k of one must be the reference of line k of the other"
            )
    scores = [] if options.tokenized else [sacre_bleu(results, references)]
    language, lacks = options.language, ""
    if language is None:
        language = language_of(options.references[:1])
        lacks = "" if options.tokenized else check_language(language)
    if options.tokenized or not (lacks or language == "none"):
        scores.append(
            compound_bleu(results, references[0], language=language, tokenized=options.tokenized)
        )
    print_translation_scores(scores, lacks)
    if options.output:
        write_translation_scores(options.output, scores)


def _lines(path: str) -> list[str]:
    found = []
    for place, line in enumerate(read_lines(Path(path)), start=1):
        if line.text is None:
            raise ValueError(f"{path}, line {place}: {line.problem}: {line.message}")
        found.append(line.text)
    return found


SCORE = Command(
    """Score captions with the metrics of the COCO caption tools: BLEU, METEOR, ROUGE-L, CIDEr,
    CIDEr-D and SPICE, times 100, with intervals, statistics of the captions, and a signature of
    each score. With --translation, score translations: sacreBLEU, and tokenised BLEU with compound
    splitting as papers on WMT14 English-German report it.""",
    _add_options,
    _run,
    [
        "score captions.json --references captions_val2014.json",
        "score captions.json --references mydata --split val --compare other.json",
        "score captions.json --references mydata --subset captions_val2017.json",
        "score captions.json --references captions_val2014.json --boxes instances_val2014.json",
        "score captions.json --references mydata -o scores.json --per-image images.csv",
        "score test.out.de --references test.de --translation",
    ],
)
