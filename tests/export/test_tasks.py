"""Export and packing of translators and answerers."""

import numpy as np
import pytest
import torch

from ngsan.__main__ import main
from ngsan.config import AnswererConfig, TranslatorConfig
from ngsan.export.write import export_model, pack_model
from ngsan.models import build_model, load_model, save_model
from ngsan.predict.answerer import Answerer, OnnxAnswerer, TorchAnswerer, load_answerer
from ngsan.predict.translator import TorchTranslator, Translator, load_translator
from ngsan.text.subwords import Subwords
from ngsan.text.vocabulary import Origin, Vocabulary

TEXTS = ["Two dogs run.", "", "A small girl in a red dress sleeps under a tree.", "Birds"]


def save_translator(folder):
    subwords = Subwords.train(TEXTS * 3, 300)
    config = TranslatorConfig(vocab_size=300, dim=32, heads=2, hidden_dim=32, layers=1)
    torch.manual_seed(4)
    save_model(folder, build_model(config), config, {"tokenizer": subwords})


def save_answerer(folder):
    words = Vocabulary(["is", "it", "a", "dog", "<unk>"], origin=Origin("question-a", 0, 0))
    answers = Vocabulary(["yes", "no", "2"])
    sizes = {"dim": 32, "heads": 2, "hidden_dim": 32, "word_dim": 16, "flat_dim": 32}
    config = AnswererConfig(
        vocab_size=6, answers=3, feature_dim=8, layers=1, flat_hidden_dim=16, max_length=5, **sizes
    )
    torch.manual_seed(5)
    save_model(folder, build_model(config), config, {"vocabulary": words, "answers": answers})


@pytest.mark.slow
def test_exported_translators_equal_torch(tmp_path, capsys):
    pytest.importorskip("tokenizers")
    save_translator(tmp_path / "model")
    report = pack_model(tmp_path / "model", tmp_path / "packed")
    assert report.same == report.captions == 5
    assert export_model(tmp_path / "model", tmp_path / "export").same == 5
    for name in ("packed", "export"):
        source = tmp_path / (name if name == "packed" else "model")
        model, _, companions = load_model(source, "translation")
        wanted = Translator(TorchTranslator(model), companions["tokenizer"]).translate(TEXTS)
        found = load_translator(tmp_path / name).translate(TEXTS)
        assert found == wanted
        for one, other in zip(found, wanted, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
    assert main(["caption", "--model", str(tmp_path / "packed"), "x.jpg"]) == 2
    assert "is a model for translation" in capsys.readouterr().err


@pytest.mark.slow
def test_exported_answerers_equal_torch(tmp_path):
    save_answerer(tmp_path / "model")
    report = pack_model(tmp_path / "model", tmp_path / "packed")
    assert report.same == report.captions == 4
    assert export_model(tmp_path / "model", tmp_path / "export").same == 4
    model, config, companions = load_model(tmp_path / "packed", "answering")
    backends = (
        TorchAnswerer(model, config, companions["vocabulary"], companions["answers"]),
        OnnxAnswerer(tmp_path / "packed"),
    )
    generator = np.random.default_rng(1)
    for count in (1, 6):
        features = generator.random((count, 8), np.float32)
        boxes = 0.2 + 0.5 * generator.random((count, 4), np.float32)
        ours, its = (
            Answerer(backend).answer_regions(features, boxes, "is it a cat?")
            for backend in backends
        )
        assert ours.unknown == its.unknown == ("cat",)
        assert [a.text for a in ours.answers] == [a.text for a in its.answers]
        np.testing.assert_allclose(ours.regions, its.regions, atol=1e-5)
        assert dict(ours.words) == pytest.approx(dict(its.words), abs=1e-5)
    content = (tmp_path / "packed" / "answerer.onnx").read_bytes()
    (tmp_path / "packed" / "answerer.onnx").write_bytes(content[:-1])
    with pytest.raises(ValueError, match="answerer.onnx is damaged or from another export"):
        OnnxAnswerer(tmp_path / "packed")
    with pytest.raises(ValueError, match="is a model for answering"):
        load_translator(tmp_path / "packed")
    with pytest.raises(ValueError, match="the model was trained on regions of another source"):
        load_answerer(tmp_path / "export")
