/* How photographs come in: dropped anywhere, pasted, chosen, or taken with a camera. */

import { byId } from "./dom.js";

/** Calls `take` with image files, `refuse` with a sentence. */
export const listen = (take, refuse) => {
  const accept = (files, how) => {
    const images = [...files].filter((file) => !file.type || file.type.startsWith("image/"));
    if (images.length) take(images);
    else if (files.length) refuse(`${files[0].name || "What you " + how}: not an image.`);
  };
  for (const [button, input] of [["choose", "files"], ["camera", "shot"]]) {
    byId(button).addEventListener("click", () => byId(input).click());
    byId(input).addEventListener("change", () => {
      accept(byId(input).files, "chose");
      byId(input).value = ""; // so that the same file can be chosen again
    });
  }
  // Only a phone or tablet has a camera that a file chooser opens.
  byId("camera").hidden = !matchMedia("(pointer: coarse)").matches;

  const carries = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  let depth = 0;
  const veil = (by) => {
    depth = Math.max(0, depth + by);
    byId("dropping").hidden = depth === 0;
  };
  addEventListener("dragenter", (event) => { if (carries(event)) veil(1); });
  addEventListener("dragleave", (event) => { if (carries(event)) veil(-1); });
  addEventListener("dragover", (event) => { if (carries(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    depth = 0;
    veil(0);
    if (!carries(event)) return;
    event.preventDefault();
    accept(event.dataTransfer.files, "dropped");
  });
  addEventListener("paste", (event) => {
    if (event.target.closest?.("input, textarea")) return;
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    accept(files, "pasted");
  });
};
