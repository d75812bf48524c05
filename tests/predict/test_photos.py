"""Captions of photographs by a fake model whose correct captions are known."""

import copy
import io
import itertools
import pickle
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ngsan
from ngsan.config import CaptionerConfig, DecodingConfig
from ngsan.export.write import export_model
from ngsan.models import build_captioner
from ngsan.models.checkpoint import load_model, save_model
from ngsan.predict.backend_torch import TorchBackend
from ngsan.predict.captioner import PHOTO_MODEL, Captioner
from ngsan.search import Written
from ngsan.text.vocabulary import BAD_ENDINGS, BOUNDARY, Vocabulary
from ngsan.vision.images import ImageError, open_image, to_square
from tests.predict.painter import NAMES, Painter, open_painter, paint

FREE = vars(DecodingConfig())
PLAIN = "red green blue grey"
TURNED = {
    1: PLAIN,
    2: "green red grey blue",
    3: "grey blue green red",
    4: "blue grey red green",
    5: "red blue green grey",
    6: "blue red grey green",
    7: "grey green blue red",
    8: "green grey red blue",
}
"""The expected caption by EXIF orientation."""


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pictures(count):
    """Distinct images and their captions."""
    chosen = itertools.islice(itertools.permutations(NAMES, 4), 0, None, 7)
    names = [" ".join(four) for four in itertools.islice(chosen, count)]
    return [paint(text) for text in names], names


@pytest.fixture
def captioner():
    return open_painter()


def kinds(folder):
    """One image in every accepted input type."""
    image = paint()
    image.save(folder / "a.png")
    pixels = np.asarray(image)
    opaque = np.dstack((pixels, np.full(pixels.shape[:2], 255, np.uint8)))
    content = (folder / "a.png").read_bytes()
    return {
        "str": str(folder / "a.png"),
        "path": folder / "a.png",
        "bytes": content,
        "bytearray": bytearray(content),
        "memoryview": memoryview(content),
        "picture": image,
        "lazy picture": Image.open(folder / "a.png"),
        "uint8": pixels,
        "alpha": opaque,
        "uint16": pixels.astype(np.uint16) * 257,
        "float32": (pixels / 255).astype(np.float32),
        "float64": pixels / 255,
        "turned array": np.asarray(image.transpose(Image.Transpose.ROTATE_180))[::-1, ::-1],
    }


def test_every_input_type_is_accepted(captioner, tmp_path):
    given = kinds(tmp_path)
    assert {name: captioner.caption(image) for name, image in given.items()} == dict.fromkeys(
        given, PLAIN
    )
    assert captioner.caption(list(given.values())) == [PLAIN] * len(given)
    assert captioner.caption(tuple(given.values())) == [PLAIN] * len(given)
    grey = np.full((5, 7), 128, np.uint8)
    for image in (grey, grey[..., None]):
        assert captioner.caption(image, **FREE) == "grey grey grey grey"


def test_caption_is_a_str_with_attributes(captioner):
    caption = captioner.caption(paint(), attention=True)
    assert isinstance(caption, str)
    assert caption == caption.text == PLAIN
    assert type(caption.text) is str
    assert caption.words == ["red", "green", "blue", "grey"]
    assert caption.score == caption.log_probability < 0
    assert not caption.others
    np.testing.assert_array_equal(caption.attention, np.eye(4))
    for other in (pickle.loads(pickle.dumps(caption)), copy.deepcopy(caption)):
        assert (other, other.score, other.words) == (caption, caption.score, caption.words)
    assert captioner.caption(paint()).attention is None


def test_num_return_and_samples(captioner):
    best = captioner.caption(paint(), beam=4, num_return=4)
    ranked = [best, *best.others]
    assert len(set(ranked)) == 4
    assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
    assert all(not other.others and other.attention is None for other in best.others)
    drawn = captioner.caption(paint(), method="sample", num_return=3)
    assert len(drawn.others) == 2


def test_opened_image_is_not_modified(captioner, tmp_path):
    paint(size=(640, 480)).save(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as image:
        assert captioner.caption(image) == PLAIN
        assert image.size == (640, 480)


@pytest.mark.parametrize("orientation", TURNED)
def test_exif_orientation_is_applied(orientation, captioner):
    exif = Image.Exif()
    exif[0x0112] = orientation
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        content = saved(paint(), kind, exif=exif)
        assert captioner.caption(content) == TURNED[orientation], kind
        # Equal to passing the pixels of the rotated image.
        turned = np.asarray(open_image(content))
        assert captioner.caption(turned) == TURNED[orientation]


def test_every_format_and_mode_is_read(captioner):
    image = paint()
    clear = image.convert("RGBA")
    clear.putalpha(Image.new("L", image.size, 0))
    files = {
        "jpeg": saved(image, "JPEG"),
        "progressive": saved(image, "JPEG", progressive=True),
        "cmyk": saved(image.convert("CMYK"), "JPEG"),
        "png": saved(image, "PNG"),
        "webp": saved(image, "WEBP"),
        "gif": saved(image, "GIF"),
        "frames": saved(image, "GIF", save_all=True, append_images=[paint("red red red red")]),
        "bmp": saved(image, "BMP"),
        "tiff": saved(image, "TIFF"),
        "tiff-lzw": saved(image, "TIFF", compression="tiff_lzw"),
        "tiff-cmyk": saved(image.convert("CMYK"), "TIFF"),
        "palette": saved(image.convert("P", palette=Image.Palette.ADAPTIVE), "PNG"),
        "opaque": saved(image.convert("RGBA"), "PNG"),
    }
    found = captioner.caption(list(files.values()))
    assert dict(zip(files, found, strict=True)) == dict.fromkeys(files, PLAIN)
    assert captioner.caption(saved(clear, "PNG"), **FREE) == "white white white white"
    grey = paint("black white grey black").convert("L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    for content in (saved(grey, "PNG"), saved(grey, "JPEG"), saved(deep, "PNG")):
        assert captioner.caption(content) == "black white grey black"


def test_captions_do_not_depend_on_batch_size(captioner):
    images, names = pictures(30)
    assert captioner.caption(images) == names
    assert captioner.backend.batches == [1, 2, 4, 8, 8, 7]
    for size in (1, 3, 16, 100):
        captioner.backend.batches.clear()
        assert captioner.caption(images, batch_size=size) == names
        assert max(captioner.backend.batches) <= size
    assert captioner.caption([]) == []
    assert captioner.caption(images[:1]) == names[:1]


def test_samples_depend_only_on_the_index(captioner):
    images, _ = pictures(20)
    decoding = dict(method="sample", num_return=2, temperature=5.0)
    wanted = captioner.caption(images, **decoding)
    assert captioner.caption(images, **decoding, batch_size=3) == wanted
    assert len({(one, *one.others) for one in wanted}) > 10
    # Unreadable images before it do not change a sample.
    given = [b"" if place in (0, 5, 6, 13) else image for place, image in enumerate(images)]
    for result in captioner.stream(given, **decoding):
        if result.caption is None:
            assert given[result.index] == b""
        else:
            assert result.caption == wanted[result.index]
            assert result.caption.others == wanted[result.index].others


def test_stream_continues_after_bad_images(captioner):
    images, names = pictures(12)
    given = [one for image in images for one in (b"nothing", image)]
    found = list(captioner.stream(given))
    assert [result.index for result in found] == list(range(24))
    assert [result.caption for result in found[1::2]] == names
    assert all(isinstance(result.error, ImageError) for result in found[::2])
    assert [result.caption for result in captioner.stream([b""] * 50)] == [None] * 50
    assert list(captioner.stream(iter(()))) == []


def test_stream_reads_only_a_few_images_ahead(captioner):
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield paint()

    stream = captioner.stream(endless(), batch_size=4)
    for _ in range(20):
        assert next(stream).caption == PLAIN
    assert len(read) <= 20 + 3 * 4
    stream.close()
    for thread in [one for one in threading.enumerate() if one.name == "pictures"]:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (None, "not NoneType"),
        (3, "not int"),
        ({}, "not dict"),
        (io.BytesIO(), "not BytesIO"),
        (torch.zeros(3, 8, 8), "not Tensor"),
        ("nowhere.jpg", "nowhere.jpg: file not found"),
        (Path("nowhere.jpg"), "nowhere.jpg: file not found"),
        ("a\0b", "null"),
        (b"", "unsupported image format"),
        (np.zeros((3, 8, 8), np.uint8), r"shape \(3, 8, 8\) is not"),
        (np.zeros((2, 8, 8, 3), np.uint8), "shape .* is not"),
        (np.zeros((0, 8, 3), np.uint8), "shape .* is not"),
        (np.full((8, 8, 3), 255.0), "floats must be from 0 to 1"),
        (np.zeros((8, 8, 3), np.int64), "not int64"),
        ([paint()], "not list"),
    ],
)
def test_invalid_image_raises_and_is_named(image, message, captioner):
    if not isinstance(image, list):
        with pytest.raises(ImageError, match=message):
            captioner.caption(image)
    with pytest.raises(ImageError, match=rf"^images\[2\]: .*{message}"):
        captioner.caption([paint(), paint(), image, paint()])


def test_objects_are_found_once_the_detector_is_needed(captioner, tmp_path):
    image = paint("red black green blue")
    found = captioner.objects(image)
    assert [(one.label, one.box) for one in found] == [
        ("red", (0.25, 0.25, 0.5, 0.5)),
        ("green", (0.25, 0.75, 0.5, 0.5)),
    ]
    assert [one.confidence for one in found] == pytest.approx([0.9, 0.7])
    assert [one.label for one in captioner.objects(image, min_confidence=0.0)][-1] == "blue"
    image.save(tmp_path / "a.png")
    assert captioner.objects(tmp_path / "a.png") == found
    assert captioner.detector is captioner.detector
    with pytest.raises(ImageError, match=r"b\.png: file not found"):
        captioner.objects(tmp_path / "b.png")
    with pytest.raises(ValueError, match=r"min_confidence: 1\.5 is not from 0 to 1"):
        captioner.objects(image, min_confidence=1.5)


def test_invalid_options_raise(captioner):
    with pytest.raises(ValueError, match="batch_size: 0"):
        captioner.caption(paint(), batch_size=0)
    with pytest.raises(ValueError, match="prefix: 'dog' is not a word of the model"):
        captioner.caption(paint(), prefix="dog")
    for keys, message in (
        ({"beem": 3}, "unknown option 'beem'; did you mean 'beam'?"),
        ({"batchsize": 3}, "did you mean 'batch_size'?"),
        ({"colour": 3}, "unknown option 'colour'; options: method, max_length,"),
    ):
        with pytest.raises(TypeError, match=re.escape(message)):
            captioner.caption(paint(), **keys)
        with pytest.raises(TypeError, match=re.escape(message)):
            captioner.caption_regions(np.zeros((1, 4, 3)), **keys)
    with pytest.raises(ValueError, match="frames applies only to clips"):
        captioner.caption(paint(), frames=3)
    painter = Painter()
    painter.image_size = None
    for images in (paint(), [paint()]):
        with pytest.raises(ValueError, match="a model of regions and not of photographs"):
            Captioner(painter).caption(images)


def test_num_return_above_the_default_beam_widens_it(captioner):
    assert len(captioner.caption(paint(), num_return=5).others) == 4
    with pytest.raises(ValueError, match="num_return: 5 captions cannot come from beam: 4"):
        captioner.caption(paint(), num_return=5, beam=4)


def test_defaults_prevent_repeats_and_bad_endings(captioner, monkeypatch):
    logits = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    logits[:, NAMES.index("red") + 1] += 3
    logits[:, len(NAMES) + 1] += 3  # the word "of", which no caption should end with

    def step(self, words, parents):
        self.place += 1
        return np.broadcast_to(logits[self.place], (*words.shape, 8))

    monkeypatch.setattr("tests.predict.painter.Steps.step", step)
    free = captioner.caption(paint(), **FREE)
    caption = captioner.caption(paint())

    def triples(words):
        return [tuple(words[place : place + 3]) for place in range(len(words) - 2)]

    assert len(set(triples(free.words))) < len(triples(free.words))
    assert len(set(triples(caption.words))) == len(triples(caption.words))
    assert caption.words[-1] not in BAD_ENDINGS


class Author:
    """A backend that writes given captions of one photograph, whatever it shows."""

    image_size, batch_size, first_batch = 16, 8, 1
    vocabulary = Vocabulary(["a", "an", "orange", "cat"])

    def __init__(self, *texts):
        self.texts = texts

    def search_images(self, images, **_):
        words = np.full((1, len(self.texts), 6), BOUNDARY)
        for place, text in enumerate(self.texts):
            ids = self.vocabulary.encode(text.split())
            words[0, place, : len(ids)] = ids
        return Written.of(words, -np.ones(words.shape, np.float32)), None


def test_articles_take_the_form_of_the_next_word():
    caption = Captioner(Author("a orange an cat", "an orange a cat", "a cat")).caption(paint())
    assert caption == "an orange a cat"
    assert list(caption.ids) == Author.vocabulary.encode(caption.words)
    assert [str(other) for other in caption.others] == ["a cat"]  # and not the same once more


@pytest.mark.parametrize("option", ["forbid", "require", "prefix"])
def test_articles_that_the_user_chose_are_left_alone(option):
    captioner = Captioner(Author("a orange"))
    assert captioner.caption(paint(), **{option: "an"}) == "a orange"
    assert captioner.caption(paint(), **{option: "cat"}) == "an orange"


def test_captioner_is_thread_safe(captioner):
    images, names = pictures(10)
    found = {}

    def work(number):
        found[number] = captioner.caption(images)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), names)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small photo model in PyTorch."""
    torch.manual_seed(3)
    config = CaptionerConfig(
        vocab_size=12,
        backbone="efficientnet-lite0",
        image_size=64,
        feature_dim=320,
        dim=16,
        heads=2,
        hidden_dim=16,
        layers=1,
        geometry_dim=4,
    )
    captioner = build_captioner(config).eval()
    for parameter in captioner.decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    folder = tmp_path_factory.mktemp("photo") / "model"
    save_model(
        folder,
        captioner,
        config,
        {"vocabulary": Vocabulary([f"w{number}" for number in range(11)])},
    )
    return folder


def test_photo_model_folder_equals_direct_decoding(folder):
    captioner = ngsan.load(folder)
    images, _ = pictures(5)
    decoding = dict(beam=3, num_return=2, max_length=6, no_repeat_ngram=0, no_bad_ending=False)
    found = captioner.caption(images, **decoding, attention=True)
    model, _, companions = load_model(folder, "captioning")
    vocabulary = companions["vocabulary"]
    pixels = torch.stack([torch.from_numpy(to_square(image, 64)) for image in images])
    pixels = pixels.permute(0, 3, 1, 2)
    alone = Captioner.from_model(model, vocabulary)
    for place, caption in enumerate(found):
        (wanted,) = alone.caption_regions(pixels[place : place + 1], **decoding)
        assert [caption, *caption.others] == [wanted, *wanted.others]
        assert caption.score == pytest.approx(wanted.score, abs=1e-4)
        for one in (caption, *caption.others):
            maps = []
            words = torch.tensor([[BOUNDARY, *one.ids]])
            with torch.inference_mode():
                memory = model.encode(pixels[place : place + 1])
                model.decode(words, memory, record=maps)
            wanted = maps[-1].weights[0].mean(0)[: len(one.ids)]
            assert one.attention.shape == (len(one.words), 4)
            np.testing.assert_allclose(one.attention, wanted.numpy(), atol=1e-5)


def test_photo_model_folder_supports_groups_and_required_words(folder):
    captioner = ngsan.load(folder, device="cpu")
    decoding = dict(beam=4, groups=2, require="w3")
    assert "w3" in captioner.caption(paint(), **decoding).words


def test_invalid_load_arguments_raise(folder, tmp_path):
    with pytest.raises(ValueError, match="providers: .* is for ONNX Runtime, and PyTorch runs"):
        ngsan.load(folder, providers=["CPUExecutionProvider"])
    with pytest.raises(ValueError, match="threads: 0 is not from 1 to 64"):
        ngsan.load(folder, threads=0)
    with pytest.raises(ValueError, match="device: 'nowhere' cannot be used"):
        ngsan.load(folder, device="nowhere")
    with pytest.raises(ValueError, match="folder not found: .*: photos, clips"):
        ngsan.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is not a model: config.yaml"):
        ngsan.load(tmp_path)


def test_shipped_models_load_by_name(monkeypatch, tmp_path, folder):
    assert Path(ngsan.__file__).parent / "shipped" / "coco" == PHOTO_MODEL
    monkeypatch.setattr("ngsan.predict.captioner.PHOTO_MODEL", tmp_path / "nowhere")
    monkeypatch.setattr("ngsan.predict.captioner.SHIPPED", {"photos": tmp_path / "nowhere"})
    for name in (None, "photos"):
        with pytest.raises(ValueError, match="comes without a model .*nowhere.*; pass a model"):
            ngsan.load(name)
    monkeypatch.setattr("ngsan.predict.captioner.SHIPPED", {"photos": folder})
    assert ngsan.load("photos").kind == "photos"


def test_load_chooses_the_backend(monkeypatch, tmp_path, folder):
    monkeypatch.setattr("ngsan.predict.backend_onnx.OnnxBackend", Painter)
    packed = shutil.copytree(folder, tmp_path / "packed")  # which also has weights for PyTorch
    (tmp_path / "export").mkdir()
    for one in (packed, tmp_path / "export"):
        (one / "export.json").write_text("{}")
        assert isinstance(ngsan.load(one).backend, Painter)
        assert isinstance(ngsan.load(one, threads=1, providers=["CPU"]).backend, Painter)
    assert isinstance(ngsan.load(packed, device="auto").backend, TorchBackend)
    with pytest.raises(ValueError, match="device: 'auto' runs models with PyTorch"):
        ngsan.load(tmp_path / "export", device="auto")


def test_load_without_torch(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("ngsan.predict.backend_onnx.OnnxBackend", Painter)
    for module in ("ngsan.predict.captioner", "ngsan.predict.manifest"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs PyTorch: pip install 'ngsan.train.'"):
        ngsan.load(folder)
    (tmp_path / "export.json").write_text("{}")
    for device in ("cpu", "auto"):
        assert isinstance(ngsan.load(tmp_path, device=device).backend, Painter)


STAND_IN = """
import sys
import ngsan
from ngsan.predict import backend_onnx
from tests.predict.painter import Painter, paint
backend_onnx.OnnxBackend = Painter
print(ngsan.load(sys.argv[1]).caption(paint()))
print(sorted({"torch", "jsonargparse", "rich", "yaml", "lightning_fabric"} & set(sys.modules)))
"""


def test_export_is_opened_without_torch(tmp_path):
    (tmp_path / "export.json").write_text("{}")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", STAND_IN, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
    )
    assert done.stdout.splitlines() == [PLAIN, "[]"]


@pytest.mark.slow
def test_export_captions_equal_torch(folder, tmp_path):
    export_model(folder, tmp_path / "export")
    images, _ = pictures(5)
    decoding = dict(num_return=2, max_length=6)
    ours, theirs = ngsan.load(tmp_path / "export", threads=1), ngsan.load(folder)
    for found, wanted in zip(
        ours.caption(images, **decoding, attention=True),
        theirs.caption(images, **decoding, attention=True),
        strict=True,
    ):
        assert [found, *found.others] == [wanted, *wanted.others]
        assert found.score == pytest.approx(wanted.score, abs=1e-3)
        np.testing.assert_allclose(found.attention, wanted.attention, atol=1e-3)
