"""The explanation page: complete, self-contained, escaped, and small enough."""

import base64
import hashlib
import io
import json
import os
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from ngsan.app import explain as page
from ngsan.app.explain import percent, place, veil, write_page
from ngsan.app.maps import Explainer
from ngsan.config import CaptionerConfig
from ngsan.models import build_captioner
from ngsan.models.checkpoint import save_model
from ngsan.vision.images import ImageError
from tests.app.photo_models import COLUMNS, ROWS, VOCABULARY, small
from tests.app.test_quantized_maps import read


class Reader(HTMLParser):
    """Parses a page and tracks open elements."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.open, self.data = [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1][0] == tag, f"</{tag}> closes <{self.open[-1][0]}>"
        self.open.pop()

    def handle_data(self, data):
        if self.open:
            tag, attrs = self.open[-1]
            self.data.setdefault((tag, attrs.get("class") or attrs.get("id")), []).append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    def photographs(self):
        return [json.loads(text) for text in self.data[("script", "data")]]


@pytest.fixture
def files(tmp_path):
    random = np.random.default_rng(0)
    paths = []
    for number, size in enumerate([(40, 30), (30, 50), (7, 3)]):
        path = tmp_path / f"photo {number}.png"
        Image.fromarray(random.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).save(path)
        paths.append(path)
    return paths


def written(explainer, images, to, captions=None, **options):
    """Writes a page; returns the failures and its text."""
    captions = [["word1 word2"]] * len(images) if captions is None else captions
    failures = write_page(explainer, images, to, captions, **options)
    return failures, to.read_text(encoding="utf-8")


MODELS = {
    "san": dict(model="san"),
    "n-san": dict(model="n-san"),
    "g-san": dict(model="g-san", geometry="content-independent"),
    "ng-san": dict(model="ng-san", signed_geometry=True),
    "absolute": dict(model="san", geometry="absolute"),
    "keys": dict(model="ng-san", norm="batch", norm_of="both", geometry="query+key"),
}


@pytest.mark.parametrize("name", MODELS)
def test_page_has_the_maps_of_every_kind_of_model(name, files, tmp_path, monkeypatch):
    explainer = small(**MODELS[name])
    captions = ["word1 word2", "word3"]
    failures, text = written(explainer, files, tmp_path / "new" / "page.html", [captions] * 3)
    assert failures == []
    reader = Reader(text)
    assert not reader.open
    assert len(reader.all("article")) == 3
    found = explainer.explain(Image.open(files[0]), captions)
    first = reader.photographs()[0]
    content = base64.b64decode(first["blob"])
    assert [" ".join(one["words"]) for one in first["captions"]] == [
        expected.text for expected in found.captions
    ]
    for one, expected in zip(first["captions"], found.captions, strict=True):
        np.testing.assert_allclose(one["probabilities"], expected.probabilities, atol=1e-5)
        np.testing.assert_allclose(read(content, one["attention"]), expected.attention, atol=2e-3)
    regions = first["regions"]
    np.testing.assert_allclose(read(content, regions["weights"]), found.weights, atol=2e-3)
    if name in ("san", "n-san", "absolute"):
        assert set(regions) == {"weights"}
        assert re.search("no (separate )?geometric part", text)
    else:
        np.testing.assert_allclose(read(content, regions["content"]), found.content, atol=2e-3)
        assert set(regions) == {"weights", "content", "mean", "geometry"}
        wide = min(np.abs(found.geometry).max(), np.log(1000))
        np.testing.assert_allclose(
            read(content, regions["geometry"]),
            found.geometry.clip(-np.log(1000), np.log(1000)),
            atol=wide / 250,
        )
        assert not re.search("no (separate )?geometric part", text)


def test_page_is_self_contained_and_has_a_strict_policy(files, tmp_path):
    _, text = written(small(), files, tmp_path / "page.html")
    reader = Reader(text)
    assert not re.search(r"(?i)https?:|//[a-z0-9-]+\.[a-z]|@import|fetch\(|XMLHttp|WebSocket", text)
    addresses = [
        value
        for _, attrs in reader.tags
        for name, value in attrs.items()
        if name in ("src", "href", "srcset", "action", "data", "poster")
    ]
    assert addresses
    assert all(address.startswith(("data:image/", "#")) for address in addresses)
    assert all(url.startswith("data:image/jpeg;") for url in re.findall(r"url\((.*?)\)", text))
    assert not any(
        "style" in attrs or any(k.startswith("on") for k in attrs) for _, attrs in reader.tags
    )
    (policy,) = [a["content"] for a in reader.all("meta") if "http-equiv" in a]
    assert policy.startswith("default-src 'none'; img-src data:; ")
    assert "unsafe" not in policy
    (style,) = re.findall(r"<style>(.*?)</style>", text, flags=re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    for kind, content in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_names_and_words_are_escaped(files, tmp_path, monkeypatch):
    odd = tmp_path / '<img src=x onerror=alert(1)> & "it\'s" $title.png'
    files[0].rename(odd)
    _, text = written(
        small(),
        [odd, files[1]],
        tmp_path / "page.html",
        captions=[["<script> a&b"], ["word1"]],
        credit_lines=["<i>Me & you", ""],
    )
    assert text.count("Photograph: ") == 1
    assert "Photograph: &lt;i&gt;Me &amp; you" in text
    assert "<img src=x" not in text
    assert "<script> a&b" not in text
    reader = Reader(text)
    assert [odd.name] == reader.data[("h2", "name-1")]
    assert reader.photographs()[0]["captions"][0]["words"] == ["<script>", "a&b"]
    assert next(attrs["alt"] for attrs in reader.all("img")) == f"{odd.name}: <script> a&b"


def test_page_is_readable_without_javascript(files, tmp_path, monkeypatch):
    explainer = small()
    _, text = written(explainer, files[:1], tmp_path / "page.html", captions=[["word1 word2"]])
    reader = Reader(text)
    frames = [attrs for attrs in reader.all("li") if attrs.get("class") == "frame"]
    assert len(frames) == 3  # two words and the end token
    rows = [attrs for attrs in reader.all("th") if attrs.get("scope") == "row"]
    assert len(rows) == 3
    expected = explainer.explain(Image.open(files[0]), captions=["word1 word2"]).captions[0]
    means = expected.attention[-1].mean(0)[0]
    cells = [f"{place(c, (ROWS, COLUMNS))} ({percent(means[c])})" for c in np.argsort(-means)[:3]]
    assert "; ".join(cells) in text
    assert not reader.all("nav")  # not for a single photograph


def test_invalid_utf8_names_are_escaped(files, tmp_path, monkeypatch):
    odd = tmp_path / os.fsdecode(b"caf\xe9.png")
    try:
        files[0].rename(odd)
    except OSError:
        pytest.skip("this file system requires UTF-8 names")
    gone = tmp_path / os.fsdecode(b"gon\xe9.png")
    failures, text = written(
        small(), [odd, gone, files[1]], tmp_path / "page.html", credit_lines=["\udce9"] * 3
    )
    assert Reader(text).data[("h2", "name-1")] == ["caf\\udce9.png"]
    assert failures == [f"{tmp_path}/gon\\udce9.png: file not found"]
    assert failures[0] in text
    assert "Photograph: \\udce9" in text


def test_on_image_reports_progress(files, tmp_path, monkeypatch):
    done = []
    images = [files[0], tmp_path / "gone.png", files[1]]
    written(small(), images, tmp_path / "page.html", on_image=done.append)
    assert done == [1, 2, 3]


def test_unreadable_files_are_reported_and_the_rest_shown(files, tmp_path, monkeypatch):
    broken = tmp_path / "<b>broken.jpg"
    broken.write_text("no image")
    failures, text = written(
        small(), [broken, files[0], tmp_path / "gone.png"], tmp_path / "page.html"
    )
    assert [failure.split(":")[0] for failure in failures] == [
        str(broken),
        str(tmp_path / "gone.png"),
    ]
    assert len(Reader(text).all("article")) == 1
    assert "&lt;b&gt;broken.jpg" in text


def test_page_without_readable_images_raises(tmp_path, monkeypatch):
    with pytest.raises(ImageError, match="none of 1 images"):
        written(small(), [tmp_path / "gone.png"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    with pytest.raises(ValueError, match="pass at least one"):
        write_page(small(), [], tmp_path / "page.html", [])
    with pytest.raises(ValueError, match="captions of 2 images for 1 images"):
        write_page(small(), ["a.jpg"], tmp_path / "page.html", [["a"], ["b"]])


def test_detail_is_reduced_for_many_photographs(files, tmp_path, monkeypatch):
    explainer = small()
    cells = ROWS * COLUMNS
    one = len(files) * explainer.config.layers * cells * (cells + 4)
    # Three maps of two heads and the mean's factors, or three maps of the mean.
    for room, heads in ((7 * one, 2), (7 * one - 1, 1), (3 * one, 1), (3 * one - 1, None)):
        monkeypatch.setattr(page, "MAX_MAP_BYTES", room)
        _, text = written(explainer, files, tmp_path / "page.html")
        regions = Reader(text).photographs()[0]["regions"]
        assert (regions and regions["weights"]["shape"][1]) == heads
        assert ("with this many photographs" in text) == (heads != 2)
        if heads == 1:
            assert set(regions) == {"weights", "content", "mean"}
            assert all(entry["shape"][1] == 1 for entry in regions.values())


@pytest.mark.parametrize("detail", ["heads", "means"])
def test_factors_of_the_mean_are_exact_where_content_is_tiny(detail, files, tmp_path, monkeypatch):
    explainer = small()
    real = explainer.explain
    random = np.random.default_rng(1)
    content, weights = random.dirichlet(np.full(6, 0.1), (2, 2, 2, 6)).astype(np.float32)
    content[:, :, :, 0], weights[:, :, :, 0] = 2e-6, 5e-6  # both too small for 8 bits
    content[0, :, 0, 1], weights[0, :, 0, 1] = 0, 0  # must not warn
    content[1, :, 0, 2], weights[1, :, 0, 2] = 0, 0.5
    bias = np.zeros_like(content)

    def peaked(image, captions):
        found = real(image, captions)
        return type(found)(found.captions, content, bias, weights)

    monkeypatch.setattr(explainer, "explain", peaked)
    monkeypatch.setattr(page, "choose_detail", lambda *_: detail)
    _, text = written(explainer, files[:1], tmp_path / "page.html")
    (photograph,) = Reader(text).photographs()
    entry = photograph["regions"]["mean"]
    assert entry["shape"] == [2, 1, 6, 6]
    factors = read(base64.b64decode(photograph["blob"]), entry)[:, 0]
    ratio = (weights.sum(1, np.float64) + 1e-37) / (content.sum(1, np.float64) + 1e-37)
    wanted = np.log(np.clip(ratio, 1e-3, 1e3))
    step = np.abs(wanted).max(-1, keepdims=True) / 127
    assert (np.abs(factors - wanted) <= 0.51 * step + 1e-5).all()
    assert np.abs(wanted[:, :, 0] - np.log(2.5)).max() < 1e-5
    assert wanted[0, 0, 1] == 0
    assert wanted[1, 0, 2] == pytest.approx(np.log(1000))


def test_page_for_eight_photographs_is_below_six_megabytes(tmp_path, monkeypatch):
    """8 x 8 cells, 3 layers of 8 heads and three captions of ten words, as for COCO."""
    explainer = small(dim=16, heads=8, layers=3)
    random = np.random.default_rng(0)
    found = explainer.explain(Image.new("RGB", (9, 9)), ["word1"])

    def large(image, captions):
        maps = [random.dirichlet(np.ones(64), (3, 8, 64)).astype(np.float32) for _ in range(3)]
        words = [random.dirichlet(np.ones(64), (3, 8, 11)).astype(np.float32) for _ in range(3)]
        expected = type(found.captions[0])
        captions = tuple(expected(("word1",) * 10, (0.5,) * 11, each) for each in words)
        return type(found)(captions, *maps)

    explainer.grid, explainer.cell_boxes = (8, 8), np.zeros((64, 4))
    explainer.model.has_bias = True
    monkeypatch.setattr(explainer, "explain", large)
    pixels = random.integers(0, 256, (24, 32, 3), dtype=np.uint8)
    # As hard to compress as a photograph with much texture.
    photo = Image.fromarray(pixels).resize((1024, 768), Image.Resampling.BILINEAR)
    content = io.BytesIO()
    photo.save(content, "JPEG")
    path = tmp_path / "photo.jpg"
    path.write_bytes(content.getvalue())
    assert page.choose_detail(explainer, 8) == "heads"
    written(explainer, [path] * 8, tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 6_000_000


def test_page_of_a_model_folder(files, tmp_path):
    config = CaptionerConfig(
        vocab_size=13,
        backbone="efficientnet-lite0",
        image_size=64,
        feature_dim=320,
        dim=16,
        heads=2,
        hidden_dim=16,
        layers=1,
    )
    save_model(tmp_path / "model", build_captioner(config), config, {"vocabulary": VOCABULARY})
    model = Explainer.open(tmp_path / "model")
    assert write_page(model, files, tmp_path / "page.html", [["word1"]] * 3) == []
    assert "2 × 2 cells" in (tmp_path / "page.html").read_text(encoding="utf-8")
    regions = CaptionerConfig(
        vocab_size=13, feature_dim=5, dim=16, heads=2, hidden_dim=16, layers=1
    )
    save_model(tmp_path / "regions", build_captioner(regions), regions, {"vocabulary": VOCABULARY})
    with pytest.raises(ValueError, match=r"regions: this model captions regions"):
        Explainer.open(tmp_path / "regions")


def test_place_percent_and_veil():
    weights = np.array([0.1, 0.0, 0.5, 0.05, 0.05, 0.3], np.float32)
    assert place(0, (2, 3)) == "row 1, column 1"
    assert place(5, (2, 3)) == "row 2, column 3"
    assert [percent(x) for x in (0.5, 0.0995, 0.042, 0.0001)] == [
        "50 %",
        "10 %",
        "4.2 %",
        "< 0.1 %",
    ]
    content = base64.b64decode(veil(weights, (2, 3)).split(",")[1])
    with Image.open(io.BytesIO(content)) as picture:
        assert picture.size == (3, 2)
        alpha = np.array(picture)[..., 3].flatten()
    assert alpha.argmin() == 2  # the highest weight is darkened least
    assert alpha.argmax() == 1


def test_empty_caption_is_shown(files, tmp_path):
    _, text = written(small(), files[:1], tmp_path / "page.html", [[""]])
    (photograph,) = Reader(text).photographs()
    assert photograph["captions"][0]["words"] == []
    assert photograph["captions"][0]["attention"]["shape"][2] == 1


def test_objects_are_drawn_over_the_photographs(files, tmp_path):
    records = [
        [{"label": "<b> dog", "box": [0.5, 0.5, 0.5, 1.0], "confidence": 0.876}],
        [],
        [{"label": "cat", "box": [0.1, 0.5, 0.2, 0.5], "confidence": 0.35}],
    ]
    _, text = written(small(), files, tmp_path / "page.html", objects=records)
    reader = Reader(text)
    assert not reader.open
    drawings = [attrs for attrs in reader.all("svg") if attrs.get("class") == "boxes"]
    assert [attrs["viewbox"] for attrs in drawings] == ["0 0 40 30", "0 0 7 3"]
    rims = [attrs for attrs in reader.all("rect") if attrs.get("class") == "rim"]
    assert (rims[0]["x"], rims[0]["y"], rims[0]["width"], rims[0]["height"]) == (
        "10",
        "0",
        "20",
        "30",
    )
    assert reader.data[("p", "soft objects")] == [
        "Objects: <b> dog 88 %",
        "No objects found.",
        "Objects: cat 35 %",
    ]
    _, plain = written(small(), files, tmp_path / "plain.html")
    assert "No objects found." not in plain
    with pytest.raises(ValueError, match="objects of 1 images for 3 images"):
        write_page(small(), files, tmp_path / "page.html", [["word1"]] * 3, objects=[[]])
