"""End-to-end tests of `ngsan caption`, with a fake model whose correct captions are known."""

import csv
import io
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from ngsan.__main__ import main
from ngsan.cli import caption as command
from ngsan.examples import EXAMPLES
from ngsan.predict.captioner import PHOTO_DECODING, Captioner
from ngsan.predict.confidence import Formula, Report
from ngsan.text.vocabulary import BAD_ENDINGS
from ngsan.vision.images import open_image, to_square
from ngsan.vision.keywords import load_keywords
from tests.predict.painter import open_painter, paint
from tests.predict.test_photos import folder, pictures  # noqa: F401 (a fixture)

ROOT = Path(__file__).parents[2]
PLAIN = "red green blue grey"


@pytest.fixture(autouse=True)
def opened(monkeypatch):
    """Replaces every model by the fake one; returns the load requests."""
    load_calls = []

    def load(model, **options):
        load_calls.append((model, options))
        return open_painter()

    monkeypatch.setattr(command, "load", load)
    return load_calls


@pytest.fixture
def run(capsys):
    """Runs the command; returns exit status, output and errors."""

    def call(*words):
        try:
            status = main(["caption", *map(str, words)])
        except SystemExit as stopped:
            status = stopped.code
        return SimpleNamespace(status=status, **capsys.readouterr()._asdict())

    return call


@pytest.fixture
def photos(tmp_path):
    """A folder of pictures, two of them in a subfolder, and their captions by path."""
    root = tmp_path / "photos"
    (root / "more").mkdir(parents=True)
    images, names = pictures(5)
    paths = ["b.png", "a b.JPG", "ünï 写真.webp", "more/c.gif", "more/d.tiff"]
    for path, image in zip(paths, images, strict=True):
        image.save(root / path)
    (root / "notes.txt").write_text("no image")
    return root, {str(root / path): name for path, name in zip(paths, names, strict=True)}


def lines(text):
    return [tuple(line.split("\t")) for line in text.splitlines()]


def test_empty_path_raises(tmp_path, monkeypatch, capsys):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    assert main(["caption", ""]) == 2
    assert capsys.readouterr().err == "ngsan caption: no images in ''\n"


def test_captions_keep_the_order_of_the_paths(run, photos):
    _, wanted = photos
    paths = [*reversed(wanted), *wanted]  # a file may occur twice
    done = run(*paths)
    assert (done.status, done.err) == (0, "")
    assert lines(done.out) == [(path, wanted[path]) for path in paths]


def test_folders_and_patterns(run, photos, monkeypatch):
    root, wanted = photos
    by_name = [root / name for name in ("a b.JPG", "b.png", "ünï 写真.webp")]
    everything = [str(path) for path in (*by_name, root / "more/c.gif", root / "more/d.tiff")]
    assert lines(run(root).out) == [(path, wanted[path]) for path in everything]
    for pattern, found in {
        f"{root}/*.png": everything[1:2],
        f"{root}/m*": everything[3:],
        f"{root}/**/*.[gt]if*": everything[3:],
        f"{root}/more/?.gif": everything[3:4],
    }.items():
        assert lines(run(pattern).out) == [(path, wanted[path]) for path in found]
    monkeypatch.chdir(root)
    assert [path for path, _ in lines(run("more", "*.png").out)] == [
        "more/c.gif",
        "more/d.tiff",
        "b.png",
    ]


@pytest.mark.parametrize(
    "name",
    ["-dash.png", "new\nline.png", "tab\there.png", "\x1b[31mred.png", "[a].png", "*.png", "'q'"],
)
def test_unusual_file_names(name, run, tmp_path, monkeypatch):
    paint().save(tmp_path / name, "PNG")
    monkeypatch.chdir(tmp_path)
    done = run("--", name)
    assert done.status == 0
    shown, caption = done.out.removesuffix("\n").split("\t")
    assert caption == PLAIN
    assert shown.isprintable()  # one line without control characters
    assert json.loads(run("--format", "json", "--", name).out)[0]["image"] == name
    rows = list(csv.DictReader(io.StringIO(run("--format", "csv", "--", name).out, newline="")))
    assert rows[0]["image"] == name


def test_file_names_of_invalid_utf8(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    try:
        paint().save(tmp_path / name, "PNG")
    except OSError:
        pytest.skip("this file system requires UTF-8 names")
    for words, read in {
        (): lambda out: out.split(b"\t")[0],
        ("--format", "json"): lambda out: os.fsencode(json.loads(out)[0]["image"]),
        ("--format", "csv"): lambda out: out.splitlines()[1].split(b",")[0],
    }.items():
        done = started("caption", name, *words, cwd=tmp_path).communicate(timeout=60)
        assert read(done[0]) == b"caf\xe9.png", done
        assert done[1] == b""


def test_json_output(run, photos, tmp_path):
    root, wanted = photos
    (root / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nand no more")
    to = tmp_path / "new" / "captions.json"
    paths = [*list(wanted)[:2], root / "broken.png", root / "gone.jpg", *list(wanted)[2:]]
    done = run(*paths, "--output", to)
    assert done.status == 1
    assert done.out == ""
    assert f"wrote {to}\n" in done.err
    found = json.loads(to.read_text(encoding="utf-8"))
    assert [record["image"] for record in found] == [str(path) for path in paths]
    for record in found:
        if "error" in record:
            assert set(record) == {"image", "error"}
            assert f"{record['image']}: {record['error']}\n" in done.err
        else:
            assert set(record) == {"image", "caption", "score", "log_probability"}
            assert record["caption"] == wanted[record["image"]]
            assert record["score"] < 0
    assert found[3]["error"] == "file not found"
    assert "写真" in to.read_text(encoding="utf-8")
    assert sorted(path.name for path in to.parent.iterdir()) == ["captions.json"]
    again = run(*paths, "--format", "json")
    assert json.loads(again.out) == found


def test_csv_output(run, photos, tmp_path):
    root, wanted = photos
    (root / 'a "b", c.txt').write_text("text")
    paths = [*wanted, root / 'a "b", c.txt']
    for name in ("captions.csv", "captions.json", "captions.jsonl", "captions.txt"):
        assert run(*paths, "--output", tmp_path / name).status == 1
    with (tmp_path / "captions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["image", "caption", "score", "confidence", "error"]
    records = json.loads((tmp_path / "captions.json").read_text(encoding="utf-8"))
    jsonl = (tmp_path / "captions.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in jsonl] == records
    assert lines((tmp_path / "captions.txt").read_text()) == list(wanted.items())
    assert [row["image"] for row in rows] == [str(path) for path in paths]
    for row, record in zip(rows, records, strict=True):
        assert row["caption"] == record.get("caption", "")
        assert row["error"] == record.get("error", "")
        assert row["score"] == str(record.get("score", ""))


def test_num_return_and_samples(run, photos):
    _, wanted = photos
    path = next(iter(wanted))
    sample = ("--method", "sample", "--num-return", 5)
    for words in (("--num-return", 5), (*sample, "--temperature", 9)):
        (record,) = json.loads(run(path, *words, "--format", "json").out)
        captions = [record["caption"], *(other["caption"] for other in record["others"])]
        assert len(captions) == 5
        assert lines(run(path, *words).out) == [(path, caption) for caption in captions]
        table = csv.DictReader(io.StringIO(run(path, *words, "--format", "csv").out))
        assert [(row["image"], row["caption"]) for row in table] == lines(run(path, *words).out)
    assert run(path, *sample, "--seed", 1).out != run(path, *sample, "--seed", 2).out


def test_options_reach_the_search(run, photos, monkeypatch, opened):
    seen = []
    stream = Captioner.stream

    def spy(self, images, **options):
        seen.append(options)
        return stream(self, images, **options)

    monkeypatch.setattr(Captioner, "stream", spy)
    path = next(iter(photos[1]))
    run(path)
    assert seen[-1] == {**vars(PHOTO_DECODING), "batch_size": None, "quality": None}
    assert opened[-1] == (None, {"device": None, "threads": None})
    run(
        path,
        "--no-repeat-ngram",
        0,
        "--bad-ending",
        "--max-length",
        9,
        "--min-length",
        2,
        "--beam",
        7,
    )
    decoding = SimpleNamespace(**seen[-1])
    assert (decoding.no_repeat_ngram, decoding.no_bad_ending) == (0, False)
    assert (decoding.max_length, decoding.min_length, decoding.beam) == (9, 2, 7)
    sample = ("--method", "sample", "--num-return", 2, "--top-k", 3, "--top-p", 0.5)
    run(path, *sample, "--temperature", 2, "--seed", 8)
    decoding = SimpleNamespace(**seen[-1])
    assert (decoding.method, decoding.num_return, decoding.top_k) == ("sample", 2, 3)
    assert (decoding.top_p, decoding.temperature, decoding.seed) == (0.5, 2.0, 8)
    assert lines(run(path, "--prefix", "Blue RED").out)[0][1].startswith("blue red")
    assert "green" not in run(*photos[1], "--forbid", "green").out
    run(path, "--model", "x", "--device", "cuda", "--threads", 2, "--batch-size", 3)
    assert opened[-1] == ("x", {"device": "cuda", "threads": 2})
    assert seen[-1]["batch_size"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "PATH"),
        (("x", "--beem", "3"), "unknown option '--beem'; did you mean '--beam'?"),
        (("x", "-output", "y"), "unknown option '-output'; did you mean '--output'?"),
        (("x", "--batch_size", "3"), "did you mean '--batch-size'?"),
        (("x", "--format", "jsn"), "--format: 'jsn' is not one of txt, json, jsonl, csv; did you"),
        (("x", "--model"), "--model: expected a value"),
        (("x", "--num-return", "0"), "--num-return: '0' is not a whole number of at least 1"),
        (("x", "--batch-size", "-1"), "--batch-size"),
        (
            ("x", "--num-return", "5", "--beam", "3"),
            "--num-return 5: --beam 3 finds fewer; raise --beam",
        ),
        (("x", "--method", "sample", "--beam", "3"), "--beam does not apply to --method sample"),
        (("x", "--top-k", "3"), "--top-k applies only to --method sample"),
        (("x", "--max-length", "0"), "--max-length: '0' is not a whole number of at least 1"),
        (("x", "--temperature", "0", "--method", "sample"), "temperature: 0"),
        (("x", "--output", "y", "--page", "y"), "--page: y is already another output"),
        (("x", "--page", "-"), "pass a file"),
        (("x", "--output", "."), "--output: . is a folder"),
        (("x", "--prefix", "zebra"), "prefix: 'zebra' is not a word of the model"),
    ],
)
def test_invalid_command_lines_raise(words, message, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paint().save(tmp_path / "x", "PNG")
    done = run(*words)
    assert done.status == 2
    assert message in done.err
    assert done.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_output_never_overwrites_an_input(run, photos):
    root, wanted = photos
    path = Path(next(iter(wanted)))
    before = path.read_bytes()
    (root.parent / "link").symlink_to(path)
    for name in (path, root / "more" / ".." / path.name, root.parent / "link"):
        done = run(root, "--output", name)
        assert done.status == 2
        assert "is an input, which would be overwritten" in done.err
        assert path.read_bytes() == before


def test_missing_images_are_reported(run, tmp_path, photos, opened):
    (tmp_path / "empty").mkdir()
    done = run(tmp_path / "empty")
    assert done.status == 2
    assert f"no images in {tmp_path / 'empty'}" in done.err
    assert not opened  # no model was loaded
    done = run(tmp_path / "empty", photos[0])
    assert done.status == 1
    assert len(done.out.splitlines()) == 5
    assert "no images in it" in done.err
    done = run(tmp_path / "gone.jpg")
    assert (done.status, done.out) == (1, "")
    assert f"{tmp_path / 'gone.jpg'}: file not found" in done.err


def test_unreadable_folders_and_names_are_counted_and_the_rest_captioned(run, closed_folder):
    above = closed_folder.parent
    paint().save(above / "one.png")
    inside, too_long = closed_folder / "two.png", above / ("n" * 300)
    for words in ([above], [f"{above}/*/*.png", above / "one.png"], [f"{above}/**/*.png"]):
        done = run(*words)
        assert (done.status, len(lines(done.out))) == (1, 1)
        assert f"{closed_folder}: cannot read the folder: Permission denied" in done.err
        assert "1 of 2 files could not be read" in done.err
    done = run(too_long, inside, above / "one.png")
    assert (done.status, len(lines(done.out))) == (1, 1)
    assert f"{too_long}: cannot open the file: File name too long" in done.err
    assert f"{inside}: cannot open the file: Permission denied" in done.err


def test_missing_model_raises(run, photos, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr("ngsan.predict.captioner.PHOTO_MODEL", tmp_path / "nowhere")
    done = run(photos[0])
    assert done.status == 2
    assert done.err.startswith("ngsan caption: this installation comes without a model")
    done = run(photos[0], "--model", tmp_path / "gone")
    assert (done.status, done.out) == (2, "")
    assert f"folder not found: {tmp_path / 'gone'}" in done.err


def test_model_folder(run, photos, monkeypatch, folder):  # noqa: F811
    monkeypatch.undo()
    done = run(photos[0], "--model", folder)
    assert (done.status, done.err) == (0, "")
    assert [path for path, _ in lines(done.out)] == sorted(
        photos[1], key=lambda path: ("more" in path, path)
    )
    assert all(text.split()[-1] not in BAD_ENDINGS for _, text in lines(done.out))


def test_page_is_written(run, photos, monkeypatch, tmp_path):
    page_calls = []
    monkeypatch.setattr(
        "ngsan.app.explain.write_page", lambda *words, **_: page_calls.append(words)
    )
    monkeypatch.setattr("ngsan.app.maps.Explainer.open", lambda model, threads: model)
    root, wanted = photos
    page = tmp_path / "page.html"
    good = list(map(Path, wanted))
    good += good[:1]  # passed twice, and twice on the page
    done = run(*good, root / "notes.txt", "--page", page, "--model", "m", "--num-return", 2)
    assert done.status == 1
    ((model, *words, captions),) = page_calls
    assert (str(model), words) == ("m", [good, page])
    assert [len(each) for each in captions] == [2] * len(good)
    assert run(root / "notes.txt", "--page", page).status == 1
    assert len(page_calls) == 1  # a page without photographs is not written


def test_page_with_an_invalid_model_raises_early(run, photos, tmp_path):
    (tmp_path / "empty").mkdir()
    done = run(photos[0], "--page", tmp_path / "page.html", "--model", tmp_path / "empty")
    assert (done.status, done.out) == (2, "")
    assert str(tmp_path / "empty") in done.err


def test_output_follows_links(run, photos, tmp_path):
    path = next(iter(photos[1]))
    real, link, stream = (tmp_path / name for name in ("real.json", "link.json", "stream"))
    real.write_text("old")
    link.symlink_to(real)
    assert run(path, "--output", link).status == 0
    assert link.is_symlink()
    assert json.loads(real.read_text())[0]["image"] == path
    stream.symlink_to("/proc/self/fd/1")
    for to in (stream, "/dev/stdout"):
        with (tmp_path / "out.txt").open("wb") as out:
            started("caption", path, "--output", to, "--format", "json", stdout=out).communicate()
        assert json.loads((tmp_path / "out.txt").read_text())[0]["image"] == path
    assert stream.is_symlink()


def test_csv_quotes_names_with_line_ends(run, tmp_path):
    for name in ("a\rb.png", "a\nb.png", "a\r\nb.png", 'a"b.png', "a,b.png"):
        paint().save(tmp_path / name)
    run(tmp_path, "--output", tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["image"] for row in rows) == sorted(map(str, tmp_path.glob("*.png")))


def test_closed_stderr_does_not_mix_with_the_output(photos):
    root, _ = photos
    words = ["caption", root / "notes.txt", root, "--format", "json"]
    out, _ = started(*words, before=["sh", "-c", 'exec "$@" 2>&-', "sh"]).communicate()
    assert "error" in json.loads(out)[0]


def chunk(name, content):
    check = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + check


def bomb(width, height):
    """A PNG that claims a size but has almost no data."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + head + body + chunk(b"IEND", b"")


def hostile():
    """Names and contents of hostile files, and whether they are images (None: either)."""
    rng = random.Random(0)
    whole = {}
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
        file = io.BytesIO()
        paint(size=(200, 150)).save(file, kind)
        whole[kind] = file.getvalue()
    for kind, content in whole.items():
        for part in range(20):  # truncated
            yield f"cut-{part}.{kind}", content[: len(content) * part // 20], None
        for number in range(20):  # bytes changed
            changed = bytearray(content)
            for _ in range(1 + number):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            yield f"changed-{number}.{kind}", bytes(changed), None
        yield f"wrong ending {kind}.txt", content, True
        yield f"twice.{kind}", content + content, None
    for number in range(20):
        yield f"noise-{number}.jpg", rng.randbytes(number * 37), False
    texts = ["", "text", "<svg xmlns='http://www.w3.org/2000/svg'/>", "%PDF-1.7", "%!PS-Adobe-3.0"]
    for number, text in enumerate((*texts, "P6 9 9 255", "PK\x03\x04", "\x7fELF", "GIF89a")):
        yield f"text-{number}.png", text.encode("latin-1"), False
    for width, height in ((60000, 60000), (2**31 - 1, 1), (20000, 20000), (0, 5), (1, 2**30)):
        yield f"bomb-{width}x{height}.png", bomb(width, height), False
    for size in ((1, 1), (20000, 1), (1, 20000), (2, 3)):
        file = io.BytesIO()
        Image.new("RGB", size, "red").save(file, "PNG")
        yield f"size-{size[0]}x{size[1]}.png", file.getvalue(), True


def test_hundreds_of_hostile_files(run, tmp_path):
    files = list(hostile())
    assert len(files) >= 280
    paths = []
    for number, (name, content, _) in enumerate(files):
        paths.append(tmp_path / f"{number:03} {name}")
        paths[-1].write_bytes(content)
    paths += [tmp_path / "pipe.jpg", tmp_path / "link.jpg", tmp_path / "last.png"]
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "link.jpg").symlink_to(tmp_path / "link.jpg")
    paint().save(tmp_path / "last.png")
    files += [("pipe", b"", False), ("link", b"", False), ("last", b"", True)]
    start_time = time.monotonic()
    done = run(*paths, "--format", "json")
    assert time.monotonic() - start_time < 20
    assert done.status == 1
    records = json.loads(done.out)
    assert [record["image"] for record in records] == [str(path) for path in paths]
    for (name, _, is_image), record in zip(files, records, strict=True):
        assert ("caption" in record) != ("error" in record)
        if is_image is not None:
            assert ("caption" in record) == is_image, (name, record)
    failed = sum("error" in record for record in records)
    assert failed >= 100
    *reports, summary = done.err.splitlines()
    assert len(reports) == failed
    assert summary == f"{failed} of {len(paths)} files could not be read"


# Tests in child processes: signals, closed pipes and imports.

LAUNCH = """
import sys, time
from ngsan.cli import caption
from tests.predict.painter import Painter, open_painter
def load(*_, **__):
    captioner = open_painter()
    if {slow}:
        describe = Painter.describe
        def slow(self, images):
            if {slow} == 2:
                print("at work", file=sys.stderr, flush=True)
            time.sleep(0.3)
            return describe(self, images)
        Painter.describe = slow
    return captioner
caption.load = load
from ngsan.__main__ import main
try:
    status = main(sys.argv[1:])
finally:
    heavy = {{"torch", "jsonargparse", "rich", "lightning_fabric"}} & set(sys.modules)
    if heavy:
        print("imported", heavy, file=sys.stderr)
sys.exit(status)
"""


def started(*words, slow=0, before=(), **options):
    code = LAUNCH.format(slow=slow)
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [*before, sys.executable, "-c", code, *map(str, words)],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )


def test_lists_of_paths_on_standard_input(photos):
    root, wanted = photos
    (root / "new\nline.png").write_bytes((root / "b.png").read_bytes())
    for separator, names in (("\n", list(wanted)), ("\0", [*wanted, str(root / "new\nline.png")])):
        given = separator.join(names).encode() + separator.encode()
        process = started("caption", "-", stdin=subprocess.PIPE)
        out, err = process.communicate(given, timeout=60)
        assert (process.returncode, err) == (0, b"")
        shown = [name.replace("\n", "\\n") for name in names]
        assert [path for path, _ in lines(out.decode())] == shown


def test_empty_or_closed_standard_input(photos):
    process = started("caption", "-", stdin=subprocess.DEVNULL)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (
        2,
        b"ngsan caption: no images in the list on standard input\n",
    )
    for word, status, message in (("-", 2, b"standard input is closed"), (photos[0], 0, b"")):
        process = started("caption", word, before=("sh", "-c", 'exec "$@" <&-', "sh"))
        out, err = process.communicate(timeout=60)
        assert process.returncode == status
        assert message in err
        assert len(out.splitlines()) == (0 if status else 5)


def test_ctrl_c_writes_the_finished_captions(photos, tmp_path):
    paths, to = list(photos[1]) * 100, tmp_path / "captions.json"
    process = started("caption", *paths, "--output", to, "--batch-size", "1", slow=2)
    for _ in range(3):
        assert process.stderr.readline() == b"at work\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        err.replace(b"at work\n", b"") == b"wrote " + bytes(to) + b"\nngsan caption: interrupted\n"
    )
    found = json.loads(to.read_text())
    assert 2 <= len(found) < 100
    assert [record["image"] for record in found] == paths[: len(found)]
    assert out == b""


def test_closed_output_pipe_stops_quietly(photos):
    process = started("caption", *list(photos[1]) * 100, slow=1)
    assert process.stdout.readline().count(b"\t") == 1
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 141
    process.stderr.close()


def test_captions_are_printed_one_by_one(photos):
    # The first caption is printed before the others are finished.
    with started("caption", *list(photos[1]) * 20, slow=1) as process:
        assert process.stdout.readline()
        assert process.poll() is None
        process.kill()


def test_output_to_a_device_does_not_replace_it(photos):
    process = started("caption", photos[0], "--output", "/dev/stdout", "--format", "json")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(json.loads(out[: out.rindex(b"]") + 1])) == 5
    assert Path("/dev/stdout").is_symlink()


def on_terminal(*words, stream, **options):
    """Runs a process with a terminal as `stream`; returns its status and output."""
    pty = pytest.importorskip("pty")
    reader, writer = pty.openpty()
    process = started(*words, **{"stdout": subprocess.DEVNULL, stream: writer}, **options)
    os.close(writer)
    out = b""
    try:
        while block := os.read(reader, 4096):
            out += block
    except OSError:  # end of the terminal's output
        pass
    os.close(reader)
    status = process.wait(timeout=60)
    if process.stderr is not None:
        process.stderr.close()
    return status, out.decode().replace("\r\n", "\n")


def test_terminal_output_has_columns(photos):
    root, wanted = photos
    words = ("caption", ".", "--num-return", "2")
    status, out = on_terminal(*words, stream="stdout", cwd=root)
    assert status == 0
    shown = out.splitlines()
    assert len(shown) == 10
    assert shown[0] == f"a b.JPG        {wanted[str(root / 'a b.JPG')]}"
    assert shown[2].startswith("b.png          ")
    assert shown[4].startswith("ünï 写真.webp  ")  # two of the characters are two columns wide
    assert all(line.startswith(" " * 15) for line in shown[1::2])


def test_terminal_shows_progress_while_writing_a_file(photos, tmp_path):
    root, _ = photos
    words = ("caption", root, root / "notes.txt", "--output", tmp_path / "captions.csv")
    status, out = on_terminal(*words, stream="stderr")
    assert status == 1
    assert "\r1 of 6 images" in out
    assert "\r6 of 6 images" in out
    assert f"{root / 'notes.txt'}: unsupported image format" in out


def test_objects_stand_beside_the_caption(run, tmp_path, monkeypatch):
    paint("red green black blue").save(tmp_path / "a.png")
    paint("black black black black").save(tmp_path / "none.png")
    monkeypatch.chdir(tmp_path)
    words = ("a.png", "none.png", "--objects")
    first, second = lines(run(*words).out)
    assert first == ("a.png", "red green black blue", "red 90%, green 80%")
    assert second[::2] == ("none.png", "")
    some, none = json.loads(run(*words, "--format", "json").out)
    assert some["caption"] == "red green black blue"
    assert some["objects"] == [
        {"label": "red", "box": [0.25, 0.25, 0.5, 0.5], "confidence": 0.9},
        {"label": "green", "box": [0.75, 0.25, 0.5, 0.5], "confidence": 0.8},
    ]
    assert none["objects"] == []
    table = run(*words, "--format", "csv", "--num-return", "2").out
    rows = list(csv.DictReader(io.StringIO(table)))
    assert [row["objects"] for row in rows] == ["red 90%, green 80%"] * 2 + ["", ""]
    assert "objects" not in run("a.png", "--format", "json").out


def test_keywords_stand_beside_the_caption(run):
    cat = next(each.path for each in EXAMPLES if each.path.stem == "cat")
    model = load_keywords()
    confidences = model.confidences(model.logits(to_square(open_image(cat), model.size)[None]))[0]
    best = confidences.argsort()[::-1][:10]
    (record,) = json.loads(run(cat, "--keywords", "--format", "json").out)
    assert [found["word"] for found in record["keywords"]] == [model.keywords[k] for k in best]
    assert "cat" in (found["word"] for found in record["keywords"])
    shown = [found["confidence"] for found in record["keywords"]]
    assert shown == pytest.approx(confidences[best], abs=0.01)  # a JPEG is decoded at half its size
    (line,) = lines(run(cat, "--keywords").out)
    assert line[2].split(", ")[0] == f"{record['keywords'][0]['word']} {shown[0]:.0%}"


@pytest.mark.parametrize("option", ["--objects", "--keywords"])
def test_objects_and_keywords_apply_to_photographs_only(option, run, tmp_path):
    clip = [paint("red green black blue"), paint("blue blue blue blue")]
    clip[0].save(tmp_path / "a.gif", save_all=True, append_images=clip[1:], duration=100)
    done = run(tmp_path / "a.gif", option)
    assert done.status == 2
    assert f"{option} applies only to photographs" in done.err


def test_detector_of_another_library(run, tmp_path, opened):
    paint().save(tmp_path / "a.png")
    assert run(tmp_path / "a.png", "--objects", "--detector", "hf:mine").status == 0
    assert opened[-1][1]["detector"] == "hf:mine"
    done = run(tmp_path / "a.png", "--detector", "hf:mine")
    assert (done.status, done.err) == (2, "ngsan caption: --detector applies only with --objects\n")


@pytest.fixture
def doubtful(monkeypatch):
    """A captioner that is confident of pure colours only."""
    formula = Formula({"doubt": -30.0}, 20.0, Report(1, 0.5, 0.5, 0.0, []))

    def load(*_, **__):
        captioner = open_painter()
        captioner.formulas = {"fast": formula}
        return captioner

    monkeypatch.setattr(command, "load", load)


def test_unsure_captions_are_left_out_and_marked_in_json(run, doubtful, tmp_path, monkeypatch):
    mixed = Image.blend(paint("red green black blue"), paint("blue red white grey"), 0.45)
    mixed.save(tmp_path / "mixed.png")
    paint("red green black blue").save(tmp_path / "pure.png")
    monkeypatch.chdir(tmp_path)
    words = ("mixed.png", "pure.png", "--min-confidence", "0.5")
    done = run(*words)
    assert lines(done.out) == [("pure.png", "red green black blue")]
    assert done.err == "1 of 2 captions are below --min-confidence\n"
    assert done.status == 0
    first, second = json.loads(run(*words, "--format", "json").out)
    assert first["confidence"] < 0.5 < second["confidence"]
    assert (first["confident"], second["confident"]) == (False, True)
    assert first["caption"]
    rows = list(csv.DictReader(io.StringIO(run(*words, "--format", "csv").out)))
    assert [row["confident"] for row in rows] == ["False", "True"]
    assert len(lines(run(*words[:2]).out)) == 2
    assert "confident" not in run(*words[:2], "--format", "json").out.replace("confidence", "")


def test_min_confidence_needs_a_formula_and_a_probability(run, tmp_path):
    paint().save(tmp_path / "a.png")
    done = run(tmp_path / "a.png", "--min-confidence", "0.5")
    assert done.status == 2
    assert "ngsan fit confidence" in done.err
    assert run(tmp_path / "a.png", "--min-confidence", "1.5").status == 2
