"""The parts of METEOR: stems, choice of matches, and the table of paraphrases."""

import gzip
import importlib.util
import json
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngsan.metrics.meteor.matching import Match, align, count_chunks, java_hash
from ngsan.metrics.meteor.paraphrases import ParaphraseTable
from ngsan.metrics.meteor.words import Normalizer, find_resources, stem

STEMS = json.loads((Path(__file__).parents[1] / "golden" / "meteor_stems.json").read_text("utf-8"))


def test_stems_equal_the_programs():
    assert {word: stem(word) for word in STEMS["stems"]} == STEMS["stems"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),  # "hello".hashCode(), a value known to every user of Java
        ("Aa", 2112),
        ("BB", 2112),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
    ],
)
def test_java_hash(text, value):
    assert java_hash(text) == value


def test_plain_words_skip_no_rule():
    normalizer = Normalizer({"dr": False, "no": True})
    for line in ("a dog", "  two   dogs ", "", "3 dogs at 5"):
        slow = normalizer.words(f"{line} \u00a0")  # a character outside the fast path
        assert normalizer.words(line) == slow == line.split()


def test_abbreviations_keep_their_period():
    normalizer = Normalizer({"Dr": False, "no": True})
    words = normalizer.words("Dr. X no. 5 no. X x. Y")
    assert words == ["dr.", "x", "no.", "5", "no", ".", "x", "x", ".", "y"]


# Choice of matches


def exact(caption, reference):
    """Candidates of words that are equal."""
    return [
        [Match(0, i, 1, 1) for i, word in enumerate(caption) if word == wanted]
        for wanted in reference
    ]


def every_choice(candidates):
    """All sets of matches that use every word at most once."""
    pairs = [(place, match) for place, matches in enumerate(candidates) for match in matches]
    sizes = range(min(len(pairs), len(candidates)) + 1)
    for chosen in chain.from_iterable(combinations(pairs, size) for size in sizes):
        places = [place for place, _ in chosen]
        starts = [match.start for _, match in chosen]
        if len(set(places)) == len(places) and len(set(starts)) == len(starts):
            yield chosen


@given(
    caption=st.lists(st.sampled_from("abc"), max_size=4),
    reference=st.lists(st.sampled_from("abc"), max_size=4),
)
@settings(deadline=None)
def test_alignment_has_most_words_then_fewest_chunks(caption, reference):
    candidates = exact(caption, reference)
    chosen = align(candidates, len(caption))
    best = min((-len(choice), count_chunks(choice)) for choice in every_choice(candidates))
    assert (-len(chosen), count_chunks(chosen)) == best
    assert all(match in candidates[place] for place, match in chosen)


def test_chunks():
    assert count_chunks([]) == 0
    assert (
        count_chunks([(0, Match(0, 0, 1, 1)), (1, Match(3, 1, 2, 3)), (4, Match(0, 3, 1, 1))]) == 1
    )
    assert count_chunks([(0, Match(0, 0, 1, 1)), (2, Match(0, 1, 1, 1))]) == 2  # a gap
    assert count_chunks([(0, Match(0, 1, 1, 1)), (1, Match(0, 0, 1, 1))]) == 2  # exchanged


# The table of paraphrases

WORDS = ("a", "b", "c", "\u00e9")
PHRASES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)


def write_table(path, entries):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for phrase, paraphrase in entries:
            file.write(f"0.5\n{phrase}\n{paraphrase}\n")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NGSAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@given(
    entries=st.lists(st.tuples(PHRASES, PHRASES), min_size=1, max_size=12),
    captions=st.lists(st.lists(st.sampled_from((*WORDS, "z")), max_size=7), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=60)
def test_table_equals_a_plain_search(tmp_path_factory, entries, captions):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder / "table.gz", entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NGSAN_CACHE", str(folder))
        table = ParaphraseTable.load(folder / "table.gz")
    phrases = table.find(captions)
    found = {}
    rows = zip(phrases.captions, phrases.starts, phrases.lengths, phrases.nodes, strict=True)
    for caption, start, length, node in rows:
        text = " ".join(captions[caption][start : start + length])
        assert found.setdefault(text, node) == node
    order = list(zip(phrases.captions, phrases.starts, phrases.lengths, strict=True))
    assert order == sorted(order)
    present = {
        " ".join(caption[i:j])
        for caption in captions
        for i in range(len(caption))
        for j in range(i + 1, len(caption) + 1)
    }
    assert {text for pair in entries for text in pair} & present <= found.keys() <= present

    nodes = np.array(list(found.values()), dtype=np.int64)
    by_node = {node: text for text, node in found.items()}
    result = {
        by_node[node]: [by_node[value] for value in values]
        for node, values in table.paraphrases(nodes, nodes).items()
    }
    wanted = {}
    for phrase, paraphrase in entries:
        if phrase in present and paraphrase in present:
            wanted.setdefault(phrase, []).append(paraphrase)
    assert result == wanted


def test_index_is_cached_and_repaired(tmp_path, cache):
    path = tmp_path / "table.gz"
    write_table(path, [("a b", "c"), ("c", "a b c"), ("a", "b")])
    first = ParaphraseTable.load(path)
    (folder,) = cache.iterdir()
    assert isinstance(first.values, np.memmap)
    values = first.values.tolist()
    written = (folder / "values.npy").stat().st_mtime_ns
    assert ParaphraseTable.load(path).words == first.words
    assert (folder / "values.npy").stat().st_mtime_ns == written
    for name in ("values.npy", "words.txt"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-4])
        assert ParaphraseTable.load(path).values.tolist() == values
        assert (folder / name).read_bytes() == whole
    write_table(path, [("a", "c")])  # another table gets another index
    assert len(ParaphraseTable.load(path).values) == 1
    assert len(list(cache.iterdir())) == 2


def test_works_without_a_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a file stands where the folder should be", encoding="utf-8")
    monkeypatch.setenv("NGSAN_CACHE", str(tmp_path / "file"))
    write_table(tmp_path / "table.gz", [("a", "b")])
    table = ParaphraseTable.load(tmp_path / "table.gz")
    assert table.values.tolist() == [table.words["b"]]


def test_cache_folder(tmp_path, monkeypatch):
    write_table(tmp_path / "table.gz", [("a", "b")])
    monkeypatch.delenv("NGSAN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    ParaphraseTable.load(tmp_path / "table.gz")
    assert len(list((tmp_path / "shared" / "ngsan").iterdir())) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    ParaphraseTable.load(tmp_path / "table.gz")
    assert len(list((tmp_path / "home" / ".cache" / "ngsan").iterdir())) == 1


def test_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"is not installed: pip install 'ngsan\[metrics\]'"):
        find_resources()
