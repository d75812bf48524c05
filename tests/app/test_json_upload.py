"""JSON with photographs, read in pieces of any size."""

import base64
import json
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngsan.app.errors import ApiError
from ngsan.app.json_upload import JsonReader

FILE = random.Random(0).randbytes(5000)
TEXT = base64.b64encode(FILE).decode()


def read(text, size=None, **limits):
    """The object in a text, fed in pieces of a size."""
    reader = JsonReader(**{"max_rest": 65536, "max_files": 16} | limits)
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    for start in range(0, len(content), size or len(content) or 1):
        reader.feed(content[start : start + size if size else None])
    return reader.close()


def plain(value):
    """A value that was read, with files as base64."""
    return base64.b64encode(value).decode() if isinstance(value, bytearray) else value


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 999, 4096, None])
@pytest.mark.parametrize("escaped", ["", "/", "+", "=", "AZ/+="])
def test_files_in_any_piece_and_escape(size, escaped):
    text = json.dumps({"images": [TEXT, "YWJj", TEXT], "beam": 3, "prefix": 'a "dog" \\ ü'})
    for letter in escaped:  # some writers of JSON escape these
        text = text.replace(letter, f"\\u{ord(letter):04x}" if letter != "/" else "\\/")
    if size and size < 5 and len(escaped) > 1:
        text = text[:9000]  # short, as this is slow
        text = text[: text.index('"', 4000) + 1] + "]}"
        found = read(text, size)
        assert found == {"images": [FILE]}
        return
    found = read(text, size)
    assert found["images"] == [FILE, "YWJj", FILE]
    assert (found["beam"], found["prefix"]) == (3, 'a "dog" \\ ü')


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=30)
VALUES = st.recursive(
    SCALARS | st.binary(min_size=2400, max_size=2600).map(lambda b: base64.b64encode(b).decode()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries({}, optional={"image": VALUES, "images": VALUES, "beam": SCALARS}),
    st.integers(1, 5000),
    st.booleans(),
)
def test_equals_a_parser_of_the_whole(content, size, ascii_only):
    text = json.dumps(content, ensure_ascii=ascii_only)
    found = read(text, size)
    wanted = json.loads(text)
    for name, value in wanted.items():
        if name == "images" and isinstance(value, list):
            for left, right in zip(found[name], value, strict=True):
                assert plain(left) == right or isinstance(right, list | dict)
        else:
            assert plain(found[name]) == value or isinstance(value, list | dict)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"image": "' + TEXT + "=" * 8 + TEXT + '"}', 422),
        ('{"image": "' + TEXT + "==" + TEXT + '"}', 422),
        ('{"image": "' + TEXT[:-1] + '"}', 422),
        ('{"image": "' + TEXT + "\\n" + TEXT + '"}', 422),
        ('{"image": "' + TEXT + "ü" + TEXT + '"}', 422),
        ('{"image": "' + TEXT, 400),
        ('{"image": "' + TEXT + "\\", 400),
        ('{"image": "' + TEXT + '\\"}', 400),
        ('["' + TEXT + '"]', 422),
        ("{}" * 40_000, 413),
        ('{"images": [' + "{}," * 30_000 + "{}]}", 413),
        ('{"images": [' + '"",' * 30_000 + '""]}', 413),
        ('{"images": [' + '"\\n",' * 30_000 + '""]}', 413),
        (json.dumps({"images": [TEXT] * 17}), 422),
        ('{"a":' * 9000 + "1" + "}" * 9000, 400),
    ],
)
@pytest.mark.parametrize("size", [1000, None])
def test_wrong_json(text, status, size):
    with pytest.raises(ApiError) as raised:
        read(text, size)
    assert raised.value.status_code == status


def test_only_the_file_is_held():
    piece = base64.b64encode(bytes(48_000))
    tracemalloc.start()
    reader = JsonReader(max_rest=65536, max_files=1)
    reader.feed(b'{"image": "')
    for _ in range(200):
        reader.feed(piece)
    reader.feed(b'"}')
    assert len(reader.close()["image"]) == 200 * 48_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.3 * 200 * 48_000
