"""Captions of two models side by side, of images where they tell relations differently.

The page is one file that needs nothing else and names no host; all text is escaped.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from PIL import Image

from ngsan.data.pictures import PictureStore
from ngsan.reproduce.ledger import Written

_RELATIONS = """
above across against along among around at atop behind below beneath beside between beyond by down
from front in inside into left near next off on onto out outside over right through top toward
towards under underneath up upon with
"""

RELATIONS = frozenset(_RELATIONS.split())
"""Words that tell how things lie to each other."""

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf7; --card: #fff; --ink: #22252a; --soft: #6a7078;
  --line: #e0ddd5; --accent: #b4431f; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --card: #1f2226; --ink: #e6e4df;
  --soft: #9aa0a8; --line: #34383e; --accent: #f0906a; } }
body { margin: 0 auto; max-width: 72rem; padding: 1.25rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
.cards { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  overflow: hidden; } img { width: 100%; height: 16rem; object-fit: contain; display: block; }
figcaption { padding: .75rem 1rem; } dl { margin: 0; }
dt { color: var(--soft); font-size: .875rem; }
dd { margin: 0 0 .5rem; } b { color: var(--accent); font-weight: 600; }
.soft { color: var(--soft); font-size: .875rem; }
"""


@dataclass(frozen=True)
class Example:
    """An image of which two models tell different relations."""

    image: str
    """Its id."""

    captions: Mapping[str, str]
    """By model."""

    cider: Mapping[str, float]
    """By model."""


def choose_examples(written: Mapping[str, Written], most: int = 48) -> list[Example]:
    """Images of which two models tell different relations, half of them won by either.

    Args:
        written: What the two models wrote on the same images, by model.
        most: Images at most.
    """
    (first, mine), (second, its) = written.items()
    found = []
    for image, text, other, (score,), (its_score,) in zip(
        mine.ids, mine.texts, its.texts, mine.scores, its.scores, strict=True
    ):
        if _relations(text) != _relations(other):
            captions, cider = {first: text, second: other}, {first: score, second: its_score}
            found.append(Example(image, captions, cider))
    found.sort(key=lambda example: example.cider[second] - example.cider[first])
    if len(found) <= most:
        return found[::-1]
    half = most // 2
    return [*found[: -half - 1 : -1], *found[: most - half]]


def _relations(text: str) -> list[str]:
    return sorted(word for word in text.split() if word in RELATIONS)


def examples_page(
    examples: Sequence[Example],
    references: Mapping[str, Sequence[str]],
    pictures: PictureStore | None,
    *,
    models: Sequence[str],
    compared: int,
) -> str:
    """The page.

    Args:
        examples: Of `choose_examples`.
        references: What people said, by image.
        pictures: The photographs, or None to do without.
        models: The names of the two.
        compared: Images that both models captioned.
    """
    cards = "\n".join(
        _card(example, references.get(example.image, ()), pictures) for example in examples
    )
    names = " and ".join(escape(name) for name in models)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>Captions of {names}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Captions of {names}</h1>
<p class="soft">{len(examples)} of {compared:,} images, chosen where the two tell different
relations: first those where the second model scores best against the first, then those where it
scores worst. They show how the models differ, not how often which is right.</p>
<div class="cards">
{cards}
</div>
</body>
</html>
"""


def _card(example: Example, references: Sequence[str], pictures: PictureStore | None) -> str:
    rows = "".join(
        f"<dt>{escape(name)}, CIDEr {example.cider[name]:.0f}</dt><dd>{_marked(text)}</dd>"
        for name, text in example.captions.items()
    )
    said = "".join(f"<br>{escape(text)}" for text in references[:2])
    return (
        f"<figure>{_picture(example.image, pictures)}<figcaption><dl>{rows}</dl>"
        f'<p class="soft">image {escape(example.image)}; people said:{said}</p>'
        "</figcaption></figure>"
    )


def _marked(text: str) -> str:
    return " ".join(
        f"<b>{escape(word)}</b>" if word in RELATIONS else escape(word) for word in text.split()
    )


def _picture(image: str, pictures: PictureStore | None) -> str:
    if pictures is None or image not in pictures:
        return ""
    thumbnail = Image.open(io.BytesIO(pictures.read(image))).convert("RGB")
    thumbnail.thumbnail((420, 420))
    file = io.BytesIO()
    thumbnail.save(file, "JPEG", quality=80)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="image {escape(image)}" src="data:image/jpeg;base64,{data}">'
