"""Captions that agree with the second eye: evidence, qualities and views."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

import ngsan
from ngsan.data.pictures import PictureStore
from ngsan.fit.agreement import GRID, START, Trial, Trials, fit_agreement
from ngsan.predict.agreement import Agreement, Evidence
from ngsan.predict.captioner import PHOTO_MODEL, Captioner
from ngsan.predict.quality import views_of, whole_side
from ngsan.predict.second_eye import Sight
from ngsan.text.objects import CLASSES, words_for_objects
from ngsan.text.vocabulary import Vocabulary
from ngsan.vision.detector import Detections
from ngsan.vision.keywords import Keyword
from tests.predict.painter import COLOURS, Painter, Spotter, paint

WORDS = ["dog", "dogs", "hot", "cat", "man", "two", "snow", "on", "teddy", "bear"]


def log_odds(share):
    return math.log(share / (1 - share))


def detections(*found, best=0.5):
    """(name, score, side) of objects; `best` is the highest score of all other classes."""
    scores = np.full(len(CLASSES), best, np.float32)
    for name, score, _ in found:
        place = CLASSES.index(name)
        scores[place] = max(score, scores[place] if scores[place] != best else 0)
    boxes = [(0.5, 0.5, side, side) for _, _, side in found]
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array([score for _, score, _ in found], np.float32),
        np.array([CLASSES.index(name) for name, _, _ in found], np.int64),
        scores,
    )


def evidence_of(found, logits=(0.0, 0.0), **changes):
    """What is added to each of `WORDS`."""
    keywords = SimpleNamespace(
        words=("snow", "dog"), places={"snow": 0, "dog": 1}, prior=np.array([-3.0, -1.0])
    )
    eye = SimpleNamespace(keywords=keywords, detector=SimpleNamespace(names=CLASSES))
    vocabulary = Vocabulary(WORDS)
    settings = {**vars(START), "keyword_weight": 0.0, **changes}
    sight = Sight(found, np.array(logits, np.float32))
    (row,) = Evidence(eye, vocabulary)(Agreement(**settings), [sight])
    return {word: float(row[vocabulary.encode([word])[0]]) for word in WORDS}


def test_keywords_count_by_how_far_they_are_from_their_prior():
    found = evidence_of(detections(), (-1.0, 9.0), keyword_weight=0.4, keyword_limit=3.0)
    assert found["snow"] == pytest.approx(0.4 * 2)
    assert found["dog"] == pytest.approx(0.4 * 3)
    assert {found[word] for word in WORDS if word not in ("snow", "dog")} == {0.0}


def test_words_for_what_is_not_there_cost_by_how_far_its_score_is_below_the_limit():
    found = evidence_of(
        detections(("cat", 0.02, 0.1)), absent_below=0.1, absent_weight=1.5, limit=6.0
    )
    assert found["cat"] == pytest.approx(-1.5 * (log_odds(0.1) - log_odds(0.02)), rel=1e-5)
    assert sum(abs(value) for value in found.values()) == pytest.approx(-found["cat"])


def test_a_word_for_several_kinds_costs_only_if_none_is_there():
    """A hot dog is not a dog, but its last word is."""
    assert words_for_objects()["dog"] == {"dog", "hot dog"}
    there = detections(("dog", 0.01, 0.1), ("hot dog", 0.2, 0.3))
    assert evidence_of(there, absent_below=0.1)["dog"] == 0
    neither = detections(("dog", 0.01, 0.1), ("hot dog", 0.01, 0.3))
    assert evidence_of(neither, absent_below=0.1)["dog"] < 0


def test_words_for_a_large_object_gain_and_those_for_a_small_one_do_not():
    changes = {"present_above": 0.4, "present_weight": 2.0, "present_area": 0.04}
    large = evidence_of(detections(("dog", 0.7, 0.3), ("cat", 0.9, 0.1)), **changes)
    gain = 2.0 * (log_odds(0.7) - log_odds(0.4))
    assert large["dog"] == large["dogs"] == pytest.approx(gain, rel=1e-5)
    assert large["cat"] == 0


def test_evidence_of_detections_is_limited():
    found = evidence_of(
        detections(("dog", 0.97, 0.9), best=0.006), limit=1.5, absent_weight=9, present_weight=9
    )
    assert (found["dog"], found["cat"], found["on"]) == (1.5, -1.5, 0)


@pytest.mark.parametrize(
    ("dogs", "wanted"), [((0.8, 0.7), 2.0), ((0.8,), 0.0), ((0.8, 0.7, 0.2), 0.0)]
)
def test_two_of_a_kind_are_counted_if_nothing_is_doubtful(dogs, wanted):
    found = evidence_of(
        detections(*(("dog", score, 0.3) for score in dogs)), count_weight=2.0, present_weight=0.0
    )
    assert (found["two"], found["dogs"], found["dog"]) == (wanted, wanted, -wanted)


def test_file_of_an_agreement_round_trips(tmp_path):
    path = tmp_path / "agreement.json"
    assert Agreement.load(path) is None
    START.save(path)
    assert Agreement.load(path) == START
    for wrong in ("{", '{"format": 9}', json.dumps({"format": 1, **vars(START), "limit": "x"})):
        path.write_text(wrong, encoding="utf-8")
        with pytest.raises(ValueError, match=r"agreement.json: damaged: .*fit it again"):
            Agreement.load(path)
    assert Agreement.load(PHOTO_MODEL / "agreement.json") is not None


def test_views_are_the_photograph_its_mirror_image_and_its_middle():
    side = whole_side(100)
    assert side == 118
    square, whole = (np.random.default_rng(0).integers(0, 256, (s, s, 3)) for s in (100, side))
    upright, mirrored, middle = views_of(square, whole)
    np.testing.assert_array_equal(upright, square)
    np.testing.assert_array_equal(mirrored[:, 0], square[:, -1])
    np.testing.assert_array_equal(middle, whole[9:109, 9:109])


class Eye:
    """A second eye that is sure of green, wherever it looks."""

    detector = Spotter()
    keywords = SimpleNamespace(
        words=("green",), places={"green": 0}, prior=np.array([-9.0], np.float32)
    )
    sides = (8, 16)

    def look(self, squares):
        return Sight(Spotter().detect(squares[8]), np.array([9.0], np.float32))

    def objects(self, sight):
        return []

    def ranked_keywords(self, sight):
        return [Keyword("green", 0.9)]


def test_good_captions_follow_the_second_eye_and_fast_ones_do_not():
    agreement = Agreement(**{**vars(START), "keyword_weight": 4.0})
    captioner = Captioner(Painter(), eye=Eye(), agreement=agreement)
    picture = paint("red red blue white")
    assert captioner.caption(picture, quality="fast") == "red red blue white"
    good = captioner.caption(picture)
    assert "green" in good.words
    assert good == captioner.caption(picture, quality="good")
    assert good.keywords == [Keyword("green", 0.9)]
    assert good.log_probability < good.score  # what it is worth does not count evidence
    assert captioner.sides("fast") == (16,)
    assert captioner.sides("best") == (16, 8, 18)


def test_best_captions_are_those_of_the_mean_of_all_views():
    """Mirrored, the first two colours are exchanged, and so are the last two."""
    silent = Agreement(**{**vars(START), "limit": 0.0, "keyword_weight": 0.0})
    captioner = Captioner(Painter(), eye=Eye(), agreement=silent)
    picture = paint("red blue red blue")
    best = captioner.caption(picture, quality="best", num_return=1, beam=1, no_repeat_ngram=0)
    known = np.array(list(COLOURS.values())) / 255

    def probabilities(colour):
        logits = -4 * np.abs(known[list(COLOURS).index(colour)] - known).sum(1)
        return np.exp(logits) / np.exp(logits).sum()

    # The middle shows the same quarters as the upright view.
    mean = (2 * probabilities("red") + probabilities("blue")) / 3
    first = best.word_log_probabilities[0]
    assert first == pytest.approx(math.log(mean.max()), abs=0.02)


@pytest.mark.parametrize(
    ("quality", "problem"),
    [("great", "'great' is not one of fast, good, best"), ("good", "needs a model with agreement")],
)
def test_impossible_qualities_raise(quality, problem):
    with pytest.raises(ValueError, match=problem):
        Captioner(Painter()).caption(paint(), quality=quality)


def test_fitting_finds_the_best_of_the_grid_and_tells_every_trial():
    """CIDEr is highest where every parameter has the last value of its grid."""
    told = []

    def trials(agreement):
        off = sum(values[-1] != getattr(agreement, name) for name, values in GRID.items())
        return Trial(100 - off, 0.0, 50.0)

    best, trial = fit_agreement(trials, on_trial=lambda *one: told.append(one))
    assert trial.cider == 100
    assert all(getattr(best, name) == values[-1] for name, values in GRID.items())
    assert len(told) == sum(map(len, GRID.values()))


def test_a_stopped_fit_resumes_its_trials_and_scores_them_as_the_metrics_do(tmp_path):
    """Pictures are painted in colours that their references name, except for one."""
    agreement = Agreement(**{**vars(START), "keyword_weight": 4.0})
    names = ["red red blue white", "blue white red red", "white blue blue red"]
    for number, name in enumerate(names):
        paint(name).save(tmp_path / f"{number}.png")
    references = {str(number): (name,) for number, name in enumerate(names)}
    objects = {image: [] for image in references}

    def trials():
        captioner = Captioner(Painter(), eye=Eye(), agreement=agreement)
        pictures = PictureStore(tmp_path)
        return Trials(captioner, pictures, references, objects, kept=tmp_path / "trials.jsonl")

    found = trials()
    alone, misled = found(None), found(agreement)
    wanted = ngsan.metrics.score({k: v[0] for k, v in references.items()}, references)
    assert alone.cider == pytest.approx(wanted.values["CIDEr"])
    assert misled.cider < alone.cider
    again = trials()
    again._captions = None  # nothing is captioned again
    assert (again(None), again(agreement)) == (alone, misled)
    (tmp_path / "trials.jsonl").write_text("[]\n", encoding="utf-8")
    with pytest.raises(ValueError, match="remove it to start again"):
        trials()
