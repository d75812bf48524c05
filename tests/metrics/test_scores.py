"""Scores in percent, their signatures, and the published captions as a set."""

import importlib.util
import json
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

import ngsan.metrics
from ngsan import __version__
from ngsan.metrics.bleu import Bleu
from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.cider import Cider, CiderD, CiderPlain, DocumentFrequencies
from ngsan.metrics.rouge import RougeL
from ngsan.metrics.scores import compare, intervals, score_captions
from tests.metrics import oracle

GOLDEN = Path(__file__).parents[1] / "golden" / "coco_scores.json"

REFERENCES = {
    "1": ["A dog runs on the beach.", "A brown dog running on sand."],
    "2": ["Two cats sleep on a sofa.", "Cats on a couch.", "A pair of cats asleep."],
    "3": ["A red bus in the street.", "A bus drives down a street."],
    "4": ["A man rides a horse.", "Someone riding a brown horse."],
}
GOOD = {
    "1": "a dog running on the beach",
    "2": "two cats on a couch",
    "3": "a red bus on a street",
    "4": "a man riding a horse",
}
POOR = {"1": "a man with a", "2": "a cat on a couch", "3": "a street", "4": "a man with a dog"}


def score(captions, *metrics):
    return score_captions(TokenizedCaptions.tokenize(captions, REFERENCES), metrics)


def test_published_captions_get_their_published_scores(published, published_scores):
    captions = TokenizedCaptions.tokenize(*published)
    assert len(captions.ids) == 5000
    scores = score_captions(captions, [Bleu(), RougeL(), Cider(), CiderD()])
    for name in ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"):
        assert scores.values[name] == pytest.approx(published_scores[name], abs=1e-6)
    assert scores.values["CIDEr-D"] == scores.values["CIDEr"]
    oracle.agrees(Bleu(), oracle.bleu, captions)
    oracle.agrees(RougeL(), oracle.rouge, captions)
    oracle.agrees(Cider(), oracle.cider, captions)


def test_score_of_raw_text_equals_the_coco_tools():
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    scores = ngsan.metrics.score(golden["captions"], golden["references"])
    assert not scores.missing
    assert golden["scores"] == pytest.approx({n: scores.values[n] for n in golden["scores"]})
    assert list(scores.values) == [
        *("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "CIDEr-D")
    ]
    assert scores.values["CIDEr-D"] == scores.values["CIDEr"]


def test_score_without_the_word_lists_of_meteor(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    listed = {image: [caption] for image, caption in GOOD.items()}
    scores = ngsan.metrics.score(listed, REFERENCES)
    assert list(scores.missing) == ["METEOR"]
    assert "pip install 'ngsan[metrics]'" in scores.missing["METEOR"]
    assert list(scores.values)[-2:] == ["CIDEr", "CIDEr-D"]
    with pytest.raises(ValueError, match="METEOR needs the word lists"):
        ngsan.metrics.score(GOOD, REFERENCES, metrics=["METEOR"])


def test_score_of_chosen_metrics():
    scores = ngsan.metrics.score(GOOD, REFERENCES, metrics=["CIDEr", "CIDEr-plain"])
    assert list(scores.values) == ["CIDEr", "CIDEr-plain"]
    with pytest.raises(ValueError, match="unknown metric 'Cider'; choose from BLEU, "):
        ngsan.metrics.score(GOOD, REFERENCES, metrics=["Cider"])
    with pytest.raises(ValueError, match="image '1' has 2 captions; pass exactly one"):
        ngsan.metrics.score({"1": ["a", "b"]}, {"1": ["a"]})
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        _ = ngsan.metrics.Nope


def test_scores_by_name():
    scores = score(GOOD, Bleu(), RougeL(), Cider())
    assert list(scores.values) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"]
    assert scores.ids == ("1", "2", "3", "4")
    captions = TokenizedCaptions.tokenize(GOOD, REFERENCES)
    whole, single = oracle.bleu(captions)
    assert scores.values["BLEU-2"] == pytest.approx(100 * whole[1])
    np.testing.assert_allclose(scores.per_image["BLEU-2"], 100 * single[:, 1])
    assert scores.values["ROUGE-L"] == pytest.approx(scores.per_image["ROUGE-L"].mean())


def test_signature_line():
    lines = score(GOOD, Bleu(), Cider()).signatures
    assert lines["CIDEr"] == (
        "CIDEr|images:4|refs:2-3|tok:ptb-3.4.1-b|df:references|end:no|clip:yes|sigma:6|n:4"
        f"|version:ngsan-{__version__}"
    )
    assert lines["BLEU-4"].startswith("BLEU-4|images:4|refs:2-3|tok:ptb-3.4.1-b|length:closest|")


def test_signature_depends_on_all_settings():
    captions = TokenizedCaptions.tokenize(GOOD, REFERENCES)
    frequencies = [
        DocumentFrequencies.count(captions.references[:images], end=end)
        for images, end in ((3, False), (4, False), (4, True))
    ]
    metrics = [Cider(), CiderD(end=True), CiderPlain()]
    metrics += [CiderD(each, end=each.end) for each in frequencies]
    lines = {score_captions(captions, [metric]).signatures[metric.names[0]] for metric in metrics}
    given_words = TokenizedCaptions(captions.ids, captions.hypotheses, captions.references)
    fewer = TokenizedCaptions.tokenize({"1": GOOD["1"]}, {"1": REFERENCES["1"]})
    lines |= {score_captions(each, [Cider()]).signatures["CIDEr"] for each in (given_words, fewer)}
    assert len(lines) == len(metrics) + 2


def test_invalid_signature_parts_raise():
    class Odd(RougeL):
        signature = MappingProxyType({"jar": "a|b"})

    with pytest.raises(ValueError, match=r"'a\|b' must not contain"):
        score(GOOD, Odd())

    class Taken(RougeL):
        signature = MappingProxyType({"version": "1"})

    with pytest.raises(ValueError, match="'version' of ROUGE-L is reserved"):
        score(GOOD, Taken())


def test_intervals_contain_the_score():
    scores = score(GOOD, Bleu(), Cider())
    found = intervals(scores, resamples=200, seed=1)
    assert list(found) == list(scores.values)
    for name, (low, high) in found.items():
        assert low <= scores.values[name] <= high
    assert intervals(score(GOOD)) == {}
    wide, narrow = (intervals(scores, level=level)["CIDEr"] for level in (0.95, 0.5))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_comparison_of_two_systems():
    good, poor = score(GOOD, Bleu(), RougeL(), Cider()), score(POOR, Cider(), Bleu())
    found = compare(good, poor, resamples=500)
    assert list(found) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "CIDEr"]
    for name, result in found.items():
        assert result.difference == pytest.approx(good.values[name] - poor.values[name])
        assert result.interval[0] <= result.difference <= result.interval[1]
    # Four images: only 2 of the 16 swaps, none and all, differ as much.
    assert found["CIDEr"].p == pytest.approx(2 / 16, abs=0.05)


def test_order_of_images_does_not_matter_for_comparison():
    good, poor = score(GOOD, Cider()), score(POOR, Cider())
    turned = TokenizedCaptions.tokenize(POOR, dict(reversed(REFERENCES.items())))
    assert compare(good, score_captions(turned, [Cider()])) == compare(good, poor)


def test_incomparable_scores_are_rejected():
    good = score(GOOD, Cider())
    fewer = TokenizedCaptions.tokenize({"1": "a"}, {"1": ["a"]})
    with pytest.raises(ValueError, match=r"different images \(4 and 1, 1 in common\)"):
        compare(good, score_captions(fewer, [Cider()]))
    with pytest.raises(ValueError, match=r"no score in common \(CIDEr; ROUGE-L\)"):
        compare(good, score(GOOD, RougeL()))
    with pytest.raises(ValueError, match="end:yes.*cannot be compared"):
        compare(score(GOOD, CiderD()), score(GOOD, CiderD(end=True)))
    with pytest.raises(ValueError, match="two metrics are named 'CIDEr'"):
        score(GOOD, Cider(), Cider())
