"""Built-in scenes of coloured shapes whose captions follow from geometry alone.

They are the project's scientific check: appearance says which objects there are, boxes say how they
stand to each other. A model without geometry cannot tell the relation; with Eq. 8 it can tell all
but direction; with signed geometry it can tell direction too.
"""

from ngsan.data.synthetic.relations import FAMILIES, relation
from ngsan.data.synthetic.render import render
from ngsan.data.synthetic.scene import COLOURS, SHAPES, Scene, Thing, sample_scene, sample_scenes
from ngsan.data.synthetic.tensors import (
    FEATURE_DIM,
    scene_vocabulary,
    scenes_to_batch,
)
from ngsan.data.synthetic.wording import Claim, read_claim, sample_captions, true_claims

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
