"""Scenes as pictures."""

import math

from PIL import Image, ImageDraw

from ngsan.data.synthetic.relations import Box
from ngsan.data.synthetic.scene import Scene, Thing

_PAPER = "#faf7f0"
PAINT = {
    "red": "#d63a3a",
    "green": "#2f9e52",
    "blue": "#2f6fd6",
    "yellow": "#eac52b",
    "purple": "#8a4fc4",
    "black": "#2b2b2b",
}
"""How the colours look."""

_SMOOTHING = 4


def render(scene: Scene, size: int = 256) -> Image.Image:
    """Draws a scene; larger objects lie behind smaller ones, so nothing is hidden.

    Args:
        scene: The scene.
        size: Width and height of the picture in pixels.
    """
    if size < 1:
        raise ValueError(f"a picture is at least one pixel wide, not {size}")
    canvas = Image.new("RGB", (size * _SMOOTHING, size * _SMOOTHING), _PAPER)
    draw = ImageDraw.Draw(canvas)
    for thing in sorted(scene.things, key=lambda thing: -thing.box[2] * thing.box[3]):
        draw_thing(draw, thing, canvas.width, paint=PAINT[thing.colour])
    return canvas.resize((size, size), Image.Resampling.LANCZOS)


def draw_thing(
    draw: ImageDraw.ImageDraw, thing: Thing, size: int, *, paint: str | tuple[int, int, int]
) -> None:
    """Draws one thing on a square canvas of `size` pixels a side."""
    left, top, right, bottom = _corners(thing.box, size)
    match thing.shape:
        case "ball":
            draw.ellipse((left, top, right, bottom), fill=paint)
        case "ring":
            thickness = max(1, round((right - left) / 6))
            draw.ellipse((left, top, right, bottom), outline=paint, width=thickness)
        case "box":
            draw.rectangle((left, top, right, bottom), fill=paint)
        case "triangle" | "diamond" | "star":
            draw.polygon(
                [
                    (left + x * (right - left), top + y * (bottom - top))
                    for x, y in _outline(thing.shape)
                ],
                fill=paint,
            )


def _corners(box: Box, size: int) -> tuple[float, float, float, float]:
    x, y, width, height = (side * size for side in box)
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


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
