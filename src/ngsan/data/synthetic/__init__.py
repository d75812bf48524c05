"""Built-in scenes of coloured shapes whose captions follow from geometry alone.

They are the project's scientific check: appearance says which objects there are, boxes say how they
stand to each other. A model without geometry cannot tell the relation; with Eq. 8 it can tell all
but direction; with signed geometry it can tell direction too.

Moving scenes are clips of such shapes whose captions follow from the order of frames alone.

What makes tensors of scenes is imported when first used, so that scenes can be had without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ngsan.data.synthetic.actions import ACTIONS, OPPOSITES, actions
from ngsan.data.synthetic.moving import (
    Moving,
    MovingScene,
    sample_moving_scene,
    sample_moving_scenes,
)
from ngsan.data.synthetic.moving_render import render_moving
from ngsan.data.synthetic.moving_wording import (
    Doing,
    read_doing,
    sample_moving_captions,
    true_doings,
)
from ngsan.data.synthetic.relations import FAMILIES, relation
from ngsan.data.synthetic.render import render
from ngsan.data.synthetic.scene import COLOURS, SHAPES, Scene, Thing, sample_scene, sample_scenes
from ngsan.data.synthetic.wording import Claim, read_claim, sample_captions, true_claims

if TYPE_CHECKING:
    from ngsan.data.synthetic.tensors import FEATURE_DIM as FEATURE_DIM
    from ngsan.data.synthetic.tensors import scene_vocabulary as scene_vocabulary
    from ngsan.data.synthetic.tensors import scenes_to_batch as scenes_to_batch

__all__ = [
    "ACTIONS",
    "COLOURS",
    "FAMILIES",
    "FEATURE_DIM",
    "OPPOSITES",
    "SHAPES",
    "Claim",
    "Doing",
    "Moving",
    "MovingScene",
    "Scene",
    "Thing",
    "actions",
    "read_claim",
    "read_doing",
    "relation",
    "render",
    "render_moving",
    "sample_captions",
    "sample_moving_captions",
    "sample_moving_scene",
    "sample_moving_scenes",
    "sample_scene",
    "sample_scenes",
    "scene_vocabulary",
    "scenes_to_batch",
    "true_claims",
    "true_doings",
]

_OF_TENSORS = ("FEATURE_DIM", "scene_vocabulary", "scenes_to_batch")


def __getattr__(name: str) -> Any:
    if name not in _OF_TENSORS:
        raise AttributeError(f"module 'ngsan.data.synthetic' has no attribute {name!r}")
    return getattr(import_module("ngsan.data.synthetic.tensors"), name)
