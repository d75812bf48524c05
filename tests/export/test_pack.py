"""Packed models against PyTorch, and against every kind of damage."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from ngsan.__main__ import main
from ngsan.export.checking import onnx_logits, torch_logits
from ngsan.export.write import export_model, pack_model
from ngsan.models.checkpoint import CONFIG, load_model, read_metrics, read_task
from ngsan.models.quantize import dequantize_weights
from ngsan.predict.backend_onnx import OnnxBackend
from ngsan.predict.captioner import Captioner
from ngsan.predict.manifest import (
    BACKBONE,
    DECODER,
    ENCODER,
    MANIFEST,
    VOCABULARY,
    WEIGHTS,
    Manifest,
    read_weights,
)
from ngsan.text.vocabulary import Vocabulary
from tests.export.helpers import PHOTO, REGIONS, make_model, pixels, random_images

GRAPHS = (BACKBONE, ENCODER, DECODER)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A photo model, and the same packed."""
    folder = tmp_path_factory.mktemp("pack")
    model = make_model(folder / "model", **PHOTO)
    return model, folder / "packed", pack_model(model, folder / "packed", attention=False)


@pytest.fixture(scope="module")
def regions(tmp_path_factory):
    """A region model, and the same packed."""
    folder = tmp_path_factory.mktemp("pack")
    model = make_model(folder / "model", **REGIONS)
    return model, folder / "packed", pack_model(model, folder / "packed", attention=False)


@pytest.fixture
def copy(packed, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(packed[1], tmp_path / "copy")


def random_regions(counts):
    random = torch.Generator().manual_seed(len(counts))
    shape = (len(counts), max(counts))
    features = torch.randn(*shape, REGIONS["feature_dim"], generator=random)
    boxes = 0.1 + 0.8 * torch.rand(*shape, 4, generator=random)
    mask = torch.arange(shape[1]) < torch.tensor(counts).unsqueeze(1)
    features[~mask], boxes[~mask] = torch.nan, torch.nan
    return features, boxes, mask


def assert_close(found, wanted):
    """Asserts that logits differ only by the 7-bit quantization of vectors."""
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.999


def test_packed_folder_works_with_torch_and_onnx_runtime(packed):
    model, folder, report = packed
    captioner, _, _ = load_model(folder, "captioning")
    original, _, _ = load_model(model, "captioning")
    images = random_images(5)
    features, _ = OnnxBackend(folder, threads=1).describe(pixels(images))
    features = torch.from_numpy(features)
    with torch.inference_mode():
        torch.testing.assert_close(features, captioner.encoder.backbone(images))
        before = original.encoder.backbone(images)
    error = (features - before).pow(2).mean() / before.pow(2).mean()
    assert 0 < error.sqrt() < 0.05
    assert (read_metrics(folder), read_task(folder)) == ({"CIDEr": 1.5}, "trying")
    assert report.sizes == {path.name: path.stat().st_size for path in folder.iterdir()}
    assert report.captions == 5


@pytest.mark.parametrize("count", [1, 4])
def test_logits_equal_torch(count, packed):
    _, folder, _ = packed
    given = (random_images(count, seed=count), None, None)
    backend = OnnxBackend(folder, threads=1)
    assert_close(
        onnx_logits(backend, given), torch_logits(load_model(folder, "captioning")[0], given)
    )


def test_region_models_can_be_packed(regions):
    _, folder, _ = regions
    assert not (folder / BACKBONE).exists()
    given = random_regions([7, 3, 1])
    backend = OnnxBackend(folder, threads=1)
    assert_close(
        onnx_logits(backend, given), torch_logits(load_model(folder, "captioning")[0], given)
    )
    assert Captioner(backend).kind == "regions"
    with pytest.raises(ValueError, match="this model needs regions"):
        backend.describe(pixels(random_images(1)))
    assert len(Captioner(backend).caption_regions(*given)) == 3


def test_captions_do_not_depend_on_the_batch(packed):
    captioner = Captioner(OnnxBackend(packed[1], threads=1))
    images = pixels(random_images(7, seed=3))
    for index, wanted in enumerate(captioner.caption_pixels(images)):
        (found,) = captioner.caption_pixels(images[index : index + 1])
        assert found == wanted
        assert found.score == pytest.approx(wanted.score, abs=1e-4)


def test_graphs_refer_to_the_saved_quantized_matrices(packed):
    import onnx

    _, folder, _ = packed
    tensors, manifest = load_file(folder / WEIGHTS), Manifest.load(folder)
    quantized = {name for name, tensor in tensors.items() if tensor.dtype == np.int8}
    assert {"decoder.embed.weight", "decoder.output.weight"} <= quantized
    multiplied = set()
    for name in GRAPHS:
        made = manifest.made(name)
        graph = onnx.load(folder / name, load_external_data=False).graph
        external = {item.name for item in graph.initializer if item.data_location}
        assert external == set(made)
        assert all(len(item.raw_data) < 1000 for item in graph.initializer)
        multiplied |= {
            made[node.input[0]].tensor
            for node in graph.node
            if node.op_type == "Transpose" and node.input[0] in made
        }
    # All products of the encoder and decoder; word vectors are looked up.
    matrices = {name for name in quantized if "backbone" not in name}
    assert multiplied == matrices - {"decoder.embed.weight"}


def test_torch_loads_the_dequantized_weights(packed):
    tensors = load_file(packed[1] / WEIGHTS)
    wanted = dequantize_weights({name: torch.from_numpy(tensors[name]) for name in tensors})
    state = load_model(packed[1], "captioning")[0].state_dict()
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[name], wanted[name]) for name in state)


def test_torch_is_never_imported(packed):
    program = f"""
import sys
import numpy as np
import ngsan
captioner = ngsan.load({str(packed[1])!r})
size = captioner.image_size
assert len(captioner.caption([np.zeros((size, size, 3), np.uint8)] * 2)) == 2
heavy = {{"torch", "onnx", "jsonargparse", "rich", "yaml"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def flips(content, count, seed=0):
    """Yields `count` copies of the content, each with one flipped bit."""
    random = np.random.default_rng(seed)
    for place in random.permutation(len(content))[:count].tolist():
        changed = bytearray(content)
        changed[place] ^= 1 << int(random.integers(8))
        yield bytes(changed)


@pytest.mark.parametrize("name", [*GRAPHS, WEIGHTS])
def test_flipped_bit_in_graph_or_weights_raises(name, copy):
    content = (copy / name).read_bytes()
    for changed in (*flips(content, 60), content[:-1], b""):
        (copy / name).write_bytes(changed)
        with pytest.raises(ValueError, match=f"{name} is damaged or from another export"):
            OnnxBackend(copy)
        if name == WEIGHTS:
            with pytest.raises(ValueError, match="damaged or no weights"):
                load_model(copy, "captioning")


def test_flipped_bit_in_manifest_raises_or_is_harmless(copy):
    content, wanted = (copy / MANIFEST).read_bytes(), Manifest.load(copy)
    refused = 0
    for changed in flips(content, 400):
        (copy / MANIFEST).write_bytes(changed)
        try:
            assert Manifest.load(copy) == wanted
        except ValueError:
            refused += 1
    assert refused > 180  # the rest is space between values


def test_flipped_bit_in_vocabulary_or_config_raises_or_is_harmless(copy):
    _, wanted, companions = load_model(copy, "captioning")
    vocabulary = companions["vocabulary"]
    for name in (VOCABULARY, CONFIG):
        content = (copy / name).read_bytes()
        for changed in flips(content, 60):
            (copy / name).write_bytes(changed)
            try:
                _, config, companions = load_model(copy, "captioning")
                words = companions["vocabulary"]
                assert (config, words.words) == (wanted, vocabulary.words)
            except ValueError:
                pass
            if name == VOCABULARY:
                try:
                    found = Manifest.load(copy).words(copy / VOCABULARY)
                    assert found.words == vocabulary.words
                except ValueError:
                    pass
        (copy / name).write_bytes(content)


def test_missing_and_mismatched_files_raise(copy, packed, regions):
    for name in (*GRAPHS, WEIGHTS, VOCABULARY, MANIFEST):
        content = (copy / name).read_bytes()
        (copy / name).unlink()
        with pytest.raises(ValueError, match=f"is not an export: {name} missing"):
            OnnxBackend(copy)
        (copy / name).write_bytes(content)
    for name in (ENCODER, WEIGHTS):
        content = (copy / name).read_bytes()
        shutil.copy(regions[1] / name, copy / name)
        with pytest.raises(ValueError, match="from another export"):
            OnnxBackend(copy)
        (copy / name).write_bytes(content)
    Vocabulary([f"other{index}" for index in range(40)]).save(copy / VOCABULARY)
    with pytest.raises(ValueError, match="is not the vocabulary of the export"):
        OnnxBackend(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made.update(tensor="decoder.nothing"), "has no decoder.nothing"),
        (lambda made: made.update(way="sideways"), "way: 'sideways' is not one of same, floats"),
        (lambda made: made.update(transposed=True, way="same"), "cannot open the graphs"),
    ],
)
def test_invalid_manifest_raises_despite_valid_seal(change, message, copy):
    manifest = Manifest.load(copy)
    change(manifest.weights[DECODER]["decoder.embed.weight.numbers"])
    text = (copy / MANIFEST).read_text()
    (copy / MANIFEST).write_text(text.replace('"same"', '"floats"', 1))
    with pytest.raises(ValueError, match="does not match its seal"):
        OnnxBackend(copy)
    (copy / MANIFEST).write_text(re.sub('"seal": "[0-9a-f]*"', '"seal": ""', text))
    with pytest.raises(ValueError, match="does not match its seal"):
        OnnxBackend(copy)
    manifest.save(copy)
    with pytest.raises(ValueError, match=message):
        OnnxBackend(copy)


def test_invalid_targets_raise_and_are_unchanged(packed, tmp_path):
    model, folder, _ = packed
    (tmp_path / "file").write_text("mine")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("mine")
    for target, message in (("file", "is a file"), ("notes", "notes.txt")):
        with pytest.raises(ValueError, match=message):
            pack_model(model, tmp_path / target)
    with pytest.raises(ValueError, match="other files than a packed model"):
        pack_model(model, model)
    with pytest.raises(ValueError, match="other files than an export"):
        export_model(model, folder)
    with pytest.raises(ValueError, match="is not a model"):
        pack_model(tmp_path / "nothing", tmp_path / "packed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "notes"]


def test_pack_replacement_is_atomic(packed, regions, copy, capsys, monkeypatch):
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    traced = Manifest.load(regions[1])

    def write_graphs(captioner, config, folder):
        for name in (ENCODER, DECODER):
            shutil.copy(regions[1] / name, folder / name)
        return traced.inputs, traced.outputs

    def refuse(*_, **__):
        raise ValueError("the exported model does not agree with PyTorch")

    monkeypatch.setattr("ngsan.export.write.write_graphs", write_graphs)
    monkeypatch.setattr("ngsan.export.write.write_attention", lambda *_: ({}, {}, {}))
    traced_weights = traced.weights
    monkeypatch.setattr(
        "ngsan.export.write.externalize_weights", lambda path, *_, **__: traced_weights[path.name]
    )
    arguments = ["pack", str(regions[0]), "--output", str(copy)]
    with monkeypatch.context() as patch:
        patch.setattr("ngsan.export.write.check_export", refuse)
        assert main(arguments) == 2
    assert "does not agree" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert main(arguments) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "5 of 5 captions" in out
    names = {path.name for path in copy.iterdir()}
    assert names == {path.name for path in regions[1].iterdir()}
    for name in (WEIGHTS, ENCODER, MANIFEST):
        assert (copy / name).read_bytes() == (regions[1] / name).read_bytes()


def test_tensors_that_share_bytes_are_refused_even_if_sealed_again():
    def packed_file(places):
        about = {
            f"tensor{number}": {"dtype": "F32", "shape": [2], "data_offsets": list(place)}
            for number, place in enumerate(places)
        }
        header = json.dumps(about).encode()
        return len(header).to_bytes(8, "little") + header + bytes(16)

    assert len(read_weights(packed_file([(0, 8), (8, 16)]))) == 2
    for places in ([(0, 8), (4, 12)], [(0, 8), (0, 8)], [(8, 16)], [(0, 8)], [(0, 8), (8, 24)]):
        with pytest.raises(ValueError, match="damaged or not packed weights"):
            read_weights(packed_file(places))


def test_thousands_of_threads_are_refused(packed):
    with pytest.raises(ValueError, match="threads: 5000 is not from 1 to"):
        OnnxBackend(packed[1], threads=5000)
