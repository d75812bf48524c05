/* A result as a file: JSON, or a picture of the photograph, the caption and where a word looked. */

import { save } from "./dom.js";
import { veil } from "./maps.js";

const [WIDEST, MARGIN] = [1200, 40];
const INK = { paper: "#fffdf9", text: "#1d2126", soft: "#5a626b", accent: "#a83d1b" };
const FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif";

const stem = (name) => name.replace(/\.[^.]*$/, "").replace(/[^\p{L}\p{N}_-]+/gu, "-") || "photograph";

export const saveJson = (name, content) =>
  save(new Blob([`${JSON.stringify(content, null, 1)}\n`], { type: "application/json" }), `${stem(name)}.json`);

/** Breaks words into lines that are not wider than `width`; lists of places of words. */
const lines = (context, words, width) => {
  const broken = [[]];
  words.forEach((_, at) => {
    const line = broken[broken.length - 1];
    const text = [...line, at].map((place) => words[place]).join(" ");
    if (line.length && context.measureText(text).width > width) broken.push([at]);
    else line.push(at);
  });
  return broken;
};

/** Draws the picture; `chosen` is a word's place, with its attention, or null. */
export const savePicture = ({ image, name, words, chosen, attention, grid, credit }) => {
  const scale = Math.min(1, WIDEST / image.naturalWidth, 1400 / image.naturalHeight);
  // Room for a line of text, however narrow the photograph is.
  const [width, height] = [image.naturalWidth, image.naturalHeight].map((side) => Math.round(side * scale));
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  const room = Math.max(width, 480);
  const size = Math.round(Math.max(22, room / 26));
  const font = `600 ${size}px ${FONT}`;
  context.font = font;
  const told = lines(context, words, room);
  canvas.width = room + 2 * MARGIN;
  canvas.height = height + 2 * MARGIN + 20 + told.length * size * 1.35 + size;
  context.fillStyle = INK.paper;
  context.fillRect(0, 0, canvas.width, canvas.height);
  const left = MARGIN + (room - width) / 2;
  context.drawImage(image, left, MARGIN, width, height);
  if (chosen !== null && attention) {
    const overlay = document.createElement("canvas");
    veil(overlay, attention[chosen], grid);
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    context.drawImage(overlay, left, MARGIN, width, height);
  }
  context.font = font;
  context.textBaseline = "top";
  const space = context.measureText(" ").width;
  let top = MARGIN + height + 20;
  for (const line of told) {
    let at = MARGIN;
    for (const place of line) {
      const wide = context.measureText(words[place]).width;
      if (place === chosen) {
        context.fillStyle = INK.accent;
        context.beginPath();
        context.roundRect(at - 6, top - 4, wide + 12, size * 1.3, 6);
        context.fill();
      }
      context.fillStyle = place === chosen ? "#fff" : INK.text;
      context.fillText(words[place], at, top);
      at += wide + space;
    }
    top += size * 1.35;
  }
  context.font = `400 ${Math.round(size * 0.55)}px ${FONT}`;
  context.fillStyle = INK.soft;
  const byline = credit ? `Photograph: ${credit}. Captioned by ngsan.` : "Captioned by ngsan.";
  context.fillText(byline, MARGIN, top + size * 0.15);
  // Chromium's toBlob waits for idle moments, which may take seconds to come.
  const coded = canvas.toDataURL("image/png").split(",")[1];
  const bytes = Uint8Array.from(atob(coded), (sign) => sign.charCodeAt(0));
  save(new Blob([bytes], { type: "image/png" }), `${stem(name)}-caption.png`);
};
