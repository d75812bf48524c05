import itertools
import random

import pytest
import torch

from ngsan.data.synthetic.folders import FEATURE_DIM, appearance, scene_vocabulary, scenes_to_batch
from ngsan.data.synthetic.render import render
from ngsan.data.synthetic.scenes import (
    FAMILIES,
    Scene,
    Thing,
    read_claim,
    relation,
    sample_captions,
    sample_scene,
    sample_scenes,
    true_claims,
)

SCENES = list(sample_scenes(300, min_objects=2, max_objects=5, seed=7))

BIG, SMALL = (0.5, 0.5, 0.4, 0.4), (0.5, 0.5, 0.1, 0.1)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (SMALL, BIG, {"size": "smaller than", "arrangement": "inside"}),
        (BIG, SMALL, {"size": "bigger than"}),
        (
            (0.3, 0.5, 0.1, 0.1),
            (0.42, 0.5, 0.1, 0.1),
            {"distance": "near", "arrangement": "beside", "direction": "left of"},
        ),
        (
            (0.42, 0.5, 0.1, 0.1),
            (0.3, 0.5, 0.1, 0.1),
            {"distance": "near", "arrangement": "beside", "direction": "right of"},
        ),
        (
            (0.5, 0.3, 0.1, 0.1),
            (0.5, 0.42, 0.1, 0.1),
            {"distance": "near", "arrangement": "over", "direction": "above"},
        ),
        (
            (0.5, 0.42, 0.1, 0.1),
            (0.5, 0.3, 0.1, 0.1),
            {"distance": "near", "arrangement": "under", "direction": "below"},
        ),
        ((0.1, 0.1, 0.1, 0.1), (0.9, 0.9, 0.1, 0.1), {"distance": "far from"}),
    ],
)
def test_relations_of_clear_pairs(a, b, expected):
    found = {family: relation(a, b, family) for family in FAMILIES}
    assert {family: word for family, word in found.items() if word} == expected


def test_swapping_a_pair_gives_the_opposite_word():
    opposite = {
        "near": "near",
        "far from": "far from",
        "bigger than": "smaller than",
        "beside": "beside",
        "over": "under",
        "left of": "right of",
        "above": "below",
    }
    opposite |= {b: a for a, b in opposite.items()}
    for scene in SCENES:
        for a, b in itertools.permutations(scene.things, 2):
            for family in FAMILIES:
                word = relation(a.box, b.box, family)
                if word not in (None, "inside") and relation(b.box, a.box, family) != "inside":
                    assert relation(b.box, a.box, family) == opposite[word]


def test_every_relation_word_occurs():
    spoken = {
        claim.relation
        for scene in SCENES
        for group in true_claims(scene).values()
        for claim in group
    }
    assert spoken == {word for words in FAMILIES.values() for word in words}


def test_scenes_are_valid():
    for scene in SCENES:
        assert 2 <= len(scene.things) <= 5
        assert len({thing.colour for thing in scene.things}) == len(scene.things)
        assert len({thing.shape for thing in scene.things}) == len(scene.things)
        for thing in scene.things:
            x, y, width, height = thing.box
            assert width > 0
            assert height > 0
            assert -1e-9 <= x - width / 2 <= x + width / 2 <= 1 + 1e-9
            assert -1e-9 <= y - height / 2 <= y + height / 2 <= 1 + 1e-9


def test_scenes_depend_on_the_seed_only():
    again = list(sample_scenes(400, min_objects=2, max_objects=5, seed=7))
    assert again[:300] == SCENES
    assert list(sample_scenes(300, min_objects=2, max_objects=5, seed=8)) != SCENES


def test_captions_are_true_varied_and_parseable():
    for scene in SCENES:
        captions = sample_captions(scene, random.Random(3))
        assert len(captions) == 5
        assert all(read_claim(caption).holds_in(scene) for caption in captions)
    wordings = {sample_captions(SCENES[0], random.Random(i))[0] for i in range(60)}
    assert len(wordings) > 10


def test_false_and_foreign_captions_are_recognized():
    scene = Scene((Thing("red", "ball", SMALL), Thing("blue", "box", BIG)))
    assert read_claim("a red ball inside a blue box").holds_in(scene)
    assert not read_claim("a blue box inside a red ball").holds_in(scene)
    assert not read_claim("a red ball far from a blue box").holds_in(scene)
    assert not read_claim("a green ball inside a blue box").names_of(scene)
    for text in ("", "a red ball", "a red ball inside", "red ball inside blue box box", "a dog"):
        assert read_claim(text) is None


def test_directions_are_equally_frequent():
    counts = dict.fromkeys(FAMILIES["direction"], 0)
    for scene in sample_scenes(2000, min_objects=2, max_objects=2, seed=3):
        a, b = (thing.box for thing in scene.things)
        word = relation(a, b, "direction")
        if word:
            counts[word] += 1
    total = sum(counts.values())
    assert all(abs(count / total - 0.25) < 0.04 for count in counts.values())


def test_features_do_not_depend_on_position_or_size():
    scene = SCENES[0]
    moved = Scene(
        tuple(Thing(thing.colour, thing.shape, (0.1, 0.2, 0.05, 0.07)) for thing in scene.things)
    )
    one, other = (appearance(s, torch.Generator().manual_seed(5)) for s in (scene, moved))
    assert torch.equal(one, other)
    assert one.shape == (len(scene.things) + 1, FEATURE_DIM)


def test_batches_contain_scenes_and_captions():
    vocabulary = scene_vocabulary()
    batch = scenes_to_batch(SCENES[:20], vocabulary, seed=1)
    assert batch.words.shape == batch.targets.shape == batch.target_mask.shape
    for index, scene in enumerate(SCENES[:20]):
        count = len(scene.things) + 1
        assert batch.mask[index].tolist() == [True] * count + [False] * (6 - count)
        boxes = [*(thing.box for thing in scene.things), (0.5, 0.5, 1.0, 1.0)]
        torch.testing.assert_close(batch.boxes[index, :count], torch.tensor(boxes))
        for words, targets, mask in zip(
            batch.words[index], batch.targets[index], batch.target_mask[index], strict=True
        ):
            caption = " ".join(vocabulary.decode(targets.tolist()))
            assert read_claim(caption).holds_in(scene)
            length = len(caption.split())
            assert words.tolist()[: length + 1] == [0, *targets.tolist()[:length]]
            assert mask.sum() == length + 1


def test_invalid_scene_options_raise():
    with pytest.raises(ValueError, match="2 to 6 objects, not 3 to 7"):
        sample_scene(random.Random(0), min_objects=3, max_objects=7)
    with pytest.raises(ValueError, match="unknown family"):
        relation(BIG, SMALL, "colour")
    with pytest.raises(ValueError, match="no relation word"):
        sample_captions(Scene((Thing("red", "ball", BIG),)), random.Random(0))


def test_picture_shows_each_object_at_its_position():
    scene = Scene(
        (Thing("red", "ball", (0.25, 0.25, 0.3, 0.3)), Thing("blue", "box", (0.7, 0.7, 0.4, 0.4)))
    )
    picture = render(scene, 100)
    assert picture.size == (100, 100)
    red, blue, paper = (picture.getpixel(at) for at in ((25, 25), (70, 70), (95, 5)))
    assert red[0] > 200 > red[2]
    assert blue[2] > 200 > blue[0]
    assert min(paper) > 230
    with pytest.raises(ValueError, match="one pixel"):
        render(scene, 0)
