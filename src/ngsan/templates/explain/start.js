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

const articles = [...document.querySelectorAll(".photo")];
const asleep = new Set(articles);
const wake = (article) => {
  if (!asleep.delete(article)) return;
  observer.unobserve(article);
  awaken(article);
};
const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) wake(entry.target);
}, { rootMargin: "800px" });
articles.forEach((article) => observer.observe(article));

/**
 * Brings all photographs down to one to their full height, as it would move away during a jump, and
 * the one after it, so that there is page enough to have it at the top. Says whether any was asleep.
 */
const wakeDownTo = (article) => {
  const before = asleep.size;
  articles.slice(0, articles.indexOf(article) + 2).forEach(wake);
  return asleep.size < before;
};
const named = (hash) => articles.find((article) => `#${article.id}` === hash);
document.addEventListener("click", (event) => {
  const article = named(event.target.closest("a")?.hash);
  if (article) wakeDownTo(article);
});
/** For addresses that are typed, and the one that the page is opened with. */
const arrive = () => {
  const article = named(location.hash);
  if (article && wakeDownTo(article)) article.scrollIntoView({ behavior: "instant" });
};
window.addEventListener("hashchange", arrive);
arrive();
