"""A small artificial language for translation tests: word by word in reverse order."""

import random

from ngsan.config import (
    ParallelConfig,
    TranslationConfig,
    TranslationDecodingConfig,
    TranslationPhaseConfig,
    TranslationValidationConfig,
    TranslatorConfig,
)
from ngsan.config.training import RuntimeConfig, ScheduleConfig
from ngsan.data.parallel.prepare import Split, prepare

WORDS = {
    "red": "rot",
    "blue": "blau",
    "green": "grün",
    "dog": "Hund",
    "cat": "Katze",
    "house": "Haus",
    "tree": "Baum",
    "runs": "läuft",
    "sleeps": "schläft",
}


def translated(text):
    """The translation: word by word, in reverse order."""
    return " ".join(WORDS[word] for word in reversed(text.split()))


def backwards_folder(folder, train=1500, val=60, max_words=5, language="de"):
    """Parallel text whose translations have reversed word order, without duplicates."""
    generator = random.Random(5)
    texts = []
    seen = set()
    while len(texts) < train + val:
        text = " ".join(generator.choices(list(WORDS), k=generator.randint(2, max_words)))
        if text not in seen:
            seen.add(text)
            texts.append(text)
    folder.mkdir(parents=True)
    splits = {}
    for name, part in (("train", texts[:train]), ("val", texts[train:])):
        sides = [folder / f"{name}.{side}" for side in ("source", "target")]
        sides[0].write_text("".join(f"{text}\n" for text in part), encoding="utf-8")
        sides[1].write_text("".join(f"{translated(text)}\n" for text in part), encoding="utf-8")
        splits[name] = Split([sides[0]], [sides[1]])
    prepare(folder / "data", splits, vocabulary_size=320, language=language)
    return folder / "data"


def small_run(folder, model="transformer-nsa", *, epochs=10, **changes):
    """A run that learns this language in seconds."""
    parts = {
        "model": TranslatorConfig.for_model(
            model, dim=32, heads=4, hidden_dim=64, layers=2, dropout=0.0, norm_place="pre"
        ),
        "data": ParallelConfig(folder=str(folder), max_buckets=2),
        "cross_entropy": TranslationPhaseConfig(
            epochs=epochs,
            batch_size=256,
            schedule=ScheduleConfig(shape="inverse-sqrt", peak_lr=8e-3, warmup_epochs=1.0),
            average_epochs=0,
            clip_grad_norm=1.0,
        ),
        "validation": TranslationValidationConfig(decoding=TranslationDecodingConfig(beam=2)),
        "runtime": RuntimeConfig(device="cpu", threads=1, save_seconds=1000.0),
    }
    return TranslationConfig(**{**parts, **changes})
