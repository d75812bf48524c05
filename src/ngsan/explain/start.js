/** Decodes a photograph's maps and brings its part of the page to life. */
const awaken = (article) => {
  const data = JSON.parse(article.querySelector(".data").textContent);
  const buffer = Uint8Array.from(atob(data.blob), (sign) => sign.charCodeAt(0)).buffer;
  const said = data.captions.map((caption) => new Rows(buffer, caption.attention));
  article.classList.add("live");
  new Words(article, data, said);
  if (!data.regions) return;
  const maps = Object.fromEntries(
    Object.entries(data.regions).map(([kind, entry]) => [kind, new Rows(buffer, entry)]));
  const first = said[0];
  // Some cells are looked at by every word; the one that a single word prefers most tells more.
  const words = Array.from({ length: first.shape[2] }, (_, word) => first.row(first.layers - 1, MEAN, word));
  const preferred = Array.from({ length: first.length }, (_, cell) => {
    const shares = words.map((row) => row[cell]);
    return Math.max(...shares) - shares.reduce((sum, share) => sum + share, 0) / shares.length;
  });
  new Regions(article, maps, order(preferred)[0]);
};

const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    observer.unobserve(entry.target);
    awaken(entry.target);
  }
}, { rootMargin: "800px" });
document.querySelectorAll(".photo").forEach((article) => observer.observe(article));
