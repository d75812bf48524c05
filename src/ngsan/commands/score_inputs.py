"""What `ngsan score` reads: which images are scored, by which metrics, against what."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ngsan.data.lines import shown
from ngsan.data.results import read_references, read_results
from ngsan.data.splits import read_id_list
from ngsan.metrics.bleu import Bleu
from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.cider import Cider, CiderD, CiderPlain
from ngsan.metrics.frequencies import DocumentFrequencies
from ngsan.metrics.metric import Metric
from ngsan.metrics.rouge import RougeL
from ngsan.text.ptb import tokenize_lines

DEFAULT = ("BLEU", "METEOR", "ROUGE-L", "CIDEr", "CIDEr-D", "SPICE")
"""Metrics that are computed, if they can be, when none is asked for."""

ALL = (*DEFAULT, "CIDEr-plain")


@dataclass(frozen=True)
class Inputs:
    """Captions that are ready to be scored."""

    captions: TokenizedCaptions
    """The images that are scored."""

    other: TokenizedCaptions | None
    """The same images with the captions of another system."""

    results: int
    """Number of images that the file of results has."""

    referenced: int
    """Number of images that the references have."""


def read_inputs(
    results: str,
    references: str,
    *,
    split: str | None = None,
    images: str | None = None,
    other: str | None = None,
) -> Inputs:
    """Reads and tokenises what is to be scored.

    Args:
        results: The file of captions.
        references: The file or dataset folder of references.
        split: Of a dataset folder; None: test.
        images: List of the ids to score; None: all that have a result.
        other: The captions of another system.

    Raises:
        ValueError: A file is wrong, or images are missing.
    """
    captions = read_results(results)
    if split is None and Path(references).is_dir():
        split = "test"
    truth = read_references(references, split=split)
    others = None if other is None else read_results(other)
    if images is None:
        _refuse_strangers(captions, truth, results, references)
        chosen: Collection[str] = captions
        if others is not None:
            _refuse_missing(others, captions, results, other)
    else:
        chosen = read_id_list(images)
        _refuse_missing(chosen, captions, results, images)
        _refuse_missing(chosen, truth, references, images)
    if others is not None:
        _refuse_missing(chosen, others, str(other), images or results)
    scored = {identity: texts for identity, texts in truth.items() if identity in chosen}
    tokenized = TokenizedCaptions.tokenize({name: captions[name] for name in scored}, scored)
    second = None
    if others is not None:
        words = tokenize_lines(others[name] for name in tokenized.ids)
        second = replace(tokenized, hypotheses=tuple(map(tuple, words)))
    return Inputs(tokenized, second, results=len(captions), referenced=len(truth))


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")


def _refuse_strangers(
    captions: Mapping[str, str], truth: Mapping[str, object], results: str, references: str
) -> None:
    """Raises for captions of images that have no references."""
    strangers = [identity for identity in captions if identity not in truth]
    if len(strangers) == len(captions):
        raise ValueError(
            f"no image of {results} is in {references}: the ids are {_some(strangers)} here and "
            f"{_some(list(truth))} there"
        )
    if strangers:
        raise ValueError(
            f"{len(strangers):,} of {len(captions):,} images of {results} have no references in "
            f"{references}: {_some(strangers)}; leave them out, or choose images with --images"
        )


def _refuse_missing(
    wanted: Iterable[str], there: Collection[str], where: str, source: str | None
) -> None:
    """Raises for images of a source that another file lacks."""
    missing = [identity for identity in wanted if identity not in there]
    if missing:
        raise ValueError(
            f"{len(missing):,} images of {source} are not in {where}: {_some(missing)}"
        )


def metric_names(text: str | None) -> list[str] | None:
    """Names of metrics, in any case and with commas between them, as they are written here.

    Raises:
        ValueError: There is no such metric.
    """
    if text is None:
        return None
    by_lower = {name.lower(): name for name in ALL}
    by_lower |= {f"bleu-{count}": "BLEU" for count in range(1, 5)}  # they come together
    names: list[str] = []
    for word in text.split(","):
        name = by_lower.get(word.strip().lower())
        if name is None:
            raise ValueError(f"--metrics: {word.strip()!r} is none of {', '.join(ALL)}")
        if name not in names:
            names.append(name)
    return names


def make_metrics(
    names: Sequence[str] | None, frequencies: DocumentFrequencies | None
) -> tuple[list[Metric], dict[str, str]]:
    """Makes the metrics.

    Args:
        names: Some of `ALL`; None for those of `DEFAULT` that can be computed.
        frequencies: Document frequencies for CIDEr-D.

    Returns:
        The metrics, and why others of the default ones cannot be computed.

    Raises:
        ValueError: A metric that is asked for cannot be computed.
    """
    metrics: list[Metric] = []
    reasons: dict[str, str] = {}
    for name in DEFAULT if names is None else names:
        try:
            metrics.append(_BUILDERS[name](frequencies))
        except ValueError as error:
            if names is not None:
                raise
            reasons[name] = str(error)
    return metrics, reasons


def _meteor(_: DocumentFrequencies | None) -> Metric:
    from ngsan.metrics.meteor import Meteor
    from ngsan.metrics.meteor.resources import find_resources

    find_resources()  # its word lists may be missing, and it would say so late
    return Meteor()


def _spice(_: DocumentFrequencies | None) -> Metric:
    from ngsan.metrics.spice import Spice

    return Spice()


def _cider_d(frequencies: DocumentFrequencies | None) -> Metric:
    return CiderD(frequencies, end=frequencies is not None and frequencies.end)


_BUILDERS: Mapping[str, Callable[[DocumentFrequencies | None], Metric]] = {
    "BLEU": lambda _: Bleu(),
    "METEOR": _meteor,
    "ROUGE-L": lambda _: RougeL(),
    "CIDEr": lambda _: Cider(),
    "CIDEr-D": _cider_d,
    "CIDEr-plain": lambda _: CiderPlain(),
    "SPICE": _spice,
}


def training_captions(path: str) -> list[list[list[str]]]:
    """The words of all captions by image; of a dataset folder, those of its training split."""
    references = read_references(path, split="train" if Path(path).is_dir() else None)
    words = iter(tokenize_lines(text for texts in references.values() for text in texts))
    return [[next(words) for _ in texts] for texts in references.values()]


def check_level(level: float) -> float:
    """The share that a percentage stands for.

    Raises:
        ValueError: It is not between 0 and 100.
    """
    if not 0 < level < 100:
        raise ValueError(f"--level: {shown(level)} is not between 0 and 100")
    return level / 100
