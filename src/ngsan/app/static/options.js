/* How captions are written: the controls, as options of the API. */

import { choices, group, icon, make, toggle } from "./dom.js";

const SLIDERS = {
  beam: { label: "Beam", least: 1, most: 10, step: 1, value: 3, title: "beam size" },
  num_return: { label: "Captions", least: 1, most: 10, step: 1, value: 3, title: "number of captions" },
  length_penalty: { label: "Favour length", least: 0, most: 2, step: 0.1, value: 0,
    title: "above 0 for longer captions" },
  temperature: { label: "Temperature", least: 0.1, most: 2, step: 0.1, value: 1, title: "above 1 for more variety" },
  top_k: { label: "Top k", least: 0, most: 100, step: 1, value: 0,
    title: "from the k best words; 0 for all", zero: "all" },
  top_p: { label: "Top p", least: 0.05, most: 1, step: 0.05, value: 1,
    title: "from the words with this share" },
  min_length: { label: "Fewest words", least: 0, most: 19, step: 1, value: 0, title: "fewest words of a caption" },
  max_length: { label: "Most words", least: 1, most: 20, step: 1, value: 20, title: "most words of a caption" },
  no_repeat_ngram: { label: "No repeats of", least: 0, most: 5, step: 1, value: 3,
    title: "no n-gram of this length occurs twice; 0 for no rule", zero: "no rule" },
};
const SEARCH = ["beam", "length_penalty"];
const SAMPLING = ["temperature", "top_k", "top_p"];
const BOTH = ["num_return", "min_length", "max_length"];

/** Pairs of which the first may not be above the second: the other one gives way. */
const ORDERED = [["num_return", "beam"], ["min_length", "max_length"]];

export class Options {
  constructor(form, changed) {
    this.form = form;
    this.changed = changed;
    this.method = "beam";
    this.numbers = Object.fromEntries(Object.entries(SLIDERS).map(([name, { value }]) => [name, value]));
    this.seed = 0;
    this.texts = { prefix: "", forbid: "" };
    this.badEnding = false;
    this.sliders = {};
    form.addEventListener("submit", (event) => event.preventDefault());
    this.build();
  }

  build() {
    const methods = [{ value: "beam", label: "Beam search" }, { value: "sample", label: "Sampling" }];
    this.search = make("div", { class: "sliders" }, ...SEARCH.map((name) => this.slider(name)));
    const again = make("button", { type: "button", id: "again" }, icon("dice"), "Draw again");
    again.addEventListener("click", () => { this.seed += 1; this.changed(); });
    this.sampling = make("div", {}, make("div", { class: "sliders" },
      ...SAMPLING.map((name) => this.slider(name))), again);
    this.sampling.hidden = true;
    const both = make("div", { class: "sliders" }, ...BOTH.map((name) => this.slider(name)));
    const more = make("details", {}, make("summary", {}, "More"), make("div", { class: "sliders" },
      this.text("prefix", "Begins with", "a photo of"), this.text("forbid", "Without the words", "man woman"),
      this.slider("no_repeat_ngram"), toggle("May break off, as in “on a”", false, (on) => {
        this.badEnding = on;
        this.changed();
      })));
    this.form.append(
      group("How it writes", choices("method", methods, this.method, (method) => {
        this.method = method;
        this.search.hidden = method !== "beam";
        this.sampling.hidden = method !== "sample";
        this.changed();
      })), this.search, this.sampling, both, more);
  }

  /** Lets one choose among qualities, and among models of photographs where there are several. */
  offer(models) {
    const [{ qualities = [] } = {}] = models.filter((model) => model.default);
    if (qualities.length > 1) {
      const named = qualities.map((value) => ({ value, label: value[0].toUpperCase() + value.slice(1) }));
      this.form.prepend(group("Quality", choices("quality", named, "good", (quality) => {
        this.quality = quality;
        this.changed();
      })));
    }
    if (models.length < 2) return;
    const select = make("select", {});
    models.forEach(({ name, default: first }) => select.append(new Option(name, name, first, first)));
    select.addEventListener("change", () => {
      this.model = select.value;
      this.changed();
    });
    this.form.prepend(make("label", { class: "field" }, make("span", {}, "Model"), select));
  }

  slider(name) {
    const { label, least, most, step, value, title, zero } = SLIDERS[name];
    const input = make("input", { type: "range", id: `option-${name}`, min: String(least), max: String(most),
      step: String(step), title });
    input.value = value;
    // What it says is the value text of the input; read as well, it would be heard twice.
    const output = make("output", { for: `option-${name}`, "aria-hidden": "true" });
    const say = () => {
      const text = zero && this.numbers[name] === 0 ? zero : String(this.numbers[name]);
      output.textContent = text;
      input.setAttribute("aria-valuetext", `${text}: ${title}`);
    };
    input.addEventListener("input", () => {
      this.numbers[name] = Number(input.value);
      this.keepOrder(name);
      say();
      this.changed();
    });
    this.sliders[name] = { input, say };
    say();
    // An output can be labelled too, so the label must say that it is the input's.
    return make("label", { class: "slider", for: `option-${name}` }, make("span", {}, label), output, input);
  }

  keepOrder(changed) {
    for (const [low, high] of ORDERED) {
      if (this.numbers[low] <= this.numbers[high] || ![low, high].includes(changed)) continue;
      const other = changed === low ? high : low;
      this.numbers[other] = this.numbers[changed];
      this.sliders[other].input.value = this.numbers[other];
      this.sliders[other].say();
    }
  }

  text(name, label, example) {
    const input = make("input", { type: "text", placeholder: example, autocomplete: "off",
      spellcheck: "false" });
    input.addEventListener("change", () => {
      this.texts[name] = input.value.trim();
      this.changed();
    });
    return make("label", { class: "field" }, make("span", {}, label), input);
  }

  /** The options of a request; what is at its default is left out. */
  values() {
    const names = this.method === "beam" ? SEARCH : SAMPLING;
    const values = this.method === "sample" ? { method: "sample" } : {};
    for (const name of [...names, ...BOTH, "no_repeat_ngram"]) {
      const number = this.numbers[name];
      if (name === "num_return" || number !== SLIDERS[name].value) values[name] = number;
    }
    if (this.method === "sample" && this.seed) values.seed = this.seed;
    for (const [name, text] of Object.entries(this.texts)) if (text) values[name] = text;
    if (this.model) values.model = this.model;
    if (this.quality) values.quality = this.quality;
    if (this.badEnding) values.no_bad_ending = false;
    return values;
  }
}
