"""The PTB words of a caption, against the Java tokenizer of the COCO tools."""

import json
import random
import shutil
import string
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngsan.text.ptb import TOKENIZER_VERSION, tokenize, tokenize_lines

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "ptb_oracle.json").read_text(encoding="utf-8")
)
# The list of the COCO tools. Its upper-case brackets never meet a token of a lower-cased caption.
PUNCTUATION = {"''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", "--", "...", *".?!,:;-"}
LINE_BREAKS = "\n\r\v\f\u2028\u2029"


def test_captions_have_the_words_of_the_java_tokenizer() -> None:
    wrong = {
        caption: tokenize(caption)
        for caption, words in GOLDEN["captions"]
        if " ".join(tokenize(caption)) != words
    }
    assert not wrong
    assert len(GOLDEN["captions"]) == 795


def test_tokenizer_sees_the_next_line() -> None:
    captions, words = zip(*GOLDEN["lines"], strict=True)
    assert [" ".join(line) for line in tokenize_lines(captions)] == list(words)
    # A single letter at the end of a line: the next line decides about its period.
    assert tokenize("plan b.") == ["plan", "b."]
    assert tokenize("plan b.", following="The rest") == ["plan", "b"]
    assert tokenize("plan b.", following="the rest") == ["plan", "b."]


def test_empty_and_very_long_captions() -> None:
    assert tokenize("") == tokenize(" \t\r\n") == tokenize(".,;") == []
    assert tokenize_lines([]) == []
    assert tokenize_lines(["", "a", ""]) == [[], ["a"], []]
    assert tokenize("a dog's x-ray, " * 5000) == ["a", "dog", "'s", "x-ray"] * 5000


def test_no_rule_is_exponential_on_repeated_text() -> None:
    # Would take minutes if a rule were exponential in the length of its match.
    units = ["a-", "a.", "a_", "a/", "5 ", "5-", "a@", "<a ", "&amp;", "o'", "a,", '<a b="']
    for unit in [*units, "www.a."]:
        assert tokenize(unit * 500 + "$")[-1].endswith("$")


def test_version_is_valid_in_a_signature() -> None:
    assert TOKENIZER_VERSION
    assert not set(TOKENIZER_VERSION) & set(" |:")


@given(st.text() | st.text(alphabet=string.printable))
def test_any_text_gives_clean_words(text: str) -> None:
    for word in tokenize(text):
        assert word
        assert word not in PUNCTUATION
        assert not set(word) & set(" \t" + LINE_BREAKS)
        assert word == word.lower()


@given(st.text(alphabet=string.ascii_letters + " ", max_size=80))
def test_letters_are_kept_in_order(text: str) -> None:
    # Words may be split ("cannot") but nothing is lost, added or moved.
    assert "".join(tokenize(text)) == text.replace(" ", "").lower()


@given(st.text(alphabet=string.ascii_letters + " ,.", max_size=80))
def test_shortcut_for_plain_captions_changes_nothing(caption: str) -> None:
    # A quotation mark is dropped, and sends the caption through the rules.
    assert tokenize('" ' + caption) == tokenize(caption)


@given(st.text(max_size=40), st.sampled_from(LINE_BREAKS))
def test_line_breaks_are_spaces(text: str, line_break: str) -> None:
    assert tokenize(text + line_break + "x y") == tokenize(text + " x y")


SENTENCES = (
    "A brown dog runs over the wet sand.",
    "Two children share one slice of apple pie at 5:30 p.m. in St. Paul",
    "The harbour isn't full, but Mr. Lee's boats (all 12 of them) are here!",
    'an old clock hangs on the station wall; it says "10 o\'clock"',
    "She paid $3.50 for a well-known black/white T-shirt at www.example.com",
    "people wait in line outside Smith & Sons, Inc. on the 4th of July",
    "A.J. cannot see the 1/2 lb. burger -- he's gonna order no. 5 anyway...",
    "a café in Zürich sells “fresh” crêpes – only 4€ each",
)
PIECES = (
    *string.printable[:95],
    *("'s", "n't", "...", "--", "U.S.", "mr.", "&amp;", "<b>", ":)", "'", '"', ".", ",", "-", "/"),
    *"é’“—…½日😀\u200b\xa0",
)


def mutations(seed: int, count: int) -> list[str]:
    """Sentences with one to six random insertions, deletions and replacements."""
    generator = random.Random(seed)
    captions = []
    for _ in range(count):
        text = list(generator.choice(SENTENCES))
        for _ in range(generator.randint(1, 6)):
            position = generator.randrange(len(text))
            width = generator.randint(0, 2)
            text[position : position + width] = generator.choice(PIECES) * generator.randint(0, 1)
        caption = "".join(text)
        captions.append(generator.choice((caption, caption, caption.upper(), caption.lower())))
    return captions


def test_random_captions_agree_with_the_java_program(tmp_path: Path) -> None:
    package = pytest.importorskip("pycocoevalcap")
    java = shutil.which("java")
    if java is None:
        pytest.skip("needs java")
    (jar,) = Path(package.__path__[0]).glob("tokenizer/stanford-corenlp-3.4.1.jar")
    captions = mutations(seed=0, count=2000)
    file = tmp_path / "captions.txt"
    file.write_text("\n".join(captions), encoding="utf-8", newline="")
    command = [java, "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer"]
    answer = subprocess.run(
        [*command, "-preserveLines", "-lowerCase", str(file)], capture_output=True, check=True
    ).stdout.decode()
    lines = [
        [w for w in line.split(" ") if w and w not in PUNCTUATION] for line in answer.split("\n")
    ]
    assert tokenize_lines(captions) == lines


@pytest.mark.parametrize(
    ("lines", "words"),
    [  # what the Java program prints for files of these lines
        (["the man :)"], ["the man -rrb-"]),
        (["the man :)", ""], ["the man :-rrb-", ""]),
        (["the man :)", "a"], ["the man :-rrb-", "a"]),
        (["x :) "], ["x :-rrb-"]),
        (["x :D"], ["x d"]),
        (["x =)"], ["x = -rrb-"]),
        (["x :]"], ["x -rsb-"]),
        (["a :) b"], ["a :-rrb- b"]),
        (["x ^_^"], ["x ^_^"]),
    ],
)
def test_smiley_at_the_end_of_the_file(lines, words):
    assert [" ".join(line) for line in tokenize_lines(lines)] == words
    if len(lines) == 1:
        assert " ".join(tokenize(lines[0], None)) == words[0]
