/* Objects in a photograph: boxes over the picture, and lines of text, also of keywords. */

import { byId, draw, percent } from "./dom.js";

/** The share of the picture's width that a letter is high. */
const LETTER = 1 / 32;

export class Objects {
  /** `ask` is called when they are wanted and are not there yet. */
  constructor(ask) {
    this.input = byId("show-objects");
    this.text = byId("objects-text");
    this.keywordText = byId("keywords-text");
    this.boxes = draw("svg", { class: "boxes", "aria-hidden": "true" });
    byId("picture").append(this.boxes);
    this.input.addEventListener("change", () => {
      if (this.wanted && !this.found) ask();
      this.show();
    });
  }

  get wanted() { return this.input.checked; }

  /** The objects and keywords of an answer, or null where it has none. */
  set(found, keywords, { width, height }) {
    this.found = found;
    this.keywords = keywords ?? [];
    this.boxes.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.boxes.replaceChildren(...(found ?? []).toReversed().map((one) => this.box(one, width, height)));
    this.show();
  }

  box({ label, box: [x, y, w, h], confidence }, width, height) {
    const [left, top, letter] = [(x - w / 2) * width, (y - h / 2) * height, LETTER * width];
    const text = draw("text", { x: left + letter / 4, y: top + letter, "font-size": letter,
      "stroke-width": letter / 6 }, `${label} ${percent(confidence)}`);
    const line = { x: left, y: top, width: w * width, height: h * height, rx: letter / 4 };
    return draw("g", {}, draw("rect", { ...line, class: "rim" }), draw("rect", line), text);
  }

  show() {
    const named = (this.found ?? []).map(({ label, confidence }) => `${label} ${percent(confidence)}`);
    const on = this.wanted && Boolean(this.found);
    this.boxes.classList.toggle("on", on);
    this.text.hidden = !on;
    this.text.textContent = named.length ? `Objects: ${named.join(", ")}` : "No objects found.";
    const words = this.keywords.map(({ word, confidence }) => `${word} ${percent(confidence)}`);
    this.keywordText.hidden = !on || !words.length;
    this.keywordText.textContent = `Keywords: ${words.join(", ")}`;
  }
}
