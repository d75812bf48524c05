"""Scores of sentences about images, against the model's own teacher-forced forward pass."""

import dataclasses

import numpy as np
import pytest
import torch

import ngsan
from ngsan.config import read_recipe
from ngsan.data.relations import Claim
from ngsan.data.store import FeatureStore
from ngsan.data.synthetic.folders import scene_vocabulary, scenes_to_batch, write_scene_folder
from ngsan.data.synthetic.scenes import sample_scenes
from ngsan.export.write import export_model
from ngsan.models import build_captioner
from ngsan.models.checkpoint import save_model
from ngsan.predict.captioner import Captioner
from ngsan.predict.relations import score_relations
from ngsan.search.sentences import pad_sentences
from tests.metrics.test_relations import counted

VOCABULARY = scene_vocabulary()
CONFIG = dataclasses.replace(
    read_recipe("toy-scenes").model, dim=16, heads=2, hidden_dim=16, layers=1
)
OTHERS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model, its export, and scenes with features."""
    folder = tmp_path_factory.mktemp("relations")
    torch.manual_seed(0)
    captioner = build_captioner(CONFIG)
    for parameter in captioner.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    save_model(folder / "model", captioner, CONFIG, {"vocabulary": VOCABULARY})
    export_model(folder / "model", folder / "export")
    scenes = list(sample_scenes(7, min_objects=2, max_objects=4, seed=5))
    write_scene_folder(
        folder / "scenes", {"test": scenes_to_batch(scenes, VOCABULARY, seed=1)}, VOCABULARY
    )
    return folder


@pytest.fixture(params=["torch", "onnx"])
def captioner(folder, request):
    if request.param == "onnx":
        return ngsan.load(folder / "export", threads=1)
    return ngsan.load(folder / "model", device="cpu")


def forced(folder, store, image, text):
    """The log-probability of a sentence by the model's forward pass, alone."""
    model = ngsan.load(folder / "model", device="cpu").backend.models[0]
    ids = VOCABULARY.encode(VOCABULARY.tokenize(text))
    regions = store[image]
    with torch.inference_mode():
        logits = model(
            torch.tensor(np.asarray(regions.features, np.float32))[None],
            torch.tensor(np.asarray(regions.boxes))[None],
            None,
            torch.tensor([[[0, *ids]]]),
        )
    log_probs = logits.double().log_softmax(-1)[0, 0]
    return sum(float(log_probs[place, word]) for place, word in enumerate([*ids, 0]))


def claims_of(store):
    images = list(store.ids())
    texts = [
        ("the red ball is left of the blue box", True, "left of"),
        ("the red ball is above the blue box", False, "above"),
        ("the green cone is right of the red ball", True, "right of"),
    ]
    texts = [one for one in texts if all(word in VOCABULARY for word in one[0].split())]
    found = [Claim(image, *texts[place % len(texts)]) for place, image in enumerate(images)]
    found += [Claim(images[0], *texts[1]), Claim(images[0], *texts[1])]
    return [*found, Claim(images[1], "the zorb is left of the quux zorb", True, "left of")]


def test_scores_equal_the_forward_pass(folder, captioner):
    store = FeatureStore(folder / "scenes")
    claims = claims_of(store)
    assert len({claim.text for claim in claims}) > 2
    done = []
    found = score_relations(captioner, store, claims, others=OTHERS, seed=4, on_part=done.append)
    assert (found.unscored, found.unknown) == (1, {"zorb": 1, "quux": 1})
    assert [one.claim for one in found.sentences] == claims[:-1]
    images = sorted(store.ids())
    assert done == sorted(done)
    assert done[-1] == 1
    drawn = np.random.default_rng(4).choice(7, OTHERS + 1, replace=False)

    def score(image, text):
        others = [images[place] for place in drawn if images[place] != image][:OTHERS]
        mean = sum(forced(folder, store, other, text) for other in others) / OTHERS
        return forced(folder, store, image, text) - mean

    swap = {"left of": "right of", "right of": "left of", "above": "below"}
    for one in found.sentences:
        claim = one.claim
        assert one.score == pytest.approx(score(claim.image, claim.text), abs=2e-4)
        if claim.true:
            other = claim.text.replace(claim.relation, swap[claim.relation])
            assert one.opposite == pytest.approx(score(claim.image, other), abs=2e-4)
        else:
            assert one.opposite is None
    scores, true = zip(*((one.score, one.claim.true) for one in found.sentences), strict=True)
    assert found.auc.value == pytest.approx(counted(scores, true))
    pairs = [one.score > one.opposite for one in found.sentences if one.claim.true]
    assert found.pairs.value == pytest.approx(np.mean(pairs))


def test_ensemble_averages_probabilities(folder):
    store = FeatureStore(folder / "scenes")
    model = ngsan.load(folder / "model", device="cpu").backend.models[0]
    torch.manual_seed(9)
    other = build_captioner(CONFIG).eval()
    regions = store[next(iter(store.ids()))]
    features = np.array(regions.features, np.float32)[None]
    boxes = torch.tensor(np.asarray(regions.boxes))[None]
    words = pad_sentences([[VOCABULARY.encode(["the", "red"]), VOCABULARY.encode(["a"])]])

    def probability(models, ids):
        """The product over the words of the mean probability."""
        total = 1.0
        for place, word in enumerate([*ids, 0]):
            each = []
            for one in models:
                with torch.inference_mode():
                    given = torch.tensor([[[0, *ids[:place]]]])
                    logits = one(torch.as_tensor(features), boxes, None, given)
                each.append(float(logits.double().softmax(-1)[0, 0, -1, word]))
            total *= sum(each) / len(each)
        return total

    both = Captioner.from_model([model, other], VOCABULARY).backend
    found = both.score_regions(features, np.array(regions.boxes)[None], None, words)[0]
    expected = [
        probability([model, other], VOCABULARY.encode(text)) for text in (["the", "red"], ["a"])
    ]
    np.testing.assert_allclose(found, np.log(expected), atol=1e-4)


def test_too_few_images_raise(folder, captioner):
    store = FeatureStore(folder / "scenes")
    with pytest.raises(ValueError, match="others: 7 other images are too many; 7 images"):
        score_relations(captioner, store, claims_of(store), others=7)
