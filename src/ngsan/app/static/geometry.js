/* The view of geometry: which regions attend to which, by content and by geometry. */

import { Latest, Newest, post } from "./api.js";
import { titleOf } from "./compare.js";
import { byId, choices, group, make, order } from "./dom.js";
import { MEAN, PlainMap, place, unpack } from "./maps.js";
import { Panels, sketch } from "./panels.js";
import { nameOf } from "./shapes.js";
import { Surfaces } from "./surfaces.js";

const CANVAS = [0.5, 0.5, 1, 1];
const NOTES = {
  scene: "Every object looks at every other, and at the whole canvas. "
    + "Choose one that looks, then a layer and a head. ",
  photograph: "Every cell looks at every other. Choose one that looks, then a layer and a head. ",
};
const EQUATION = "The first picture times the second is the third: "
  + "content says what looks alike, geometry what lies how.";

/** Some cells are looked at by every word; the one that a single word prefers most tells more. */
const telling = (attention, words) => {
  const rows = Array.from({ length: words }, (_, word) => attention.row(attention.layers - 1, MEAN, word));
  const preferred = rows[0].map((_, cell) => {
    const shares = rows.map((row) => row[cell]);
    return Math.max(...shares) - shares.reduce((sum, share) => sum + share, 0) / shares.length;
  });
  return order(preferred)[0];
};

export class Geometry {
  constructor(photo, scene) {
    this.photo = photo;
    this.scene = scene;
    this.source = "scene";
    const first = { region: 0, layer: null, head: MEAN };
    this.state = { scene: { ...first }, photograph: { ...first } };
    this.panels = new Panels((at) => this.choose(at));
    this.surfaces = new Surfaces();
    this.ofScene = new Latest(() => this.loadScene(), byId("panels"));
    this.ofPhotograph = new Newest((signal) => this.loadPhotograph(signal), byId("panels"));
    document.addEventListener("studio:photograph", () => { this.source = "photograph"; });
  }

  async enter() {
    // Models and photographs are listed by the views that they belong to.
    if (!this.scene.started) await this.scene.enter();
    if (!this.variant) this.variant = { ...this.scene.variant };
    else if (this.followed !== titleOf(this.scene.variant)) this.variant = { ...this.scene.variant };
    this.followed = titleOf(this.scene.variant);
    await this.load();
  }

  leave() { this.ofPhotograph.stop(); }

  async load() {
    this.fail("");
    if (this.source === "scene") {
      this.ofScene.ask();
      return;
    }
    this.surfaces.hide();
    try {
      if (!this.photo.current) await this.photo.enter();
      this.busy("Computing the attention …");
      await this.ofPhotograph.ask();
    } catch (error) {
      this.fail(error.message);
    }
    this.busy("");
  }

  async loadScene() {
    const { objects } = this.scene;
    const { name, signed } = this.variant;
    try {
      const { maps } = await post("v1/scene", { model: name, signed, objects, maps: true });
      if (this.source !== "scene") return;
      const plain = Object.fromEntries(Object.entries(maps).filter(([, lists]) => lists)
        .map(([kind, lists]) => [kind, new PlainMap(lists)]));
      this.show({ maps: plain, objects, names: [...objects.map((object) => `the ${nameOf(object)}`), "the canvas"],
        boxes: [...objects.map(({ x, y, width, height }) => [x, y, width, height]), CANVAS] });
    } catch (error) {
      this.choices();
      this.fail(error.message);
    }
  }

  async loadPhotograph(signal) {
    const item = this.photo.current;
    if (!item) return;
    const caption = this.photo.result?.caption ?? "";
    const told = await this.photo.explain(item, caption, signal);
    if (this.source !== "photograph") return;
    const [rows, columns] = told.grid;
    const cells = Array.from({ length: rows * columns }, (_, cell) => cell);
    const { attention, ...maps } = unpack(told.blob, { ...told.regions, attention: told.attention });
    if (this.looked !== item) this.state.photograph.region = telling(attention, told.words.length);
    this.looked = item;
    if (!maps.geometry) delete maps.content;
    this.show({ maps, item, caption, names: cells.map((cell) => place(cell, told.grid)),
      boxes: cells.map((cell) => [((cell % columns) + 0.5) / columns, (Math.floor(cell / columns) + 0.5) / rows,
        1 / columns, 1 / rows]),
      photograph: { address: item.url, width: told.width, height: told.height } });
  }

  show(subject) {
    this.subject = subject;
    const state = this.state[this.source];
    const { layers, heads } = subject.maps.weights;
    state.layer = Math.min(state.layer ?? layers - 1, layers - 1);
    if (state.head >= heads) state.head = MEAN;
    if (state.region >= subject.boxes.length) state.region = 0;
    this.panels.set(subject);
    this.choices();
    byId("geometry-note").textContent = NOTES[this.source] + (subject.maps.geometry ? EQUATION : "");
    byId("numbers").open ||= this.source === "scene";
    this.draw();
  }

  choices() {
    const state = this.state[this.source];
    const box = byId("geometry-choices");
    const active = document.activeElement;
    const focused = active && box.contains(active) ? [active.name, active.value] : null;
    const parts = [group("Of", choices("source", [{ value: "scene", label: "Scene" },
      { value: "photograph", label: "Photograph" }], this.source, (source) => {
      this.source = source;
      this.load();
    }))];
    if (this.source === "scene") parts.push(this.models());
    if (this.subject?.maps) parts.push(...this.layersAndHeads(state));
    box.replaceChildren(...parts);
    // The buttons were made anew; who used the keyboard goes on where they were.
    if (!focused) return;
    const [name, value] = focused;
    box.querySelector(`[name="${name}"][value="${value}"], select[name="${name}"]`)?.focus();
  }

  models() {
    const select = make("select", { name: "geometry-model", "aria-label": "Model" });
    this.scene.all.forEach((variant, at) => {
      const chosen = variant.name === this.variant.name && variant.signed === this.variant.signed;
      select.append(new Option(titleOf(variant), String(at), false, chosen));
    });
    select.addEventListener("change", () => {
      this.variant = this.scene.all[Number(select.value)];
      this.load();
    });
    return group("Model", select);
  }

  layersAndHeads(state) {
    const { layers, heads } = this.subject.maps.weights;
    const count = (length) => Array.from({ length }, (_, at) => at);
    const ofLayers = count(layers).map((at) =>
      ({ value: at, label: String(at + 1), title: `layer ${at + 1}` }));
    const layer = choices("layer", ofLayers, state.layer, (value) => {
      state.layer = value;
      this.draw();
    });
    this.sketches = [MEAN, ...count(heads)].map((each) =>
      ({ head: each, canvas: make("canvas", { "aria-hidden": "true" }) }));
    const ofHeads = this.sketches.map(({ head: each, canvas }) => (each === MEAN
      ? { value: each, picture: canvas, label: "mean", title: "mean of the heads" }
      : { value: each, picture: canvas, label: String(each + 1), title: `head ${each + 1}` }));
    const head = choices("head", ofHeads, state.head, (value) => {
      state.head = value;
      this.draw();
    });
    head.classList.add("heads");
    return [group("Layer", layer), group("Head", head)];
  }

  choose(at) {
    this.state[this.source].region = at;
    this.draw();
  }

  draw() {
    const { region, layer, head } = this.state[this.source];
    const { maps, boxes, objects, names } = this.subject;
    this.panels.show(layer, head, region);
    for (const { head: each, canvas } of this.sketches) {
      const drawn = objects ? boxes.slice(0, objects.length) : boxes;
      sketch(canvas, drawn, maps.weights.row(layer, each, region).slice(0, drawn.length));
    }
    if (!maps.geometry) {
      this.surfaces.hide();
      return;
    }
    if (!objects) {
      const { item, caption } = this.subject;
      const cell = { region, layer, ...(head === MEAN ? {} : { head }) };
      this.surfaces.show({ head, name: `the cell in ${names[region]}`,
        load: (signal) => this.photo.surfaces(item, caption, cell, signal) });
      return;
    }
    const { name, signed } = this.variant;
    const known = this.scene.all.find((each) => each.name === name && each.signed === signed);
    const independent = known?.geometry === "content-independent";
    this.surfaces.show({ model: name, signed, independent, layer, head,
      heads: maps.weights.heads, objects, object: region, name: names[region] });
  }

  /** What is said while something takes long. */
  busy(text) {
    byId("panels").classList.toggle("waiting", Boolean(text));
    if (text) byId("geometry-note").textContent = text;
  }

  fail(text) {
    byId("geometry-error").textContent = text;
    byId("geometry-error").hidden = !text;
  }
}
