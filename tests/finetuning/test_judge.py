"""Scores before and after, and the decision about the second eye."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

import ngsan
from ngsan.finetuning.judge import SHOWN, agree, compare_captions
from ngsan.finetuning.reading import CaptionedPhoto
from ngsan.predict.agreement import AGREEMENT, Agreement
from ngsan.predict.captioner import PHOTO_MODEL

TEXTS = ["a dog runs on grass", "a wug sits on a chair", "two cats sleep in a box", "a red ball"]
WHOLE = Agreement(*[1.0] * len(fields(Agreement)))


class Photo(CaptionedPhoto):
    """A picture without a file."""

    @property
    def id(self):
        return self.path.name


PHOTOS = [Photo(Path(str(place)), "", [text]) for place, text in enumerate(TEXTS)]
GOOD = {photo.id: photo.captions[0] for photo in PHOTOS}
FAIR = {**GOOD, "3": "a ball"}
POOR = {**FAIR, "0": "a man", "2": "cats"}
WORDLESS = {**GOOD, "1": "a dog sits on a chair", "3": "a red ball"}


def test_scores_are_those_of_the_package():
    lines = compare_captions(POOR, GOOD, PHOTOS)
    assert [line.name for line in lines] == list(SHOWN)
    for captions, of in ((POOR, "before"), (GOOD, "after")):
        wanted = ngsan.score(captions, {photo.id: photo.captions for photo in PHOTOS}).values
        for line in lines:
            low, high = getattr(line, f"{of}_interval")
            assert getattr(line, of) == pytest.approx(wanted[line.name])
            assert low <= getattr(line, of) <= high
    assert lines[0].difference[1] > 0


@pytest.mark.parametrize(
    ("plain", "whole", "half", "weight"),
    [
        (POOR, GOOD, FAIR, 1.0),
        (POOR, FAIR, GOOD, 0.5),
        (GOOD, FAIR, POOR, 0.0),
        (POOR, WORDLESS, FAIR, 0.5),  # the new word was pushed out
        (POOR, WORDLESS, WORDLESS, 0.0),
    ],
)
def test_the_second_eye_is_kept_if_it_helps(tmp_path, plain, whole, half, weight):
    start, packed = tmp_path / "start", tmp_path / "packed"
    start.mkdir()
    packed.mkdir()
    WHOLE.save(start / AGREEMENT)

    def caption(folder):
        return whole if Agreement.load(folder / AGREEMENT) == WHOLE else half

    found, kept = agree(start, packed, plain, PHOTOS, {"wug"}, caption)
    assert kept == weight
    assert found == {0.0: plain, 0.5: half, 1.0: whole}[weight]
    written = Agreement.load(packed / AGREEMENT)
    if weight:
        assert written == replace(
            WHOLE,
            keyword_weight=weight,
            absent_weight=weight,
            present_weight=weight,
            count_weight=weight,
        )
    else:
        assert written is None


def test_the_second_eye_of_the_shipped_model_can_be_halved(tmp_path):
    def caption(folder):
        return FAIR if Agreement.load(folder / AGREEMENT) == shipped else GOOD

    shipped = Agreement.load(PHOTO_MODEL / AGREEMENT)
    assert agree(PHOTO_MODEL, tmp_path, POOR, PHOTOS, (), caption) == (GOOD, 0.5)
    assert Agreement.load(tmp_path / AGREEMENT).limit == shipped.limit


def test_models_without_a_second_eye_stay_without(tmp_path):
    found = agree(tmp_path, tmp_path, POOR, PHOTOS, (), pytest.fail)
    assert found == (POOR, 0.0)
