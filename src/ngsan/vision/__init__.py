"""From image files to regions: reading pictures, the grid backbone, and other sources of regions.

Import the parts by name: `ngsan.vision.images` needs Pillow and numpy alone, the others PyTorch.
"""
