"""Preparing parallel text, from valid and invalid files."""

import gzip
import json

import numpy as np
import pytest

from ngsan.atomic_io import seal
from ngsan.data.parallel.dataset import ParallelSplit
from ngsan.data.parallel.prepare import Split, prepare, read_pairs
from ngsan.data.problems import Problems
from ngsan.data.text_files import lines_of, read_lines
from ngsan.text.subwords import Subwords

pytest.importorskip("tokenizers")

ENGLISH = ["A man sleeps.", "Two dogs run on grass.", "A girl with a red hat.", "Birds."] * 5
GERMAN = ["Ein Mann schläft.", "Zwei Hunde rennen.", "Ein Mädchen mit rotem Hut.", "Vögel."] * 5


@pytest.fixture
def files(tmp_path):
    (tmp_path / "train.en").write_text("\n".join(ENGLISH) + "\n", encoding="utf-8")
    with gzip.open(tmp_path / "train.de.gz", "wt", encoding="utf-8", newline="\r\n") as file:
        file.write("\n".join(GERMAN) + "\n")
    (tmp_path / "val.en").write_text("A man runs.\n\nlast", encoding="utf-8")
    (tmp_path / "val.de").write_text("Ein Mann rennt.\nleer\u2028er \n", encoding="utf-8-sig")
    with (tmp_path / "val.de").open("a", encoding="utf-8") as file:
        file.write("letzte\n")
    return {
        "train": Split([tmp_path / "train.en"], [tmp_path / "train.de.gz"]),
        "val": Split([tmp_path / "val.en"], [tmp_path / "val.de"]),
    }


def test_prepared_pairs_round_trip(files, tmp_path):
    skipped_lines = prepare(tmp_path / "data", files, vocabulary_size=300)
    assert not skipped_lines["train"].counts
    train = ParallelSplit(tmp_path / "data", "train", verify=True)
    subwords = train.subwords()
    assert train.vocab_size == len(subwords) == 300
    assert len(train) == 20
    for side, texts in (("source", ENGLISH), ("target", GERMAN)):
        found = [subwords.decode(train.sentence(side, index)) for index in range(20)]
        assert found == texts
        expected = [len(subwords.encode(text)) + 1 for text in texts]
        np.testing.assert_array_equal(train.lengths(side), expected)
    with pytest.raises(ValueError, match="texts of split 'train' are not kept"):
        train.texts("source")


def test_other_splits_keep_every_line(files, tmp_path):
    prepare(tmp_path / "data", files, vocabulary_size=300)
    val = ParallelSplit(tmp_path / "data", "val")
    assert val.texts("source") == ["A man runs.", "", "last"]
    assert val.texts("target") == ["Ein Mann rennt.", "leer\u2028er ", "letzte"]
    assert val.sentence("source", 1) == []
    assert val.subwords().decode(val.sentence("target", 1)) == "leer er"


def test_several_files_and_a_given_tokenizer(files, tmp_path):
    subwords = Subwords.train(ENGLISH, 280)
    english, german = files["train"].sources[0], files["train"].targets[0]
    prepare(tmp_path / "data", {"train": Split([english] * 3, [german] * 3)}, subwords=subwords)
    train = ParallelSplit(tmp_path / "data", "train")
    assert len(train) == 60
    assert train.subwords().signature == subwords.signature
    prepare(tmp_path / "val", {"val": files["val"]}, subwords=subwords)
    with pytest.raises(ValueError, match="no split 'train', only val"):
        ParallelSplit(tmp_path / "val", "train")


def test_different_numbers_of_lines_raise(files, tmp_path):
    path = tmp_path / "short.de"
    path.write_text("eins\nzwei\n")
    english = files["train"].sources[0]
    with pytest.raises(ValueError, match=r"train\.en has 20 lines and .*short\.de has 2: line k"):
        list(read_pairs([english], [path], Problems()))
    with pytest.raises(ValueError, match=r"short\.de has 2 lines and .*train\.en has 20"):
        list(read_pairs([path], [english], Problems()))
    with pytest.raises(ValueError, match="1 source files and 0 target files"):
        list(read_pairs([path], [], Problems()))
    assert not (tmp_path / "data").exists()


def test_skipped_lines_are_counted(tmp_path):
    (tmp_path / "a").write_bytes(b"one\n\nthree three three three\nfour\nb\xffd\nsix\n")
    (tmp_path / "b").write_bytes(b"eins\nzwei\ndrei\n  \nf\nsechs sechs sechs sechs sechs\n")
    split = {"train": Split([tmp_path / "a"], [tmp_path / "b"])}
    subwords = Subwords.train(["one two three eins zwei drei sechs"] * 4, 300)
    with pytest.raises(
        ValueError, match=r"line 5: invalid UTF-8: source: byte 2 of the line: invalid start byte"
    ):
        prepare(tmp_path / "data", split, subwords=subwords)
    assert not (tmp_path / "data").exists()
    found = prepare(
        tmp_path / "data", split, subwords=subwords, skip_bad=True, max_length=5, ratio=2.0
    )
    counts = {"empty line": 2, "invalid UTF-8": 1, "overlong line": 1, "uneven pair": 1}
    assert found["train"].counts == counts
    index = json.loads((tmp_path / "data" / "parallel.json").read_text())
    assert index["splits"]["train"]["skipped"] == counts
    assert len(ParallelSplit(tmp_path / "data", "train")) == 1


def test_invalid_lines_outside_training_raise(files, tmp_path, monkeypatch):
    monkeypatch.setattr(lines_of, "__kwdefaults__", {"max_bytes": 64})
    monkeypatch.setattr(read_lines, "__kwdefaults__", {"max_bytes": 64})
    files["train"].sources[0].write_text("\n".join([*ENGLISH[:-1], "x" * 1000]) + "\n")
    found = prepare(tmp_path / "data", files, vocabulary_size=300)
    assert found["train"].counts == {"overlong line": 1}
    files["val"].sources[0].write_text("a\n" + "x" * 1000 + "\nc\n")
    with pytest.raises(ValueError, match="line 2: overlong line"):
        prepare(tmp_path / "data", files, vocabulary_size=300, skip_bad=True, overwrite=True)
    assert len(ParallelSplit(tmp_path / "data", "val")) == 3  # the old data are kept


def test_damaged_gzip_files_raise(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(("line\n" * 10_000).encode())[:-20])
    with pytest.raises(ValueError, match=r"x\.gz: damaged"):
        list(read_lines(path))
    path.write_bytes(b"plain text")
    with pytest.raises(ValueError, match=r"x\.gz: damaged"):
        list(read_lines(path))


def test_existing_data_are_replaced_only_with_overwrite(files, tmp_path):
    prepare(tmp_path / "data", files, vocabulary_size=300)
    with pytest.raises(ValueError, match="--overwrite"):
        prepare(tmp_path / "data", files, vocabulary_size=300)
    (tmp_path / "data" / "notes").write_text("mine")
    with pytest.raises(ValueError, match="holds other files, such as notes"):
        prepare(tmp_path / "data", files, vocabulary_size=300, overwrite=True)
    (tmp_path / "data" / "notes").unlink()
    first = ParallelSplit(tmp_path / "data", "train").signature
    prepare(tmp_path / "data", files, vocabulary_size=290, overwrite=True)
    assert ParallelSplit(tmp_path / "data", "train").signature != first
    assert sorted(path.name for path in tmp_path.iterdir() if "data" in path.name) == ["data"]


def test_damaged_data_raise(files, tmp_path):
    folder = tmp_path / "data"
    prepare(folder, files, vocabulary_size=300)
    path = folder / "train.source.ids"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    ParallelSplit(folder, "train")
    with pytest.raises(ValueError, match=r"train\.source\.ids is damaged"):
        ParallelSplit(folder, "train", verify=True)
    path.write_bytes(content[:-4])
    with pytest.raises(ValueError, match=r"train\.source\.ids has .* bytes instead of"):
        ParallelSplit(folder, "train")
    path.unlink()
    with pytest.raises(ValueError, match=r"train\.source\.ids is missing"):
        ParallelSplit(folder, "train")
    index = folder / "parallel.json"
    for text in (index.read_text().replace('"pairs": 20', '"pairs": 19'), '{"format": 2}'):
        index.write_text(text)
        with pytest.raises(ValueError, match=r"parallel\.json is damaged"):
            ParallelSplit(folder, "val")
    index.write_text(seal({"format": 1, "splits": {}}))
    with pytest.raises(ValueError, match="unknown format 1"):
        ParallelSplit(folder, "val")
    with pytest.raises(ValueError, match="holds no parallel text: make it with ngsan data"):
        ParallelSplit(tmp_path, "val")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 1}, "max_length: 1 must be at least 2"),
        ({"ratio": 0.5}, "ratio: 0.5 must be at least 1"),
        ({"vocabulary_size": 10}, "vocabulary size 10"),
        ({"max_length": 2}, "hold no usable pair; skipped 20: overlong line"),
    ],
)
def test_invalid_options_raise(files, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / "data", files, **{"vocabulary_size": 270, **options})
    assert not (tmp_path / "data").exists()


def test_language_comes_from_file_names_or_the_option(files, tmp_path):
    def language_of(where, **changes):
        prepare(tmp_path / where, {**files, **changes}, vocabulary_size=300)
        return ParallelSplit(tmp_path / where, "val").language

    assert language_of("named") == "de"
    (tmp_path / "val.txt").write_bytes((tmp_path / "val.de").read_bytes())
    (tmp_path / "val.fr").write_bytes((tmp_path / "val.de").read_bytes())
    assert language_of("other", val=Split([tmp_path / "val.en"], [tmp_path / "val.fr"])) == ""
    unnamed = {**files, "val": Split([tmp_path / "val.en"], [tmp_path / "val.txt"])}
    assert language_of("unnamed", **unnamed) == ""
    prepare(tmp_path / "explicit", unnamed, vocabulary_size=300, language="en")
    explicit = ParallelSplit(tmp_path / "explicit", "val")
    assert explicit.language == "en"
    # The language is not part of the signature.
    assert explicit.signature == ParallelSplit(tmp_path / "unnamed", "val").signature
    with pytest.raises(ValueError, match="language: 'German' is not two lower-case letters"):
        prepare(tmp_path / "wrong", files, language="German")
