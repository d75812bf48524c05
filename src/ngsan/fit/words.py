"""Which words of captions an image can show, and which of their forms are one keyword.

A word that is learned has a meaning that pixels can show. Most are keywords for people; vague ones,
such as numbers and sizes, only help a captioner. Words are those of `plain_words`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from ngsan.text.objects import plural

_FUNCTION = """
a about above across after against ahead all almost alone along alongside also although am among
amongst an and another any appear appears are around as at atop away back be because been before
behind being below ben beneath beside besides between both but by came can comes coming could
did different do does doing done down during each either else even every following for from get
gets getting go goes going got had has have having he heard her here herself him himself his how
i if in inside into is it item items its itself just keep kept kind kinds let like lot lots made
make makes making many may more most mostly much my near nearby neatly next no not now of off on
one only onto opposite or other others our out outside over own para part parts past per put
puts putting really right s same say saying says see seem seems seen set sets she so some
someone someones something sort st still stuff such t take taken takes taking than that thats
the their them themselves then there these they thing things this those though through thru to
together too toward towards tries try trying type types under underneath until up upon us use
used uses using various very was way ways we well were what when where which while who whos why
will with within without word words would yet you your
"""
FUNCTION = frozenset(_FUNCTION.split())
"""Words that say nothing about an image, or only how its other words are related."""

_VAGUE = """
2 3 action amount area arranged arrangement array assorted assortment attached attempting
attempts available backdrop background base beautiful being big body bottom brightly broken
built bunch bunches case cases center close closed closely closeup color colored colors complete
consisting containing contains contents control corner couple course cover covered covering
covers cute dead deck deep delicious depicting design designed designs device devices directed
direction directions display displayed displaying displays distance double edge eight empty
enclosed end enough equipment extended fancy far fashioned features featuring few figure filled
first five fixing focus foreground form formation forward four front full fully gathered gear
giant giving good great group groups half hard headed heading heavy held helping high hits hold
holder holds huge image images includes including individual individuals interesting laid lap
large larger lay lays leading leads left level life line lined lines little living load loaded
loading loads located lone long look looking lot low main matching mid middle mini miniature
mixed motion mounted move moves moving multi multiple name neat new nice nicely number numbers
numerous object objects odd old older oldest open opened opening ornate outfit overhead
overlooking pack packed pair partially perched performing performs personal photo photograph
photographs photos pick picking picture pictured pictures piece pieces pile piled place placed
places placing plain point points pose posed poses posing position positioned possibly practice
prepare prepared prepares preparing pretty process progress propped pull pulled pulling pulls
push pushed pushing quiet raised reach reaches reaching reads ready real rear rest resting rests
return round row rows scattered scene second section semi separate series service serving
setting seven several shade shades shape shaped share sharing short shot shots show showing
shown shows side sides sideways simple single six size sized sizes slightly slowly small smaller
space spread square stack stacked star stop stopped stopping stops story strange stuck style
styled sub surface surrounded surrounding suspended system tall ten themed thick thin third
three tied time times tiny top topped topping touch touching turn turned turning turns twin two
unique unmade unusual upright upside variety vast view visible wait waiting waits whole wide wit
works
"""
VAGUE = frozenset(_VAGUE.split())
"""Words that help a captioner but are poor keywords: numbers, sizes, places in the image."""

_VARIANTS = {
    "busses": "bus",
    "childrens": "child",
    "childs": "child",
    "doughnut": "donut",
    "doughnuts": "donut",
    "grey": "gray",
    "mans": "man",
    "persons": "person",
    "racquet": "racket",
    "racquets": "racket",
    "womans": "woman",
}
"""Other spellings, and possessives without their mark."""

_APART = """
bat batting, bed bedding, board boarding, brush brushing, build building, clean cleaning, cloth
clothing, cross crossing, dress dressing, face facing, fan fanning, fish fishing, floor
flooring, frost frosting, glass glasses, green greens, hand handing, head heading, ice icing,
land landing, leave leaves, light lighting, match matching, new news, paint painting, park
parking, pet petting, pipe piping, pitch pitching, rail railing, roll rolling, seat seating, set
setting, shop shopping, short shorts, side siding, skateboard skateboarding, ski skis, slice
slicing, snowboard snowboarding, tow towing, tower towering, train training, water watering, wed
wedding, wood woods
"""
_PAIRS = frozenset(" ".join(pair.split()) for pair in _APART.split(","))
"""Pairs that only look like two forms of a word."""


def choose_words(captions: Iterable[Iterable[Iterable[str]]], *, min_images: int) -> list[str]:
    """The words to learn, by decreasing number of images, then alphabetically.

    Args:
        captions: The words of every caption of each image.
        min_images: Images that must have a caption with the word.
    """
    counts: Counter[str] = Counter()
    for image in captions:
        counts.update({word for caption in image for word in caption})
    return [
        word
        for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if count >= min_images and word not in FUNCTION and word.isalnum()
    ]


def group_forms(words: Sequence[str]) -> dict[str, list[str]]:
    """The forms of each keyword among words, the keyword's own name first or missing.

    Singular and plural are one keyword and have the singular's name. The forms of a verb have the
    name of the one with -ing, if it is there: "riding" is also "ride" and "rides".

    Args:
        words: Those that are learned, by decreasing frequency.
    """
    known = dict.fromkeys(words)
    parent = {word: word for word in words}

    def root(word: str) -> str:
        while parent[word] != word:
            word = parent[word]
        return word

    for word in words:
        forms = [plural(word), *_with_ing(word)]
        forms += [other for other, base in _VARIANTS.items() if base == word]
        for form in forms:
            if form in known and f"{word} {form}" not in _PAIRS:
                parent[root(form)] = root(word)
    groups: dict[str, list[str]] = {}
    for word in words:
        groups.setdefault(root(word), []).append(word)
    return {_name(forms): forms for forms in groups.values() if not VAGUE.intersection(forms)}


def _with_ing(word: str) -> list[str]:
    """How a verb's form with -ing may be spelled."""
    forms = [f"{word}ing"]
    if word.endswith("ie"):
        forms.append(f"{word[:-2]}ying")
    elif word.endswith("e"):
        forms.append(f"{word[:-1]}ing")
    elif len(word) > 2:
        forms.append(f"{word}{word[-1]}ing")
    return forms


def _name(forms: Sequence[str]) -> str:
    """The name of a keyword: the form with -ing, else the base of the others."""
    verbs = [form for form in forms if form.endswith("ing") and len(form) > 4]
    return verbs[0] if verbs else min(forms, key=len)
