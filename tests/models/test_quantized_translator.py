"""A translator saved in 8 bits, against quantization in NumPy."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from ngsan.config import TranslatorConfig
from ngsan.models.build import build_translator
from ngsan.models.checkpoint import WEIGHTS, load_model, save_model
from ngsan.text.subwords import Subwords

pytest.importorskip("tokenizers")


def test_large_matrices_are_quantized_by_row(tmp_path):
    words = [f"{number:03}" for number in range(300)]
    subwords = Subwords.train([" ".join(words)] * 3, 530)
    config = TranslatorConfig(len(subwords), dim=64, heads=2, hidden_dim=512, layers=1)
    torch.manual_seed(0)
    translator = build_translator(config)
    with torch.no_grad():
        translator.decoder.embed.weight[3] = 0
    save_model(tmp_path / "whole", translator, config, {"tokenizer": subwords})
    save_model(tmp_path / "round", translator, config, {"tokenizer": subwords}, quantize=True)
    found, same, companions = load_model(tmp_path / "round", "translation")
    pieces = companions["tokenizer"]
    assert (same, pieces.signature) == (config, subwords.signature)
    kinds = {name: value.dtype for name, value in load_file(tmp_path / "round" / WEIGHTS).items()}
    rounded = 0
    for name, tensor in translator.state_dict().items():
        before, after = tensor.double().numpy(), found.state_dict()[name].double().numpy()
        if tensor.ndim == 2 and tensor.numel() > 1 << 14:
            step = np.abs(before).max(1, keepdims=True) / 127
            step[step == 0] = 1
            levels = after / step
            assert kinds[name] == np.int8
            np.testing.assert_allclose(levels, np.rint(levels), atol=1e-4)
            assert np.abs(levels - before / step).max() < 0.5001  # the nearest level
            rounded += 1
        else:
            np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-7)
    assert rounded == 5  # word vectors, and two matrices of each feed-forward network
    sizes = [(tmp_path / one / WEIGHTS).stat().st_size for one in ("whole", "round")]
    assert sizes[1] < 0.4 * sizes[0]
