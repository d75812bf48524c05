"""Penn-Treebank words of a caption, as the COCO caption tools count them.

BLEU, METEOR, ROUGE-L and CIDEr can only be compared when the captions were cut into words in the
same way. The COCO tools run a Java program for that (``PTBTokenizer -preserveLines -lowerCase`` of
Stanford CoreNLP 3.4.1) and drop a list of punctuation from its answer. This module gives the same
answer without Java. It was written from what the program prints for given text.

How it works: every rule is a regular expression tried at the current position; the longest match
wins, and among equally long ones the first. What a rule looks ahead at counts for its length when
it stands in a group: ``inc.(?=(.))`` is as long as the word ``inc.a`` and comes before it in the
table, hence ``inc. a``. Plain words, most of any caption, skip the rules.

The rules match not the caption but its *shape*, a string of the same length in which each
letter outside ASCII is ``é``, each such digit ``٠`` and so on. They need to know a few characters
instead of all of Unicode; the tokens are cut from the caption itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

TOKENIZER_VERSION = "ptb-3.4.1-b"

# The COCO tools also list -LRB- and its kin, but in upper case, which a lower-casing tokenizer
# never prints: a bracket stays in the caption as a word.
_DROPPED = frozenset(("", "''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"))

_SPLIT_WORDS = frozenset(("cannot", "gonna", "gotta", "lemme", "gimme", "wanna"))

# Abbreviations keep their period, in any case ...
_ABBREVIATIONS = (
    "al ala apr ariz assn aug bhd bldg blvd bros calif co colo conn corp cos ct dak dec esq est "
    "etc ext feb fla fri ga inc ind intl jan jr jul jun kan kans ky ltd mar md mich minn mo mon "
    "mont neb nev nov oct okla penn plc ppte pptes ppty pptys pte ptes pty ptys rd rt sep sept seq "
    r"sq sr sys tel tenn thu thurs tue tues univ va vt wed wis wisc wyo ed\.d ph\.d"
)
# ... or only when capitalised, since they are also words ...
_CAPITALISED = "ark az del ill la mass miss ore pa tex wash"
# ... or only before a number. Titles and the like give way to a longer word, as in "mr.smith".
_BEFORE_NUMBER = "art ca fig figs no nos op pp prop"
_TITLES = (
    "adj adm adv alex asst assoc atty attys ave brig capt cf cie cmdr col comdr cpl dept det dr "
    "drs elec ens ft gen gov govs hon insp invt jos lieut lt maj messrs mfg mlle mme mr mrs ms "
    "msgr mt mtg natl pfc ph pres prof profs pvt rep reps rev sen sens sfc sgt spc st ste supt "
    "supts treas vs wm"
)
_KEEP_PERIOD = frozenset("abcdefghijklmnopqrstuvwxyz").union(
    _ABBREVIATIONS.split(), _CAPITALISED.split(), _BEFORE_NUMBER.split(), _TITLES.split()
)
# Words that, capitalised, show that the period of the initial before them ended a sentence.
_STARTERS = (
    "a about according after an as at but earlier he her here however if in it last many more now "
    "once one other our she since so some such that the their then there these they this we what "
    "when while yet you"
)
_EXTENSIONS = (
    "bat bmp c cgi class cpp dll doc docx exe gif gz h htm html jar java jpeg jpg mov mp3 pdf php "
    "pl png ppt ps py sql tar txt wav x xml zip"
)
_APOSTROPHE_WORDS = "c'est c'mon s'mores cap'n nat'l e'er o'er li'l ev'ry dunkin' somethin'"


def _any(words: str, capitalised: bool = False) -> str:
    """Pattern for one of the words, the longest first, in any case or with a capital."""
    forms = (f"{w[0].upper()}(?i:{w[1:]})" if capitalised else f"(?i:{w})" for w in words.split())
    return f"(?:{'|'.join(sorted(forms, key=len, reverse=True))})"


# Parts of the rules. _L and _D go into character classes: letters and digits of any script. Soft
# hyphens (\xad) may stand inside words and are not printed; combining marks (\u0301) only in _WORD.
_L, _D = "A-Za-zé", "0-9٠"
_N = f"[{_D}]"
_WORD = rf"(?:[{_L}\u0301\xad][{_L}{_D}\u0301\xad]*)"
_AP = r"(?:['’\x92]|&apos;)"  # apostrophe
_TICK = r"(?:['’\x92`‘‛\x91]|&apos;)"  # apostrophe or a quotation mark used as one
_CLITIC = "(?i:s|m|d|ll|re|ve)"
_DASH = r"[-‐‑\u058a]"
_PIECE = rf"(?>[{_L}][{_L}{_D}\xad]*|[{_L}{_D}]+)"
_PART = (
    rf"(?>(?:(?:[{_L}{_D}]+_)*[dloDLO]{_TICK}[{_L}{_D}])?"
    rf"(?:[{_L}{_D}]+(?:_[{_L}{_D}]+)+|{_PIECE}))"
)
_DOTS = r"[A-Za-z0-9][A-Za-z0-9.,\xad]*"
_SIDE = r"[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}"
_INITIALS = r"(?:[A-Za-z]\.){2,}"
_NOT_IN_URL = r' \t\n"<>|(){}'
_URL = rf"[^{_NOT_IN_URL}]+[^{_NOT_IN_URL}.,!?-]"
_HOST = rf"[^{_NOT_IN_URL}\xa0.]+"
_LABEL = r"""[^ \t\n!"$'(),\-./0-9:;<=>?@A-Z\[\\\]^_`{|}]"""
_EYE, _ROUND_EYE = r"[-'<>=^~x]", r"['<>=^~x]"
_GAP = r"[- \xa0]"
_LOCAL = rf"{_N}{{3,4}}{_GAP}?{_N}{{3,5}}"  # what follows the area code of a telephone number
_NAME = r"[A-Za-z][-A-Za-z0-9_.:]*"
_TAG = rf"""(?:<{_NAME}(?:[ ]+{_NAME}(?:[ ]*=[ ]*(?:"[^"]*"|'[^']*'))?)*[ ]*/?[ ]*>
    | </{_NAME}[ ]*> | <[!?][A-Za-z-][^>]*>)"""

# (kinds of first character, name, pattern): "a" letters, "0" digits, "." everything else.
_RULES = (
    # Addresses and names.
    ("a", "url", rf"(?i:https?)://{_URL}"),
    ("a", "url", rf"(?i:www)\.(?:[^{_NOT_IN_URL},.!?]+\.)+[A-Za-z]{{2,4}}(?:/{_URL})?"),
    ("a.", "url", rf"(?:{_LABEL}+\.)+(?i:com|edu|net|org)(?:/{_URL})?"),
    ("a0.", "email", rf"<?[A-Za-z0-9][^{_NOT_IN_URL}\xa0]*@(?:{_HOST}\.)*{_HOST}>?"),
    (".", "name", rf"@[A-Za-z_][A-Za-z_0-9]* | \#[{_L}\u0301\xad]+"),
    # Periods that belong to the word.
    ("a", "etc.", rf"(?:{_any(_ABBREVIATIONS)}|{_any(_CAPITALISED, True)})\.(?=(-.|.)|\s)"),
    ("a", "mr.", rf"{_any(_TITLES)}\."),
    ("a", "no. 5", rf"{_any(_BEFORE_NUMBER)}\.(?=(\s?{_N}))"),
    ("a", "x. The", rf"[A-Za-z](?=(\.\s+(?:{_any(_STARTERS, True)}|M(?i:[rs])\.|{_TAG})\s))"),
    ("a", "u.s.", r"[A-Za-z](?:\.[A-Za-z])*\."),
    ("a0", "file.txt", rf"[{_L}{_D}\xad]+(?:\.[{_L}{_D}\xad]+)*\.{_any(_EXTENSIONS)}(?=[\s,.?!])"),
    ("a", "word.,", rf"{_WORD}(?:[.!?]{_WORD})*\.(?=([,;:、]))"),
    ("a0", "word.,", rf"(?:{_PART}(?:{_DASH}{_PART})*|[A-Z]+(?:&[A-Z]+)+)\.(?=([,;:、]))"),
    ("a0", "word.,", rf"{_DOTS}(?:-[A-Za-z0-9\xad]+)+\.(?=([,;:、]))"),
    # Apostrophes.
    ("a", "do|n't", rf"[A-Za-z\xad]*[A-MO-Za-mo-z](?=((?i:n{_TICK}t)))"),
    ("a", "n't", rf"(?i:n{_TICK}t)"),
    (".", "'s", rf"'{_CLITIC}(?![A-Za-z]) | (?:[’\x92]|&apos;){_CLITIC}"),
    ("a", "dog|'s", rf"{_WORD}(?:[.!?]{_WORD})*(?=({_AP}{_CLITIC}))"),
    ("a", "n'sync", rf"[A-HJ-XZn]{_TICK}[{_L}]{{2,}} | (?i:o{_TICK}o)"),
    ("a", "ma'am", rf"[{_L}]+[aeiouyAEIOUY]{_TICK}[aeiouA-Z][{_L}]*"),
    ("a", "cap'n", _any(_APOSTROPHE_WORDS).replace("'", _AP)),
    ("a", "d'", rf"(?i:[dlj]{_AP} | ol{_AP} | y{_AP}(?=[{_L}]))"),
    (".", "'em", rf"(?i:{_AP}(?:em|n{_AP}|till?|cause)) | '[nN](?=\s) | (?:[’\x92]|&apos;)[nN]"),
    (".", "'t|is", r"'[tT](?=((?i:is|was)))"),
    (".", "'80s", rf"{_AP}(?:[2-9]0[sS]|[0-9]{{2}}(?=\s))"),
    # Words and numbers.
    ("a", "can|not", r"(?i:can(?=(not)))"),
    ("a", "gon|na", r"(?i:gon(?=na)|wan(?=na)|got(?=ta)|lem(?=me)|gim(?=me))(?=(..))"),
    ("a", "dotted.word", rf"{_WORD}(?:[.!?]{_WORD})+"),
    ("a", "word", _WORD),
    ("a0", "a-b_c", rf"{_PART}(?:{_DASH}{_PART})*"),
    ("a0", "a.b-c", rf"{_DOTS}(?:-(?:{_INITIALS}|[A-Za-z0-9\xad]+))+"),
    ("a0", "a/b-c", rf"{_SIDE}(?:\\?/{_SIDE}){{1,2}}"),
    ("a", "pro-", r"(?i:anti|pro)-"),
    ("a", "R&D", r"[A-Z]+(?:[&+](?i:amp;)?[A-Z]+)+ | (?i:s&ls)"),
    ("a", "US$", r"[A-Z]+\$ | [Cc]\+\+ | [CcFf]\#"),
    ("a0.", "number", rf"[-+]?(?:{_N}*(?:[.,:\xad٫٬]{_N}+)+ | {_N}+)"),
    ("0", "date", rf"{_N}{{1,2}}[-/]{_N}{{1,2}}[-/]{_N}{{2,4}}"),
    ("0", "1 1/2", rf"(?:{_N}{{1,4}}{_GAP})?{_N}{{1,4}}(?:\\?/|⁄){_N}{{1,4}}"),
    ("0.", "phone", rf"(?:\+\+?)?(?:{_N}{{2,4}}{_GAP})?{_N}{{2,4}}{_GAP}{_LOCAL}"),
    (".", "phone", rf"\({_N}{{2,3}}\)[ \xa0]?{_LOCAL}"),
    # Mark-up, faces, runs of one character, and whatever is left.
    (".", "tag", _TAG),
    (".", "entity", r"&(?:quot|(?i:amp|lt|gt|apos|nbsp|mdash|ndash));"),
    (".", "code", r"&(?:QUOT|HT|TL|UR|LR|QC|QL|QR|odq|cdq|\#[0-9]+);"),
    (".", "smile", r"[<>]?[:;=][-'*o]?[()DPdpO\\{@|\[\]](?![A-Za-z0-9])"),
    ("a.", "face", rf"{_EYE}_{_EYE} | \((?:{_EYE}[_.]?{_EYE}|{_ROUND_EYE}-{_ROUND_EYE})\)"),
    (".", "bracket", r"-[LRlr][RSCrsc][Bb]-"),
    (".", "run", r"[!?]+|-+|_+|\*+|\#+|@+|<<|>>|\.{3,5}|''|``|\\\*|[²³¹⁰⁴-⁹]+|[₀-₉]+"),
    (".", "quotes", r"[`‘‛‹\x91’›\x92“«\x93”»\x94„‟‚]{1,2}"),
    ("a0.", "other", r"[^\s\0‐‑\u058a٫٬]"),
)
_BY_KIND = {
    kind: tuple((name, re.compile(p, re.VERBOSE)) for kinds, name, p in _RULES if kind in kinds)
    for kind in "a0."
}
_KINDS = dict.fromkeys("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzé\u0301\xad", "a")
_KINDS.update(dict.fromkeys("0123456789٠", "0"))

# How the tokenizer prints a character that is a token of its own ...
_SPELLED = {
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-",
    '"': "''", "¢": "cents", "£": "#", "€": "$", "\x80": "$", "¤": "$", "₠": "$",
    "½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "…": "...", "\x85": "...",
    "–": "--", "—": "--", "―": "--", "\x96": "--", "\x97": "--", "\xad": "-",
}  # fmt: skip
# ... a quotation mark or an entity ...
_QUOTES = str.maketrans(
    {"‘": "`", "‛": "`", "‹": "`", "\x91": "`", "’": "'", "›": "'", "\x92": "'"}
    | {"“": "``", "«": "``", "\x93": "``", "”": "''", "»": "''", "\x94": "''"}
)
_ENTITIES = {
    "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "''", "&apos;": "'",
    "&nbsp;": "", "&mdash;": "--", "&ndash;": "--",
}  # fmt: skip

# Code points in hexadecimal. Letters and digits that Unicode 6.0 did not have yet: dropped.
_NEW_LETTERS = (
    "37f 528-52f 560 588 5ef 860-88e 8a1 8ad-8c9 978 980 9fc af9 c34 c5a-c5d c80 cdd d04 d54-d5f "
    "de6-def e86 e89 e8c e8e-e93 e98 ea0 ea8-ea9 eac 13f5-13fd 16f1-16f8 170d 171f 1878 191d-191e "
    "19b0-19c0 19c8-19c9 1b4c 1c80-1cbf 1cf2-1cf3 1cfa 2c2f 2c5f 312e-312f 31bb-31bf 4db6-4dbf "
    "9fcd-9fff a698-a69d a78f a794-a79f a7ab-a7f7 a8fd-a8fe a9e0-a9fe aa7e-aa7f ab30-abbf"
)
# Marks that continue a word; all others are dropped.
_MARKS = (
    "2c2-2c5 2d2-2df 2e5-2eb 2ed 2ef-36f 375 378-379 384-385 3f6 483-487 55a-55f 591-5bd 5bf "
    "5c1-5c2 5c4-5c5 5c7 615-61a 64b-65e 670 6d6-6e4 6e7-6ed 6fd-6fe 70f 711 730-74c 7a6-7b0 "
    "7eb-7f3 900-903 93c 93e-94e 951-955 962-963 981-983 9bc 9be-9c4 9c7-9c8 9cb-9cd 9d7 9e2-9e3 "
    "a01-a03 a3c a3e-a4f a81-a83 abc abe-acf b82 bbe-bc2 bc6-bc8 bca-bcd c01-c03 c3e-c56 d3e-d44 "
    "d46-d48 e31 e34-e3a e47-e4e eb1 eb4-ebc ec8-ecd"
)
# Symbols that are tokens; all others (emoji among them) are dropped.
_SYMBOLS = (
    "a1 a5-a9 ac ae-b1 b4 b6-b8 bf d7 f7 37e 387 589 5be 5c0 5c3 5c6 5f3-5f4 600-603 606-60c 614 "
    "61b 61e-61f 66a 66d 6d4 700-70d 7f6-7f8 964-965 e3f e4f 1fbd 2016-2017 2020-2023 2030-2038 "
    "203b 203e-2042 207a-207e 208a-208e 20a4 2100-2101 2103-2106 2108-2109 2114 2116-2118 "
    "211e-2123 2125 2127 2129 212e 213a-213b 2140-2144 214a-214d 214f 2155-215e 2190-2bff "
    "3002 3012 30fb ff01-ff0f ff1a-ff20 ff3b-ff40 ff5b-ff65 ffe0-ffe1 ffe5-ffe6"
)
_LINE_BREAKS = frozenset("\n\v\f\r\u2028\u2029")
_ITSELF = frozenset("\t\xa0\u3000‐‑\u058a²³¹⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉⁄٫٬、„‟‚").union(
    _SPELLED, map(chr, _QUOTES)
)


class _Shapes(dict[int, int]):
    """Code point of a character -> that of its shape, worked out when it is first met."""

    def __init__(self) -> None:
        super().__init__({code: code for code in range(32, 127)})
        for table, shape in ((_NEW_LETTERS, 0), (_MARKS, 0x301), (_SYMBOLS, ord("§"))):
            for entry in table.split():
                low, _, high = entry.partition("-")
                self.update(dict.fromkeys(range(int(low, 16), int(high or low, 16) + 1), shape))

    def __missing__(self, code: int) -> int:
        char, category = chr(code), unicodedata.category(chr(code))
        shape = 0  # dropped, but it ends the word before it
        if char == "\x85":
            shape = ord("…")  # since \s in a pattern would take it for a space
        elif char in _ITSELF:
            shape = code
        elif char in _LINE_BREAKS:
            shape = ord(" ")
        elif 0x2000 <= code <= 0x200A:
            shape = 0x3000
        elif code < 0x10000 and (category[0] == "L" or code in (0x1885, 0x1886)):
            shape = ord("é")
        elif code < 0x10000 and category == "Nd":
            shape = ord("٠")
        self[code] = shape
        return shape


_SHAPES = _Shapes()
_ACCENTED = re.compile(r"&[aeiou](?:acute|grave|uml);", re.IGNORECASE)  # each is a letter of a word
_PLAIN_CAPTION = re.compile(r"[A-Za-z ,]*\.? *")
_SKIP = re.compile(r'(?:[ \t][ \t\xa0\u3000]*|"|[.,;:!?\'-](?=[ \t\n]))+')
_PLAIN_TOKEN = re.compile(
    r"""[A-Za-z]+(?:-[A-Za-z]+)*(?='s[ \n]|(\.)[ \n]|[,;:!?"]?[ \n])
    | [0-9]+(?=[.,;:!?"]?[ \n](?![0-9]))""",
    re.VERBOSE,
)


def tokenize(caption: str, following: str | None = "") -> list[str]:
    """Cuts a caption into lower-case words and drops the punctuation.

    Args:
        caption: Any text. Line breaks count as spaces.
        following: The text on the next line of the file. It matters only for a caption that ends
            in a single letter and a period, or in "no." and the like: the tokenizer looks beyond
            the end of the line to tell whether the period ended a sentence ("plan b." before
            "The ..." gives "b", otherwise "b."). None: the file ends with the caption, and then a
            face such as ":)" at its end is not seen as one.

    Returns:
        The words. A word may contain a no-break space: "1 1/2" is one word, and so is a telephone
        number; brackets are ``-lrb-`` and the like.

    Example:
        >>> tokenize("A dog's ball (red) isn't 3.5 in. wide.")
        ['a', 'dog', "'s", 'ball', '-lrb-', 'red', '-rrb-', 'is', "n't", '3.5', 'in', 'wide']
    """
    if _PLAIN_CAPTION.fullmatch(caption):
        head, period, _ = caption.lower().partition(".")
        words = head.replace(",", " ").split()
        if _SPLIT_WORDS.isdisjoint(words) and not (period and words and words[-1] in _KEEP_PERIOD):
            return words
    return [token for token in _scan(caption, following) if token not in _DROPPED]


def tokenize_lines(captions: Iterable[str]) -> list[list[str]]:
    """Words of each caption, as the COCO tools give them for a file with one caption a line.

    Args:
        captions: The captions in the order of the file, which matters as ``tokenize`` explains.

    Returns:
        The words of each caption.
    """
    lines = list(captions)
    words = []
    following: str | None = None
    for line in reversed(lines):
        words.append(tokenize(line, following))
        following = line if line and not line.isspace() else following or ""
    return words[::-1]


def _scan(caption: str, following: str | None) -> list[str]:
    """Tokens of a caption as the Java program prints them, without most of the punctuation."""
    tokens = []
    shape = caption.translate(_SHAPES)
    if "&" in shape:
        shape = _ACCENTED.sub(lambda match: "\u0301" * len(match[0]), shape)
    end = len(shape)
    shape = f"{shape}\n{(following or '')[:80].translate(_SHAPES)}\n"
    start = 0
    while start < end:
        if skip := _SKIP.match(shape, start):
            start = skip.end()
            continue
        if plain := _PLAIN_TOKEN.match(shape, start):
            word = plain[0].lower()
            if word not in _SPLIT_WORDS and not (plain[1] and word in _KEEP_PERIOD):
                tokens.append(word)
                start = plain.end()
                continue
        max_length, stop, rule = start, start + 1, ""
        for name, pattern in _BY_KIND[_KINDS.get(shape[start], ".")]:
            if match := pattern.match(shape, start):
                if name == "smile" and following is None and match.end() == end:
                    continue  # nothing comes after it, not even the end of a line
                length = max(match.end(), match.end(match.lastindex or 0))
                if length > max_length:
                    max_length, stop, rule = length, match.end(), name
        if rule:
            tokens.append(_spell(rule, caption[start:stop]))
        start = stop
    return tokens


def _spell(rule: str, token: str) -> str:
    """The token that a rule has found, as the Java program prints it."""
    if token in _SPELLED:
        return _SPELLED[token]
    token = token.lower()
    if rule == "entity":
        return _ENTITIES.get(token, token)
    if rule == "run":
        return "..." if token[:3] == "..." else "--" if token in ("---", "----") else token
    if rule == "quotes":
        return token.translate(_QUOTES)
    if rule in ("n't", "'s"):
        return token.replace("&apos;", "'").translate(_QUOTES)
    if rule == "R&D":
        return token.replace("&amp;", "&")
    if rule in ("phone", "face", "smile"):
        token = token.replace("(", "-lrb-").replace(")", "-rrb-")
    if rule in ("phone", "1 1/2", "tag"):
        return token.replace(" ", "\xa0")
    if rule in ("url", "email", "name", "file.txt"):
        return token
    return token.replace("\xad", "")
