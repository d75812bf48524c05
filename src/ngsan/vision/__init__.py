"""From image files to regions: reading images, the grid backbone, and other sources of regions.

`ngsan.vision.images` and `ngsan.vision.clips` need only Pillow and numpy, the others PyTorch.
"""
