"""Moving scenes: captions are true and depend on the order of frames."""

import random
from itertools import product

import numpy as np
import pytest
from PIL import Image

from ngsan.data.captions import read_captions
from ngsan.data.store import FeatureStore
from ngsan.data.synthetic.folders import (
    FRAME_DIM,
    frame_codes,
    moving_vocabulary,
    sample_moving_splits,
    write_moving_folder,
)
from ngsan.data.synthetic.moving import (
    ACTIONS,
    OPPOSITES,
    WORDINGS,
    Doing,
    Moving,
    MovingScene,
    actions,
    all_moving_words,
    read_doing,
    sample_moving_captions,
    sample_moving_scene,
    sample_moving_scenes,
    true_doings,
)
from ngsan.data.synthetic.render import render_moving
from ngsan.data.synthetic.scenes import COLOURS, SHAPES

SIDE = 0.2
STILL = (0.5, 0.5, SIDE, SIDE)


def path(*places, sizes=None):
    """Boxes with these centres."""
    sizes = sizes or [SIDE] * len(places)
    return [(x, y, size, size) for (x, y), size in zip(places, sizes, strict=True)]


@pytest.mark.parametrize(
    ("a", "wanted"),
    [
        (path((0.1, 0.5), (0.2, 0.5), (0.28, 0.5)), {"approaches"}),
        (path((0.28, 0.5), (0.2, 0.5), (0.1, 0.5)), {"leaves"}),
        (path((0.1, 0.2), (0.5, 0.2), (0.9, 0.2)), {"crosses to the right"}),
        (path((0.9, 0.2), (0.5, 0.2), (0.1, 0.2)), {"crosses to the left"}),
        (path((0.15, 0.7), (0.15, 0.5), (0.15, 0.3)), {"rises"}),
        (path((0.15, 0.3), (0.15, 0.5), (0.15, 0.7)), {"falls"}),
        (path((0.15, 0.1), (0.15, 0.3), (0.15, 0.5)), {"falls"}),
        (path((0.2, 0.9), (0.2, 0.5), (0.2, 0.9)), {"jumps"}),
        (path((0.2, 0.2), (0.2, 0.2), (0.2, 0.2), sizes=[0.1, 0.15, 0.2]), {"grows"}),
        (path((0.2, 0.2), (0.2, 0.2), (0.2, 0.2), sizes=[0.2, 0.15, 0.1]), {"shrinks"}),
        (path((0.2, 0.2), (0.2, 0.2), (0.2, 0.2)), {"stands still"}),
        # There and back is no action, nor is a small change.
        (path((0.1, 0.5), (0.3, 0.5), (0.1, 0.5)), set()),
        (path((0.1, 0.5), (0.13, 0.5), (0.16, 0.5)), set()),
        (path((0.2, 0.2), (0.2, 0.2), (0.2, 0.2), sizes=[0.1, 0.2, 0.1]), set()),
        (path((0.2, 0.2), (0.3, 0.2), (0.4, 0.2), sizes=[0.1, 0.2, 0.3]), set()),
    ],
)
def test_actions_of_clear_paths(a, wanted):
    assert actions(a, [STILL] * 3) == wanted
    assert actions(a[::-1], [STILL] * 3) == {OPPOSITES[action] for action in wanted}


def test_actions_need_the_other_object_to_stand_still():
    a = path((0.1, 0.5), (0.2, 0.5), (0.28, 0.5))
    assert actions([STILL] * 3, a) == set()
    with pytest.raises(ValueError, match="3 boxes of one thing and 2"):
        actions(a, a[:2])


@pytest.fixture(scope="module")
def scenes():
    return list(sample_moving_scenes(300, seed=3))


def test_scenes_depend_on_the_seed(scenes):
    assert list(sample_moving_scenes(20, seed=3)) == scenes[:20]
    assert list(sample_moving_scenes(20, seed=4)) != scenes[:20]
    with pytest.raises(ValueError, match="frames: 2"):
        sample_moving_scene(random.Random(0), frames=2)


def test_scenes_cover_all_actions_and_stay_on_the_canvas(scenes):
    shown = dict.fromkeys(ACTIONS, 0)
    for scene in scenes:
        for action in {doing.action for doing in true_doings(scene)}:
            shown[action] += 1
        a, b = scene.things
        assert a.colour != b.colour
        assert a.shape != b.shape
        for (x, y, w, h), (p, q, v, k) in zip(a.boxes, b.boxes, strict=True):
            assert w / 2 <= x <= 1 - w / 2
            assert h / 2 <= y <= 1 - h / 2
            assert abs(x - p) > (w + v) / 2 or abs(y - q) > (h + k) / 2  # no overlap
    assert min(shown.values()) >= 15


def test_reversed_scenes_show_the_opposite_action(scenes):
    """So neither one frame nor the set of all frames distinguishes the two."""
    for scene in scenes:
        back = scene.reversed()
        assert {scene.at(frame) for frame in range(8)} == {back.at(frame) for frame in range(8)}
        assert set(true_doings(back)) == {
            Doing(doing.a, OPPOSITES[doing.action], doing.b) for doing in true_doings(scene)
        }
        assert back.reversed() == scene


def test_captions_are_true_and_can_be_parsed(scenes):
    words = set(all_moving_words())
    for number, scene in enumerate(scenes):
        captions = sample_moving_captions(scene, random.Random(number))
        assert len(captions) == 5
        for caption in captions:
            claim = read_doing(caption)
            assert claim.holds_in(scene)
            assert set(caption.split()) <= words
            if OPPOSITES[claim.action] != claim.action:
                assert not claim.holds_in(scene.reversed())


def test_every_wording_can_be_parsed():
    for action, wordings in WORDINGS.items():
        for wording in wordings:
            doing = Doing("red ball", action, "blue box")
            assert read_doing(doing.worded(wording)) == doing
    for text in ("", "red ball", "the red ball", "the red ball approaches", "a cat on a mat"):
        assert read_doing(text) is None
    assert not Doing("red ball", "grows", "red ball").names_of(MovingScene(()))


def test_scene_without_true_action_raises():
    wander = Moving("red", "ball", tuple(path((0.1, 0.5), (0.3, 0.5), (0.1, 0.5))))
    scene = MovingScene((wander, Moving("blue", "box", (STILL,) * 3)))
    with pytest.raises(ValueError, match="no action word"):
        sample_moving_captions(scene, random.Random(0))


def test_frames_show_the_objects_at_their_positions(scenes):
    for scene in scenes[:12]:
        frames = render_moving(scene, 96)
        assert frames.shape == (8, 96, 96, 3)
        assert frames.dtype == np.uint8
        back = render_moving(scene.reversed(), 96)
        assert (frames[::-1] == back).all()
        moving = next((t for t in scene.things if len(set(t.boxes)) > 1), None)
        if moving is None:
            assert (frames == frames[:1]).all()
            continue
        # Pixels change only in the boxes of the moving object.
        changed = (frames[0] != frames[-1]).any(-1)
        rows, columns = np.nonzero(changed)
        boxes = np.array([moving.boxes[0], moving.boxes[-1]])
        low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
        if changed.any():
            assert columns.min() >= 96 * low[:, 0].min() - 2
            assert columns.max() <= 96 * high[:, 0].max() + 2
            assert rows.min() >= 96 * low[:, 1].min() - 2
            assert rows.max() <= 96 * high[:, 1].max() + 2


def test_every_colour_contrasts_with_every_background():
    """The mean colour within a box's middle differs clearly from that of the background."""
    for number, (colour, shape) in enumerate(product(COLOURS, set(SHAPES) - {"ring"})):
        thing = Moving(colour, shape, ((0.5, 0.5, 0.5, 0.5),) * 3)
        frame = render_moving(MovingScene((thing,), look=number), 64)[0].astype(float)
        inside, outside = frame[28:38, 28:38].mean((0, 1)), frame[:8].mean((0, 1))
        assert np.abs(inside - outside).max() > 50


def test_invalid_frame_size_raises(scenes):
    with pytest.raises(ValueError, match="at least one pixel"):
        render_moving(scenes[0], 0)
    assert Image.fromarray(render_moving(scenes[0], 1)[0]).size == (1, 1)


def test_frame_codes_describe_the_objects(scenes):
    codes = frame_codes(scenes[0])
    assert codes.shape == (8, FRAME_DIM)
    assert (codes == frame_codes(scenes[0])).all()
    half = FRAME_DIM // 2
    for place, thing in enumerate(scenes[0].things):
        own = codes[:, half * place : half * (place + 1)]
        assert (own[:, :6].argmax(1) == COLOURS.index(thing.colour)).all()
        assert (own[:, 6:12].argmax(1) == SHAPES.index(thing.shape)).all()
        np.testing.assert_allclose(own[:, 12:] / 4 + 0.5, np.array(thing.boxes), atol=0.03)


def test_write_moving_folder(tmp_path):
    splits = sample_moving_splits({"train": 6, "val": 3}, frames=5)
    assert [len(some) for some in splits.values()] == [6, 3]
    assert splits["train"][1] == splits["train"][0].reversed()
    assert not set(splits["train"]) & set(splits["val"])
    write_moving_folder(tmp_path, splits)
    store = FeatureStore(tmp_path)
    assert len(store) == 9
    assert store["val-2"].features.shape == (5, FRAME_DIM)
    assert not store.has_boxes
    records = {record.id: record for record in read_captions(tmp_path)}
    for number, scene in enumerate(splits["train"]):
        for caption in records[f"train-{number}"].captions:
            assert read_doing(caption).holds_in(scene)
    assert len(moving_vocabulary()) == len(all_moving_words()) + 1


def test_select_keeps_the_chosen_frames(scenes):
    short = scenes[0].select([0, 3, 7])
    assert short.frames == 3
    assert [short.at(frame) for frame in range(3)] == [scenes[0].at(frame) for frame in (0, 3, 7)]
