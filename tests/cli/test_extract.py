"""End-to-end tests of `ngsan extract`: from pictures to a feature store."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from ngsan.__main__ import main
from ngsan.data import FeatureStore

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SIDE = 32


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
