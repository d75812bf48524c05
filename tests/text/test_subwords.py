"""Subwords: exact texts, against the library's own decoder and a plain byte-pair encoder."""

import itertools
import json
import random
import time
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ngsan.text.subwords import MIN_SIZE, Subwords
from ngsan.text.vocabulary import BOUNDARY

tokenizers = pytest.importorskip("tokenizers")

LINES = [
    "A little girl climbing into a wooden playhouse.",
    "Ein kleines Mädchen klettert in ein Spielhaus aus Holz.",
    "Two men are at the stove, preparing food.",
    "Zwei Männer stehen am Herd und bereiten Essen zu.",
    'Eine Tür - grün, schön & "groß" - kostet 1.250,50 €.',
] * 3


@pytest.fixture(scope="module")
def subwords():
    return Subwords.train(iter(LINES), 400)


def plain_text(text):
    return " ".join(unicodedata.normalize("NFC", text).split())


def merged(word, ranks):
    """A word's pieces by definition: repeatedly merge the pair with the earliest merge rule."""
    parts = list(word)
    while len(parts) > 1:
        pairs = list(itertools.pairwise(parts))
        best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        place = pairs.index(best)
        parts[place : place + 2] = ["".join(best)]
    return parts


def test_subwords_equal_plain_byte_pair_encoding(subwords):
    content = json.loads(subwords.text)
    ranks = {tuple(pair): rank for rank, pair in enumerate(content["model"]["merges"])}
    cut = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    for line in [*LINES[:5], "Zwei Türen; grüne Häuser 12,5"]:
        words = [word for word, _ in cut.pre_tokenize_str(line)]
        expected = [piece for word in words for piece in merged(word, ranks)]
        assert [subwords.pieces[index - 1] for index in subwords.encode(line)] == expected


def test_ids_leave_the_boundary_free(subwords):
    assert len(subwords) == 400 == len(subwords.pieces) + 1
    ids = {index for line in LINES for index in subwords.encode(line)}
    assert BOUNDARY not in ids
    assert max(ids) < len(subwords)
    assert subwords.decode([*subwords.encode("A man"), BOUNDARY, 300]) == "A man"


def test_decoding_equals_the_library(subwords):
    theirs = tokenizers.Tokenizer.from_str(subwords.text)
    for line in LINES[:5]:
        ids = subwords.encode(line)
        assert theirs.decode([index - 1 for index in ids]).strip() == subwords.decode(ids) == line


# Unassigned characters may be letters in another version of Unicode.
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=30))
@example("I'm 12½ ²x³ it's'd_a-b\u3000ⅧX \x1c\x85 don't\u0308 e\u0301")
@settings(max_examples=300, deadline=None)
def test_subwords_equal_the_library(subwords, text):
    theirs = tokenizers.Tokenizer.from_str(subwords.text)
    expected = theirs.encode(text, add_special_tokens=False).ids
    assert subwords.encode(text) == [index + 1 for index in expected]


@given(text=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30))
@settings(max_examples=200, deadline=None)
def test_decoding_inverts_encoding(subwords, text):
    assert subwords.decode(subwords.encode(text)) == plain_text(text)


@pytest.mark.parametrize("text", ["", "  ", "<s> </s> <pad>", "日本語 😀", " two  spaces\t"])
def test_odd_texts(subwords, text):
    assert subwords.decode(subwords.encode(text)) == plain_text(text)
    assert bool(subwords.encode(text)) == bool(text.strip())


def test_incomplete_utf8_is_replaced(subwords):
    whole = [index for index in range(1, 257) if subwords.pieces[index - 1] == "Ã"]
    assert subwords.decode(whole) == "\ufffd"
    with pytest.raises(ValueError, match="subword 400 is out of range"):
        subwords.decode([400])


def test_its_file(subwords, tmp_path):
    path = tmp_path / "sub" / "tokenizer.json"
    subwords.save(path)
    again = Subwords.load(path)
    assert again.signature == subwords.signature
    assert again.encode_all(LINES) == subwords.encode_all(LINES)
    assert Subwords.train(LINES, 400).signature == subwords.signature


def test_wrong_files_are_named(subwords, tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ValueError, match="no tokenizer file"):
        Subwords.load(path)
    for text in ("{", "[]", '{"model": {}}'):
        path.write_text(text)
        with pytest.raises(ValueError, match="tokenizer.json: not a tokenizer"):
            Subwords.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="tokenizer.json: not a tokenizer"):
        Subwords.load(path)
    path.write_text(subwords.text.replace('"ByteLevel"', '"Whitespace"', 1))
    with pytest.raises(ValueError, match="byte-level BPE"):
        Subwords.load(path)
    with pytest.raises(ValueError, match=f"at least {MIN_SIZE}"):
        Subwords.train(LINES, 256)


def test_long_words_and_runs_of_marks_take_linear_time(subwords):
    rng = random.Random(0)
    word = "".join(rng.choices("abcdefgh", k=50_000))
    marks = "a" + "\u0301\u0323" * 50_000
    start = time.process_time()
    assert subwords.decode(subwords.encode(word)) == word
    ids = subwords.encode(marks)
    assert time.process_time() - start < 4  # minutes, in quadratic time
    assert subwords.decode(ids) == "\u1ea1" + "\u0323" * 49_999 + "\u0301" * 50_000
