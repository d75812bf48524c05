/* A caption's words, and where each looked: over the picture, by pointing, keys, or by itself. */

import { along, byId, icon, make, order, percent, rove } from "./dom.js";
import { place, veil } from "./maps.js";

const SECONDS_A_WORD = 0.95;
const HINT = "Point at a word, tap it, or use the arrow keys, to see where the model looked. "
  + "Point at the picture to see which words looked there.";

export class Words {
  constructor() {
    this.sentence = byId("sentence");
    this.status = byId("word-status");
    this.picture = byId("picture");
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.cells = make("div", { class: "cells", role: "group",
      "aria-label": "Cells of the picture; arrow keys go through them" });
    this.cells.hidden = true;
    this.picture.append(this.canvas, this.cells);
    this.words = [];
    this.attention = null;
    this.chosen = null;
    this.timer = null;
    byId("word-back").addEventListener("click", () => this.step(-1));
    byId("word-next").addEventListener("click", () => this.step(1));
    byId("word-play").addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    byId("show-cells").addEventListener("change", (event) => { this.cells.hidden = !event.target.checked; });
    this.picture.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse" && this.attention) this.lookedAt(this.cellAt(event));
    });
    this.picture.addEventListener("pointerleave", () => this.show(this.chosen));
    this.picture.addEventListener("click", (event) => {
      if (event.detail && this.attention) this.lookedAt(this.cellAt(event));
    });
  }

  /** Shows a caption; `attention` has a row of cells for each word, or is null as long as unknown. */
  set(words, attention, grid, message = HINT) {
    this.stop();
    this.texts = words;
    this.attention = attention;
    this.hint = message;
    this.words = words.map((text, at) => this.word(text, at));
    this.sentence.replaceChildren(...this.words.flatMap((word) => [word, " "]));
    rove(this.words, along(words.length));
    if (!this.grid || this.grid.join() !== grid.join()) this.lay(grid);
    this.pin(null);
  }

  word(text, at) {
    const word = make("span", { class: "word", role: "button", "aria-pressed": "false" }, text);
    word.addEventListener("pointerenter", (event) => {
      if (event.pointerType === "mouse" && !this.timer) this.show(at);
    });
    word.addEventListener("pointerleave", () => { if (!this.timer) this.show(this.chosen); });
    word.addEventListener("click", () => { this.stop(); this.pin(this.chosen === at ? null : at); });
    word.addEventListener("focus", () => {
      if (word.matches(":focus-visible")) { this.stop(); this.pin(at); }
    });
    word.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") this.pin(at);
      else if (event.key === "Escape") this.pin(null);
      else return;
      event.preventDefault();
    });
    return word;
  }

  /** The cells as buttons, which also draw the lines between them. */
  lay(grid) {
    this.grid = grid;
    const [rows, columns] = grid;
    this.cells.style.gridTemplateColumns = `repeat(${columns}, 1fr)`;
    this.cells.style.gridTemplateRows = `repeat(${rows}, 1fr)`;
    const buttons = Array.from({ length: rows * columns }, (_, cell) => {
      const button = make("button", { type: "button", "aria-label": place(cell, grid) });
      button.addEventListener("focus", () => {
        if (button.matches(":focus-visible") && this.attention) this.lookedAt(cell);
      });
      return button;
    });
    rove(buttons, (key, at) => {
      if (key === "ArrowRight") return (at + 1) % columns ? at + 1 : null;
      if (key === "ArrowLeft") return at % columns ? at - 1 : null;
      return { ArrowDown: at + columns, ArrowUp: at - columns, Home: 0, End: buttons.length - 1 }[key] ?? null;
    });
    this.cells.replaceChildren(...buttons);
  }

  cellAt(event) {
    const box = this.picture.getBoundingClientRect();
    const [rows, columns] = this.grid;
    const within = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    return columns * within((event.clientY - box.top) / box.height, rows)
      + within((event.clientX - box.left) / box.width, columns);
  }

  pin(at) {
    this.chosen = at;
    this.show(at);
  }

  show(at) {
    this.words.forEach((word, index) => {
      word.classList.toggle("on", index === at);
      word.style.backgroundColor = "";
      word.setAttribute("aria-pressed", String(index === at));
    });
    const seen = at !== null && this.attention;
    this.canvas.classList.toggle("on", Boolean(seen));
    if (!seen) {
      if (this.status.textContent !== this.hint) this.status.textContent = this.hint;
      return;
    }
    const values = this.attention[at];
    veil(this.canvas, values, this.grid);
    const most = order(values).slice(0, 3)
      .map((cell) => `${place(cell, this.grid)} (${percent(values[cell])})`);
    this.status.textContent = `“${this.texts[at]}” looks most at ${most.join("; ")}.`;
  }

  /** The other way round: which words looked at a cell. */
  lookedAt(cell) {
    this.stop();
    this.canvas.classList.remove("on");
    const shares = this.attention.map((row) => row[cell]);
    const most = Math.max(...shares, 1e-9);
    this.words.forEach((word, at) => {
      word.classList.remove("on");
      word.style.backgroundColor = `rgb(var(--warm) / ${(0.5 * (shares[at] / most) ** 1.5).toFixed(2)})`;
    });
    const best = order(shares).slice(0, 3).map((at) => `“${this.texts[at]}” (${percent(shares[at])})`);
    this.status.textContent = `The cell at ${place(cell, this.grid)} was looked at most by ${best.join(", ")}.`;
  }

  step(by) {
    this.stop();
    if (!this.words.length) return;
    const from = this.chosen ?? (by > 0 ? -1 : this.words.length);
    this.pin((from + by + this.words.length) % this.words.length);
  }

  play() {
    if (!this.attention) return;
    this.label("pause", "Pause");
    let at = this.chosen ?? -1;
    if (at >= this.words.length - 1) at = -1;
    const next = () => {
      at += 1;
      if (at >= this.words.length) {
        this.stop();
        this.pin(null);
      } else {
        this.pin(at);
      }
    };
    this.timer = setInterval(next, 1000 * SECONDS_A_WORD);
    next();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.label("play", "Play the words");
  }

  label(name, text) {
    byId("word-play").replaceChildren(icon(name));
    byId("word-play").setAttribute("aria-label", text);
  }
}
