"""Translation with a model in Python, and the translation commands."""

import dataclasses
import gzip
import io
import json
import sys

import pytest
import torch

from ngsan.__main__ import main
from ngsan.cli import translate
from ngsan.config import TranslationDecodingConfig, TranslatorConfig
from ngsan.data.text_files import MAX_LINE
from ngsan.models.build import build_translator
from ngsan.models.checkpoint import load_model, save_model
from ngsan.predict.translator import TorchTranslator, Translator
from ngsan.predict.translator import load_translator as open_translator
from ngsan.text.subwords import Subwords

pytest.importorskip("tokenizers")

TEXTS = ["Two dogs run.", "", "A small girl in a red dress sleeps under a tree.", "Birds", "a b c"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An untrained translator."""
    subwords = Subwords.train(TEXTS * 3, 300)
    config = TranslatorConfig(vocab_size=300, dim=16, heads=2, hidden_dim=16, layers=1)
    torch.manual_seed(4)
    translator = build_translator(config)
    with torch.no_grad():
        translator.decoder.embed.weight.mul_(3)
    where = tmp_path_factory.mktemp("models") / "translator"
    save_model(where, translator, config, {"tokenizer": subwords}, metrics={"BLEU": 1.0})
    return where


def test_translations_do_not_depend_on_the_batch(folder):
    translator = open_translator(folder)
    together = translator.translate(TEXTS, num_return=3)
    for text, found in zip(TEXTS, together, strict=True):
        alone = translator.translate(text, num_return=3, words=1)
        assert [alone, *alone.others] == [found, *found.others]
        for one, other in zip([alone, *alone.others], [found, *found.others], strict=True):
            assert one.score == pytest.approx(other.score, rel=1e-4)
    assert translator.translate(TEXTS) == translator.translate(TEXTS)
    assert [len(found.others) for found in together] == [2, 0, 2, 2, 2]
    assert together[1] == ""


def test_scores_equal_the_model(folder):
    translator = open_translator(folder)
    model = translator.backend.model
    for text in ("Two dogs run.", "Birds"):
        found = translator.translate([text])[0]
        source = torch.tensor([[*translator.subwords.encode(text), 0]])
        pieces = list(found.pieces)
        wanted = [*pieces, 0]
        logits = model(source, None, torch.tensor([[0, *wanted[:-1]]]))[0]
        total = logits.log_softmax(-1)[range(len(wanted)), wanted].sum().item()
        assert found.log_probability == pytest.approx(total, rel=1e-4)
        assert found.score == pytest.approx(total / len(wanted) ** 0.6, rel=1e-4)
        assert found == translator.subwords.decode(pieces)


def test_translations_of_maximum_length_get_an_end_token(folder):
    """As in fairseq: the end token counts, so scores of all lengths are comparable."""
    translator = open_translator(folder)
    text = "Two dogs run."
    source = torch.tensor([[*translator.subwords.encode(text), 0]])
    for extra in (1, 2, 5):
        best = translator.translate(
            text, num_return=4, max_length_ratio=0.0, max_length_extra=extra
        )
        found = [best, *best.others]
        lengths = [len(one.pieces) for one in found]
        assert max(lengths) == extra
        assert [one.ended for one in found] == [length < extra for length in lengths]
        for one in found:
            wanted = [*one.pieces, 0]
            logits = translator.backend.model(source, None, torch.tensor([[0, *one.pieces]]))[0]
            total = logits.log_softmax(-1)[range(len(wanted)), wanted].sum().item()
            assert one.log_probability == pytest.approx(total, rel=1e-4)
            assert one.score == pytest.approx(total / len(wanted) ** 0.6, rel=1e-4)


def test_invalid_inputs_raise(folder):
    translator = open_translator(folder)
    with pytest.raises(ValueError, match="unknown key 'width'"):
        translator.translate("one text", width=3)
    with pytest.raises(ValueError, match="text 2: it has .* subwords, more than 1,024: cut it"):
        translator.translate(["a", "x y " * 2000])
    with pytest.raises(ValueError, match="words: 0"):
        translator.translate(["a"], words=0)
    with pytest.raises(ValueError, match="providers: .* is for ONNX Runtime"):
        open_translator(folder, providers=["CPUExecutionProvider"])
    with pytest.raises(ValueError, match="precision: 'int8'"):
        open_translator(folder, precision="int8")
    with pytest.raises(ValueError, match="num_return: 5 translations cannot come from beam: 4"):
        TranslationDecodingConfig(num_return=5)
    other = Subwords.train(TEXTS, 280)
    with pytest.raises(ValueError, match="300 word ids and the tokenizer 280"):
        Translator(TorchTranslator(translator.backend.model), other)
    _, config, _ = load_model(folder, "translation")
    with pytest.raises(ValueError, match="tokenizer has 280 entries and the model 300"):
        save_model(folder, translator.backend.model, config, {"tokenizer": other})


def test_mixed_model_folders_raise(folder, tmp_path):
    translator, config, _ = load_model(folder, "translation")
    other = Subwords.train([*TEXTS, "quite another thing thing thing"], 300)
    save_model(tmp_path / "mixed", translator, config, {"tokenizer": other})
    (tmp_path / "mixed" / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match="do not match"):
        load_model(tmp_path / "mixed", "translation")
    wider = dataclasses.replace(config, hidden_dim=32)
    save_model(tmp_path / "wide", translator, wider, {"tokenizer": other})
    with pytest.raises(ValueError, match="does not fit config.yaml"):
        load_model(tmp_path / "wide", "translation")


class Stdin:
    def __init__(self, content):
        self.buffer = io.BytesIO(content)

    def isatty(self):
        return False


def test_command_translates_lines(folder, tmp_path, capsys, monkeypatch):
    expected = [found.text for found in open_translator(folder).translate(TEXTS)]
    monkeypatch.setattr(sys, "stdin", Stdin("\n".join(TEXTS).encode()))
    assert main(["translate", "--model", str(folder), "--device", "cpu"]) == 0
    assert capsys.readouterr().out.split("\n") == [*expected, ""]
    (tmp_path / "in").write_text("\n".join(TEXTS) + "\n")
    command = ["translate", "--model", str(folder), str(tmp_path / "in"), "--device", "cpu"]
    assert (
        main(
            [*command, "--output", str(tmp_path / "out"), "--format", "jsonl", "--num-return", "2"]
        )
        == 0
    )
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [line["source"] for line in lines] == TEXTS
    assert [line["translation"] for line in lines] == expected
    assert [len(line["others"]) for line in lines] == [1, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num-return", "9"], "num_return: 9 translations cannot come from beam: 4"),
        (["nowhere.txt"], "nowhere.txt"),
        (["--output", "pyproject.toml/out"], "cannot write to"),
        (["--batch-size", "0"], "--batch-size: '0' is not"),
    ],
)
def test_invalid_command_lines_raise(folder, capsys, options, message):
    assert main(["translate", "--model", str(folder), *options]) == 2
    assert message in capsys.readouterr().err


GOOD = [b"Two dogs run.", b"Birds", b"", b"a b c"]
BAD = [b"b\xffd", b"three " * 2000, b"x" * (MAX_LINE + 5)]
MIXED = [GOOD[0], BAD[0], GOOD[1], BAD[1], GOOD[2], BAD[2], GOOD[3]]
MESSAGES = [
    "line 2: invalid UTF-8: byte 2 of the line: invalid start byte",
    "subwords, more than 1,024: cut it into sentences",
    "line 6: overlong line: it has more than 1,048,576 bytes",
    "3 of 7 lines could not be translated",
]


@pytest.mark.parametrize("size", [1, 2, 2000])
@pytest.mark.parametrize("from_stdin", [True, False])
def test_bad_lines_give_empty_lines(folder, tmp_path, capsys, monkeypatch, size, from_stdin):
    translator = open_translator(folder)
    expected = [found.text for found in translator.translate([text.decode() for text in GOOD])]
    monkeypatch.setattr(translate, "_CHUNK", size)
    given, written = tmp_path / "in", tmp_path / "out"
    given.write_bytes(b"\n".join(MIXED) + b"\n")
    monkeypatch.setattr(sys, "stdin", Stdin(given.read_bytes()))
    command = ["translate", "--model", str(folder), "--device", "cpu"]
    command += [] if from_stdin else [str(given), "--output", str(written)]
    assert main(command) == 1
    printed = capsys.readouterr()
    lines = (printed.out if from_stdin else written.read_text(encoding="utf-8")).split("\n")
    first, second, third, fourth = expected
    assert lines == [first, "", second, "", third, "", fourth, ""]
    messages = [line for line in printed.err.splitlines() if not line.startswith("wrote ")]
    assert len(messages) == 4
    for message, wanted in zip(messages, MESSAGES, strict=True):
        assert wanted in message
    where = "standard input" if from_stdin else given
    assert messages[1].startswith(f"{where}, line 4: it has ")


def test_json_output_reports_bad_lines(folder, tmp_path, capsys):
    (tmp_path / "in").write_bytes(b"\n".join(MIXED[1:4]))
    command = ["translate", "--model", str(folder), "--device", "cpu", "--format", "jsonl"]
    assert main([*command, str(tmp_path / "in")]) == 1
    unread, good, long = map(json.loads, capsys.readouterr().out.splitlines())
    assert unread == {
        "source": None,
        "error": "invalid UTF-8: byte 2 of the line: invalid start byte",
    }
    assert "translation" in good
    assert "error" not in good
    assert long["source"] == BAD[1].decode()
    assert "cut it into sentences" in long["error"]
    assert "translation" not in long


def test_byte_order_mark_is_removed(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin(b"\xef\xbb\xbfBirds\n"))
    assert main(["translate", "--model", str(folder), "--device", "cpu", "--format", "jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == "Birds"


def test_invalid_models_raise(folder, tmp_path, capsys):
    assert main(["translate", "--model", str(tmp_path)]) == 2
    assert "is not a model" in capsys.readouterr().err
    assert main(["caption", "--model", str(folder), "src/ngsan/examples/cat.jpg"]) == 2
    printed = capsys.readouterr().err
    assert "is a model for translation" in printed
    assert "ngsan translate" in printed


def test_output_never_overwrites_the_input(folder, tmp_path, capsys):
    text = tmp_path / "text.en"
    text.write_text("a dog\n", encoding="utf-8")
    (tmp_path / "linked.en").symlink_to(text)
    for target in (text, tmp_path / "linked.en"):
        assert main(["translate", "--model", str(folder), str(text), "--output", str(target)]) == 2
        assert "would be overwritten" in capsys.readouterr().err
    assert text.read_text(encoding="utf-8") == "a dog\n"


def test_prepare_and_score_from_the_command_line(tmp_path, capsys):
    pytest.importorskip("sacrebleu")
    (tmp_path / "a").write_text("one two three four five\nsix seven eight nine\n" * 4)
    (tmp_path / "b").write_text("eins zwei drei vier fünf\nsechs sieben acht neun\n" * 4)
    command = ["data", "parallel", "--output", str(tmp_path / "d"), "--vocabulary-size", "280"]
    command += ["--source", str(tmp_path / "a"), "--target", str(tmp_path / "b")]
    assert main([*command, "--val-source", str(tmp_path / "a")]) == 2
    assert "--val-source and --val-target need each other" in capsys.readouterr().err
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "train: 8 pairs" in printed
    assert "language of the translations: unknown" in printed
    report = tmp_path / "scores.json"
    score = ["score", "--translation", str(tmp_path / "a"), "--output", str(report)]
    score += ["--language", "de"]
    assert (
        main([*score, "--references", str(tmp_path / "a"), "--references", str(tmp_path / "b")])
        == 0
    )
    assert "nrefs:2|case:mixed|eff:no|tok:13a" in capsys.readouterr().out
    first, second = json.loads(report.read_text())
    assert (first["name"], second["name"]) == ("sacreBLEU", "tokenised BLEU")
    assert first["score"] == pytest.approx(100)
    (tmp_path / "short").write_text("one\n")
    assert main([*score, "--references", str(tmp_path / "short")]) == 2
    assert "has 8 lines and" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("test.de", [], "tok:moses-de"),
        ("test.en.gz", [], "tok:moses-en"),
        ("test.de", ["--language", "en"], "tok:moses-en"),
        ("test.fr", [], "supports de or en, not 'fr'"),
        ("test.fr", ["--tokenized"], "tok:given"),
        ("references", [], "not computed: the language of the translations is unknown"),
    ],
)
def test_score_tokenizes_for_the_references_language(tmp_path, capsys, name, options, message):
    pytest.importorskip("sacrebleu")
    content = b"It isn't here, No. 5.\n"
    (tmp_path / "out").write_bytes(content)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    line = ["score", "--translation", str(tmp_path / "out"), "--references", str(tmp_path / name)]
    assert main([*line, *options]) == 0
    assert message in capsys.readouterr().out


def test_unsupported_language_raises(tmp_path, capsys):
    pytest.importorskip("sacrebleu")
    (tmp_path / "out").write_text("a\n")
    line = ["score", "--translation", str(tmp_path / "out"), "--references", str(tmp_path / "out")]
    assert main([*line, "--language", "fi"]) == 2
    assert "tokenised BLEU supports de or en, not 'fi'" in capsys.readouterr().err
