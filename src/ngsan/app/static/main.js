/* The three views as tabs, and the colours. */

import { along, byId, rove } from "./dom.js";
import { Geometry } from "./geometry.js";
import { Photo } from "./photo.js";
import { Scene } from "./scene.js";

const NAMES = ["photo", "scene", "geometry"];
const COLOURS = {
  auto: "Colours: system", light: "Colours: light", dark: "Colours: dark",
};

const tabs = NAMES.map((name) => byId(`tab-${name}`));
const photo = new Photo();
const scene = new Scene();
const geometry = new Geometry(photo, scene);
const views = { photo, scene, geometry };
let shown = null;

const show = (name) => {
  if (shown === name) return;
  views[shown]?.leave?.();
  shown = name;
  NAMES.forEach((each, at) => {
    // Their ids differ from the addresses, to which a browser would scroll.
    byId(`view-${each}`).hidden = each !== name;
    tabs[at].setAttribute("aria-selected", String(each === name));
    tabs[at].setAttribute("tabindex", each === name ? "0" : "-1");
  });
  document.title = `${tabs[NAMES.indexOf(name)].textContent} – ngsan studio`;
  if (location.hash.slice(1) !== name) history.replaceState(null, "", `#${name}`);
  views[name].enter();
};
const named = () => {
  const name = location.hash.slice(1);
  return NAMES.includes(name) ? name : null;
};

rove(tabs, along(tabs.length));
tabs.forEach((tab, at) => {
  tab.addEventListener("click", () => show(NAMES[at]));
  tab.addEventListener("focus", () => { if (tab.matches(":focus-visible")) show(NAMES[at]); });
});
addEventListener("hashchange", () => { if (named()) show(named()); });
document.addEventListener("studio:show", (event) => {
  show(event.detail);
  tabs[NAMES.indexOf(event.detail)].focus({ preventScroll: true });
  scrollTo({ top: 0 });
});
photo.arrived = () => show("photo");

/* The choice lives as long as the page: nothing is stored. */
byId("theme").addEventListener("click", () => {
  const names = Object.keys(COLOURS);
  const root = document.documentElement;
  const next = names[(names.indexOf(root.dataset.theme ?? "auto") + 1) % names.length];
  if (next === "auto") delete root.dataset.theme;
  else root.dataset.theme = next;
  byId("theme").setAttribute("aria-label", COLOURS[next]);
  byId("theme").setAttribute("title", COLOURS[next]);
  byId("theme").querySelector("use").setAttribute("href", `#icon-${next}`);
});

show(named() ?? "photo");
