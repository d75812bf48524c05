"""`ngsan evaluate` of a translator, against the library and sacreBLEU's own program."""

import json
import shutil

import pytest

from ngsan import load_translator
from ngsan.__main__ import main
from ngsan.atomic_io import read_sealed, seal
from ngsan.data.parallel.dataset import ParallelSplit
from ngsan.train.run import train
from tests.translation_helpers import backwards_folder, small_run

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return backwards_folder(tmp_path_factory.mktemp("texts") / "texts", train=900, val=30)


@pytest.fixture(scope="module")
def model(folder, tmp_path_factory):
    where = tmp_path_factory.mktemp("run") / "run"
    train(small_run(folder, epochs=8), where)
    return where


def test_evaluate_translates_and_scores_a_split(folder, model, tmp_path, capsys):
    sacrebleu = pytest.importorskip("sacrebleu")
    out, scores = tmp_path / "new" / "out.txt", tmp_path / "scores.json"
    line = ["evaluate", str(model), "--data", str(folder), "--split", "val", "--output", str(out)]
    assert main([*line, "--scores", str(scores), "--device", "cpu"]) == 0
    texts = ParallelSplit(folder, "val")
    wanted = load_translator(model, device="cpu").translate(texts.texts("source"))
    written = out.read_text(encoding="utf-8").splitlines()
    assert written == [best.text for best in wanted]
    plain, compound = json.loads(scores.read_text())
    bleu = sacrebleu.corpus_bleu(written, [texts.texts("target")])
    assert plain["score"] == pytest.approx(bleu.score)
    assert 5 < compound["score"] <= 100
    assert "wrote 30 translations to" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("language", "message"),
    [
        ("de", "tok:moses-de-sacremoses-0.2.0|compounds:split"),
        ("en", "tok:moses-en-sacremoses-0.2.0|compounds:split"),
        ("fr", "tokenised BLEU is not computed: tokenised BLEU supports de or en, not 'fr'"),
        ("", "tokenised BLEU is not computed: the language of the translations is unknown"),
    ],
)
def test_tokenization_depends_on_the_language(folder, model, tmp_path, capsys, language, message):
    data, scores = shutil.copytree(folder, tmp_path / "data"), tmp_path / "scores.json"
    index = read_sealed(data / "parallel.json")
    (data / "parallel.json").write_text(seal({**index, "language": language}))
    line = ["evaluate", str(model), "--data", str(data), "--split", "val"]
    line += ["--output", str(tmp_path / "out.txt"), "--scores", str(scores), "--device", "cpu"]
    assert main(line) == 0
    assert message in capsys.readouterr().out
    names = [score["name"] for score in json.loads(scores.read_text())]
    assert names == ["sacreBLEU", "tokenised BLEU"][: 2 if language in ("de", "en") else 1]


def test_damaged_ids_raise_before_use(folder, model, tmp_path, capsys):
    data = shutil.copytree(folder, tmp_path / "data")
    path = data / "val.source.ids"
    content = bytearray(path.read_bytes())
    content[2] ^= 0x40  # a subword of more than four million
    path.write_bytes(content)
    line = ["evaluate", str(model), "--data", str(data), "--split", "val", "--output", "out.txt"]
    assert main([*line, "--device", "cpu"]) == 2
    assert "val.source.ids is damaged" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"val\.source\.ids is damaged"):
        train(small_run(data, epochs=1), tmp_path / "run")


def test_texts_of_another_tokenizer_are_retokenized(model, tmp_path):
    other = backwards_folder(tmp_path / "other", train=60, val=7, max_words=3)
    out = tmp_path / "out.txt"
    line = ["evaluate", str(model), "--data", str(other), "--split", "val", "--output", str(out)]
    assert main([*line, "--device", "cpu"]) == 0
    texts = ParallelSplit(other, "val").texts("source")
    wanted = load_translator(model, device="cpu").translate(texts)
    assert out.read_text(encoding="utf-8").splitlines() == [best.text for best in wanted]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--split", "test"], "test"),
        (["--split", "train"], "'train' are not kept"),
        (["--split", "val", "--metrics", "CIDEr"], "--metrics applies to captioners"),
        (["--split", "val", "--batch-size", "0"], "--batch-size: '0' is not"),
    ],
)
def test_invalid_command_lines_raise(folder, model, tmp_path, capsys, more, message):
    line = [
        "evaluate",
        str(model),
        "--data",
        str(folder),
        "--output",
        str(tmp_path / "o.txt"),
        *more,
    ]
    assert main(line) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "o.txt").exists()
