"""The vocabulary, against counting by hand, and its file."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngsan.text import ptb
from ngsan.text.tokenizers import TOKENIZERS, plain_words
from ngsan.text.vocabulary import BOUNDARY, UNKNOWN, Vocabulary

token_lists = st.lists(st.lists(st.sampled_from(["a", "b", "c", "ä", "'s", UNKNOWN]), max_size=12))


@given(token_lists, st.integers(0, 4), st.booleans())
def test_build_keeps_what_is_frequent(tokens, more_than, unknown) -> None:
    counts = Counter(token for words in tokens for token in words if token != UNKNOWN)
    frequent = {word for word in counts if counts[word] > more_than}
    if not frequent:
        with pytest.raises(ValueError, match=f"more than {more_than} times in {len(tokens)} capt"):
            Vocabulary.build(iter(tokens), more_than=more_than, unknown=unknown)
        return
    vocabulary = Vocabulary.build(iter(tokens), more_than=more_than, unknown=unknown)
    words = list(vocabulary.words)
    if unknown:
        assert words.pop() == UNKNOWN
    assert set(words) == frequent
    assert len(vocabulary) == len(frequent) + unknown + 1
    for first, second in pairwise(words):
        assert counts[first] > counts[second] or (
            counts[first] == counts[second] and first < second
        )
    total = sum(map(len, tokens))
    known = sum(counts[word] for word in frequent)
    assert vocabulary.coverage(tokens) == pytest.approx(known / total)
    assert vocabulary.origin.captions == len(tokens)


def test_default_threshold_is_more_than_five() -> None:
    vocabulary = Vocabulary.build([["six", "five"]] * 5 + [["six"]])
    assert vocabulary.words == ("six", UNKNOWN)


def test_ids_and_words() -> None:
    vocabulary = Vocabulary(["dog", "runs", UNKNOWN])
    assert vocabulary.encode(["runs", "cat", "dog"]) == [2, 3, 1]
    assert vocabulary.decode([2, 1, BOUNDARY, 2]) == ["runs", "dog"]
    assert "dog" in vocabulary
    assert "cat" not in vocabulary
    with pytest.raises(ValueError, match="'cat' is not in the vocabulary"):
        Vocabulary(["dog"]).encode(["cat"])
    with pytest.raises(ValueError, match="'dog' occurs twice"):
        Vocabulary(["dog", "runs", "dog"])
    with pytest.raises(ValueError, match="at least one token"):
        vocabulary.coverage([[]])


@given(st.lists(st.text(min_size=1), unique=True, min_size=1), st.booleans())
def test_saved_is_loaded(tmp_path_factory, words, known) -> None:
    path = tmp_path_factory.mktemp("vocabulary") / "new" / "vocabulary.json"
    vocabulary = Vocabulary(words)
    if any("\ud800" <= letter <= "\udfff" for word in words for letter in word):
        return
    if known:
        vocabulary = Vocabulary.build([words], more_than=0, unknown=False, tokenizer="some-1")
    vocabulary.save(path)
    loaded = Vocabulary.load(path)
    assert loaded.words == vocabulary.words
    assert loaded.origin == vocabulary.origin
    assert loaded.signature == vocabulary.signature
    loaded.require_same(vocabulary, "the file")
    assert json.loads(path.read_bytes())["words"] == list(vocabulary.words)
    assert [entry.name for entry in path.parent.iterdir()] == ["vocabulary.json"]


def test_file_records_the_origin(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    captions = ["A dog runs.", "A dog's day"]
    tokenizer = TOKENIZERS["ptb"]
    Vocabulary.build(
        map(tokenizer.tokenize, captions), more_than=1, tokenizer=tokenizer.version
    ).save(path)
    content = json.loads(path.read_text())
    assert content["origin"] == {
        "tokenizer": ptb.TOKENIZER_VERSION,
        "more_than": 1,
        "captions": 2,
    }
    assert content["words"] == ["a", "dog", UNKNOWN]
    assert Vocabulary.load(path).tokenize("A dog's day") == ["a", "dog", "'s", "day"]


def test_vocabulary_of_another_tokenizer(tmp_path: Path) -> None:
    made = Vocabulary.build([["a"]], more_than=0, tokenizer="plain-of-old")
    with pytest.raises(ValueError, match="'plain-of-old'.*plain-a"):
        made.tokenize("A dog")
    with pytest.raises(ValueError, match="''"):
        Vocabulary(["a"]).tokenize("A dog")


def test_first_difference_is_named() -> None:
    mine = Vocabulary(["a", "dog", "runs"])
    others = {
        ("a", "cat", "runs"): "id 2 is 'cat' there and 'dog' here",
        ("a", "dog"): "id 3 is absent there and 'runs' here",
        ("a", "dog", "runs", "far"): "id 4 is 'far' there and absent here",
        ("dog", "a", "runs"): "id 1 is 'dog' there and 'a' here",
        ("a", "dogruns"): "id 2 is 'dogruns' there",
    }
    signatures = {mine.signature}
    for words, difference in others.items():
        other = Vocabulary(words)
        signatures.add(other.signature)
        with pytest.raises(ValueError, match=f"of the model .*{difference}") as caught:
            mine.require_same(other, "the model")
        assert mine.signature in str(caught.value)
        assert other.signature in str(caught.value)
    assert len(signatures) == 6


def _changed(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "ngsan data captions"),
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), "damaged"),
        (lambda path: path.write_bytes(b"\xff"), "damaged"),
        (lambda path: path.write_text("[]"), "no format version"),
        (lambda path: _changed(path, format=2), "format 2 is not supported"),
        (lambda path: _changed(path, words="a dog"), "words must be a list"),
        (lambda path: _changed(path, words=["a", 1]), "words must be a list"),
        (lambda path: _changed(path, words=["a", ""]), "words must be a list"),
        (lambda path: _changed(path, words=["a", "a"]), "'a' occurs twice"),
        (lambda path: _changed(path, words=["a", "cat"]), "the file was edited"),
        (lambda path: _changed(path, origin={"tokenizer": "x"}), "origin must have"),
        (lambda path: _changed(path, origin=3), "origin must have"),
    ],
)
def test_damaged_files_are_rejected(tmp_path: Path, damage, message: str) -> None:
    path = tmp_path / "vocabulary.json"
    Vocabulary.build([["a", "dog"]], more_than=0, unknown=False, tokenizer="x").save(path)
    damage(path)
    with pytest.raises(ValueError, match=rf"vocabulary\.json: .*{message}"):
        Vocabulary.load(path)


@pytest.mark.parametrize(
    ("caption", "words"),
    # The first with its published tokens. The field's vocabulary has words such as "including:",
    # "&", "#", "doesnt" and "mans", and none such as "t-shirt" or "man's".
    [
        (
            "A man with a red helmet on a small moped on a dirt road. ",
            "a man with a red helmet on a small moped on a dirt road",
        ),
        ("Man's T-shirt, that doesn't fit", "mans t shirt that doesnt fit"),
        ("Food including: bread & cheese/ham", "food including: bread & cheese ham"),
        ('The #1 "dog"!', "the #1 dog"),
        ("...", ""),
    ],
)
def test_plain_words(caption: str, words: str) -> None:
    assert plain_words(caption) == words.split()
