"""Against captions and scores of `generate` of the Transformers library, in `golden/`."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from ngsan.search import Beam, Constraints, Greedy
from tests.search.models import TableModel

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "generate_transformers.json").read_text("utf-8")
)
LOGITS = np.array(GOLDEN["logits"], dtype="f4")


class PairModel(TableModel):
    """The model given to `generate`: logits depend on the position and the last two words."""

    def logits(self, image, prefix):
        before, last = (0, 0, *prefix)[-2:]
        return LOGITS[image, min(len(prefix), LOGITS.shape[1] - 1), before, last]


def test_captions_and_scores_equal_generate():
    model = PairModel(images=len(LOGITS), vocab_size=LOGITS.shape[-1])
    for case in GOLDEN["cases"]:
        print(case["settings"])  # shown if the test fails
        settings = dict(case["settings"])
        names = {"min_length", "forbidden", "no_repeat_ngram"} & set(settings)
        rules = Constraints(**{name: settings.pop(name) for name in names})
        if settings["beam"] == 1:
            written = Greedy(model, max_length=settings["max_length"], constraints=rules).run()
        else:
            written = Beam(model, constraints=rules, **settings).run()
        for image, expected in enumerate(case["captions"]):
            for rank, caption in enumerate(expected):
                length = int(written.lengths[image, rank])
                assert written.words[image, rank, :length].tolist() == caption["words"]
                if caption["score"] is not None:  # generate gives none for greedy search
                    assert written.scores[image, rank] == pytest.approx(caption["score"], abs=2e-5)
            assert (written.scores[image, len(expected) :] == -math.inf).all()
