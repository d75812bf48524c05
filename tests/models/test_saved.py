import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from ngsan.config import CaptionerConfig
from ngsan.models import build_captioner
from ngsan.models.saved import load_captioner, save_captioner
from ngsan.text.vocabulary import Vocabulary

WORDS = ("a", "man", "on", "horse", "<unk>")


def config(**overrides):
    small = dict(feature_dim=7, dim=16, heads=2, hidden_dim=24, layers=1, geometry_dim=6)
    return CaptionerConfig.for_model("ng-san", vocab_size=6, **{**small, **overrides})


def save(folder, dtype=torch.float32, **overrides):
    """A model on the disk."""
    captioner = build_captioner(config(**overrides)).to(dtype)
    save_captioner(folder, captioner, config(**overrides), Vocabulary(WORDS))
    return captioner


def run(captioner):
    dtype = captioner.decoder.embed.weight.dtype
    features = torch.linspace(-1, 1, 2 * 3 * 7, dtype=dtype).view(2, 3, 7)
    boxes = torch.linspace(0.1, 0.6, 2 * 3 * 4).view(2, 3, 4)
    words = torch.tensor([[0, 1, 2], [0, 5, 4]])
    with torch.no_grad():
        return captioner(features, boxes, None, words)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "overrides", [{}, {"norm": "batch", "norm_place": "pre"}, {"signed_geometry": True}], ids=str
)
def test_what_is_saved_is_loaded(tmp_path, dtype, overrides):
    captioner = save(tmp_path / "deep" / "model", dtype, **overrides)
    for buffer in captioner.buffers():
        buffer.copy_(torch.rand_like(buffer, dtype=torch.float32))
    save_captioner(tmp_path / "deep" / "model", captioner, config(**overrides), Vocabulary(WORDS))
    loaded, its_config, vocabulary = load_captioner(tmp_path / "deep" / "model")
    assert its_config == config(**overrides)
    assert vocabulary.words == WORDS
    assert not loaded.training
    assert loaded.decoder.embed.weight.dtype == dtype
    state, expected = loaded.state_dict(), captioner.state_dict()
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), name
        assert state[name].dtype == tensor.dtype, name
    torch.testing.assert_close(run(loaded), run(captioner.eval()), atol=0, rtol=0)


def test_a_model_is_replaced(tmp_path):
    save(tmp_path)
    second = save(tmp_path, layers=2)
    loaded, its_config, _ = load_captioner(str(tmp_path))
    assert its_config.layers == 2
    assert torch.equal(run(loaded), run(second.eval()))


def test_nothing_but_the_model_is_left(tmp_path):
    save(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["config.yaml", "model.safetensors", "vocabulary.json"]


@pytest.mark.parametrize("name", ["config.yaml", "vocabulary.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path, name):
    save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=f"is not a model: {name} missing"):
        load_captioner(tmp_path)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a model: .* and .* and .* missing"):
        load_captioner(tmp_path / "nowhere")


@pytest.mark.parametrize("keep", [0, 7, 500, -1])
def test_damaged_weights(tmp_path, keep):
    save(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(ValueError, match="model.safetensors: damaged or no weights"):
        load_captioner(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vocabulary.json", "{"),
        ("vocabulary.json", "[]"),
        ("config.yaml", "model: {layers: none}"),
        ("config.yaml", "model: {vocab: 6}"),
        ("config.yaml", "a: ["),
    ],
)
def test_damaged_files_are_named(tmp_path, name, text):
    save(tmp_path)
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=name):
        load_captioner(tmp_path)


def test_another_vocabulary_is_refused(tmp_path):
    save(tmp_path)
    Vocabulary(WORDS[:-1]).save(tmp_path / "vocabulary.json")
    with pytest.raises(ValueError, match="has 5 ids and config.yaml says vocab_size: 6"):
        load_captioner(tmp_path)
    swapped = Vocabulary([*WORDS[1::-1], *WORDS[2:]])
    swapped.save(tmp_path / "vocabulary.json")
    with pytest.raises(ValueError, match=f"{swapped.signature}.*do not belong together"):
        load_captioner(tmp_path)


def test_a_vocabulary_that_was_edited_is_refused(tmp_path):
    save(tmp_path)
    path = tmp_path / "vocabulary.json"
    content = json.loads(path.read_text("utf-8"))
    content["words"][0] = "the"
    path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(ValueError, match="the file was changed"):
        load_captioner(tmp_path)


def test_weights_of_another_configuration_are_refused(tmp_path):
    save(tmp_path / "one")
    save(tmp_path / "two", layers=2)
    save(tmp_path / "wide", hidden_dim=32)
    weights = (tmp_path / "one" / "model.safetensors").read_bytes()
    for other, message in (
        ("two", r"decoder.layers.1.*is absent, expected \("),
        ("wide", r"feedforward.* is \(16, 24\), expected \(16, 32\)"),
    ):
        (tmp_path / other / "model.safetensors").write_bytes(weights)
        with pytest.raises(ValueError, match=f"does not fit config.yaml: .*{message}"):
            load_captioner(tmp_path / other)
    more = (tmp_path / "two").rename(tmp_path / "more")
    save(tmp_path / "two", layers=2)
    (tmp_path / "two" / "model.safetensors").replace(more / "model.safetensors")
    (tmp_path / "one" / "config.yaml").replace(more / "config.yaml")
    with pytest.raises(ValueError, match="expected nothing of that name"):
        load_captioner(more)


def test_a_tensor_too_many_or_too_few_is_named(tmp_path):
    save(tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    meta = {"format": "pt", "vocabulary": Vocabulary(WORDS).signature}
    del tensors["decoder.output.bias"]
    save_file(tensors, weights, metadata=meta)
    with pytest.raises(ValueError, match="decoder.output.bias is absent"):
        load_captioner(tmp_path)


def test_a_vocabulary_that_does_not_fit_is_not_saved(tmp_path):
    captioner = build_captioner(config())
    with pytest.raises(ValueError, match="the vocabulary has 5 ids, the model 6"):
        save_captioner(tmp_path / "model", captioner, config(), Vocabulary(WORDS[:-1]))
    assert not (tmp_path / "model").exists()
