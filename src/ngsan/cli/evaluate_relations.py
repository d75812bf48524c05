"""`ngsan evaluate --relations`: whether a captioner knows relations."""

import argparse
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ngsan.atomic_io import write_output
from ngsan.cli.output import open_console, progress_bar, say
from ngsan.config import DecodingConfig
from ngsan.data.captions import read_captions
from ngsan.data.data_check import checked_features
from ngsan.data.pictures import PictureStore
from ngsan.data.relations import Claim, read_claims
from ngsan.data.store import FeatureStore
from ngsan.metrics.relations import Estimate, RelationWords, relation_words_in_captions
from ngsan.predict.captioner import Captioner

if TYPE_CHECKING:
    from ngsan.predict.relations import RelationScores

_SHOWN = 5
_PARTS = 1000


def evaluate_relations(
    model: Captioner, options: argparse.Namespace, decoding: DecodingConfig
) -> None:
    """Scores the sentences of a file, and the relation words of captions of the same images."""
    from ngsan.predict.evaluate import caption_dataset
    from ngsan.predict.relations import OTHERS, score_relations

    store = FeatureStore(options.data) if options.images is None else PictureStore(options.images)
    records = {record.id: record for record in read_captions(options.data)}
    splits = {image: record.split for image, record in records.items()}
    claims, left_out = _chosen(read_claims(options.relations), splits, store, options)
    images = sorted({claim.image for claim in claims})
    console = open_console()
    sentences = progress_bar(console, f"{len(claims):,} sentences", _PARTS)
    with checked_features(store), sentences as advance_to:
        found = score_relations(
            model,
            store,
            claims,
            others=OTHERS if options.others is None else options.others,
            seed=options.seed or 0,
            on_part=lambda share: advance_to(int(share * _PARTS)),
        )
    described = [image for image in images if image in records]
    with progress_bar(console, f"captioning {len(described):,} images", len(images)) as advance_to:
        captions = caption_dataset(
            model,
            store,
            described,
            decoding=decoding,
            batch_size=options.batch_size,
            on_batch=advance_to,
        )
    words = relation_words_in_captions(
        {image: caption.words for image, caption in captions.items()},
        {image: [*map(model.vocabulary.tokenize, records[image].captions)] for image in described},
    )
    content = _content(found, words, left_out, len(images))
    write_output(options.output, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    say(console, f"wrote {len(found.sentences):,} scores to {options.output}")
    _print(content, found)


def _chosen(
    claims: Sequence[Claim],
    splits: dict[str, str],
    store: FeatureStore | PictureStore,
    options: argparse.Namespace,
) -> tuple[list[Claim], dict[str, int]]:
    """The sentences to score, and how many others there are, by reason."""
    left_out = {"on training images": 0, "of other splits": 0, "without image": 0}
    chosen = []
    for claim in claims:
        split = splits.get(claim.image, "")
        if split == "train":
            left_out["on training images"] += 1
        elif options.split is not None and split != options.split:
            left_out["of other splits"] += 1
        elif claim.image not in store:
            left_out["without image"] += 1
        else:
            chosen.append(claim)
    if not chosen:
        reasons = ", ".join(f"{count:,} {why}" for why, count in left_out.items() if count)
        raise ValueError(f"{options.relations} has no sentence to score: {reasons}")
    return chosen, left_out


def _content(
    found: "RelationScores", words: RelationWords, left_out: dict[str, int], images: int
) -> dict[str, Any]:
    """The results as JSON."""
    return {
        "auc": _percent(found.auc),
        "opposite": _percent(found.pairs),
        "caption_precision": _percent(words.precision),
        "caption_recall": _percent(words.recall),
        "images": images,
        "sentences": len(found.sentences),
        "true": sum(one.claim.true for one in found.sentences),
        "pairs": sum(one.opposite is not None for one in found.sentences),
        "not_scored": {"with unknown words": found.unscored, **left_out},
        "unknown_words": dict(found.unknown.most_common()),
        "by_relation": {
            name: {"auc": round(100 * value, 2), "sentences": count}
            for name, (value, count) in found.by_relation.items()
        },
        "scores": [
            {
                "image_id": one.claim.image,
                "text": one.claim.text,
                "true": int(one.claim.true),
                "rel": one.claim.relation,
                "score": round(one.score, 4),
                **({} if one.opposite is None else {"opposite": round(one.opposite, 4)}),
            }
            for one in found.sentences
        ],
    }


def _percent(one: Estimate) -> dict[str, Any] | None:
    """A share in percent; None if there is nothing to average."""
    if math.isnan(one.value):
        return None
    return {
        "value": round(100 * one.value, 2),
        "interval": [round(100 * end, 2) for end in one.interval],
    }


def _print(content: dict[str, Any], found: "RelationScores") -> None:
    """Prints the results as a table."""
    table = Table()
    for head, side in (("", "left"), ("%", "right"), ("95 % interval", "right"), ("of", "left")):
        table.add_column(head, justify=side)  # type: ignore[arg-type]
    rows = {
        "auc": ("AUC, true against false", f"{content['sentences']:,} sentences"),
        "opposite": ("right against the opposite", f"{content['pairs']:,} sentences"),
        "caption_precision": ("relation words, precision", "captions"),
        "caption_recall": ("relation words, recall", "captions"),
    }
    for key, (name, of) in rows.items():
        one = content[key]
        if one is not None:
            low, high = one["interval"]
            table.add_row(name, f"{one['value']:.1f}", f"{low:.1f} to {high:.1f}", of)
    console = open_console(results=True)
    console.print(table)
    say(console, f"{content['images']:,} images; chance is 50 % in the first two rows")
    skipped = [f"{count:,} {why}" for why, count in content["not_scored"].items() if count]
    if skipped:
        say(console, f"not scored: {', '.join(skipped)}")
    if found.unknown:
        shown = [f"{word} ({count})" for word, count in found.unknown.most_common(_SHOWN)]
        more = len(found.unknown) - len(shown)
        tail = f" and {more} more" if more else ""
        say(console, f"unknown words: {', '.join(shown)}{tail}")
