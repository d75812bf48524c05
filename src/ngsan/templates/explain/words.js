/** The words of a photograph: which one is shown over the picture, and how. */
class Words {
  constructor(article, data, maps) {
    this.article = article;
    this.data = data;
    this.maps = maps;
    this.layer = maps[0].layers - 1;
    this.head = MEAN;
    this.pinned = null;
    this.canvas = make("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    article.querySelector(".stage .picture").append(this.canvas);
    this.status = article.querySelector(".status");
    this.hint = "Point at a word, tap it, or use the arrow keys, to see where the model looked.";
    this.status.textContent = this.hint;
    this.blocks = [...article.querySelectorAll(".spoken")].map((block, caption) => {
      const words = [...block.querySelectorAll(".word")];
      const frames = [...block.querySelectorAll(".frame")];
      words.forEach((word, index) => this.listen(word, caption, index, true));
      frames.forEach((frame, index) => this.listen(frame, caption, index, false));
      rove(words, (key, at) =>
        ({ ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0,
          End: words.length - 1 })[key] ?? null);
      return { words, frames };
    });
    this.choose();
  }

  listen(element, caption, word, isButton) {
    const key = [caption, word];
    element.addEventListener("pointerenter", (event) => {
      if (event.pointerType === "mouse") this.show(key);
    });
    element.addEventListener("pointerleave", () => this.show(this.pinned));
    element.addEventListener("click", () => this.pin(key));
    if (!isButton) return;
    element.setAttribute("role", "button");
    element.setAttribute("aria-pressed", "false");
    element.addEventListener("focus", () => {
      if (element.matches(":focus-visible")) this.pin(key);
    });
    element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") this.pin(key);
      else if (event.key === "Escape") this.pin(null);
      else return;
      event.preventDefault();
    });
  }

  pin(key) {
    this.pinned = key;
    this.show(key);
  }

  show(key) {
    this.blocks.forEach(({ words, frames }, caption) => {
      [words, frames].forEach((elements) => elements.forEach((element, word) => {
        const on = key !== null && key[0] === caption && key[1] === word;
        element.classList.toggle("on", on);
        if (elements === words) element.setAttribute("aria-pressed", String(on));
      }));
    });
    this.canvas.classList.toggle("on", key !== null);
    if (key === null) {
      this.status.textContent = this.hint;
      return;
    }
    const [caption, word] = key;
    const said = this.data.captions[caption];
    const values = this.maps[caption].row(this.layer, this.head, word);
    paint(this.canvas, values, veiling(values));
    const name = word < said.words.length ? `“${said.words[word]}”` : "The end of the caption";
    this.status.textContent =
      `${name}: ${percent(said.probabilities[word])} probable. It looks most at ${strongest(values)}.`;
  }

  choose() {
    const first = this.maps[0];
    const layers = Array.from({ length: first.layers }, (_, layer) => [layer, String(layer + 1)]);
    const redraw = () => {
      const canvas = make("canvas");
      this.blocks.forEach(({ frames }, caption) => frames.forEach((frame, word) => {
        const values = this.maps[caption].row(this.layer, this.head, word);
        paint(canvas, values, veiling(values));
        frame.querySelector("img").src = canvas.toDataURL();
      }));
      this.show(this.pinned);
    };
    this.article.querySelector(".which").append(
      "The decoder’s",
      select("layer", layers, this.layer, (value) => { this.layer = value; redraw(); }),
      select("head", headNames(first.heads), MEAN, (value) => { this.head = value; redraw(); }),
    );
  }
}
