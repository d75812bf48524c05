/* The attention of one region to all: content, geometry, and both, over the picture and as numbers. */

import { byId, draw, factor, make, order, percent, rove } from "./dom.js";
import { MEAN, diverging, warming } from "./maps.js";
import { PAINT, behindFirst, shapeOf } from "./shapes.js";

const UNIT = 1000;
const TITLES = { content: "Content alone", geometry: "Geometry", weights: "Both together" };
const LEGENDS = { content: "warm", geometry: "two", weights: "warm" };
/** A share that is as good as none, and the largest logarithm of a factor that is told. */
const [NEGLIGIBLE, FARTHEST] = [1e-4, Math.log(1000)];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Draws boxes on a small canvas, for the choice of a head. */
export const sketch = (canvas, boxes, values) => {
  const size = 40;
  canvas.width = size;
  canvas.height = size;
  const context = canvas.getContext("2d");
  const colour = warming(Math.max(...values, 1e-9));
  boxes.forEach(([x, y, width, height], at) => {
    context.fillStyle = colour(values[at]);
    context.fillRect(size * (x - width / 2), size * (y - height / 2), size * width, size * height);
  });
};

export class Panels {
  constructor(choose) {
    this.choose = choose;
    this.container = byId("panels");
    this.readout = byId("readout");
  }

  /**
   * Shows a picture with regions: `names`, `boxes` (cxcywh, of 1), `maps`, and either `photograph`
   * (address, width, height) or `objects`, after which comes the canvas.
   */
  set(subject) {
    this.subject = subject;
    this.height = subject.photograph ? (UNIT * subject.photograph.height) / subject.photograph.width : UNIT;
    const kinds = subject.maps.geometry ? ["content", "geometry", "weights"] : ["weights"];
    this.panels = kinds.map((kind) => this.panel(kind, kinds.length === 1));
    const parts = this.panels.flatMap(({ figure }, at) => (at
      ? [make("span", { class: "sign", "aria-hidden": "true" }, at === 1 ? "×" : "="), figure] : [figure]));
    this.container.classList.toggle("alone", kinds.length === 1);
    this.container.replaceChildren(...parts);
  }

  panel(kind, alone) {
    const svg = draw("svg", { viewBox: `0 0 ${UNIT} ${this.height}`, class: "picture" });
    const last = kind === "weights";
    svg.setAttribute("role", last ? "group" : "img");
    svg.append(...this.backdrop());
    const regions = this.subject.boxes.map((box, at) => this.region(box, at, last));
    const labels = this.subject.objects ? regions.map(() => draw("text", { class: "share" })) : [];
    const chosen = draw("rect", { class: "chosen" });
    // What is small lies in front, so that it can be reached.
    const sizes = this.subject.boxes.map(([x, y, width, height]) => ({ x, y, width, height }));
    const outlines = this.subject.objects ? this.outlines() : [];
    svg.append(...behindFirst(sizes).map((at) => regions[at]), ...outlines, chosen, ...labels);
    if (last) {
      svg.setAttribute("aria-label", "The region that looks; arrow keys choose another");
      rove(regions, (key, at) => this.neighbour(key, at));
    }
    const ends = [make("span"), make("span")];
    const most = make("p", { class: "most soft" });
    const title = alone ? "Content alone: this model has no geometry" : TITLES[kind];
    const figure = make("figure", { class: "panel" }, make("figcaption", {}, title), svg,
      make("div", { class: "legend" }, ends[0], make("i", { class: LEGENDS[kind] }), ends[1]), most);
    return { kind, figure, svg, regions, labels, chosen, ends, most };
  }

  backdrop() {
    const { photograph } = this.subject;
    if (photograph) {
      return [draw("image", { href: photograph.address, width: UNIT, height: this.height,
        preserveAspectRatio: "none", class: "dimmed" })];
    }
    return [draw("rect", { width: UNIT, height: UNIT, fill: "#17191c" })];
  }

  /** Outlines in the objects' own colours, over the colours of their boxes. */
  outlines() {
    return behindFirst(this.subject.objects).map((at) => {
      const object = this.subject.objects[at];
      const shape = shapeOf(object, UNIT);
      shape.setAttribute("class", "outline");
      shape.style.fill = "none";
      shape.style.stroke = object.colour === "black" ? "#000" : PAINT[object.colour];
      shape.style.strokeWidth = "11";
      return shape;
    });
  }

  region([x, y, width, height], at, reachable) {
    const whole = this.subject.objects && at === this.subject.objects.length;
    // The canvas is a region too: a rim, as it lies behind all others.
    const inset = whole ? 14 : 0;
    const rect = draw("rect", { x: (x - width / 2) * UNIT + inset, y: (y - height / 2) * this.height + inset,
      width: width * UNIT - 2 * inset, height: height * this.height - 2 * inset,
      class: whole ? "region rim" : "region" });
    rect.append(draw("title", {}, this.subject.names[at]));
    rect.addEventListener("pointerenter", () => this.tell(at));
    rect.addEventListener("pointerleave", () => this.tell(null));
    rect.addEventListener("click", () => this.choose(at));
    if (!reachable) return rect;
    rect.setAttribute("role", "button");
    rect.setAttribute("aria-label", this.subject.names[at]);
    rect.addEventListener("focus", () => { if (rect.matches(":focus-visible")) this.choose(at); });
    rect.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      this.choose(at);
    });
    return rect;
  }

  /** The nearest region where an arrow points. */
  neighbour(key, at) {
    const { boxes } = this.subject;
    if (key === "Home") return 0;
    if (key === "End") return boxes.length - 1;
    if (!ARROWS[key]) return null;
    const [right, down] = ARROWS[key];
    let [best, least] = [null, Infinity];
    boxes.forEach(([x, y], other) => {
      const [dx, dy] = [x - boxes[at][0], y - boxes[at][1]];
      const ahead = dx * right + dy * down;
      const cost = ahead + 2.5 * Math.abs(dx * down) + 2.5 * Math.abs(dy * right);
      if (other !== at && ahead > 1e-6 && cost < least) [best, least] = [other, cost];
    });
    return best;
  }

  /** Shows how region `at` looks at all, in a layer and head. */
  show(layer, head, at) {
    this.at = at;
    const { maps } = this.subject;
    const row = (kind) => maps[kind]?.row(layer, head, at) ?? null;
    this.now = { content: row("content"), geometry: row("geometry"), weights: row("weights") };
    if (this.now.geometry && head === MEAN) this.now.geometry = this.factors();
    const shares = [...(this.now.geometry ? this.now.content : []), ...this.now.weights];
    const most = Math.max(...shares, 1e-9);
    for (const panel of this.panels) this.paint(panel, most);
    this.numbers();
    this.tell(null);
  }

  /** By which factors geometry changes the mean of the heads, which has no bias of its own. */
  factors() {
    return this.now.content.map((content, key) => {
      const ratio = Math.max(this.now.weights[key], NEGLIGIBLE) / Math.max(content, NEGLIGIBLE);
      return Math.max(-FARTHEST, Math.min(FARTHEST, Math.log(ratio)));
    });
  }

  paint({ kind, svg, regions, labels, chosen, ends, most }, greatest) {
    const values = this.now[kind];
    let [colour, say] = [warming(greatest), percent];
    let legend = ["0", percent(greatest)];
    if (kind === "geometry") {
      const widest = Math.max(...values.map(Math.abs), Math.log(1.25));
      // Beyond ten the colours stay the same, so that smaller factors can still be told apart.
      const full = Math.min(widest, Math.log(10));
      [colour, say] = [diverging(full), factor];
      const more = widest > full ? " or more" : "";
      legend = [factor(-full) + more, factor(full) + more];
    }
    regions.forEach((region, at) => {
      region.style[region.classList.contains("rim") ? "stroke" : "fill"] = colour(values[at]);
      if (region.hasAttribute("role")) region.setAttribute("aria-pressed", String(at === this.at));
    });
    labels.forEach((label, at) => this.label(label, at, say(values[at])));
    for (const name of ["x", "y", "width", "height"]) {
      chosen.setAttribute(name, regions[this.at].getAttribute(name));
    }
    ends.forEach((end, side) => { end.textContent = legend[side]; });
    const { names } = this.subject;
    const sorted = order(values);
    const [top, bottom] = [sorted[0], sorted[sorted.length - 1]];
    most.textContent = kind === "geometry"
      ? `More for ${names[top]} (${factor(values[top])}), less for ${names[bottom]} (${factor(values[bottom])})`
      : `Most at ${sorted.slice(0, 3).map((key) => `${names[key]} (${percent(values[key])})`).join("; ")}`;
    if (kind !== "weights") svg.setAttribute("aria-label", most.textContent);
  }

  label(label, at, text) {
    const [x, y, width, height] = this.subject.boxes[at];
    const whole = at === this.subject.objects.length;
    const above = y - height / 2 > 0.09;
    label.textContent = whole ? `canvas ${text}` : text;
    label.setAttribute("x", whole ? 44 : Math.max(0.08, Math.min(0.92, x)) * UNIT);
    label.setAttribute("y", whole ? 952 : (above ? y - height / 2 - 0.018 : y + height / 2 + 0.055) * UNIT);
    label.setAttribute("text-anchor", whole ? "start" : "middle");
  }

  tell(key) {
    const { names, boxes } = this.subject;
    const { content, geometry, weights } = this.now;
    const from = `From ${names[this.at]}`;
    if (key !== null) {
      this.readout.textContent = `${from} to ${names[key]}: ${geometry
        ? `${percent(content[key])} by content, ${factor(geometry[key])} by geometry, `
          + `${percent(weights[key])} together`
        : percent(weights[key])}.`;
      return;
    }
    const far = (values) => percent(values.reduce((sum, value, other) => sum + value
      * Math.hypot(boxes[other][0] - boxes[this.at][0], boxes[other][1] - boxes[this.at][1]), 0));
    this.readout.textContent = geometry
      ? `${from}, attention reaches ${far(content)} of the picture’s side on average by content alone, `
        + `and ${far(weights)} with geometry.`
      : `${from}, attention reaches ${far(weights)} of the picture’s side on average.`;
  }

  numbers() {
    const { content, geometry, weights } = this.now;
    const heads = geometry ? ["region", "content", "geometry", "together"] : ["region", "content"];
    const rows = order(weights).slice(0, 16).map((key) => {
      const cells = [percent(weights[key])];
      if (geometry) cells.unshift(percent(content[key]), factor(geometry[key]));
      return make("tr", {}, make("th", { scope: "row" }, this.subject.names[key]),
        ...cells.map((text) => make("td", {}, text)));
    });
    byId("numbers").querySelector("table").replaceChildren(
      make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)))),
      make("tbody", {}, ...rows));
  }
}
