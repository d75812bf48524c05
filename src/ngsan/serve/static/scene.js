/* The view of scenes. */

import { Latest, get, post } from "./api.js";
import { Board, described } from "./board.js";
import { Compare, markOf, relates, TITLES, titleOf, verdictOf } from "./compare.js";
import { along, byId, choices, group, icon, make, order, percent, rove, toggle } from "./dom.js";
import { History } from "./history.js";
import { PRESETS, fresh, randomScene } from "./presets.js";
import { COLOURS, PAINT, SHAPES, glyph, miniature, nameOf } from "./shapes.js";

const MOST_THINGS = 8;
const SPEAK_AFTER_MS = 700;
const MODELS = ["san", "n-san", "g-san", "ng-san"];

export class Scene {
  constructor() {
    this.variant = { name: "ng-san", signed: false };
    this.history = new History(PRESETS[0].things);
    this.selected = null;
    this.started = false;
    this.hint = PRESETS[0].hint;
    this.board = new Board(byId("board"), {
      // Strokes of keys that go on with what was done before belong to one move.
      begin: (kind) => { if (kind !== this.history.kind) this.compare.begin(); },
      change: (things, kind) => this.change(things, kind),
      end: () => this.history.rest(),
      select: (at) => this.select(at),
      remove: (at) => this.remove(at),
    });
    this.compare = new Compare((variant) => this.use(variant));
    this.latest = new Latest((things) => this.ask(things), byId("scene-sentence"));
    this.tools();
    this.presets();
    byId("compare-switch").append(toggle("Compare all models", true, (on) => this.compare.turn(on)));
    addEventListener("keydown", (event) => this.shortcut(event));
  }

  get things() { return this.history.present; }

  async enter() {
    if (!this.started) {
      this.started = true;
      const { models } = await get("v1/models").catch((error) => {
        this.fail(error.message);
        return { models: [] };
      });
      const there = models.filter(({ kind }) => kind === "scene");
      this.signable = new Set(there.filter(({ signed }) => signed).map(({ name }) => name));
      this.all = there.map(({ name, signed, geometry }) => ({ name, signed: Boolean(signed), geometry }));
      this.compare.build(this.all.filter(({ name }) => MODELS.includes(name)));
      this.modelChoice();
    }
    this.render();
  }

  /** The picture follows at once, the captions as fast as they come. */
  render() {
    this.board.set(this.things, this.selected);
    this.inspect();
    byId("undo").disabled = !this.history.past.length;
    byId("redo").disabled = !this.history.future.length;
    byId("remove").disabled = this.selected === null || this.things.length < 2;
    this.adders.forEach((button) => { button.disabled = this.things.length >= MOST_THINGS; });
    if (!this.started) return;
    this.latest.ask(this.things);
    this.compare.show(this.things);
  }

  change(things, kind = null) {
    this.history.push(things, kind);
    this.render();
  }

  /** A change that is done at once. */
  act(things, selected = this.selected) {
    this.compare.begin();
    this.selected = selected;
    this.change(things);
    this.history.rest();
  }

  select(at) {
    if (this.selected === at) return;
    this.selected = at;
    this.history.rest();
    this.board.set(this.things, at);
    this.inspect();
    byId("remove").disabled = at === null || this.things.length < 2;
  }

  remove(at = this.selected) {
    if (at === null || this.things.length < 2) return;
    this.act(this.things.filter((_, index) => index !== at), null);
    this.board.focus(Math.min(at, this.things.length - 1));
  }

  travel(state) {
    if (!state) return;
    this.compare.begin();
    if (this.selected >= state.length) this.selected = null;
    this.render();
  }

  shortcut(event) {
    if (byId("view-scene").hidden || event.target.closest?.("input[type=text]")) return;
    if (!(event.ctrlKey || event.metaKey) || event.altKey) return;
    const key = event.key.toLowerCase();
    if (key === "z" && !event.shiftKey) this.travel(this.history.undo());
    else if (key === "y" || key === "z") this.travel(this.history.redo());
    else return;
    event.preventDefault();
  }

  presets() {
    const buttons = PRESETS.map(({ title, things, hint }) => {
      const button = make("button", { type: "button", class: "preset" }, miniature(things),
        make("span", {}, title));
      button.addEventListener("click", () => {
        this.hint = hint;
        this.act(things, null);
        this.status();
      });
      return button;
    });
    const chance = make("button", { type: "button", class: "preset" },
      make("span", { class: "miniature" }, icon("dice")), make("span", {}, "By chance"));
    chance.addEventListener("click", () => {
      this.hint = "Made by chance. Move, resize and recolour as you like.";
      this.act(randomScene(), null);
    });
    buttons.push(chance);
    byId("presets").replaceChildren(...buttons);
    rove(buttons, along(buttons.length));
  }

  tools() {
    const tool = (id, name, label, act, picture = icon(name)) => {
      const button = make("button", { type: "button", id, class: "plain", "aria-label": label,
        title: label }, picture);
      button.addEventListener("click", act);
      return button;
    };
    this.adders = SHAPES.map((shape) => tool(`add-${shape}`, "", `Add a ${shape}`, () => {
      this.act([...this.things, fresh(shape, this.things)], this.things.length);
      this.board.focus(this.selected);
    }, glyph(shape)));
    const rest = [
      tool("mirror", "mirror", "Mirror the scene left to right",
        () => this.act(this.things.map((thing) => ({ ...thing, x: 1 - thing.x })))),
      tool("undo", "undo", "Undo", () => this.travel(this.history.undo())),
      tool("redo", "redo", "Redo", () => this.travel(this.history.redo())),
      tool("remove", "delete", "Delete the chosen shape", () => this.remove()),
    ];
    byId("toolbar").append(make("span", { class: "label soft", "aria-hidden": "true" }, "Add"), ...this.adders,
      make("span", { class: "gap" }), ...rest);
    const buttons = [...this.adders, ...rest];
    rove(buttons, (key, at) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[key];
      let to = at + by;
      while (by && buttons[to]?.disabled) to += by;
      return by ? to : { Home: 0, End: buttons.length - 1 }[key] ?? null;
    });
  }

  /** Colour and shape of the chosen thing. */
  inspect() {
    const thing = this.things[this.selected];
    const box = byId("inspector");
    const key = thing ? `${this.selected} ${nameOf(thing)}` : "";
    if (box.dataset.shown !== key) {
      box.dataset.shown = key;
      const focused = document.activeElement?.closest?.("#inspector") ? document.activeElement.name : null;
      box.replaceChildren(...(thing ? this.looks(thing) : []));
      if (focused) box.querySelector(`input[name="${focused}"]:checked`)?.focus();
    }
    this.status();
  }

  looks(thing) {
    const repaint = (change) => this.act(this.things.map((other, at) =>
      (at === this.selected ? { ...other, ...change } : other)));
    const colours = COLOURS.map((colour) => ({ value: colour, label: "", title: colour,
      picture: glyph("ball", PAINT[colour]) }));
    const shapes = SHAPES.map((shape) => ({ value: shape, label: "", title: shape, picture: glyph(shape) }));
    return [group("Colour", choices("colour", colours, thing.colour, (colour) => repaint({ colour }))),
      group("Shape", choices("shape", shapes, thing.shape, (shape) => repaint({ shape })))];
  }

  status() {
    const thing = this.things[this.selected];
    byId("scene-status").textContent = thing
      ? `${described(thing)}.`
      : "Choose a shape to resize or recolour it. Arrow keys move it, + and − resize it.";
    byId("scene-hint").textContent = this.hint;
  }

  modelChoice() {
    const options = MODELS.filter((name) => this.all.some((each) => each.name === name))
      .map((name) => ({ value: name, label: TITLES[name] }));
    const sign = toggle("Signed geometry", this.variant.signed,
      (signed) => this.use({ ...this.variant, signed }));
    byId("scene-models").replaceChildren(
      group("Model", choices("model", options, this.variant.name, (name) =>
        this.use({ name, signed: this.variant.signed && this.signable.has(name) }))), sign);
    this.sign = sign.querySelector("input");
    this.use(this.variant);
  }

  use(variant) {
    this.variant = { name: variant.name, signed: variant.signed };
    const radio = byId("scene-models").querySelector(`input[value="${variant.name}"]`);
    if (radio) radio.checked = true;
    this.sign.checked = variant.signed;
    this.sign.disabled = !this.signable.has(variant.name);
    this.compare.mark(this.variant);
    this.latest.ask(this.things);
  }

  async ask(things) {
    const { name, signed } = this.variant;
    try {
      const answer = await post("v1/scene", { model: name, signed, things });
      this.fail("");
      this.tell(answer, things);
    } catch (error) {
      this.fail(error.message);
    }
  }

  tell(answer, things) {
    const sentence = byId("scene-sentence");
    this.answer = answer;
    if (sentence.dataset.caption !== answer.caption) {
      sentence.dataset.caption = answer.caption;
      this.write(sentence, answer.words);
    }
    sentence.dataset.model = titleOf(this.variant);
    byId("scene-verdict").replaceChildren(markOf(answer.true),
      make("span", { "aria-hidden": "true" }, `${titleOf(this.variant)}: ${verdictOf(answer.true)}`));
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => {
      if (this.things !== things) return;
      byId("scene-spoken").textContent =
        `${titleOf(this.variant)}: ${answer.caption}, ${verdictOf(answer.true)}`;
    }, SPEAK_AFTER_MS);
  }

  write(sentence, texts) {
    const words = texts.map((text, at) => {
      const word = make("span", { class: relates(text) ? "word relation" : "word", role: "button",
        "aria-describedby": "scene-status" }, text);
      word.addEventListener("pointerenter", () => this.look(at, word));
      word.addEventListener("pointerleave", () => this.look(null, word));
      word.addEventListener("focus", () => { if (word.matches(":focus-visible")) this.look(at, word); });
      word.addEventListener("blur", () => this.look(null, word));
      return word;
    });
    sentence.replaceChildren(...words.flatMap((word) => [word, " "]));
    rove(words, along(words.length));
  }

  /** Where a word looked: things that it did not look at fade. */
  look(at, word) {
    byId("scene-sentence").querySelectorAll(".word").forEach((each) => {
      each.classList.toggle("on", at !== null && each === word);
    });
    const told = at === null ? null : this.answer.attention[at];
    // The scene may have changed since; its answer is under way.
    const row = told?.length === this.things.length ? told : null;
    this.board.dim(row);
    if (!row) {
      this.status();
      return;
    }
    const most = order(row).map((thing) => `the ${nameOf(this.things[thing])} (${percent(row[thing])})`);
    byId("scene-status").textContent =
      `“${this.answer.words[at]}” looks at ${most.join(", ")}; the rest at the canvas.`;
  }

  fail(text) {
    byId("scene-error").textContent = text;
    byId("scene-error").hidden = !text;
  }
}
