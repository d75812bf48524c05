"use strict";

/* What all parts share: reading maps, saying and painting values. */

const settings = JSON.parse(document.getElementById("settings").textContent);
const [rows, columns] = settings.grid;
const WARM = settings.warm;
const COLD = [72, 148, 255];
const MEAN = -1;

/** A map of `Blob.put`: rows of 8-bit numbers, each with a scale of its own. */
class Rows {
  constructor(buffer, entry) {
    this.shape = entry.shape;
    this.signed = entry.signed;
    this.length = this.shape[this.shape.length - 1];
    const count = this.shape.slice(0, -1).reduce((a, b) => a * b, 1);
    this.scales = new Float32Array(buffer, entry.at, count);
    this.numbers = new Uint8Array(buffer, entry.at + 4 * count, count * this.length);
  }

  get layers() { return this.shape[0]; }

  get heads() { return this.shape[1]; }

  /** The values of one row: of one head, or the mean of all. */
  row(layer, head, index) {
    const values = new Float32Array(this.length);
    const heads = head === MEAN ? [...Array(this.heads).keys()] : [head];
    for (const one of heads) {
      const row = (layer * this.heads + one) * this.shape[2] + index;
      const scale = this.scales[row] / (this.signed ? 127 : 255) / heads.length;
      const zero = this.signed ? 128 : 0;
      for (let cell = 0; cell < this.length; cell++) {
        values[cell] += (this.numbers[row * this.length + cell] - zero) * scale;
      }
    }
    return values;
  }
}

const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const place = (cell) => `row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1}`;
const percent = (share) => {
  const value = 100 * share;
  return value >= 9.95 ? `${value.toFixed(0)} %` : value >= 0.05 ? `${value.toFixed(1)} %` : "< 0.1 %";
};
const factor = (log) => {
  const size = Math.exp(Math.abs(log));
  // The maps end at a thousand; above ten, digits behind the point tell nothing.
  const text = size >= 995 ? "1000 or more" : size.toFixed(size >= 9.95 ? 0 : 2);
  return `${log < 0 ? "÷" : "×"} ${text}`;
};
const order = (values) => [...values.keys()].sort((a, b) => values[b] - values[a]);
const strongest = (values) =>
  order(values).slice(0, 3).map((cell) => `${place(cell)} (${percent(values[cell])})`).join("; ");

/** Draws one pixel a cell; `colour` gives red, green, blue and opacity from 0 to 1. */
const paint = (canvas, values, colour) => {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  values.forEach((value, cell) => {
    const [red, green, blue, alpha] = colour(value);
    image.data.set([red, green, blue, Math.round(255 * alpha)], 4 * cell);
  });
  context.putImageData(image, 0, 0);
};
/* As `veil` of cells.py, which draws the pictures that are there without a script. */
const veiling = (values) => {
  const most = Math.max(...values, 1e-9);
  return (value) => {
    const tint = (settings.tinted * value) / most;
    const alpha = settings.dimmed * (1 - value / most) + tint;
    return [...WARM.map((part) => (part * tint) / alpha), alpha];
  };
};
const warming = (most) => (value) => [...WARM, 0.84 * Math.min(1, value / most) ** 0.7];
const diverging = (most) => (value) =>
  [...(value < 0 ? COLD : WARM), 0.84 * Math.min(1, Math.abs(value) / most) ** 0.85];

/** Lets arrow keys go through elements of which one at a time can be reached by tab. */
const rove = (elements, step, chosen = 0) => {
  elements.forEach((element, index) => {
    element.tabIndex = index === chosen ? 0 : -1;
    element.addEventListener("keydown", (event) => {
      const target = step(event.key, index);
      if (target === null || target < 0 || target >= elements.length) return;
      event.preventDefault();
      elements[target].focus();
    });
    element.addEventListener("focus", () => {
      elements.forEach((other) => { other.tabIndex = other === element ? 0 : -1; });
    });
  });
};

const select = (label, options, value, onChange) => {
  const box = make("select");
  options.forEach(([number, text]) => box.append(new Option(text, number, false, number === value)));
  box.addEventListener("change", () => onChange(Number(box.value)));
  return make("label", {}, `${label} `, box);
};
const headNames = (count) =>
  count === 1
    ? [[MEAN, "mean"]]
    : [[MEAN, "mean"], ...Array.from({ length: count }, (_, head) => [head, String(head + 1)])];
