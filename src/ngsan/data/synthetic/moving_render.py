"""Moving scenes as pictures, on backgrounds that differ from clip to clip.

Shapes: `T` frames, `S` side of a frame in pixels.
"""

import random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ngsan.data.synthetic.moving import MovingScene
from ngsan.data.synthetic.render import PAINT, draw_thing

_SMOOTHING = 2


def render_moving(scene: MovingScene, size: int = 256) -> NDArray[np.uint8]:
    """Draws every frame of a moving scene.

    The background is a pale colour that changes over the picture, with patches and grain; the
    paints vary a little. All of it follows from the scene's `look` and stays over the clip.

    Args:
        scene: The scene.
        size: S.

    Returns:
        (T, S, S, 3) RGB.
    """
    if size < 1:
        raise ValueError(f"a picture is at least one pixel wide, not {size}")
    rng = random.Random(scene.look)
    background = _background(scene.look, size * _SMOOTHING)
    paints = {thing.name: _paint(rng, thing.colour) for thing in scene.things}
    frames = []
    for frame in range(scene.frames):
        canvas = background.copy()
        draw = ImageDraw.Draw(canvas)
        for thing in scene.at(frame).things:
            draw_thing(draw, thing, canvas.width, paint=paints[thing.name])
        frames.append(np.asarray(canvas.reduce(_SMOOTHING)))
    return np.stack(frames)


def _background(look: int, size: int) -> Image.Image:
    """Pale, so that every paint is seen on it."""
    chance = np.random.default_rng(look)
    base = chance.uniform(150, 245) + chance.uniform(-10, 10, 3)
    corners = base + chance.uniform(-22, 22, (2, 2, 1)) + chance.uniform(-8, 8, (2, 2, 3))
    patches = chance.normal(0, chance.uniform(0, 6), (chance.integers(3, 12), 9, 1))
    layers = [
        np.asarray(
            Image.fromarray(
                np.repeat(layer, 3 // layer.shape[2], 2).clip(-99, 355)[..., channel]
            ).resize((size, size), Image.Resampling.BICUBIC)
        )
        for layer in (corners.astype(np.float32), patches.astype(np.float32))
        for channel in range(3)
    ]
    smooth = np.stack(layers[:3], 2) + np.stack(layers[3:], 2)
    grain = chance.normal(0, chance.uniform(0, 4), (size, size, 1))
    return Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))


def _paint(rng: random.Random, colour: str) -> tuple[int, int, int]:
    named = PAINT[colour].removeprefix("#")
    parts = (int(named[place : place + 2], 16) for place in (0, 2, 4))
    red, green, blue = (min(255, max(0, part + rng.randint(-16, 16))) for part in parts)
    return red, green, blue
