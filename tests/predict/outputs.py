"""Captions in the form that tests compare."""

from ngsan.config import DecodingConfig

PAPER = DecodingConfig()


def n_best(captioner, *regions, decoding=PAPER, **options):
    """All captions of each image of a batch of regions, as a list of lists."""
    found = captioner.caption_regions(*regions, **vars(decoding), **options)
    return [[caption, *caption.others] for caption in found]
