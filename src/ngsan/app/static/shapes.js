/* The shapes of scenes, drawn as the package's own renderer draws them. */

import { draw } from "./dom.js";

export const SHAPES = ["ball", "box", "triangle", "diamond", "star", "ring"];
export const PAINT = {
  red: "#d63a3a", green: "#2f9e52", blue: "#2f6fd6", yellow: "#eac52b", purple: "#8a4fc4", black: "#2b2b2b",
};
export const COLOURS = Object.keys(PAINT);
export const PAPER = "#faf7f0";

const star = () => Array.from({ length: 10 }, (_, spike) => {
  const radius = spike % 2 ? 0.2 : 0.5;
  const angle = Math.PI * (spike / 5 - 0.5);
  return [0.5 + radius * Math.cos(angle), 0.5 + radius * Math.sin(angle)];
});
const OUTLINES = {
  triangle: [[0.5, 0], [1, 1], [0, 1]],
  diamond: [[0.5, 0], [1, 0.5], [0.5, 1], [0, 0.5]],
  star: star(),
};

export const nameOf = (object) => `${object.colour} ${object.shape}`;

/** A object as an SVG shape, in units of which the canvas has `unit`; `fill` in place of its colour. */
export const shapeOf = ({ shape, colour, x, y, width, height }, unit = 1000, fill = PAINT[colour]) => {
  const [w, h] = [width * unit, height * unit];
  const [left, top] = [x * unit - w / 2, y * unit - h / 2];
  if (shape === "ball") {
    return draw("ellipse", { cx: left + w / 2, cy: top + h / 2, rx: w / 2, ry: h / 2, fill });
  }
  if (shape === "box") return draw("rect", { x: left, y: top, width: w, height: h, fill });
  if (shape === "ring") {
    // The renderer's stroke is a sixth of the width, inside the box.
    const stroke = Math.min(w / 6, h / 2);
    return draw("ellipse", { cx: left + w / 2, cy: top + h / 2, rx: Math.max(0, (w - stroke) / 2),
      ry: Math.max(0, (h - stroke) / 2), fill: "none", stroke: fill, "stroke-width": stroke });
  }
  const points = OUTLINES[shape].map(([px, py]) => `${left + px * w},${top + py * h}`).join(" ");
  return draw("polygon", { points, fill });
};

/** Objects in the order in which they are drawn: large ones lie behind small ones. */
export const behindFirst = (objects) =>
  [...objects.keys()].sort((a, b) => objects[b].width * objects[b].height - objects[a].width * objects[a].height);

/** A small picture of a shape for buttons; it takes the colour of the text unless told. */
export const glyph = (shape, fill = "currentColor") =>
  draw("svg", { class: "glyph", viewBox: "0 0 100 100", "aria-hidden": "true" },
    shapeOf({ shape, x: 0.5, y: 0.5, width: 0.84, height: 0.84 }, 100, fill));

/** A small picture of a whole scene. */
export const miniature = (objects) =>
  draw("svg", { class: "miniature", viewBox: "0 0 1000 1000", "aria-hidden": "true" },
    draw("rect", { width: 1000, height: 1000, fill: PAPER }),
    ...behindFirst(objects).map((at) => shapeOf(objects[at])));
