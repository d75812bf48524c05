"""The shipped clip captioner."""

import subprocess
import sys

import pytest

import ngsan
from ngsan.data.synthetic.moving import OPPOSITES, read_doing, sample_moving_scenes, true_doings
from ngsan.data.synthetic.render import render_moving
from ngsan.examples import EXAMPLES
from ngsan.models.checkpoint import load_model
from ngsan.predict.captioner import CLIP_MODEL

GIF = EXAMPLES[0].path.parent / "moving.gif"


@pytest.fixture(scope="module")
def captioner():
    return ngsan.load("clips", threads=1)


@pytest.fixture(scope="module")
def scenes():
    """Scenes that differ from their reverse, of a seed outside the training data."""
    made = sample_moving_scenes(40, frames=12, seed=31)
    return [
        scene
        for scene in made
        if all(OPPOSITES[doing.action] != doing.action for doing in true_doings(scene))
    ][:20]


def test_model_is_small():
    assert sum(path.stat().st_size for path in CLIP_MODEL.iterdir()) <= 1_500_000
    assert load_model(CLIP_MODEL, "captioning")[1].positions == "sinusoidal"


def test_captions_follow_the_direction_of_time(captioner, scenes):
    """A clip and its reverse have the same frames but opposite captions."""
    clips = [render_moving(scene, 256) for scene in scenes]
    true = {}
    for order, step in {"forward": 1, "reversed": -1}.items():
        found = map(read_doing, captioner.caption([clip[::step] for clip in clips]))
        claims = list(zip(found, scenes, strict=True))
        true[order] = sum(claim is not None and claim.holds_in(s) for claim, s in claims)
    assert true["forward"] >= 0.6 * len(scenes), true
    assert true["reversed"] <= 0.1 * len(scenes), true


def test_caption_of_the_example(captioner):
    claim = read_doing(captioner.caption(GIF))
    assert claim is not None
    assert {claim.a, claim.b} == {"red box", "blue triangle"}


def test_command_needs_no_torch():
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from ngsan.__main__ import main\n"
        f"sys.exit(main(['caption', {str(GIF)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert read_doing(done.stdout.split("\t")[1].strip()) is not None
