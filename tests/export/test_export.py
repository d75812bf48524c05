"""Exported captioners against PyTorch as the independent program."""

import hashlib
import itertools
import json
import math
import shutil
import sys

import numpy as np
import pytest
import torch

import ngsan
from ngsan import load
from ngsan.__main__ import main
from ngsan.config import CaptionerConfig, DecodingConfig
from ngsan.export.checking import check_export, onnx_logits, torch_logits
from ngsan.export.write import export_model, pack_model
from ngsan.models import build_captioner
from ngsan.models.checkpoint import load_model, save_model
from ngsan.nn.normalize import BatchNorm
from ngsan.predict.backend_onnx import OnnxBackend
from ngsan.predict.backend_torch import TorchBackend
from ngsan.predict.manifest import DECODER, ENCODER, FILES, MANIFEST, VOCABULARY, Manifest
from ngsan.text.vocabulary import BOUNDARY, Vocabulary
from tests.predict.outputs import n_best

WORDS = [f"word{index}" for index in range(24)]
TINY = dict(vocab_size=25, feature_dim=6, dim=16, heads=2, hidden_dim=24, layers=1, geometry_dim=4)

# Every value of every key that changes a graph, in as few exports as possible (each takes seconds).
VARIANTS = {
    "ng-san": dict(),
    "san": dict(norm="none", geometry="none", decoder_norm="layer", layers=2),
    "all geometry": dict(
        geometry="absolute+content-independent+query+key+relation",
        signed_geometry=True,
        norm="instance-affine",
        norm_of="both",
    ),
    "relation, pre, batch": dict(
        geometry="relation-plus-one",
        norm_place="pre",
        norm="batch",
        norm_of="key",
        decoder_norm="layer",
    ),
    "key, layer, half": dict(geometry="key", norm="layer", dtype=torch.bfloat16),
}

SEARCHES = {
    "beam": DecodingConfig(num_return=3, length_penalty=0.5),
    "greedy": DecodingConfig(method="greedy"),
    "sample": DecodingConfig(method="sample", num_return=4, seed=7),
    "constrained": DecodingConfig(beam=4, num_return=2, no_repeat_ngram=2, max_length=7),
}


def make_model(folder, dtype=torch.float32, seed=1, **keys):
    torch.manual_seed(seed)
    config = CaptionerConfig(**{**TINY, **keys})
    captioner = build_captioner(config)
    # Replace initial values that would hide an error: zero biases, zero projections, unit scales.
    for parameter in captioner.parameters():
        torch.nn.init.normal_(parameter, std=0.5 if parameter.ndim > 1 else 0.2)
    for module in captioner.modules():
        if isinstance(module, BatchNorm):
            module.running_mean.normal_()
            module.running_variance.uniform_(0.5, 2)
    save_model(folder, captioner.to(dtype), config, {"vocabulary": Vocabulary(WORDS)})
    return folder


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Creates the model folder and the export of a variant, once."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("model")
            model = make_model(folder / "model", **VARIANTS[name])
            made[name] = model, folder / "export", export_model(model, folder / "export")
        return made[name]

    return get


@pytest.fixture
def reuse_graphs(exported, monkeypatch):
    """Copies the graphs of an exported variant instead of tracing a model."""

    def take(name):
        source = exported(name)[1]

        def write_graphs(captioner, config, folder):
            for file in (ENCODER, DECODER):
                shutil.copy(source / file, folder / file)
            manifest = json.loads((source / MANIFEST).read_text())
            return manifest["inputs"], manifest["outputs"]

        monkeypatch.setattr("ngsan.export.write.write_graphs", write_graphs)

    return take


@pytest.fixture
def copy(exported, tmp_path):
    """A copy of an export that a test may damage."""
    return shutil.copytree(exported("ng-san")[1], tmp_path / "copy")


def regions(counts, pad_to=None):
    """Random regions, `counts[i]` for image i; the padding is NaN."""
    shape = (len(counts), pad_to if pad_to is not None else max(counts, default=0))
    features = torch.randn(*shape, TINY["feature_dim"])
    boxes = 0.1 + 0.8 * torch.rand(*shape, 4)
    counts = torch.tensor(counts, dtype=torch.long).unsqueeze(1)
    mask = torch.arange(shape[1]) < counts
    features[~mask] = torch.nan
    boxes[~mask] = torch.nan
    return features, boxes, mask


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name != "ng-san" else []) for name in VARIANTS],
)
def test_variants_agree_with_torch(name, exported):
    model, folder, report = exported(name)
    assert {path.name for path in folder.iterdir()} == set(FILES)
    assert report.difference < 1e-4
    dtype = VARIANTS[name].get("dtype", torch.float32)
    assert report.saved_precision == str(dtype).removeprefix("torch.")
    captioner = load_model(model, "captioning")[0].float()
    other = OnnxBackend(folder, threads=1)
    sizes = [([5], 1, 1), ([1], 3, 2), ([4, 0, 2], 2, 4), ([9, 9], 5, 3), ([0], 2, 2)]
    with torch.inference_mode():
        for counts, width, max_length in sizes:
            images = regions(counts, pad_to=max(*counts, 1))
            expected = torch_logits(captioner, images, width, max_length)
            found = onnx_logits(other, images, width, max_length)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        # A teacher-forced pass shares nothing with the steps but the weights.
        images = regions([6, 3])
        words = torch.randint(1, TINY["vocab_size"], (2, 4))
        words[:, 0] = BOUNDARY
        steps = other.steps(other.encode(*(part.numpy() for part in images)))
        steps.start(1, 4)
        stepped = [steps.step(word[:, None], None) for word in words.numpy().T]
        wanted = captioner(*images, words).numpy()
        np.testing.assert_allclose(np.concatenate(stepped, 1), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("search", SEARCHES)
def test_captions_equal_torch(search, exported):
    model, folder, _ = exported("ng-san")
    images = regions([7, 0, 3, 1, 6])
    for given in (images, regions([8, 2, 5, 8, 4], pad_to=8), images):
        expected, found = (
            n_best(load(one), *given, decoding=SEARCHES[search], attention=True, first=2)
            for one in (model, folder)
        )
        assert [len(captions) for captions in found] == [len(captions) for captions in expected]
        for ours, other in zip(itertools.chain(*expected), itertools.chain(*found), strict=True):
            assert ours.text == other.text
            assert ours.score == pytest.approx(other.score, abs=1e-4)
            assert ours.word_log_probabilities == pytest.approx(
                other.word_log_probabilities, abs=1e-4
            )
            np.testing.assert_allclose(other.attention, ours.attention, atol=1e-4)


def test_empty_inputs_and_missing_masks(exported):
    model, folder, _ = exported("ng-san")
    ours, other = load(model), load(folder)
    assert other.caption_regions(torch.zeros(0, 3, 6), torch.ones(0, 3, 4), attention=True) == []
    nothing = torch.zeros(2, 0, 6), torch.ones(2, 0, 4)
    expected, found = (one.caption_regions(*nothing, attention=True) for one in (ours, other))
    assert found == expected
    assert found[0].attention.shape == expected[0].attention.shape
    features, boxes, _ = regions([5, 5])
    same = [
        captioner.caption_regions(features, boxes.double(), mask)
        for captioner in (ours, other)
        for mask in (None, torch.ones(2, 5, dtype=torch.bool))
    ]
    assert all(texts == same[0] for texts in same)


def test_graphs_have_dynamic_axes_and_no_local_paths(exported):
    import onnx

    for name in (ENCODER, DECODER):
        path = exported("ng-san")[1] / name
        assert b"/ngsan/" not in path.read_bytes()
        graph = onnx.load(path).graph
        axes = {
            axis.dim_param
            for value in graph.input
            for axis in value.type.tensor_type.shape.dim
            if axis.dim_param
        }
        wanted = {"images", "regions"} | ({"captions", "slots"} if name == DECODER else set())
        assert axes == wanted
        manifest = json.loads((exported("ng-san")[1] / MANIFEST).read_text())
        assert manifest["inputs"][name] == [value.name for value in graph.input]
        assert manifest["outputs"][name] == [value.name for value in graph.output]


def test_load_opens_models_and_exports(exported):
    model, folder, _ = exported("ng-san")
    assert isinstance(ngsan.load(model).backend, TorchBackend)
    assert isinstance(ngsan.load(folder).backend, OnnxBackend)


def test_invalid_target_raises_and_is_unchanged(exported, tmp_path):
    model = exported("ng-san")[0]
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    for target, message in (("file", "is a file"), ("folder", "notes.txt")):
        with pytest.raises(ValueError, match=message):
            export_model(model, tmp_path / target)
    with pytest.raises(ValueError, match="config.yaml"):
        export_model(model, model)
    with pytest.raises(ValueError, match="is not a model"):
        export_model(tmp_path / "nothing", tmp_path / "export")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_export_replacement_is_atomic(exported, copy, reuse_graphs, monkeypatch):
    model = exported("ng-san")[0]
    reuse_graphs("ng-san")
    before = {name: (copy / name).read_bytes() for name in FILES}

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ngsan.export.write.check_export", fail)
        with pytest.raises(KeyboardInterrupt):
            export_model(model, copy)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    export_model(model, copy)
    assert OnnxBackend(copy).config == load_model(model, "captioning")[1]
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]


def test_graphs_with_other_weights_are_not_published(reuse_graphs, tmp_path):
    reuse_graphs("ng-san")
    model = make_model(tmp_path / "model", seed=2, **VARIANTS["ng-san"])
    with pytest.raises(ValueError, match="does not agree with PyTorch: logits"):
        export_model(model, tmp_path / "export")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_differing_captions_raise(exported, monkeypatch):
    monkeypatch.setattr("ngsan.export.checking.TOLERANCE", 1e9)
    captioner = load_model(exported("ng-san")[0], "captioning")[0]
    assert check_export(exported("ng-san")[1], captioner)
    monkeypatch.setattr("ngsan.export.checking.TIE", -1)
    captioner.decoder.output.bias.data[3] += 50
    with pytest.raises(ValueError, match="instead of 'word2"):
        check_export(exported("ng-san")[1], captioner)


def test_int8_export_is_close_to_float(reuse_graphs, exported, tmp_path, capsys):
    import onnx

    reuse_graphs("ng-san")
    model, whole, _ = exported("ng-san")
    target = tmp_path / "small"
    assert main(["export", str(model), "--output", str(target), "--precision", "int8"]) == 0
    assert "the export has int8" in capsys.readouterr().out
    for name in (ENCODER, DECODER):
        matrices = list(onnx.load(target / name).graph.initializer)
        large = [tensor for tensor in matrices if math.prod(tensor.dims) > 200]
        assert large
        # With signed ones, products saturate on some CPUs, though perhaps not on this one.
        assert {tensor.data_type for tensor in large} == {onnx.TensorProto.UINT8}
    images = regions([7, 3])
    with torch.inference_mode():
        both = [onnx_logits(OnnxBackend(one, threads=1), images).ravel() for one in (whole, target)]
    assert not np.array_equal(*both)
    assert np.corrcoef(both)[0, 1] > 0.99
    assert load(target).caption_regions(*images, min_length=2)[0].text


def test_int8_export_that_differs_too_much_raises(reuse_graphs, exported, tmp_path, monkeypatch):
    reuse_graphs("ng-san")
    monkeypatch.setattr("ngsan.export.write.ROUGH", 1e-5)
    with pytest.raises(ValueError, match="does not agree"):
        export_model(exported("ng-san")[0], tmp_path / "small", precision="int8")
    assert not (tmp_path / "small").exists()
    with pytest.raises(ValueError, match="precision: 'int4' is not one of float32, int8"):
        export_model(exported("ng-san")[0], tmp_path / "small", precision="int4")


@pytest.mark.parametrize("name", FILES)
def test_missing_file_error_names_it(name, copy):
    (copy / name).unlink()
    with pytest.raises(ValueError, match=f"not an export: {name} missing"):
        load(copy)


@pytest.mark.parametrize("name", [ENCODER, DECODER])
def test_changed_and_truncated_graphs_raise(name, copy):
    content = (copy / name).read_bytes()
    for other in (content[:-1], content[:200], bytes([content[0] ^ 1]) + content[1:], b""):
        (copy / name).write_bytes(other)
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            load(copy)
    # Even one whose checksum was updated.
    (copy / name).write_bytes(content)
    manifest = Manifest.load(copy)
    (copy / name).write_bytes(content[:200])
    manifest.sha256[name] = hashlib.sha256(content[:200]).hexdigest()
    manifest.save(copy)
    with pytest.raises(ValueError, match="cannot open the graphs"):
        load(copy)


def test_wrong_vocabulary_raises(copy):
    Vocabulary(WORDS[::-1]).save(copy / VOCABULARY)
    with pytest.raises(ValueError, match="is not the vocabulary of the export"):
        load(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:40], "damaged"),
        (lambda text: "[]", "format None"),
        (lambda text: text.replace('"format": 2', '"format": 1'), "format 1 is not supported"),
        (lambda text: text.replace('"opset"', '"opsit"'), "opset missing"),
        (lambda text: text.replace('"heads": 2', '"heads": 3'), "does not match its seal"),
        (
            lambda text: text.replace('"sha256": {', '"sha256": 1, "x": {'),
            "unknown key 'x'",
        ),
    ],
)
def test_damaged_manifest_raises(change, message, copy):
    path = copy / MANIFEST
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message):
        load(copy)


def test_invalid_load_arguments_raise(exported, tmp_path):
    folder = exported("ng-san")[1]
    with pytest.raises(ValueError, match="is not a model"):
        load(tmp_path)
    with pytest.raises(ValueError, match="folder not found"):
        load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="device: 'cpu' runs models with PyTorch"):
        load(folder, device="cpu")
    with pytest.raises(ValueError, match="threads: 0"):
        load(folder, threads=0)
    with pytest.raises(ValueError, match="'TarotProvider' is not in this build"):
        load(folder, providers=["TarotProvider"])
    assert load(folder, providers=[("CPUExecutionProvider", {})], threads=1)


def test_invalid_regions_raise_before_the_graph_runs(exported):
    captioner = load(exported("ng-san")[1])
    features, boxes, mask = regions([3])
    for images, message in (
        ((features[..., :5], boxes, mask), "must be .images, regions, 6."),
        ((features, None, mask), "geometry-aware"),
        ((features, boxes[:, :2], None), "boxes must be of shape"),
        ((features, boxes, mask.long()), "mask must be boolean"),
        ((features, boxes - 1, mask), "finite, with a width"),
    ):
        with pytest.raises(ValueError, match=message):
            captioner.caption_regions(*images)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_package_error_names_the_extra(package, exported, tmp_path, monkeypatch):
    model, folder, _ = exported("ng-san")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=f"{package}.*ngsan.train."):
        export_model(model, tmp_path / "export")
    if package == "onnxruntime":
        with pytest.raises(ValueError, match="pip install onnxruntime"):
            load(folder)
        assert load(model)
    else:
        assert load(folder)


def test_command_prints_what_it_wrote(exported, reuse_graphs, tmp_path, capsys):
    name = "ng-san"
    reuse_graphs(name)
    assert main(["export", str(exported(name)[0]), "--output", str(tmp_path / "export")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(name in out for name in FILES)
    assert "agree on 5 of 5 captions" in out
    assert load(tmp_path / "export")
    assert main(["export", str(tmp_path / "model")]) == 2
    assert "--output" in capsys.readouterr().err


@pytest.mark.parametrize("write", [export_model, pack_model])
def test_exporting_recurrent_decoders_raises(tmp_path, write):
    model = make_model(tmp_path / "model", decoder="aoa")
    with pytest.raises(
        ValueError, match="decoder: 'aoa': .* only models with the Transformer decoder"
    ):
        write(model, tmp_path / "export")
    assert not (tmp_path / "export").exists()
    features, boxes = torch.randn(1, 3, 6), torch.full((1, 3, 4), 0.5)
    assert load(model).caption_regions(features, boxes)
