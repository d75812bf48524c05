/** The attention of one cell to all cells, in three panels. */
class Regions {
  constructor(article, maps, cell) {
    this.maps = maps;
    this.cell = cell;
    this.layer = maps.weights.layers - 1;
    this.head = MEAN;
    const section = document.getElementById("regions-template").content.cloneNode(true).firstElementChild;
    this.section = section;
    section.querySelector(".note").textContent = settings.note;
    this.panels = {};
    for (const panel of section.querySelectorAll(".panel")) this.prepare(panel, article);
    if (!maps.mean) this.leaveWeightsAlone();
    this.options(article.id);
    this.readout = section.querySelector(".readout");
    article.append(section);
    this.draw();
  }

  prepare(panel, article) {
    const picture = panel.querySelector(".picture");
    const photograph = article.querySelector(".stage img");
    const canvas = make("canvas");
    canvas.setAttribute("role", "img");
    const mark = make("div", { className: "chosen" });
    // The attributes, as the properties tell how large it is shown, and nothing before it is loaded.
    const [width, height] = ["width", "height"].map((side) => Number(photograph.getAttribute(side)));
    picture.style.setProperty("--ratio", width / height);
    picture.append(make("img", { src: photograph.src, alt: "" }), canvas, mark);
    const at = (event) => {
      const box = picture.getBoundingClientRect();
      const within = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
      return columns * within((event.clientY - box.top) / box.height, rows)
        + within((event.clientX - box.left) / box.width, columns);
    };
    picture.addEventListener("pointermove", (event) => this.tell(at(event)));
    picture.addEventListener("pointerleave", () => this.tell(null));
    picture.addEventListener("click", (event) => { if (event.detail) this.take(at(event)); });
    this.panels[panel.dataset.kind] = { panel, canvas, mark };
    if (panel.dataset.kind === "weights") picture.append(this.grid());
  }

  /** The cells as buttons, for keyboards and screen readers. */
  grid() {
    const grid = make("div", { className: "cells" });
    grid.setAttribute("role", "group");
    grid.setAttribute("aria-label", "The cell that looks; arrow keys choose another");
    grid.style.gridTemplateColumns = `repeat(${columns}, 1fr)`;
    this.buttons = Array.from({ length: rows * columns }, (_, cell) => {
      const button = make("button", { type: "button" });
      button.setAttribute("aria-label", place(cell));
      button.addEventListener("focus", () => { if (button.matches(":focus-visible")) this.take(cell); });
      button.addEventListener("click", (event) => { if (!event.detail) this.take(cell); });
      return button;
    });
    const column = (cell) => cell % columns;
    rove(this.buttons, (key, at) => {
      if (key === "ArrowRight") return column(at) < columns - 1 ? at + 1 : null;
      if (key === "ArrowLeft") return column(at) > 0 ? at - 1 : null;
      return { ArrowDown: at + columns, ArrowUp: at - columns, Home: 0,
        End: rows * columns - 1 }[key] ?? null;
    }, this.cell);
    grid.append(...this.buttons);
    return grid;
  }

  leaveWeightsAlone() {
    for (const kind of ["content", "geometry"]) {
      this.panels[kind].panel.remove();
      delete this.panels[kind];
    }
    this.section.querySelectorAll(".sign").forEach((sign) => sign.remove());
    this.section.querySelector(".panels").classList.add("alone");
    this.section.querySelector(".panel figcaption").textContent = "Content alone";
  }

  options(group) {
    const add = (where, name, number, text, checked, choose, canvas) => {
      const input = make("input", { type: "radio", name: `${group}-${name}`, checked });
      input.setAttribute("aria-label", `${name} ${text}`);
      input.addEventListener("change", () => { choose(number); this.draw(); });
      const option = make("label", { className: "option" }, input, ...(canvas ? [canvas] : []), text);
      this.section.querySelector(`${where} .options`).append(option);
    };
    for (let layer = 0; layer < this.maps.weights.layers; layer++) {
      add(".layers", "layer", layer, String(layer + 1), layer === this.layer,
        (value) => { this.layer = value; });
    }
    this.small = headNames(this.maps.weights.heads).map(([head, text]) => {
      const canvas = make("canvas");
      canvas.setAttribute("aria-hidden", "true");
      add(".heads", "head", head, text, head === this.head, (value) => { this.head = value; }, canvas);
      return [head, canvas];
    });
  }

  take(cell) {
    this.cell = cell;
    this.draw();
  }

  draw() {
    const row = (kind) => this.maps[kind]?.row(this.layer, this.head, this.cell);
    // The mean of the heads has no bias of its own; its factors are a map of their own.
    const geometry = row(this.head === MEAN ? "mean" : "geometry");
    this.now = { content: row("content"), geometry, weights: row("weights") };
    const most = Math.max(...(this.now.content ?? []), ...this.now.weights, 1e-9);
    const colour = { content: warming(most), weights: warming(most) };
    const ends = { content: ["0", percent(most)], weights: ["0", percent(most)] };
    if (this.now.geometry) {
      const widest = Math.max(...this.now.geometry.map(Math.abs), Math.log(1.25));
      // Beyond ten the colours stay the same, so that smaller factors can still be told apart.
      const full = Math.min(widest, Math.log(10));
      colour.geometry = diverging(full);
      const more = widest > full ? " or more" : "";
      ends.geometry = [factor(-full) + more, factor(full) + more];
    }
    for (const [kind, { panel, canvas, mark }] of Object.entries(this.panels)) {
      const values = this.now[kind];
      paint(canvas, values, colour[kind]);
      mark.style.left = `${(100 * (this.cell % columns)) / columns}%`;
      mark.style.top = `${(100 * Math.floor(this.cell / columns)) / rows}%`;
      mark.style.width = `${100 / columns}%`;
      mark.style.height = `${100 / rows}%`;
      panel.querySelectorAll(".legend span").forEach((end, side) => { end.textContent = ends[kind][side]; });
      const text = kind === "geometry" ? this.geometryInWords(values) : `Most at ${strongest(values)}`;
      panel.querySelector(".most").textContent = text;
      canvas.setAttribute("aria-label", text);
    }
    this.buttons.forEach((button, cell) => button.setAttribute("aria-pressed", String(cell === this.cell)));
    for (const [head, canvas] of this.small) {
      const values = this.maps.weights.row(this.layer, head, this.cell);
      paint(canvas, values, warming(Math.max(...values, 1e-9)));
    }
    this.tell(null);
  }

  geometryInWords(values) {
    const cells = order(values);
    const [top, bottom] = [cells[0], cells[cells.length - 1]];
    return `More for ${place(top)} (${factor(values[top])}), less for ${place(bottom)} (${factor(values[bottom])})`;
  }

  tell(cell) {
    const { content, geometry, weights } = this.now;
    const from = `The cell at ${place(this.cell)}`;
    if (cell === null) {
      const far = (values) => values.reduce((sum, value, other) => sum + value * Math.hypot(
        (other % columns) - (this.cell % columns),
        Math.floor(other / columns) - Math.floor(this.cell / columns)), 0).toFixed(1);
      this.readout.textContent = geometry
        ? `${from} looks ${far(content)} cells far on average by content alone, and ${far(weights)} with geometry.`
        : `${from} looks ${far(weights)} cells far on average.`;
      return;
    }
    const steps = geometry
      ? `${percent(content[cell])} by content, ${factor(geometry[cell])} by geometry, ${percent(weights[cell])} together`
      : percent(weights[cell]);
    this.readout.textContent = `${from} looks at ${place(cell)}: ${steps}.`;
  }
}
