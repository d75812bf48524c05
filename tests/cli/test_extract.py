"""End-to-end tests of `ngsan extract`: from pictures to a feature store."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ngsan.__main__ import main
from ngsan.data import FeatureStore

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SIDE = 32
EXAMPLES = Path(__file__).parents[2] / "src" / "ngsan" / "examples"


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    """A graph that detects two boxes, the whole picture and its left half; features are colours."""
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    real = onnx.TensorProto.FLOAT

    def constant(name, values):
        return onnx.numpy_helper.from_array(np.asarray(values), name)

    nodes = [
        node("ReduceMean", ["images"], ["whole"], axes=[2, 3], keepdims=0),
        node("Slice", ["images", "starts", "ends", "axes"], ["left"]),
        node("ReduceMean", ["left"], ["half"], axes=[2, 3], keepdims=0),
        node("Concat", ["whole", "half"], ["features"], axis=0),
        node("Identity", ["places"], ["boxes"]),
        node("Identity", ["sure"], ["scores"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "detector",
        [info("images", real, [1, 3, SIDE, SIDE])],
        [info("features", real, [2, 3]), info("boxes", real, [2, 4]), info("scores", real, [2])],
        [
            constant("starts", np.array([0], np.int64)),
            constant("ends", np.array([SIDE // 2], np.int64)),
            constant("axes", np.array([3], np.int64)),
            constant("places", np.array([[-5, 0, 40, 32], [0, 0, 16, 32]], np.float32)),
            constant("sure", np.array([0.3, 0.9], np.float32)),
        ],
    )
    opset = [onnx.helper.make_opsetid("", 13)]
    path = tmp_path_factory.mktemp("detector") / "detector.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def colours(number):
    """The colours of the two halves of a picture."""
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, 3), rng.integers(0, 256, 3)


def write_pictures(folder, numbers, size=(64, 40)):
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        pixels = np.empty((size[1], size[0], 3), np.uint8)
        pixels[:, : size[0] // 2], pixels[:, size[0] // 2 :] = colours(number)
        Image.fromarray(pixels).save(folder / f"COCO_val2014_{number:012}.png")


def expect(store, numbers, size=(64, 40)):
    assert sorted(store.ids(), key=int) == [str(number) for number in sorted(numbers)]
    for number in numbers:
        left, right = (half / 255 for half in colours(number))
        found = store[number]
        # The higher score first, and the box outside the picture clipped.
        expected = np.stack((left, (left + right) / 2))
        np.testing.assert_allclose(found.features, expected, atol=0.03)
        np.testing.assert_allclose(found.boxes, [[0.25, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]])
        assert found.size == size


def run(*words):
    """Runs the command and returns its exit status."""
    return main(["extract", *map(str, words)])


def test_folder_is_extracted_to_a_store(tmp_path, detector, capsys):
    write_pictures(tmp_path / "pictures", range(1, 12))
    words = [
        tmp_path / "pictures",
        "--output",
        tmp_path / "data",
        "--extractor",
        f"onnx:{detector}",
    ]
    assert run(*words, "--batch-size", "4") == 0
    store = FeatureStore(tmp_path / "data")
    expect(store, range(1, 12))
    assert "onnx detector.onnx" in store.source
    assert "features of 11 files" in capsys.readouterr().out
    assert run(*words) == 2
    assert "exists" in capsys.readouterr().err
    assert run(*words, "--overwrite", "--workers", "1", "--batch-size", "1") == 0
    expect(FeatureStore(tmp_path / "data"), range(1, 12))


def test_bad_files_are_reported_and_the_rest_extracted(tmp_path, detector, capsys):
    folder = tmp_path / "pictures"
    write_pictures(folder, range(1, 9))
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    (folder / "empty.png").touch()
    (folder / "again").mkdir()
    Image.new("RGB", (4, 4)).save(folder / "again" / "3.png")
    too_long = "n" * 300
    words = [folder, tmp_path / "gone.jpg", too_long, "", "--output", tmp_path / "data"]
    assert run(*words, "--extractor", f"onnx:{detector}", "--batch-size", "3") == 1
    expect(FeatureStore(tmp_path / "data"), range(1, 9))
    err = capsys.readouterr().err
    for text in (
        "broken.jpg: ",
        "empty.png: ",
        "gone.jpg: file not found",
        "3.png already has the id 3",
        f"{too_long}: cannot open the file: File name too long",
        ".: an image id cannot be empty",
        "6 images were skipped",
    ):
        assert text in err


def test_names_that_are_not_utf8_are_reported_and_the_rest_extracted(tmp_path, detector, capfd):
    (tmp_path / "images").mkdir()
    for name in (b"good.png", b"bad\xff.png"):
        Image.new("RGB", (32, 32)).save(tmp_path / "images" / os.fsdecode(name))
    words = [tmp_path / "images", "--output", tmp_path / "out"]
    assert run(*words, "--extractor", f"onnx:{detector}") == 1
    assert list(FeatureStore(tmp_path / "out").ids()) == ["good"]
    err = capfd.readouterr().err
    assert "its name, which is its id, is not UTF-8; rename the file" in err
    assert "1 images were skipped" in err


@pytest.mark.parametrize("count", ["5000", "9" * 30, "0"])
def test_an_absurd_number_of_threads_is_refused(tmp_path, count, capfd):
    assert main(["extract", str(tmp_path), "-o", str(tmp_path), "--threads", count]) == 2
    err = capfd.readouterr().err
    assert "--threads: " in err
    assert "is not" in err


def test_extract_without_usable_files_raises(tmp_path, detector, capsys):
    (tmp_path / "one.jpg").write_text("no picture")
    words = ["--output", tmp_path / "data", "--extractor", f"onnx:{detector}"]
    assert run(tmp_path / "one.jpg", *words) == 2
    assert "none of 1 files could be used" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty", *words) == 2
    assert "no images in" in capsys.readouterr().err
    for wrong in ("nonsense", "onnx:", "torchvision:"):
        assert run(tmp_path / "one.jpg", "--output", tmp_path / "data", "--extractor", wrong) == 2
        assert "unknown source " in capsys.readouterr().err
    assert run(tmp_path / "one.jpg", *words, "--engine", "other") == 2
    assert run(tmp_path / "one.jpg") == 2


SLOWLY = """
import sys, time
from ngsan.__main__ import main
from ngsan.cli import extract
from ngsan.vision.sources import OnnxDetectorSource
extract._SHARD_BYTES = 1000
detect = OnnxDetectorSource._detect
def slowly(self, image):
    time.sleep(0.02)
    return detect(self, image)
OnnxDetectorSource._detect = slowly
sys.exit(main(["extract", *sys.argv[1:]]))
"""


def test_killed_run_resumes(tmp_path, detector, capsys):
    write_pictures(tmp_path / "pictures", range(1, 81))
    words = [
        tmp_path / "pictures",
        "--output",
        tmp_path / "data",
        "--extractor",
        f"onnx:{detector}",
    ]
    words = [*map(str, words), "--batch-size", "4"]
    child = subprocess.Popen([sys.executable, "-c", SLOWLY, *words], stdout=subprocess.DEVNULL)
    partial = tmp_path / "data" / "features.partial"
    until = time.monotonic() + 60
    while len(list(partial.glob("*.safetensors"))) < 2 and time.monotonic() < until:
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    with pytest.raises(FileNotFoundError, match="interrupted"):
        FeatureStore(tmp_path / "data")
    assert run(*words) == 0
    expect(FeatureStore(tmp_path / "data"), range(1, 81))
    assert "resuming after" in capsys.readouterr().out


def test_help_needs_no_torch():
    words = (
        "import sys; from ngsan.__main__ import main\n"
        "try: main(['extract', '--help'])\n"
        "except SystemExit: assert 'torch' not in sys.modules; print('quick')"
    )
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.endswith("quick\n")


def test_patterns_are_expanded(tmp_path, detector):
    write_pictures(tmp_path / "a", [1, 2])
    write_pictures(tmp_path / "b", [3])
    words = ["--output", tmp_path / "data", "--extractor", f"onnx:{detector}"]
    assert run(tmp_path / "*" / "*.png", *words) == 0
    expect(FeatureStore(tmp_path / "data"), [1, 2, 3])


def write_photos(folder):
    """Two example photographs, one of them small, and a file that is none."""
    folder.mkdir()
    for number, name in enumerate(("coffee", "dogs"), start=1):
        Image.open(EXAMPLES / f"{name}.jpg").resize((96, 64)).save(folder / f"{number}.png")
    (folder / "3.png").write_bytes(b"no picture")


def test_regions_of_objects_without_torch(tmp_path, capsys):
    write_photos(tmp_path / "photos")
    words = ["--threads", "1", "--min-regions", "10", "--max-regions", "12"]
    child = (
        "import sys; from ngsan.__main__ import main\n"
        "status = main(sys.argv[1:])\nassert 'torch' not in sys.modules; sys.exit(status)"
    )
    line = ["extract", "--source", "objects", str(tmp_path / "photos"), "-o", str(tmp_path / "one")]
    done = subprocess.run(
        [sys.executable, "-c", child, *line, *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done.stderr
    assert "3.png: " in done.stderr
    store = FeatureStore(tmp_path / "one")
    assert sorted(store.ids()) == ["1", "2"]
    assert store.feature_dim == 1280
    assert "12 boxes of detector" in store.source
    assert all(10 <= count <= 12 for count in store.counts())
    assert store["1"].size == (96, 64)
    # The same boxes from a file give the same features.
    boxes = [store[name].boxes for name in ("1", "2")]
    offset = np.cumsum([0, *map(len, boxes)])
    np.savez(tmp_path / "b.npz", image_id=[1, 2], offset=offset, box=np.concatenate(boxes))
    line = [tmp_path / "photos", "--source", "boxes", tmp_path / "b.npz", "--threads", "1"]
    assert run(*line, "-o", tmp_path / "two") == 1
    again = FeatureStore(tmp_path / "two")
    for name in ("1", "2"):
        np.testing.assert_array_equal(again[name].features, store[name].features)
        np.testing.assert_allclose(again[name].boxes, store[name].boxes, atol=1e-6)
    # An image without boxes is reported.
    np.savez(tmp_path / "b.npz", image_id=[1], offset=[0, 1], box=boxes[0][:1])
    capsys.readouterr()
    assert run("-o", tmp_path / "two", "--overwrite", *line) == 1
    assert "2.png: there are no boxes of image 2" in capsys.readouterr().err
    assert FeatureStore(tmp_path / "two").counts().tolist() == [1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source", "boxes"], "--source boxes: the file of boxes is missing"),
        (["--source", "box"], "'box' is not one of cells, objects, boxes"),
        (["--min-score", "0.5"], "--min-score does not apply to --source cells"),
        (["--pool", "roi"], "--pool does not apply to --source cells"),
        (["--source", "objects", "--top", "head"], "--top does not apply to --source objects"),
        (["--source", "boxes", "b", "--detector", "c"], "--detector does not apply to --source b"),
        (["--source", "objects", "--frames", "4"], "--source does not apply to --frames"),
        (["--source", "objects", "--max-regions", "0"], "from 1 to max_regions, 0"),
        (
            ["--source", "objects", "--pool", "roi", "--extractor", "photo"],
            "'photo' has no map for --pool roi",
        ),
    ],
)
def test_options_of_regions_that_do_not_fit(tmp_path, words, message, capsys):
    write_pictures(tmp_path / "pictures", [1])
    assert run(tmp_path / "pictures", "-o", tmp_path / "data", *words) == 2
    assert message in capsys.readouterr().err
    assert run("--source", "objects", "-o", tmp_path / "data") == 2
    assert "PATH is missing" in capsys.readouterr().err


ON_TWO_MACHINES = """
import os, sys
from ray.cluster_utils import Cluster
from ngsan.__main__ import main
# Each node has one CPU, so two workers need both.
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
os.environ["RAY_ADDRESS"] = cluster.address
try:
    sys.exit(main(["extract", *sys.argv[1:]]))
finally:
    cluster.shutdown()
"""


@pytest.mark.slow
def test_ray_cluster_with_two_nodes(tmp_path, detector):
    pytest.importorskip("ray.data", reason="Ray is not installed", exc_type=ImportError)
    write_pictures(tmp_path / "pictures", range(1, 21))
    (tmp_path / "pictures" / "broken.jpg").write_bytes(b"no picture")
    words = [
        tmp_path / "pictures",
        "--output",
        tmp_path / "data",
        "--extractor",
        f"onnx:{detector}",
    ]
    how = ["--engine", "ray", "--workers", "2", "--batch-size", "4", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO_MACHINES, *map(str, words), *how],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert done.returncode == 1, done.stderr[-3000:]  # the broken one
    assert "broken.jpg: " in done.stderr
    expect(FeatureStore(tmp_path / "data"), range(1, 21))


def test_missing_ray_error_names_the_extra(tmp_path, detector, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    write_pictures(tmp_path / "pictures", [1])
    words = [
        tmp_path / "pictures",
        "--output",
        tmp_path / "data",
        "--extractor",
        f"onnx:{detector}",
    ]
    assert run(*words, "--engine", "ray") == 2
    assert "pip install 'ngsan[ray]'" in capsys.readouterr().err
