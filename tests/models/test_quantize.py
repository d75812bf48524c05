"""8-bit quantization against plain NumPy, and quantized models on disk."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from ngsan.config import CaptionerConfig
from ngsan.models import build_captioner
from ngsan.models.checkpoint import WEIGHTS, copy_model, load_model, save_model
from ngsan.models.quantize import (
    absorb_norms,
    dequantize_rows,
    dequantize_weights,
    quantize_rows,
    quantize_weights,
    sensitive_weights,
)
from ngsan.models.weights import content_signature, serialize
from ngsan.text.vocabulary import Vocabulary
from ngsan.vision.backbone import Block, build_backbone, fold_norms

VOCABULARY = Vocabulary([f"w{number}" for number in range(599)])
CONFIG = CaptionerConfig(
    vocab_size=600, feature_dim=40, dim=32, heads=2, hidden_dim=600, layers=1, geometry_dim=4
)


def quantized_by_numpy(matrix):
    """Quantizes row by row, in double precision except for the scale."""
    numbers, scales = np.zeros(matrix.shape, np.int8), []
    for index, row in enumerate(matrix.reshape(len(matrix), -1)):
        scale = np.float32(np.abs(row).max()) / np.float32(127)
        scale = scale if scale > 0 else np.float32(1)
        levels = (row / scale).astype(np.float64)
        numbers[index] = np.round(levels).reshape(matrix.shape[1:])
        scales.append(scale)
    return numbers, np.array(scales, np.float32)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5),
    rest=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    power=st.integers(-44, 37),
    seed=st.integers(0, 2**32 - 1),
)
def test_quantize_rows_equals_numpy(rows, rest, power, seed):
    random = np.random.default_rng(seed)
    matrix = random.standard_normal((rows, *rest)) * 10.0**power
    matrix[random.integers(rows)] *= random.choice([0, 1, -1])
    matrix = matrix.astype(np.float32)
    numbers, scale = quantize_rows(torch.from_numpy(matrix))
    wanted, scales = quantized_by_numpy(matrix)
    assert np.array_equal(scale.numpy(), scales)
    assert np.array_equal(numbers.numpy(), wanted)
    if power > -30:  # below that, the scale is subnormal and imprecise
        restored = dequantize_rows(numbers, scale)
        error = np.abs(restored.numpy() - matrix).reshape(rows, -1).max(1)
        assert (error <= scales * 0.5001).all()
        assert torch.equal(quantize_rows(restored)[0], numbers)


def test_quantize_weights_chooses_types():
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    tensors = {
        "matrix": random(300, 64),
        "conv": random(200, 100, 1, 1),
        "half": random(300, 64).to(torch.bfloat16),
        "depthwise": random(1000, 1, 5, 5),
        "small": random(100, 64),
        "sensitive": random(300, 64),
        "too large": random(4, 4) * 1e6,
        "vector": random(100_000),
        "count": torch.tensor(7),
    }
    found = quantize_weights(tensors, {"sensitive"})
    kinds = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in found.items()}
    assert kinds == {
        **dict.fromkeys(("matrix", "conv", "half"), "int8"),
        **{f"{name}.scale": "float32" for name in ("matrix", "conv", "half")},
        **dict.fromkeys(("depthwise", "small", "sensitive"), "float16"),
        **dict.fromkeys(("too large", "vector"), "float32"),
        "count": "int64",
    }
    back = dequantize_weights(found)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].shape == tensor.shape
        largest = tensor.abs().max().item()
        torch.testing.assert_close(
            back[name], tensor.to(back[name].dtype), rtol=0, atol=largest / 250
        )
    assert torch.equal(back["vector"], tensors["vector"])
    for wrong in (torch.nan, torch.inf):
        tensors["matrix"][3, 4] = wrong
        with pytest.raises(ValueError, match="matrix holds NaN or infinity"):
            quantize_weights(tensors)


@pytest.fixture
def backbone():
    """A backbone with random batch-norm statistics."""
    torch.manual_seed(0)
    network = build_backbone("efficientnet-lite0", size=64, pretrained=False)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.2, 3)
            torch.nn.init.uniform_(module.weight, 0.5, 2)
            torch.nn.init.normal_(module.bias, std=0.3)
    return network.eval()


def test_absorbed_norms_keep_the_output_and_fold_exactly(backbone):
    names = set(backbone.state_dict())
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.inference_mode():
        wanted = backbone(images)
        absorb_norms(backbone)
        torch.testing.assert_close(backbone(images), wanted, rtol=1e-3, atol=1e-3)
    assert set(backbone.state_dict()) == names
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    absorb_norms(backbone)
    assert all(torch.equal(before[name], now) for name, now in backbone.state_dict().items())
    fold_norms(backbone)
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, before[name.replace("conv.bias", "norm.bias")])


def test_blocks_without_residual_are_sensitive(backbone):
    found = sensitive_weights(backbone)
    assert found <= set(backbone.state_dict())
    blocks = [part for part in backbone.modules() if isinstance(part, Block)]
    assert len(found) == 7 == sum(not block.residual for block in blocks)
    assert sensitive_weights(build_captioner(CONFIG)) == set()


@pytest.fixture
def saved(tmp_path):
    """A captioner and the folder to which it was saved in 8 bits."""
    torch.manual_seed(0)
    captioner = build_captioner(CONFIG)
    save_model(
        tmp_path / "model",
        captioner,
        CONFIG,
        {"vocabulary": VOCABULARY},
        metrics={"a": 1},
        quantize=True,
    )
    return captioner, tmp_path / "model"


def test_quantized_model_is_loaded_like_any_other(saved, tmp_path):
    captioner, folder = saved
    found, config, companions = load_model(folder, "captioning")
    vocabulary = companions["vocabulary"]
    assert (config, vocabulary.words) == (CONFIG, VOCABULARY.words)
    state = captioner.state_dict()
    wanted = dequantize_weights(quantize_weights(state))
    assert found.state_dict().keys() == state.keys()
    for name, tensor in found.state_dict().items():
        assert tensor.dtype in (torch.float32, torch.int64)
        assert torch.equal(tensor, wanted[name])
    kinds = {name: tensor.dtype for name, tensor in load_file(folder / WEIGHTS).items()}
    assert kinds["decoder.embed.weight"] == np.int8
    save_model(tmp_path / "whole", captioner, CONFIG, {"vocabulary": VOCABULARY})
    sizes = [(one / WEIGHTS).stat().st_size for one in (folder, tmp_path / "whole")]
    assert sizes[0] < 0.4 * sizes[1]
    copy_model(folder, tmp_path / "copy")
    assert torch.equal(
        load_model(tmp_path / "copy", "captioning")[0].decoder.embed.weight,
        found.decoder.embed.weight,
    )
    # Half precision too: the values are quantized, whatever their type.
    save_model(
        tmp_path / "half", captioner.bfloat16(), CONFIG, {"vocabulary": VOCABULARY}, quantize=True
    )
    assert (
        load_model(tmp_path / "half", "captioning")[0].decoder.embed.weight.dtype == torch.float32
    )


def test_flipped_bits_raise(saved):
    path = saved[1] / WEIGHTS
    content = path.read_bytes()
    random = np.random.default_rng(0)
    header = 8 + int.from_bytes(content[:8], "little")
    places = [
        *range(8),
        *random.integers(8, header, 60),
        *random.integers(header, len(content), 60),
    ]
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << int(random.integers(8))
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="damaged or no weights"):
            load_model(saved[1], "captioning")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, about: about.update(rounding="int3"), "rounding 'int3' is not known"),
        (
            lambda tensors, about: tensors.pop("decoder.embed.weight.scale"),
            "decoder.embed.weight .600, 32. has no scale of each row",
        ),
        (
            lambda tensors, about: tensors.update({"decoder.embed.weight.scale": torch.ones(7)}),
            "has no scale of each row",
        ),
        (lambda tensors, about: tensors.update({"x": torch.ones(3)}), "does not fit config.yaml"),
        (lambda tensors, about: about.pop("rounding"), "does not fit config.yaml"),
    ],
)
def test_inconsistent_quantized_files_raise(change, message, saved):
    path = saved[1] / WEIGHTS
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    about = json.loads(content[8 : 8 + size])["__metadata__"]
    tensors = {name: torch.from_numpy(tensor) for name, tensor in load_file(path).items()}
    change(tensors, about)
    about["signature"] = content_signature(tensors, about)
    path.write_bytes(serialize(tensors, about))
    with pytest.raises(ValueError, match=message):
        load_model(saved[1], "captioning")
