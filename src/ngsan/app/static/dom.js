/* Elements, words for numbers, and focus that moves by arrow keys. */

const SVG = "http://www.w3.org/2000/svg";

const attributes = (element, properties) => {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name in element && typeof value !== "string" && !(element instanceof SVGElement)) {
      element[name] = value;
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  return element;
};

/** An element with properties or attributes, and what is in it. */
export const make = (name, properties = {}, ...children) => {
  const element = attributes(document.createElement(name), properties);
  element.append(...children.filter((child) => child !== null));
  return element;
};

/** The same for pictures. */
export const draw = (name, properties = {}, ...children) => {
  const element = attributes(document.createElementNS(SVG, name), properties);
  element.append(...children);
  return element;
};

export const byId = (id) => document.getElementById(id);

/** An icon of the sheet in the page. */
export const icon = (name) =>
  draw("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" },
    draw("use", { href: `#icon-${name}` }));

export const clamp = (value, least, most) => Math.max(least, Math.min(most, value));

export const percent = (share) => {
  const value = 100 * share;
  if (value >= 9.95) return `${value.toFixed(0)} %`;
  return value >= 0.05 ? `${value.toFixed(1)} %` : "< 0.1 %";
};

/** A logarithm as the factor that it stands for. */
export const factor = (log) => {
  const size = Math.exp(Math.abs(log));
  const text = size >= 995 ? "1000 or more" : size.toFixed(size >= 9.95 ? 0 : 2);
  return `${log < 0 ? "÷" : "×"} ${text}`;
};

/** A number with a true minus sign. */
export const signed = (value, digits = 2) => value.toFixed(digits).replace("-", "−");

/** The places of values, the greatest first. */
export const order = (values) => [...values.keys()].sort((a, b) => values[b] - values[a]);

/**
 * Lets keys go through elements of which one at a time can be reached by tab.
 * `step` tells the place that a key leads to from another, or null.
 */
export const rove = (elements, step, chosen = 0) => {
  elements.forEach((element, at) => {
    element.setAttribute("tabindex", at === chosen ? "0" : "-1");
    element.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const target = step(event.key, at);
      if (target === null || target === undefined || !elements[target]) return;
      event.preventDefault();
      elements[target].focus();
    });
    element.addEventListener("focus", () => {
      elements.forEach((other) => other.setAttribute("tabindex", other === element ? "0" : "-1"));
    });
  });
};

/** Steps of a row of elements. */
export const along = (count) => (key, at) =>
  ({ ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1,
    Home: 0, End: count - 1 })[key] ?? null;

/** Radio buttons that look like a row of keys; calls `choose` with the value. */
export const choices = (name, options, value, choose) => {
  const row = make("div", { class: "options" });
  for (const { value: each, label, title, picture, disabled } of options) {
    const input = make("input", { type: "radio", name, value: String(each) });
    input.checked = each === value;
    input.disabled = Boolean(disabled);
    if (title) input.setAttribute("aria-label", title);
    input.addEventListener("change", () => choose(each));
    const text = label === "" ? [] : [make("span", {}, label)];
    row.append(make("label", { class: "option", title: title ?? null }, input,
      ...(picture ? [picture] : []), ...text));
  }
  return row;
};

/** A named group of such buttons. */
export const group = (legend, ...children) =>
  make("fieldset", {}, make("legend", {}, legend), ...children);

/** A switch. */
export const toggle = (label, checked, change) => {
  const input = make("input", { type: "checkbox", role: "switch" });
  input.checked = checked;
  input.addEventListener("change", () => change(input.checked));
  return make("label", { class: "switch" }, input, make("span", { class: "knob" }), make("span", {}, label));
};

/** Gives a file to the browser's downloads. */
export const save = (blob, name) => {
  const address = URL.createObjectURL(blob);
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
};
