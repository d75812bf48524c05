"""The shipped translator."""

import io
import json
import subprocess
import sys

import pytest

import ngsan
from ngsan.__main__ import main
from ngsan.models.checkpoint import load_model, read_metrics, read_task
from ngsan.predict.translator import SHIPPED, TorchTranslator, Translator

# Both sides were written for this test before it was run; no pair is in the training data.
PAIRS = {
    "Two dogs run through the grass.": "Zwei Hunde laufen durch das Gras.",
    "A man is riding a bicycle.": "Ein Mann fährt Fahrrad.",
    "A woman in a red dress is dancing.": "Eine Frau in einem roten Kleid tanzt.",
    "Three children are playing in the sand.": "Drei Kinder spielen im Sand.",
    "A little girl is eating an ice cream cone.": "Ein kleines Mädchen isst ein Eis.",
    "An old man sits on a bench and reads a newspaper.": (
        "Ein alter Mann sitzt auf einer Bank und liest eine Zeitung."
    ),
    "A black cat is sleeping on a couch.": "Eine schwarze Katze schläft auf einem Sofa.",
    "People are waiting for the train.": "Leute warten auf den Zug.",
    "A boy jumps into the water.": "Ein Junge springt ins Wasser.",
    "A group of people stands in front of a building.": (
        "Eine Gruppe von Menschen steht vor einem Gebäude."
    ),
    "A young woman is playing the guitar.": "Eine junge Frau spielt Gitarre.",
    "Two men in white shirts are cooking.": "Zwei Männer in weißen Hemden kochen.",
    "A brown dog is catching a ball.": "Ein brauner Hund fängt einen Ball.",
    "A man with a hat is standing on the beach.": "Ein Mann mit Hut steht am Strand.",
    "Two women are talking on the street.": "Zwei Frauen unterhalten sich auf der Straße.",
    "A soccer player in blue kicks the ball.": "Ein Fußballspieler in Blau tritt den Ball.",
    "A bride and groom are smiling.": "Braut und Bräutigam lächeln.",
    "Children in school uniforms walk along a road.": (
        "Kinder in Schuluniformen gehen eine Straße entlang."
    ),
    "A worker in an orange vest is repairing the street.": (
        "Ein Arbeiter in einer orangefarbenen Weste repariert die Straße."
    ),
    "A person is climbing a snowy mountain.": "Eine Person klettert auf einen verschneiten Berg.",
    "A horse jumps over a fence.": "Ein Pferd springt über einen Zaun.",
    "A man is painting a picture of the sea.": "Ein Mann malt ein Bild vom Meer.",
}


@pytest.fixture(scope="module")
def translator():
    return ngsan.load_translator()


def set_stdin(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_model_is_small_and_has_its_task():
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 7_000_000
    assert read_task(SHIPPED) == "translation"


def test_translations_are_close_to_references(translator):
    bleu = pytest.importorskip("sacrebleu").corpus_bleu
    found = [str(one) for one in translator.translate(list(PAIRS))]
    assert bleu(found, [list(PAIRS.values())]).score > 75
    assert sum(map(str.__eq__, found, PAIRS.values())) > 0.6 * len(PAIRS)
    assert found[0] == PAIRS["Two dogs run through the grass."]
    # The score of one translation for all sentences.
    assert bleu([found[1]] * len(PAIRS), [list(PAIRS.values())]).score < 20


def test_shipped_model_is_the_default(translator, capsys, monkeypatch):
    texts = list(PAIRS)[:5]
    named = ngsan.load_translator(SHIPPED).translate(texts)
    assert named == translator.translate(texts)
    for folder in ([], ["--model", str(SHIPPED)]):
        set_stdin(monkeypatch, "\n".join(texts))
        assert main(["translate", *folder, "--device", "cpu"]) == 0
        assert capsys.readouterr().out.splitlines() == [str(one) for one in named]


def test_unusual_texts_are_translated(translator, capsys, monkeypatch):
    texts = ["", "🐕 😀", "两只狗在草地上跑。", "A dog.", "\t ", "x" * 60, "a man and a dog " * 12]
    set_stdin(monkeypatch, "\n".join(texts))
    assert main(["translate", "--format", "jsonl", "--device", "cpu"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["source"] for line in lines] == texts
    best = [line["translation"] for line in lines]
    assert [bool(text) for text in best] == [bool(text.strip()) for text in texts]
    assert best[3] == str(translator.translate(["A dog."])[0])


def test_missing_files_and_model_raise(tmp_path, capsys, monkeypatch):
    assert main(["translate", "Two dogs run."]) == 2
    assert "Two dogs run.: No such file or directory" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr("ngsan.predict.translator.SHIPPED", tmp_path / "nowhere")
        assert main(["translate"]) == 2
    assert "has no translator: train one" in capsys.readouterr().err


def test_torch_gives_equal_translations(translator):
    torch_model, _, companions = load_model(SHIPPED, "translation")
    theirs = Translator(TorchTranslator(torch_model), companions["tokenizer"])
    texts = list(PAIRS)[:8]
    for one, other in zip(translator.translate(texts), theirs.translate(texts), strict=True):
        assert one == other
        assert one.score == pytest.approx(other.score, abs=1e-4)


def test_translation_needs_neither_torch_nor_tokenizers():
    script = (
        "import sys; sys.modules.update(torch=None, tokenizers=None); import ngsan;"
        "print(ngsan.load_translator().translate('Two dogs run through the grass.'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == PAIRS["Two dogs run through the grass."], done.stderr


def test_model_card_agrees_with_the_metrics():
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    assert f"{read_metrics(SHIPPED)['BLEU']:.1f}" in card
    for part in ("## How it was made", "## Limits", "## Licences"):
        assert part in card
