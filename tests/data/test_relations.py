"""Files of true and false sentences."""

import gzip
import json

import pytest

from ngsan.data.relations import Claim, read_claims

LINE = {"id": 42, "split": "test", "text": "The cat is on the mat.", "true": 1, "rel": "on"}


@pytest.mark.parametrize("name", ["claims.jsonl", "claims.jsonl.gz"])
def test_lines_become_claims(tmp_path, name):
    second = {**LINE, "id": "000000000007.jpg", "true": 0}
    text = f"{json.dumps(LINE)}\n\n{json.dumps(second)}\n".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert read_claims(path) == [
        Claim("42", LINE["text"], True, "on"),
        Claim("7", LINE["text"], False, "on"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "claims.jsonl:2: not JSON"),
        ("[1]", "claims.jsonl:2: must be an object with id, text, true and rel"),
        (json.dumps({**LINE, "true": 3}), "claims.jsonl:2: text and rel must be strings"),
        (json.dumps({**LINE, "true": [1]}), "claims.jsonl:2: text and rel must be strings"),
        (json.dumps({**LINE, "text": None}), "claims.jsonl:2: text and rel must be strings"),
        (json.dumps({**LINE, "id": None}), "claims.jsonl:2: an image id is a string"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    path = tmp_path / "claims.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n{line}\n")
    with pytest.raises(ValueError, match=message):
        read_claims(path)


def test_file_without_sentences(tmp_path):
    (tmp_path / "claims.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="has no sentences"):
        read_claims(tmp_path / "claims.jsonl")
