"""Scenes and moving scenes as pictures.

Shapes: `T` frames, `S` side of a frame in pixels.
"""

import math
import random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ngsan.data.synthetic.moving import MovingScene
from ngsan.data.synthetic.scenes import Scene, Thing

_PAPER = "#faf7f0"
PAINT = {
    "red": "#d63a3a",
    "green": "#2f9e52",
    "blue": "#2f6fd6",
    "yellow": "#eac52b",
    "purple": "#8a4fc4",
    "black": "#2b2b2b",
}
"""The RGB values of the colours."""

_SMOOTHING, _MOVING_SMOOTHING = 4, 2


def render(scene: Scene, size: int = 256) -> Image.Image:
    """Draws a scene on S x S pixels; larger objects are behind smaller ones."""
    _check(size)
    canvas = Image.new("RGB", (size * _SMOOTHING, size * _SMOOTHING), _PAPER)
    draw = ImageDraw.Draw(canvas)
    for thing in sorted(scene.things, key=lambda thing: -thing.box[2] * thing.box[3]):
        draw_thing(draw, thing, canvas.width, paint=PAINT[thing.colour])
    return canvas.resize((size, size), Image.Resampling.LANCZOS)


def render_moving(scene: MovingScene, size: int = 256) -> NDArray[np.uint8]:
    """Draws every frame of a moving scene.

    The background is a pale colour gradient with patches and grain; the paints vary a little. All
    of it follows from the scene's `look` and is the same in all frames.

    Returns:
        (T, S, S, 3) RGB.
    """
    _check(size)
    rng = random.Random(scene.look)
    background = _background(scene.look, size * _MOVING_SMOOTHING)
    paints = {thing.name: _paint(rng, thing.colour) for thing in scene.things}
    frames = []
    for frame in range(scene.frames):
        canvas = background.copy()
        draw = ImageDraw.Draw(canvas)
        for thing in scene.at(frame).things:
            draw_thing(draw, thing, canvas.width, paint=paints[thing.name])
        frames.append(np.asarray(canvas.reduce(_MOVING_SMOOTHING)))
    return np.stack(frames)


def _check(size: int) -> None:
    if size < 1:
        raise ValueError(f"a picture is at least one pixel wide, not {size}")


def draw_thing(
    draw: ImageDraw.ImageDraw, thing: Thing, size: int, *, paint: str | tuple[int, int, int]
) -> None:
    """Draws one thing on a square canvas of `size` pixels."""
    x, y, width, height = (side * size for side in thing.box)
    left, top, right, bottom = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    match thing.shape:
        case "ball":
            draw.ellipse((left, top, right, bottom), fill=paint)
        case "ring":
            thickness = max(1, round((right - left) / 6))
            draw.ellipse((left, top, right, bottom), outline=paint, width=thickness)
        case "box":
            draw.rectangle((left, top, right, bottom), fill=paint)
        case "triangle" | "diamond" | "star":
            corners = [
                (left + x * (right - left), top + y * (bottom - top))
                for x, y in _outline(thing.shape)
            ]
            draw.polygon(corners, fill=paint)


def _outline(shape: str) -> list[tuple[float, float]]:
    """Corners of a shape in its unit box."""
    if shape == "triangle":
        return [(0.5, 0.0), (1.0, 1.0), (0.0, 1.0)]
    if shape == "diamond":
        return [(0.5, 0.0), (1.0, 0.5), (0.5, 1.0), (0.0, 0.5)]
    corners = []
    for spike in range(10):
        radius = 0.5 if spike % 2 == 0 else 0.2
        angle = math.pi * (spike / 5 - 0.5)
        corners.append((0.5 + radius * math.cos(angle), 0.5 + radius * math.sin(angle)))
    return corners


def _background(look: int, size: int) -> Image.Image:
    """Pale, so that every paint stands out."""
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
