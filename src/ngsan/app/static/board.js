/* The canvas of a scene: shapes that are moved and resized by pointer and keys. */

import { clamp, draw } from "./dom.js";
import { PAPER, behindFirst, nameOf, shapeOf } from "./shapes.js";

const UNIT = 1000;
const [SMALLEST, LARGEST] = [0.03, 0.95];
const CORNERS = [[-1, -1], [1, -1], [1, 1], [-1, 1]];
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** A object put where its box lies on the canvas. */
const onCanvas = (object) => ({
  ...object,
  x: clamp(object.x, object.width / 2, 1 - object.width / 2),
  y: clamp(object.y, object.height / 2, 1 - object.height / 2),
});

const whole = (share) => Math.round(100 * share);
export const described = (object) => `${nameOf(object)}: ${whole(object.x)} % across, ${whole(object.y)} % down, `
  + `${whole(object.width)} % wide, ${whole(object.height)} % high`;

export class Board {
  /**
   * `act` is told of what the visitor does: begin(kind) before a change, change(objects, kind) while it
   * goes on, end() after it, select(index), remove().
   */
  constructor(container, act) {
    this.act = act;
    this.objects = [];
    this.nodes = [];
    this.selected = null;
    this.svg = draw("svg", { viewBox: `0 0 ${UNIT} ${UNIT}`, role: "group",
      "aria-label": "The scene. Arrow keys move a shape, plus and minus resize it, Delete takes it away." });
    this.layer = draw("g");
    this.handles = draw("g", { class: "handles", "aria-hidden": "true" });
    const paper = draw("rect", { class: "paper", width: UNIT, height: UNIT, fill: PAPER });
    paper.addEventListener("pointerdown", () => act.select(null));
    this.svg.append(paper, this.layer, this.handles);
    container.append(this.svg);
    new ResizeObserver(() => this.frame()).observe(this.svg);
  }

  /** Shows objects; nodes stay as long as their number does, so that a drag or the focus goes on. */
  set(objects, selected) {
    const rebuilt = objects.length !== this.nodes.length;
    this.objects = objects;
    this.selected = selected;
    if (rebuilt) this.nodes = objects.map((_, at) => this.node(at));
    objects.forEach((object, at) => {
      const node = this.nodes[at];
      node.replaceChildren(draw("title", {}, nameOf(object)), this.target(object), shapeOf(object, UNIT));
      node.setAttribute("aria-label", described(object));
      node.setAttribute("aria-pressed", String(at === selected));
    });
    if (rebuilt || !this.held) this.stack(rebuilt);
    this.frame();
  }

  /** Large objects behind small ones; moving a node takes its focus away, so it is given back. */
  stack(rebuilt) {
    const wanted = behindFirst(this.objects).map((at) => this.nodes[at]);
    if (!rebuilt && wanted.every((node, at) => node === this.layer.children[at])) return;
    const focused = this.nodes.indexOf(document.activeElement);
    this.layer.replaceChildren(...wanted);
    if (focused >= 0) this.nodes[focused].focus({ preventScroll: true });
  }

  node(at) {
    const node = draw("g", { class: "object", role: "button", tabindex: "0",
      "aria-roledescription": "movable shape" });
    node.addEventListener("pointerdown", (event) => {
      const from = this.objects[at];
      this.act.select(at);
      this.drag(event, node, (dx, dy) => onCanvas({ ...from, x: from.x + dx, y: from.y + dy }), at);
    });
    node.addEventListener("focus", () => { if (this.selected !== at) this.act.select(at); });
    node.addEventListener("keydown", (event) => this.key(event, at));
    return node;
  }

  /** An invisible box around a object that is too small for a finger. */
  target({ x, y, width, height }) {
    const least = 26 * this.pixel;
    const [w, h] = [Math.max(width * UNIT, least), Math.max(height * UNIT, least)];
    return draw("rect", { x: x * UNIT - w / 2, y: y * UNIT - h / 2, width: w, height: h, fill: "transparent" });
  }

  /** Units of the canvas that a pixel of the screen takes. */
  get pixel() { return UNIT / (this.svg.clientWidth || 500); }

  drag(event, node, moved, at) {
    if (event.button !== 0) return;
    const size = this.svg.getBoundingClientRect().width;
    this.held = true;
    this.act.begin("drag");
    node.setPointerCapture(event.pointerId);
    const move = (now) => {
      const object = moved((now.clientX - event.clientX) / size, (now.clientY - event.clientY) / size);
      this.act.change(this.objects.map((other, index) => (index === at ? object : other)), "drag");
    };
    const end = () => {
      node.removeEventListener("pointermove", move);
      node.removeEventListener("pointerup", end);
      node.removeEventListener("pointercancel", end);
      this.held = false;
      this.stack(false);
      this.act.end();
    };
    node.addEventListener("pointermove", move);
    node.addEventListener("pointerup", end);
    node.addEventListener("pointercancel", end);
  }

  key(event, at) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const object = this.objects[at];
    let [next, kind] = [null, `move ${at}`];
    if (MOVES[event.key]) {
      const step = event.shiftKey ? 0.05 : 0.01;
      const [dx, dy] = MOVES[event.key];
      next = { ...object, x: object.x + step * dx, y: object.y + step * dy };
    } else if ("+=-_".includes(event.key)) {
      kind = `resize ${at}`;
      const scale = "+=".includes(event.key) ? 1.06 : 1 / 1.06;
      const size = (side) => clamp(side * scale, SMALLEST, LARGEST);
      next = { ...object, width: size(object.width), height: size(object.height) };
    } else if (event.key === "Delete" || event.key === "Backspace") {
      event.preventDefault();
      this.act.remove(at);
      return;
    } else if (event.key === "Escape") {
      this.act.select(null);
      return;
    }
    if (!next) return;
    event.preventDefault();
    this.act.begin(kind);
    this.act.change(this.objects.map((other, index) => (index === at ? onCanvas(next) : other)), kind);
  }

  /** The box of the selected object with its handles. */
  frame() {
    const object = this.objects[this.selected];
    if (this.resizing) {
      this.place(object);
      return;
    }
    this.handles.replaceChildren();
    if (!object) return;
    this.box = draw("rect", { class: "frame" });
    this.corners = CORNERS.map(([right, down]) => {
      const handle = draw("g", { class: right === down ? "handle falling" : "handle rising" },
        draw("circle", { class: "reach" }), draw("circle", { class: "grip" }));
      handle.addEventListener("pointerdown", (event) => this.resize(event, handle, right, down));
      return handle;
    });
    this.handles.append(this.box, ...this.corners);
    this.place(object);
  }

  place({ x, y, width, height }) {
    const { pixel } = this;
    const [left, top] = [(x - width / 2) * UNIT, (y - height / 2) * UNIT];
    const sides = { x: left, y: top, width: width * UNIT, height: height * UNIT };
    for (const [name, value] of Object.entries(sides)) {
      this.box.setAttribute(name, value);
    }
    this.corners.forEach((handle, at) => {
      const [right, down] = CORNERS[at];
      handle.setAttribute("transform",
        `translate(${(x + (right * width) / 2) * UNIT} ${(y + (down * height) / 2) * UNIT}) scale(${pixel})`);
    });
  }

  /** A corner is pulled while the one across from it stays. */
  resize(event, handle, right, down) {
    if (event.button !== 0) return;
    const [at, from] = [this.selected, this.objects[this.selected]];
    event.stopPropagation();
    this.resizing = true;
    const [fixedX, fixedY] = [from.x - (right * from.width) / 2, from.y - (down * from.height) / 2];
    const side = (length, room) => clamp(length, SMALLEST, Math.max(SMALLEST, Math.min(LARGEST, room)));
    this.drag(event, handle, (dx, dy) => {
      const width = side(from.width + right * dx, right > 0 ? 1 - fixedX : fixedX);
      const height = side(from.height + down * dy, down > 0 ? 1 - fixedY : fixedY);
      return { ...from, width, height, x: fixedX + (right * width) / 2, y: fixedY + (down * height) / 2 };
    }, at);
    const done = () => { this.resizing = false; };
    handle.addEventListener("pointerup", done, { once: true });
    handle.addEventListener("pointercancel", done, { once: true });
  }

  /** Lets objects fade that are looked at little; null for none. */
  dim(shares) {
    const most = Math.max(...(shares ?? []), 1e-9);
    this.nodes.forEach((node, at) => {
      node.style.opacity = shares ? (0.12 + 0.88 * (shares[at] / most)).toFixed(3) : "";
    });
  }

  focus(at) { this.nodes[at]?.focus({ preventScroll: true }); }
}
