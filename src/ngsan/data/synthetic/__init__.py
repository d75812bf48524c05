"""Built-in scenes of coloured shapes whose captions follow from geometry alone.

They are the project's scientific check: appearance says which objects there are, boxes say how they
stand to each other. A model without geometry cannot tell the relation; with Eq. 8 it can tell all
but direction; with signed geometry it can tell direction too.

What makes tensors of scenes is imported when first used, so that scenes can be had without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ngsan.data.synthetic.relations import FAMILIES, relation
from ngsan.data.synthetic.render import render
from ngsan.data.synthetic.scene import COLOURS, SHAPES, Scene, Thing, sample_scene, sample_scenes
from ngsan.data.synthetic.wording import Claim, read_claim, sample_captions, true_claims

if TYPE_CHECKING:
    from ngsan.data.synthetic.tensors import FEATURE_DIM as FEATURE_DIM
    from ngsan.data.synthetic.tensors import scene_vocabulary as scene_vocabulary
    from ngsan.data.synthetic.tensors import scenes_to_batch as scenes_to_batch

__all__ = [
    "COLOURS",
    "FAMILIES",
    "FEATURE_DIM",
    "SHAPES",
    "Claim",
    "Scene",
    "Thing",
    "read_claim",
    "relation",
    "render",
    "sample_captions",
    "sample_scene",
    "sample_scenes",
    "scene_vocabulary",
    "scenes_to_batch",
    "true_claims",
]

_OF_TENSORS = ("FEATURE_DIM", "scene_vocabulary", "scenes_to_batch")


def __getattr__(name: str) -> Any:
    if name not in _OF_TENSORS:
        raise AttributeError(f"module 'ngsan.data.synthetic' has no attribute {name!r}")
    return getattr(import_module("ngsan.data.synthetic.tensors"), name)
