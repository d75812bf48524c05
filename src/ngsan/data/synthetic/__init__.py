"""Built-in scenes of coloured shapes, still and moving, whose captions follow from geometry alone.

They are the project's scientific check: appearance says which objects there are, boxes say how they
are placed. A model without geometry cannot tell the relation; with Eq. 8 it can tell all but
direction; with signed geometry it can tell direction too. The captions of moving scenes follow from
the order of frames alone.

Boxes are `cxcywh` relative to the canvas; y grows downwards, as in pictures.
"""
