/* The appendix's figures: the bias as a function of position, and of size, as small heat maps. */

import { Newest, get, post } from "./api.js";
import { byId, clamp, draw, make, signed } from "./dom.js";
import { MEAN, surfaceColours } from "./maps.js";

const HELD = ["0.5", "1", "2"];
const KINDS = {
  position: { title: "Position", across: "Δx", up: "Δy", held: "Δw = Δh" },
  size: { title: "Size", across: "Δw", up: "Δh", held: "Δx = Δy" },
};
/** The drawing: its side, and where the plot lies in it. */
const [SIDE, LEFT, TOP, PLOT] = [240, 32, 8, 198];

const flat = (lists) => lists.flat();
/** A number with a minus that is as wide as a digit. */
const plain = (value, digits = 0) => value.toFixed(digits).replace(/^-(0\.0+)$/, "$1").replace("-", "−");
const meanOf = (tables) => tables[0].map((row, y) =>
  row.map((_, x) => tables.reduce((sum, table) => sum + table[y][x], 0) / tables.length));

export class Surfaces {
  constructor() {
    this.cache = new Map();
    this.newest = new Newest((signal, wish) => this.fetch(signal, wish), byId("surfaces-figures"));
  }

  hide() {
    this.newest.stop();
    byId("surfaces").hidden = true;
  }

  /**
   * `wish` has what looks, as `name`, `independent` and `head`, and either model, signed, layer,
   * objects, object and the number of `heads` of a scene, or `load` for anything else.
   */
  async show(wish) {
    byId("surfaces").hidden = false;
    try {
      const found = await this.newest.ask(wish);
      if (found) this.draw(found, wish);
    } catch (error) {
      byId("surfaces-note").textContent = error.message;
      byId("surfaces-figures").replaceChildren();
    }
  }

  async fetch(signal, { load, model, signed: sides, independent, layer, head, heads, objects, object }) {
    if (load) return load(signal);
    const wanted = head === MEAN ? [...Array(heads).keys()] : [head];
    const found = await Promise.all(wanted.map(async (one) => {
      const key = JSON.stringify([model, sides, layer, one, ...(independent ? [] : [objects, object])]);
      if (!this.cache.has(key)) {
        if (this.cache.size > 100) this.cache.clear();
        const query = new URLSearchParams({ model, layer: String(layer), head: String(one),
          ...(sides ? { signed: "true", two_sided: "true" } : {}) });
        this.cache.set(key, independent ? await get(`v1/bias?${query}`, { signal })
          : await post("v1/bias", { model, signed: sides, two_sided: sides, objects, object_index: object, layer, head: one },
            { signal }));
      }
      return this.cache.get(key);
    }));
    const averaged = (kind) => Object.fromEntries(HELD.map((held) =>
      [held, meanOf(found.map((each) => each[kind][held]))]));
    return { ...found[0], position: averaged("position"), size: averaged("size") };
  }

  draw(found, { independent, name, head }) {
    // Zero stands for a thousandth in the logarithms: there the bias may lie far beyond all the rest, so
    // the colours are made for the rest.
    const zero = (kind) => (kind === "position" && found.offsets?.[0] < 0 ? (found.steps - 1) / 2 : 0);
    const inner = (table, without) => table.filter((_, y) => y !== without)
      .flatMap((row) => row.filter((_, x) => x !== without));
    const values = Object.keys(KINDS).flatMap((kind) =>
      HELD.flatMap((held) => inner(found[kind][held], zero(kind))));
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const colour = surfaceColours(low, high);
    const whose = independent
      ? "It is the same for all regions (Eq. 11)."
      : `It depends on the region that looks: this is the bias of ${name} (Eq. 12).`;
    byId("surfaces-note").textContent = "How much is added to the score of a pair, before the softmax, "
      + `by how its boxes lie to each other. ${whose} ${head === MEAN ? "The mean of the heads. " : ""}`
      + "Distances are in sizes of the box that looks; a size is its own divided by the other’s."
      + (found.offsets?.[0] < 0 ? " With signed geometry sides count: in the upper row the box that looks is "
        + "in the middle, and a colour says what another one there gets." : "");
    const rows = Object.keys(KINDS).map((kind) => make("div", { class: "surface-row" },
      ...HELD.map((held) => this.figure(found, kind, held, colour))));
    byId("surfaces-figures").replaceChildren(make("div", { class: "surface-rows" }, ...rows),
      this.legend(low, high, colour));
    byId("surfaces-readout").textContent =
      "Point at a figure, or go over it with the arrow keys, to read its values.";
  }

  figure({ range, offsets, steps, ...found }, kind, held, colour) {
    const [from, to] = kind === "position" ? offsets ?? range : range;
    const { title, across, up, held: fixed } = KINDS[kind];
    const table = found[kind][held];
    const all = flat(table);
    const place = (value) => PLOT * ((value - from) / (to - from));
    // Distances go up from a corner as in the paper; a map of both sides has y downwards, as pictures do.
    const down = from < 0;
    const height = (value) => TOP + (down ? place(value) : PLOT - place(value));
    const svg = draw("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img", tabindex: "0", class: "surface",
      "aria-label": `${title} at ${fixed} = ${held}: the bias goes from ${signed(Math.min(...all))} to `
        + `${signed(Math.max(...all))}. Arrow keys read it.` });
    svg.append(draw("image", { href: this.pixels(table, steps, colour, down), x: LEFT, y: TOP,
      width: PLOT, height: PLOT, preserveAspectRatio: "none", class: "pixels" }));
    for (let tick = Math.ceil(from); tick <= to; tick++) {
      const [x, y] = [LEFT + place(tick), height(tick)];
      svg.append(draw("path", { d: `M${x} ${TOP + PLOT}v4M${LEFT} ${y}h-4`, class: "axis" }),
        draw("text", { x, y: TOP + PLOT + 16, "text-anchor": "middle" }, plain(tick)),
        draw("text", { x: LEFT - 7, y: y + 4, "text-anchor": "end" }, plain(tick)));
    }
    const named = (x, y, text) => draw("text", { x, y, "text-anchor": "middle", class: "name" }, text);
    svg.append(named(LEFT + PLOT / 2, SIDE - 3, across), named(9, TOP + PLOT * (down ? 5 / 12 : 1 / 2) + 4, up));
    const cross = draw("path", { class: "cross" });
    svg.append(cross);
    const step = (to - from) / (steps - 1);
    const tell = (column, row) => {
      const [x, y] = [LEFT + place(from + column * step), height(from + row * step)];
      cross.setAttribute("d", `M${x} ${TOP}V${TOP + PLOT}M${LEFT} ${y}H${LEFT + PLOT}`);
      byId("surfaces-readout").textContent = `${across} = ${plain(from + column * step, 1)}, `
        + `${up} = ${plain(from + row * step, 1)}, ${fixed} = ${held}: `
        + `bias ${signed(table[row][column], 3)}.`;
    };
    this.listen(svg, steps, tell, cross, down);
    return make("figure", {}, make("figcaption", {}, make("b", {}, title), ` at ${fixed} = ${held}`), svg);
  }

  listen(svg, steps, tell, cross, down) {
    let [column, row] = [Math.floor(steps / 3), Math.floor(steps / 3)];
    const within = (place) => clamp(Math.round(place), 0, steps - 1);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const unit = SIDE / box.width;
      column = within((((event.clientX - box.left) * unit - LEFT) / PLOT) * (steps - 1));
      const share = ((event.clientY - box.top) * unit - TOP) / PLOT;
      row = within((down ? share : 1 - share) * (steps - 1));
      tell(column, row);
    });
    const hide = () => cross.removeAttribute("d");
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, down ? -1 : 1],
        ArrowDown: [0, down ? 1 : -1] }[event.key];
      if (!move) return;
      event.preventDefault();
      [column, row] = [within(column + move[0]), within(row + move[1])];
      tell(column, row);
    });
  }

  /** The table as a picture of one pixel a value; its first row lies at the bottom, or at the top. */
  pixels(table, steps, colour, down) {
    const canvas = make("canvas", { width: steps, height: steps });
    const context = canvas.getContext("2d");
    const image = context.createImageData(steps, steps);
    table.forEach((row, y) => row.forEach((value, x) => {
      image.data.set([...colour(value), 255], 4 * ((down ? y : steps - 1 - y) * steps + x));
    }));
    context.putImageData(image, 0, 0);
    return canvas.toDataURL();
  }

  legend(low, high, colour) {
    const widest = Math.max(Math.abs(low), Math.abs(high));
    const [from, to] = low < 0 ? [-widest, widest] : [low, high];
    const canvas = make("canvas", { width: 128, height: 1, "aria-hidden": "true" });
    const context = canvas.getContext("2d");
    for (let at = 0; at < 128; at++) {
      context.fillStyle = `rgb(${colour(from + ((to - from) * at) / 127).join(" ")})`;
      context.fillRect(at, 0, 1, 1);
    }
    return make("div", { class: "legend surface-legend" }, make("span", {}, `bias ${signed(from)}`), canvas,
      make("span", {}, signed(to)));
  }
}
