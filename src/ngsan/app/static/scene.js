/* The view of scenes. */

import { Latest, get, post } from "./api.js";
import { Board, described } from "./board.js";
import { Compare, markOf, relates, TITLES, titleOf, verdictOf } from "./compare.js";
import { along, byId, choices, group, icon, make, order, percent, rove, toggle } from "./dom.js";
import { History } from "./history.js";
import { PRESETS, fresh, randomScene } from "./presets.js";
import { COLOURS, PAINT, SHAPES, glyph, miniature, nameOf } from "./shapes.js";

const MAX_OBJECTS = 8;
const SPEAK_AFTER_MS = 700;
const MODELS = ["san", "n-san", "g-san", "ng-san"];

/** Whether two scenes are of the same objects, so that only where and how large they are differs. */
const alike = (a, b) => a.map(nameOf).join() === b.map(nameOf).join();

export class Scene {
  constructor() {
    this.variant = { name: "ng-san", signed: false };
    this.history = new History(PRESETS[0].objects);
    this.selected = null;
    this.started = false;
    this.all = [];
    this.hint = PRESETS[0].hint;
    this.board = new Board(byId("board"), {
      // Strokes of keys that go on with what was done before belong to one move.
      begin: (kind) => { if (kind !== this.history.kind) this.compare.begin(); },
      change: (objects, kind) => this.change(objects, kind),
      end: () => this.history.rest(),
      select: (at) => this.select(at),
      remove: (at) => this.remove(at),
    });
    this.compare = new Compare((variant) => this.use(variant));
    this.latest = new Latest((objects) => this.ask(objects), byId("scene-sentence"));
    this.tools();
    this.presets();
    byId("compare-switch").append(toggle("Compare all models", true, (on) => this.compare.turn(on)));
    addEventListener("keydown", (event) => this.shortcut(event));
  }

  get objects() { return this.history.present; }

  async enter() {
    // Once for all who enter while it is under way; again if it failed.
    this.opening ??= this.open().catch((error) => {
      this.opening = null;
      this.fail(error.message);
    });
    await this.opening;
    this.render();
  }

  async open() {
    const { models } = await get("v1/models");
    const there = models.filter(({ kind }) => kind === "scene");
    this.signable = new Set(there.filter(({ signed }) => signed).map(({ name }) => name));
    this.all = there.map(({ name, signed, geometry }) => ({ name, signed: Boolean(signed), geometry }));
    this.compare.build(this.all.filter(({ name }) => MODELS.includes(name)));
    this.modelChoice();
    this.started = true;
  }

  /** The picture follows at once, the captions as fast as they come. */
  render() {
    this.board.set(this.objects, this.selected);
    this.inspect();
    byId("undo").disabled = !this.history.past.length;
    byId("redo").disabled = !this.history.future.length;
    byId("remove").disabled = this.selected === null || this.objects.length < 2;
    this.adders.forEach((button) => { button.disabled = this.objects.length >= MAX_OBJECTS; });
    if (!this.started) return;
    this.latest.ask(this.objects);
    this.compare.show(this.objects);
  }

  change(objects, kind = null) {
    this.history.push(objects, kind);
    this.render();
  }

  /** A change that is done at once. */
  act(objects, selected = this.selected) {
    this.compare.begin(alike(this.objects, objects));
    this.selected = selected;
    this.change(objects);
    this.history.rest();
  }

  select(at) {
    if (this.selected === at) return;
    this.selected = at;
    this.history.rest();
    this.board.set(this.objects, at);
    this.inspect();
    byId("remove").disabled = at === null || this.objects.length < 2;
  }

  remove(at = this.selected) {
    if (at === null || this.objects.length < 2) return;
    this.act(this.objects.filter((_, index) => index !== at), null);
    this.board.focus(Math.min(at, this.objects.length - 1));
  }

  travel(state) {
    if (!state) return;
    this.compare.begin(alike(this.board.objects, state));
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
    const buttons = PRESETS.map(({ title, objects, hint }) => {
      const button = make("button", { type: "button", class: "preset" }, miniature(objects),
        make("span", {}, title));
      button.addEventListener("click", () => {
        this.hint = hint;
        this.act(objects, null);
        this.status();
      });
      return button;
    });
    const chance = make("button", { type: "button", class: "preset" },
      make("span", { class: "miniature" }, icon("dice")), make("span", {}, "By chance"));
    chance.addEventListener("click", () => {
      this.hint = "A random scene. Move, resize and recolour as you like.";
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
      this.act([...this.objects, fresh(shape, this.objects)], this.objects.length);
      this.board.focus(this.selected);
    }, glyph(shape)));
    const rest = [
      tool("mirror", "mirror", "Mirror the scene left to right",
        () => this.act(this.objects.map((object) => ({ ...object, x: 1 - object.x })))),
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

  /** Colour and shape of the chosen object. */
  inspect() {
    const object = this.objects[this.selected];
    const box = byId("inspector");
    const key = object ? `${this.selected} ${nameOf(object)}` : "";
    if (box.dataset.shown !== key) {
      box.dataset.shown = key;
      const focused = document.activeElement?.closest?.("#inspector") ? document.activeElement.name : null;
      box.replaceChildren(...(object ? this.looks(object) : []));
      if (focused) box.querySelector(`input[name="${focused}"]:checked`)?.focus();
    }
    this.status();
  }

  looks(object) {
    const repaint = (change) => this.act(this.objects.map((other, at) =>
      (at === this.selected ? { ...other, ...change } : other)));
    const colours = COLOURS.map((colour) => ({ value: colour, label: "", title: colour,
      picture: glyph("ball", PAINT[colour]) }));
    const shapes = SHAPES.map((shape) => ({ value: shape, label: "", title: shape, picture: glyph(shape) }));
    return [group("Colour", choices("colour", colours, object.colour, (colour) => repaint({ colour }))),
      group("Shape", choices("shape", shapes, object.shape, (shape) => repaint({ shape })))];
  }

  status() {
    const object = this.objects[this.selected];
    byId("scene-status").textContent = object
      ? `${described(object)}.`
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
    this.latest.ask(this.objects);
  }

  async ask(objects) {
    const { name, signed } = this.variant;
    try {
      const answer = await post("v1/scene", { model: name, signed, objects });
      this.fail("");
      this.tell(answer, objects);
    } catch (error) {
      byId("scene-verdict").replaceChildren(); // what was true need not be so any more
      this.fail(error.message);
    }
  }

  tell(answer, objects) {
    const sentence = byId("scene-sentence");
    this.answer = answer;
    if (sentence.dataset.caption !== answer.caption) {
      sentence.dataset.caption = answer.caption;
      this.write(sentence, answer.words);
    }
    sentence.dataset.model = titleOf(this.variant);
    byId("scene-verdict").replaceChildren(markOf(answer.is_true),
      make("span", { "aria-hidden": "true" }, `${titleOf(this.variant)}: ${verdictOf(answer.is_true)}`));
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => {
      if (this.objects !== objects) return;
      byId("scene-spoken").textContent =
        `${titleOf(this.variant)}: ${answer.caption}, ${verdictOf(answer.is_true)}`;
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

  /** Where a word looked: objects that it did not look at fade. */
  look(at, word) {
    byId("scene-sentence").querySelectorAll(".word").forEach((each) => {
      each.classList.toggle("on", at !== null && each === word);
    });
    const told = at === null ? null : this.answer.attention[at];
    // The scene may have changed since; its answer is under way.
    const row = told?.length === this.objects.length ? told : null;
    this.board.dim(row);
    if (!row) {
      this.status();
      return;
    }
    const most = order(row).map((object) => `the ${nameOf(this.objects[object])} (${percent(row[object])})`);
    byId("scene-status").textContent =
      `“${this.answer.words[at]}” looks at ${most.join(", ")}; the rest at the canvas.`;
  }

  fail(text) {
    byId("scene-error").textContent = text;
    byId("scene-error").hidden = !text;
  }
}
