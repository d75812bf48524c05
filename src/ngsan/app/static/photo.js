/* The view of photographs. */

import { Newest, Refusal, file, get, post } from "./api.js";
import { along, byId, make, percent, rove, signed } from "./dom.js";
import { saveJson, savePicture } from "./download.js";
import { listen } from "./intake.js";
import { MEAN, unpack } from "./maps.js";
import { Objects } from "./objects.js";
import { Options } from "./options.js";
import { Words } from "./words.js";

const PATIENCE_MS = 180;
/** Explanations of a photograph that are kept. */
const MOST_KEPT = 40;

/** A name of a file that leaves room for others. */
const brief = (name) => (name.length > 60 ? `${name.slice(0, 40)}…${name.slice(-15)}` : name);

export class Photo {
  constructor() {
    this.items = [];
    this.current = null;
    this.result = null;
    this.picked = 0;
    this.arrived = () => {};
    this.started = false;
    this.image = make("img", { id: "photograph", alt: "" });
    byId("picture").append(this.image);
    this.image.addEventListener("load", () => {
      const { naturalWidth, naturalHeight } = this.image;
      byId("picture").style.setProperty("--ratio", String(naturalWidth / naturalHeight));
    });
    this.words = new Words();
    this.objects = new Objects(() => this.caption());
    this.options = new Options(byId("controls"), () => {
      clearTimeout(this.delay);
      this.delay = setTimeout(() => this.caption(), PATIENCE_MS);
    });
    this.request = new Newest((signal, item, options) => this.ask(signal, item, options), byId("best"));
    this.looking = new Newest((signal, item, text) => this.explain(item, text, signal), byId("sentence"));
    listen((files) => this.take(files), (text) => this.fail(text));
    byId("save-json").addEventListener("click", () => this.saveJson());
    byId("save-picture").addEventListener("click", () => this.savePicture());
    byId("to-geometry").addEventListener("click", () => {
      document.dispatchEvent(new CustomEvent("studio:photograph"));
      document.dispatchEvent(new CustomEvent("studio:show", { detail: "geometry" }));
    });
  }

  async enter() {
    if (this.started) return;
    this.started = true;
    try {
      const [examples, { models }] = await Promise.all([get("v1/examples"), get("v1/models")]);
      this.options.offer(models.filter(({ kind }) => kind === "photo"));
      this.items.push(...examples.map(({ file: name, title, credit, url }) =>
        ({ name, title: title || name, credit, url: url.replace(/^\//, ""), blob: null })));
    } catch (error) {
      this.started = false; // who comes back to this view tries again
      this.fail(error.message);
    }
    this.list();
    if (this.current || !this.items.length) return;
    this.fail("");
    this.choose(this.items[0]);
  }

  leave() { this.words.stop(); }

  /** Photographs of the visitor; the first is shown at once, all are in the gallery. */
  take(files) {
    const taken = files.map((blob) => ({ name: blob.name || "pasted.png", title: blob.name || "Pasted",
      credit: "", url: URL.createObjectURL(blob), blob, own: true }));
    this.items.unshift(...taken);
    this.choose(taken[0]);
    this.list();
    this.arrived();
  }

  list() {
    const buttons = this.items.map((item) => {
      const image = make("img", { src: item.url, alt: "", loading: "lazy", decoding: "async" });
      image.addEventListener("error", () => {
        // A server with a token gives its pictures to requests that carry it.
        if (!item.own && !item.blob) this.fetch(item).then(() => { image.src = item.url; }, () => {});
      }, { once: true });
      const button = make("button", { type: "button", class: "thumb", "aria-label": item.title,
        title: item.title }, image);
      button.addEventListener("click", () => this.choose(item));
      item.button = button;
      return button;
    });
    byId("gallery").replaceChildren(...buttons);
    if (buttons.length) rove(buttons, along(buttons.length), Math.max(0, this.items.indexOf(this.current)));
    this.mark();
  }

  mark() {
    for (const item of this.items) item.button?.setAttribute("aria-pressed", String(item === this.current));
  }

  async fetch(item, signal) {
    if (!item.blob) {
      item.blob = await file(item.url, { signal });
      item.url = URL.createObjectURL(item.blob);
    }
    return item.blob;
  }

  choose(item) {
    this.current = item;
    this.result = null;
    this.looking.stop();
    this.mark();
    byId("photo-card").hidden = false;
    byId("photo-credit").textContent = item.credit ? `Photograph: ${item.credit}` : brief(item.name);
    this.image.src = item.url;
    this.image.alt = item.title;
    this.words.set([], null, this.words.grid ?? [1, 1], " ");
    byId("best").replaceChildren();
    this.objects.set(null, null, { width: 1, height: 1 });
    byId("confidence-text").hidden = true;
    this.caption();
  }

  async caption() {
    const item = this.current;
    if (!item) return;
    this.fail("");
    byId("photo-busy").hidden = false;
    for (const id of ["save-json", "save-picture", "to-geometry"]) byId(id).disabled = true;
    try {
      const done = await this.request.ask(item, this.options.values());
      if (!done) return; // a newer wish is under way
      byId("photo-busy").hidden = true;
      this.fail("");
      this.show(item, done);
    } catch (error) {
      byId("photo-busy").hidden = true;
      this.fail(error instanceof Refusal ? error.message : `Error in this page: ${error.message}`);
    }
  }

  async ask(signal, item, options) {
    const form = new FormData();
    form.append("image", await this.fetch(item, signal), item.name);
    const more = this.objects.wanted ? { attention: true, objects: true, keywords: true } : { attention: true };
    for (const [name, value] of Object.entries({ ...options, ...more })) {
      form.append(name, String(value));
    }
    const answer = await post("v1/caption", form, { signal, waiting: (text) => this.fail(text, true) });
    return { options, model: answer.model, ...answer.results[0] };
  }

  show(item, result) {
    this.result = result;
    // The size of the upright picture, also where a browser cannot show the file itself.
    this.image.width = result.width;
    this.image.height = result.height;
    this.image.alt = `${item.title}: ${result.caption}`;
    this.objects.set(result.objects ?? null, result.keywords, result);
    byId("confidence-text").hidden = result.confidence === undefined;
    byId("confidence-text").textContent = `Right with a probability of ${percent(result.confidence ?? 0)}`;
    for (const id of ["save-json", "save-picture", "to-geometry"]) byId(id).disabled = false;
    const all = [result, ...result.others];
    const best = Math.max(...all.map((each) => each.log_probability));
    const listed = all.length > 1 ? all.map((each, at) => this.alternative(each, at, best)) : [];
    byId("best").replaceChildren(...listed);
    byId("spoken").textContent = result.caption;
    this.pick(0);
  }

  alternative({ caption, log_probability: log, score }, at, best) {
    const share = Math.exp(log - best);
    const meter = make("span", { class: "meter", "aria-hidden": "true" }, make("span"));
    meter.firstChild.style.width = `${Math.max(1, 100 * share)}%`;
    // Without a length penalty the two are one number.
    const numbers = Math.abs(score - log) < 0.005 ? `score ${signed(score)}`
      : `score ${signed(score)}, log-probability ${signed(log)}`;
    const relative = share > 0.9995 ? "the most probable" : `${percent(share)} as probable`;
    const button = make("button", { type: "button" }, make("span", { class: "text" }, caption), meter,
      make("span", { class: "soft" }, `${numbers}, ${relative}`));
    button.addEventListener("click", () => this.pick(at));
    return make("li", {}, button);
  }

  /** Shows one of the captions; where the others looked is asked for when they are chosen. */
  async pick(at) {
    this.picked = at;
    [...byId("best").children].forEach((line, each) => {
      line.firstChild.setAttribute("aria-pressed", String(each === at));
    });
    const { result, current } = this;
    this.looking.stop();
    if (at === 0) {
      this.words.set(result.words, result.attention ?? null, result.grid);
      return;
    }
    const { caption } = result.others[at - 1];
    const words = caption.split(" ").filter(Boolean);
    this.words.set(words, null, result.grid, "Computing the attention of these words …");
    try {
      const told = await this.looking.ask(current, caption);
      if (!told || this.result !== result || this.picked !== at) return;
      const { attention } = unpack(told.blob, { attention: told.attention });
      const rows = words.map((_, word) => attention.row(attention.layers - 1, MEAN, word));
      this.words.set(words, rows, told.grid);
    } catch (error) {
      if (this.picked === at) this.words.set(words, null, result.grid, error.message);
    }
  }

  /** What the encoder and the decoder looked at; also for the view of geometry. */
  async explain(item, caption, signal) {
    return this.explained(item, caption, {}, signal);
  }

  /** The geometric bias of a cell in a layer; without a head, of the mean of the heads. */
  async surfaces(item, caption, cell, signal) {
    return (await this.explained(item, caption, cell, signal)).surfaces;
  }

  async explained(item, caption, cell, signal) {
    item.explained ??= new Map();
    const key = JSON.stringify([this.options.model ?? "", caption, cell]);
    if (!item.explained.has(key)) {
      if (item.explained.size > MOST_KEPT) item.explained.clear();
      const form = new FormData();
      form.append("image", await this.fetch(item, signal), item.name);
      if (caption) form.append("caption", caption);
      if (this.options.model) form.append("model", this.options.model);
      for (const [name, value] of Object.entries(cell)) form.append(name, String(value));
      const told = await post("v1/explain", form, { signal });
      item.explained.set(key, told.surfaces ? { surfaces: told.surfaces } : told);
    }
    return item.explained.get(key);
  }

  fail(text, waiting = false) {
    const notice = byId("photo-error");
    notice.textContent = text;
    notice.hidden = !text;
    notice.classList.toggle("waiting", waiting);
  }

  saveJson() {
    const { model, options, ...rest } = this.result;
    saveJson(this.current.name, { image: this.current.name, model, options, ...rest });
  }

  savePicture() {
    const { texts: words, chosen, attention, grid } = this.words;
    if (!this.image.naturalWidth) {
      this.fail("This browser cannot show files of this kind, so it cannot draw the picture.");
      return;
    }
    savePicture({ image: this.image, name: this.current.name, words, chosen, attention, grid,
      credit: this.current.credit });
  }
}
