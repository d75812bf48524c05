import base64
import json
import re
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from ngsan.data.gallery import MAX_BOXES, write_gallery
from ngsan.data.inspection import inspect
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.text import ptb
from ngsan.text.vocabulary import Origin, Vocabulary

EVIL = '<script>alert("1")</script>'
VOID = {"meta", "img", "rect", "br", "link"}


def write_vocabulary(folder):
    words = ["a", "cat", "dog", "on", "the", "<unk>"]
    vocabulary = Vocabulary(words, origin=Origin(ptb.TOKENIZER_VERSION, 0, 0))
    vocabulary.save(folder / "vocabulary.json")
    return vocabulary


def write_captions(folder, extra=()):
    records = [
        {"id": "7", "split": "train", "captions": ["A cat on the dog.", "the dog"]},
        {"id": "8", "split": "val", "captions": ["A zebra", "...", "a zebra and a cat"]},
        {"id": "9", "split": "train", "captions": ["cat"], "width": 300, "height": 100},
        *extra,
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "captions.jsonl").write_text(text)


def write_features(folder, counts, size=None):
    rng = np.random.default_rng(0)
    with StoreWriter(folder, source="test") as writer:
        for image, count in counts.items():
            boxes = np.concatenate(
                (np.full((count, 2), 0.5), 0.1 + 0.8 * rng.random((count, 2))), 1
            )
            writer.add(image, Regions(np.ones((count, 3), np.float16), boxes, size))


def test_counts_by_hand(tmp_path):
    vocabulary = write_vocabulary(tmp_path)
    write_captions(tmp_path)
    write_features(tmp_path, {"7": 2, "9": 7, "alone": 4})
    facts = inspect(tmp_path)
    assert facts["splits"] == {
        "train": {"images": 2, "captions": 3},
        "val": {"images": 1, "captions": 3},
    }
    assert facts["vocabulary"] == 6
    assert facts["vocabulary_facts"]["ids"] == 7
    assert facts["vocabulary_facts"]["signature"] == vocabulary.signature
    # "a cat on the dog", "the dog", "cat": all 8 known; of "a zebra", "a zebra and a cat" 4 of 7.
    assert facts["vocabulary_facts"]["coverage"] == {"train": 1.0, "val": 4 / 7}
    words = facts["captions"]["words"]
    assert words["histogram"] == {"0": 1, "1": 1, "2": 2, "5": 2}
    assert (words["min"], words["mean"], words["max"]) == (0, 15 / 6, 5)
    assert facts["regions"] == 13
    regions = facts["region_facts"]
    assert (regions["images"], regions["feature_dim"]) == (3, 3)
    assert (regions["min"], regions["mean"], regions["max"]) == (2, 13 / 3, 7)
    assert facts["missing"] == {"count": 1, "first": ["8"]}
    assert facts["orphaned"] == {"count": 1, "first": ["alone"]}
    assert facts["problems"] == ["1 captions have no words"]
    assert json.loads(json.dumps(facts)) == facts


def test_literal_unknown_word_does_not_count_as_known(tmp_path):
    origin = Origin("plain-a", 0, 0)
    Vocabulary(["cat", "<unk>"], origin=origin).save(tmp_path / "vocabulary.json")
    line = json.dumps({"id": "1", "split": "val", "captions": ["<unk> cat", "cat zebra"]})
    (tmp_path / "captions.jsonl").write_text(line + "\n")
    assert inspect(tmp_path)["vocabulary_facts"]["coverage"] == {"val": 0.5}


def test_missing_features_are_counted_and_the_first_listed(tmp_path):
    extra = [{"id": str(k), "split": "test", "captions": ["cat"]} for k in range(100, 150)]
    write_captions(tmp_path, extra)
    write_features(tmp_path, {"7": 1})
    missing = inspect(tmp_path)["missing"]
    assert missing["count"] == 52
    assert missing["first"][:3] == ["8", "9", "100"]
    assert len(missing["first"]) < 52


def test_folder_with_captions_only(tmp_path):
    write_captions(tmp_path)
    facts = inspect(tmp_path)
    assert facts["splits"]["train"] == {"images": 2, "captions": 3}
    assert facts["vocabulary"] is facts["regions"] is facts["missing"] is facts["orphaned"] is None


def test_folder_with_features_only(tmp_path):
    write_features(tmp_path, {"7": 2})
    facts = inspect(tmp_path)
    assert facts["splits"] == {}
    assert facts["captions"] is facts["vocabulary"] is facts["missing"] is None
    assert facts["region_facts"]["images"] == 1
    assert facts["problems"] == []


def test_empty_folder_raises(tmp_path):
    with pytest.raises(ValueError, match="not a dataset folder"):
        inspect(tmp_path)


def test_damaged_data_is_reported(tmp_path):
    write_captions(tmp_path)
    with (tmp_path / "captions.jsonl").open("a") as file:
        file.write('{"id": "7", "split": "train", "captions": ["again"]}\n')
    (tmp_path / "vocabulary.json").write_text("{}")
    write_features(tmp_path, {"7": 2})
    shard = tmp_path / "features" / "shard-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    facts = inspect(tmp_path)
    assert facts["splits"]["train"] == {"images": 2, "captions": 3}
    assert any("captions.jsonl:4" in problem for problem in facts["problems"])
    assert any("vocabulary.json" in problem for problem in facts["problems"])
    for found in (facts, inspect(tmp_path, verify=True)):
        assert sum("shard-00000" in problem for problem in found["problems"]) == 1


def test_interrupted_import_is_reported(tmp_path):
    write_captions(tmp_path)
    with pytest.raises(KeyError), StoreWriter(tmp_path, source="test") as writer:
        raise KeyError(writer.position)
    facts = inspect(tmp_path)
    assert facts["regions"] is None
    assert any("interrupted" in problem for problem in facts["problems"])


class Page(HTMLParser):
    """Reads a page and checks that its elements are closed in order."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.open, self.text, self.pictures = [], [], [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "img":
            self.pictures.append(dict(attributes)["src"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def count(self, wanted):
        return sum(tag == wanted for tag, _ in self.tags)


def test_page_escapes_its_content(tmp_path):
    folder = tmp_path / "<b>set"
    folder.mkdir()
    extra = [{"id": EVIL, "split": "train", "captions": [f"a {EVIL} & b"], "file": EVIL}]
    write_captions(folder, extra)
    write_features(folder, {EVIL: 2, f"{EVIL}2": 1})
    (tmp_path / "pictures").mkdir()
    write_gallery(folder, tmp_path / "page.html", images=tmp_path / "pictures")
    page = Page(tmp_path / "page.html")
    assert page.count("script") == page.count("b") == 0
    assert "<script" not in page.source
    assert f"a {EVIL} & b" in page.text
    assert EVIL in page.text
    assert "<b>set" in page.text


def test_page_is_self_contained(tmp_path):
    write_vocabulary(tmp_path)
    write_captions(tmp_path)
    write_features(tmp_path, {"7": 40, "9": 2}, size=(300, 100))
    write_gallery(tmp_path, tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert not re.search(r"https?:|//|@import|url\(", page.source)
    assert page.count("article") == 3
    assert page.count("rect") == MAX_BOXES + 2
    assert page.pictures == []
    titles = [text for text in page.text if text.startswith("region ")]
    assert sorted(titles) == sorted([f"region {k}" for k in range(36)] + ["region 0", "region 1"])
    shapes = [a["style"] for tag, a in page.tags if tag == "div" and a.get("class") == "picture"]
    assert shapes == ["aspect-ratio:300/100", "aspect-ratio:4/3", "aspect-ratio:300/100"]


def test_boxes_are_drawn_at_their_positions(tmp_path):
    with StoreWriter(tmp_path, source="test") as writer:
        box = np.array([[0.5, 0.25, 0.5, 0.5]], np.float32)
        writer.add("1", Regions(np.ones((1, 3), np.float16), box, (200, 100)))
    write_gallery(tmp_path, tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    view = next(a["viewbox"] for tag, a in page.tags if tag == "svg")
    rect = next(a for tag, a in page.tags if tag == "rect")
    # x from 1/4 to 3/4 of 1000, y from 0 to 1/2 of 500.
    assert [float(x) for x in view.split()] == [0, 0, 1000, 500]
    assert [float(rect[k]) for k in ("x", "y", "width", "height")] == [250, 0, 500, 250]


def test_embedded_pictures_are_small(tmp_path):
    extra = [
        {"id": "20", "split": "test", "captions": ["red"], "file": "train/red.png"},
        {"id": "21", "split": "test", "captions": ["broken"], "file": "broken.jpg"},
        {"id": "22", "split": "test", "captions": ["secret"], "file": "../secret.png"},
    ]
    write_captions(tmp_path, extra)
    pictures = tmp_path / "pictures"
    (pictures / "train").mkdir(parents=True)
    Image.new("RGB", (1000, 500), "red").save(pictures / "train" / "red.png")
    Image.new("RGB", (50, 50), "blue").save(pictures / "7.jpg")
    Image.new("RGB", (50, 50), "blue").save(tmp_path / "secret.png")
    (pictures / "broken.jpg").write_bytes(b"no picture")
    write_gallery(tmp_path, tmp_path / "page.html", images=pictures)
    page = Page(tmp_path / "page.html")
    assert len(page.pictures) == 2
    sizes = []
    for source in page.pictures:
        head, data = source.split(",")
        assert head == "data:image/jpeg;base64"
        with Image.open(BytesIO(base64.b64decode(data))) as picture:
            sizes.append(picture.size)
    assert sizes[0] == (50, 50)
    assert sizes[1][0] == 2 * sizes[1][1] < 1000
    assert "This picture cannot be read." in page.text


def test_seed_chooses_the_images(tmp_path):
    extra = [{"id": f"i{k}", "split": "test", "captions": ["cat"]} for k in range(60)]
    write_captions(tmp_path, extra)

    def shown(seed):
        write_gallery(tmp_path, tmp_path / "page.html", count=10, seed=seed)
        page = Page(tmp_path / "page.html")
        return page.source.count("<article"), [t for t in page.text if re.fullmatch(r"i\d+", t)]

    assert shown(1) == shown(1)
    assert shown(1) != shown(2)
    assert shown(1)[0] == 10


def test_invalid_requests_raise(tmp_path):
    write_captions(tmp_path)
    with pytest.raises(ValueError, match="count: -1"):
        write_gallery(tmp_path, tmp_path / "page.html", count=-1)
    with pytest.raises(ValueError, match="is not a folder"):
        write_gallery(tmp_path, tmp_path / "page.html", images=tmp_path / "none")
