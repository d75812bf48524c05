/* What every scene model says of the scene at once, and who noticed the last move. */

import { Latest, post } from "./api.js";
import { byId, make } from "./dom.js";
import { COLOURS, SHAPES } from "./shapes.js";

export const TITLES = { san: "SAN", "n-san": "N-SAN", "g-san": "G-SAN", "ng-san": "NG-SAN",
  "g-san-ci": "G-SAN, content-independent" };

const PLAIN = new Set(["a", "the", "one", "this", "that", "is", "see", ...COLOURS, ...SHAPES]);

/** Whether a word tells how objects stand to each other. */
export const relates = (word) => !PLAIN.has(word);

export const titleOf = ({ name, signed }) => `${TITLES[name] ?? name}${signed ? ", signed" : ""}`;

export const verdictOf = (truth) => ({ true: "true of this scene", false: "not true of this scene",
  null: "no sentence that can be checked" })[String(truth)];

const MARKS = { true: "✓", false: "✗", null: "–" };
const CLASSES = { true: "good", false: "bad", null: "open" };

export const markOf = (truth) =>
  make("span", { class: `truth ${CLASSES[String(truth)]}`, title: verdictOf(truth) },
    make("span", { "aria-hidden": "true" }, MARKS[String(truth)]),
    make("span", { class: "hidden" }, verdictOf(truth)));

export class Compare {
  constructor(choose) {
    this.choose = choose;
    this.cards = [];
    this.on = true;
    this.objects = [];
    // One model after the other, each with the scene as it is by then.
    this.round = new Latest(async (_, isNewest) => {
      for (const card of this.cards) {
        if (!this.on) return;
        await this.update(card);
      }
      if (isNewest() && this.cards.some((card) => card.objects !== this.objects)) this.round.ask();
    }, byId("compare"));
  }

  build(variants) {
    this.cards = variants.map((variant) => {
      const text = make("span", { class: "said" }, "…");
      const mark = make("span");
      const note = make("span", { class: "noticed soft" });
      const button = make("button", { type: "button", "aria-pressed": "false" },
        make("span", { class: "who" }, titleOf(variant), mark), text, note);
      button.addEventListener("click", () => this.choose(variant));
      return { variant, text, mark, note, button, caption: null, changes: 0, objects: null };
    });
    byId("compare").replaceChildren(...this.cards.map(({ button }) => make("li", {}, button)));
  }

  show(objects) {
    this.objects = objects;
    if (this.on) this.round.ask();
  }

  turn(on) {
    this.on = on;
    byId("compare").hidden = !on;
    if (on) this.round.ask();
  }

  /** A change begins: of a move, those who notice are told from now on. */
  begin(isMove = true) {
    for (const card of this.cards) {
      card.changes = 0;
      card.before = card.caption;
      card.note.textContent = "";
    }
    this.moving = isMove;
  }

  mark(variant) {
    for (const { variant: each, button } of this.cards) {
      button.setAttribute("aria-pressed", String(each.name === variant.name && each.signed === variant.signed));
    }
  }

  async update(card) {
    const { objects } = this;
    if (!objects.length) return;
    const { name, signed } = card.variant;
    try {
      this.tell(card, await post("v1/scene", { model: name, signed, objects }));
    } catch (error) {
      card.text.textContent = error.message;
      card.caption = null; // so that the next one is written, also if it is the same
      card.mark.replaceChildren();
      card.note.textContent = "";
    }
    card.objects = objects;
  }

  tell(card, { caption, words, is_true: truth }) {
    if (caption !== card.caption) {
      card.text.replaceChildren(...words.flatMap((word) =>
        [relates(word) ? make("b", {}, word) : word, " "]));
      if (card.caption !== null && this.moving) {
        card.changes += 1;
        card.button.classList.remove("changed");
        void card.button.offsetWidth; // begins the flash anew
        card.button.classList.add("changed");
      }
      card.caption = caption;
    }
    card.mark.replaceChildren(markOf(truth));
    if (!this.moving) return;
    card.note.textContent = card.changes
      ? `noticed the move: changed ${card.changes === 1 ? "once" : `${card.changes} times`}`
      : "has not noticed the move";
  }
}
