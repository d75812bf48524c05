"""Tokens as Moses' tokenizer cuts them, for tokenised BLEU of German and English.

The rules are those of `tokenizer.perl` without options, less its replacement of signs by entities,
which changes no score: signs stand alone, commas between digits do not, and a full stop stays with
an abbreviation, an ordinal or a word that a small letter follows.

Note: The lists of abbreviations are our own, of common ones; Moses' are longer. Where a figure has
    to be exactly that of Moses, cut the texts with its program and score them as tokenised.
"""

import re

TOKENIZER_VERSION = "moses-ngsan-1"
"""Changes whenever some text gets other tokens than before."""


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_TITLES = _listed(
    "Adj Adm Adv Asst Bart Bldg Brig Bros Capt Cmdr Col Comdr Con Corp Cpl DR Dr Drs Ens Gen Gov "
    "Hon Hr Hosp Insp Lt MM MR MRS MS Maj Messrs Mlle Mme Mr Mrs Ms Msgr Op Ord Pfc Ph Prof Pvt "
    "Rep Reps Res Rev Rt Sen Sens Sfc Sgt Sr St Supt Surg"
)
_ABBREVIATIONS = {
    "en": _LETTERS | _TITLES | _listed("v vs i.e rev e.g Nos Nr"),
    "de": _LETTERS
    | frozenset("abcdefghijklmnopqrstuvwxyz")
    | frozenset(str(number) for number in range(1, 100))
    | _TITLES
    | _listed(
        "Mio Mrd bzw vs usw d.h z.B u.a etc MwSt ggf d.J D.h m.E vgl I.F z.T sogen ff d.E g.U g.E "
        "c.c.t b.z.w ca Nr Abs Art Bd Std Str Tel evtl inkl max min zzgl Jan Feb Apr Jun Jul Aug "
        "Sept Okt Nov Dez I II III IV V VI VII VIII IX X XI XII XIII XIV XV i ii iii iv v vi vii "
        "viii ix x xi xii"
    ),
}
LANGUAGES = tuple(sorted(_ABBREVIATIONS))
"""Languages that there are rules for."""

_BEFORE_NUMBERS = {"en": frozenset(["No", "Art", "pp"]), "de": frozenset(["No", "Art", "Nr", "pp"])}

_CONTROL = re.compile(r"[\x00-\x1f]")
_SIGN = re.compile(r"([^\w\s.'`,\-]|_)")
_DOTS = re.compile(r"\.{2,}")
_COMMA = (
    (re.compile(r"([^\d]),"), r"\1 , "),
    (re.compile(r",([^\d])"), r" , \1"),
    (re.compile(r"(\d),$"), r"\1 ,"),
)
_LETTER = r"[^\W\d_]"
_ENGLISH_APOSTROPHES = (
    (re.compile(rf"((?!{_LETTER}).)'((?!{_LETTER}).)"), r"\1 ' \2"),
    (re.compile(rf"((?!{_LETTER}|\d).)'({_LETTER})"), r"\1 ' \2"),
    (re.compile(rf"({_LETTER})'((?!{_LETTER}).)"), r"\1 ' \2"),
    (re.compile(rf"({_LETTER})'({_LETTER})"), r"\1 '\2"),
    (re.compile(r"(\d)'(s)"), r"\1 '\2"),
)
_HELD = "\ue000"
"""Stands for a full stop of an ellipsis while single ones are looked at."""


def tokenize(text: str, language: str = "de") -> list[str]:
    """The tokens of a text.

    Args:
        text: One line.
        language: One of `LANGUAGES`.

    Raises:
        ValueError: The language is not known.
    """
    if language not in LANGUAGES:
        raise ValueError(
            f"language: {language!r} has no rules here, only {', '.join(LANGUAGES)}; cut the "
            "texts into tokens yourself, and say that they are"
        )
    text = f" {' '.join(_CONTROL.sub('', text.replace(_HELD, ' ')).split())} "
    text = _SIGN.sub(r" \1 ", text)
    text = _DOTS.sub(lambda dots: f" {_HELD * len(dots[0])} ", text)
    for pattern, replacement in _COMMA:
        text = pattern.sub(replacement, text)
    if language == "en":
        for pattern, replacement in _ENGLISH_APOSTROPHES:
            text = pattern.sub(replacement, text)
    else:
        text = text.replace("'", " ' ")
    words = text.split()
    tokens: list[str] = []
    for place, word in enumerate(words):
        after = words[place + 1] if place + 1 < len(words) else ""
        if len(word) > 1 and word.endswith(".") and not _keeps_stop(word[:-1], after, language):
            tokens += [word[:-1], "."]
        else:
            tokens.append(word)
    if tokens and tokens[-1].endswith(".'") and len(tokens[-1]) > 2:
        tokens[-1:] = [tokens[-1][:-2], ".", "'"]
    return [token.replace(_HELD, ".") for token in tokens]


def _keeps_stop(word: str, after: str, language: str) -> bool:
    """Whether a full stop belongs to the word before it."""
    if "." in word and any(sign.isalpha() for sign in word):
        return True
    if word in _BEFORE_NUMBERS[language]:
        return after[:1].isdigit()
    return word in _ABBREVIATIONS[language] or after[:1].islower()
