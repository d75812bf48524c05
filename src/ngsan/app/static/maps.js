/* Maps of attention: how they are unpacked, and in which colours they are shown. */

export const MEAN = -1;
const WARM = [255, 168, 38];
const COLD = [72, 148, 255];

/** How opaque the black is over what is not looked at, and the colour over what is looked at most. */
const [DIMMED, TINTED] = [0.7, 0.24];

/** A map in 8 bits: rows of whole numbers, each row with a scale of its own. */
export class PackedMap {
  constructor(buffer, { shape, signed, at }) {
    this.shape = shape;
    this.signed = signed;
    this.length = shape[shape.length - 1];
    const count = shape.slice(0, -1).reduce((a, b) => a * b, 1);
    this.scales = new Float32Array(buffer, at, count);
    this.numbers = new Uint8Array(buffer, at + 4 * count, count * this.length);
  }

  get layers() { return this.shape[0]; }

  get heads() { return this.shape[1]; }

  of(layer, head, index) {
    const row = (layer * this.heads + head) * this.shape[2] + index;
    const scale = this.scales[row] / (this.signed ? 127 : 255);
    const zero = this.signed ? 128 : 0;
    return Array.from({ length: this.length },
      (_, key) => (this.numbers[row * this.length + key] - zero) * scale);
  }

  row(layer, head, index) { return rowOf(this, layer, head, index); }
}

/** A map of nested lists, as scenes have it. */
export class PlainMap {
  constructor(lists) {
    this.lists = lists;
  }

  get layers() { return this.lists.length; }

  get heads() { return this.lists[0].length; }

  of(layer, head, index) { return this.lists[layer][head][index]; }

  row(layer, head, index) { return rowOf(this, layer, head, index); }
}

/** The values of one row: of one head, or the mean of all. */
const rowOf = (map, layer, head, index) => {
  if (head !== MEAN) return map.of(layer, head, index);
  const rows = Array.from({ length: map.heads }, (_, each) => map.of(layer, each, index));
  return rows[0].map((_, key) => rows.reduce((sum, row) => sum + row[key], 0) / rows.length);
};

export const unpack = (blob, entries) => {
  const buffer = Uint8Array.from(atob(blob), (sign) => sign.charCodeAt(0)).buffer;
  return Object.fromEntries(Object.entries(entries).filter(([, entry]) => entry)
    .map(([name, entry]) => [name, new PackedMap(buffer, entry)]));
};

const css = ([red, green, blue], alpha) => `rgb(${red} ${green} ${blue} / ${alpha.toFixed(3)})`;

export const warming = (most) => (value) => css(WARM, 0.88 * Math.min(1, value / most) ** 0.7);
export const diverging = (most) => (value) =>
  css(value < 0 ? COLD : WARM, 0.88 * Math.min(1, Math.abs(value) / most) ** 0.85);

/** Lays a veil over a picture: cells that are not looked at darken; one pixel a cell. */
export const veil = (canvas, values, [rows, columns]) => {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const most = Math.max(...values, 1e-9);
  values.forEach((value, cell) => {
    const tint = (TINTED * value) / most;
    const alpha = DIMMED * (1 - value / most) + tint;
    image.data.set([...WARM.map((part) => (part * tint) / alpha), Math.round(255 * alpha)], 4 * cell);
  });
  context.putImageData(image, 0, 0);
};

const mix = (from, to, share) => from.map((part, at) => Math.round(part + (to[at] - part) * share));

/**
 * Colours of a surface from its lowest to its highest value; zero is dark if both signs occur.
 * Values beyond have the colours of the ends.
 */
export const surfaceColours = (low, high) => {
  const [ground, middle] = [[26, 28, 32], [214, 84, 30]];
  const upwards = (share) => (share < 0.5
    ? mix(ground, middle, 2 * share)
    : mix(middle, [255, 226, 150], 2 * share - 1));
  const downwards = (share) => (share < 0.5
    ? mix(ground, [40, 98, 190], 2 * share)
    : mix([40, 98, 190], [176, 214, 255], 2 * share - 1));
  const within = (share) => Math.max(0, Math.min(1, share));
  if (low >= 0) return (value) => upwards(within((value - low) / Math.max(high - low, 1e-9)));
  const widest = Math.max(-low, high, 1e-9);
  return (value) => (value < 0 ? downwards(within(-value / widest)) : upwards(within(value / widest)));
};

/** Where a cell of a grid is, in words. */
export const place = (cell, [, columns]) =>
  `row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1}`;
