/* Scenes to begin with. Each asks for one move that shows what geometry does. */

import { COLOURS, SHAPES } from "./shapes.js";

const object = (colour, shape, x, y, width, height = width) => ({ colour, shape, x, y, width, height });

export const PRESETS = [
  { title: "Near and far", hint: "Drag the red ball to the blue box and away again.",
    objects: [object("red", "ball", 0.78, 0.24, 0.16), object("blue", "box", 0.28, 0.7, 0.2)] },
  { title: "Big and small", hint: "Pull a corner of the star until it is bigger than the ring.",
    objects: [object("yellow", "star", 0.32, 0.42, 0.15), object("purple", "ring", 0.68, 0.52, 0.32)] },
  { title: "Inside", hint: "Drag the green triangle out of the box.",
    objects: [object("blue", "box", 0.48, 0.5, 0.4), object("green", "triangle", 0.5, 0.52, 0.13)] },
  { title: "Over and under", hint: "Move the black diamond around the ball: beside it, over it, under it.",
    objects: [object("red", "ball", 0.5, 0.58, 0.2), object("black", "diamond", 0.5, 0.36, 0.18)] },
  { title: "Left and right", hint: "Mirror the scene. Eq. 8 cannot notice; signed geometry can.",
    objects: [object("green", "box", 0.24, 0.5, 0.17), object("yellow", "ball", 0.76, 0.5, 0.17)] },
  { title: "Three", hint: "Move any of the three. Which pair does a model describe?",
    objects: [object("red", "triangle", 0.25, 0.3, 0.2), object("blue", "ring", 0.72, 0.34, 0.26),
      object("yellow", "star", 0.48, 0.76, 0.18)] },
];

const shuffled = (values) => values.map((value) => [Math.random(), value])
  .sort((a, b) => a[0] - b[0]).map(([, value]) => value);

/** A scene by chance: objects of different colours and shapes that do not overlap. */
export const randomScene = () => {
  const [colours, shapes] = [shuffled(COLOURS), shuffled(SHAPES)];
  const count = 2 + Math.floor(2 * Math.random());
  const objects = [];
  for (let tries = 0; objects.length < count && tries < 500; tries++) {
    const size = 0.1 * 3 ** Math.random();
    const at = () => size / 2 + (1 - size) * Math.random();
    const next = object(colours[objects.length], shapes[objects.length], at(), at(), size);
    const apart = objects.every((other) => Math.abs(other.x - next.x) > (other.width + size) / 2
      || Math.abs(other.y - next.y) > (other.width + size) / 2);
    if (apart) objects.push(next);
  }
  return objects;
};

/** A new object, in a colour that is not there yet if there is one, where there is most room. */
export const fresh = (shape, objects) => {
  const taken = new Set(objects.map(({ colour }) => colour));
  const colour = COLOURS.find((each) => !taken.has(each)) ?? COLOURS[0];
  const size = 0.16;
  let best = [0.5, 0.5];
  let widest = -1;
  for (let row = 1; row < 10; row++) {
    for (let column = 1; column < 10; column++) {
      const [x, y] = [column / 10, row / 10];
      const room = Math.min(0.35, ...objects.map((other) => Math.max(
        Math.abs(other.x - x) - other.width / 2, Math.abs(other.y - y) - other.height / 2)));
      if (room > widest + 1e-9) [widest, best] = [room, [x, y]];
    }
  }
  return object(colour, shape, ...best, size);
};
