"""The configurations of translation, and their files."""

import dataclasses
from pathlib import Path

import pytest

from ngsan.commands.command_line import task_of
from ngsan.config import RateConfig, explain, read_yaml, run_class, to_yaml
from ngsan.config.translation import (
    TRANSLATORS,
    ParallelConfig,
    TranslatingConfig,
    TranslationPhase,
    TranslationRun,
    TranslationValidation,
    TranslatorConfig,
    multi30k_run,
)

CONFIGS = Path(__file__).parents[1] / "configs" / "translation"


def base_run(model):
    return TranslationRun(model=TranslatorConfig.for_model(model))


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("base", base_run("transformer")),
        ("base_nsa", base_run("transformer-nsa")),
        ("multi30k", multi30k_run("transformer")),
        ("multi30k_nsa", multi30k_run("transformer-nsa")),
    ],
)
def test_shipped_files_hold_every_key(name, run):
    path = CONFIGS / f"{name}.yaml"
    assert read_yaml(TranslationRun, path) == run
    assert path.read_text().endswith(to_yaml(run))
    assert run_class(task_of(["--config", str(path)])) is TranslationRun


def test_the_two_models_differ_by_their_norm_alone():
    first, second = (multi30k_run(model) for model in TRANSLATORS)
    changed = dataclasses.replace(first, model=first.model.as_model("transformer-nsa"))
    assert changed == second != first


def test_the_defaults_are_fairseqs():
    run = TranslationRun()
    model, phase, decoding = run.model, run.cross_entropy, run.validation.decoding
    assert (model.layers, model.dim, model.hidden_dim, model.heads) == (6, 512, 2048, 8)
    assert (model.dropout, phase.label_smoothing, phase.rate.shape) == (0.1, 0.1, "inverse-root")
    assert (decoding.beam, decoding.length_penalty) == (4, 0.6)
    assert phase.rate == RateConfig(shape="inverse-root", highest=7e-4, rise=0.75)


@pytest.mark.parametrize(
    "cls",
    [
        ParallelConfig,
        TranslatingConfig,
        TranslationPhase,
        TranslationRun,
        TranslationValidation,
        TranslatorConfig,
    ],
)
def test_every_key_is_explained(cls):
    assert set(explain(cls)) == {item.name for item in dataclasses.fields(cls)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: captioning", "task: 'captioning' is not one of translation"),
        ("model: {layer: 3}", "unknown key 'model.layer'; did you mean 'layers'"),
        ("cross_entropy: {epochs: 0}", "cross_entropy.epochs: 0 must be at least 1"),
        ("cross_entropy: {label_smoothing: 1.0}", "label_smoothing: 1.0 must be below 1"),
        ("validation: {metric: CIDEr}", "validation.metric: 'CIDEr' is not one of BLEU"),
        ("validation: {decoding: {beam: 0}}", "validation.decoding.beam: 0 must be at least 1"),
        ("data: {shapes: 0}", "data.shapes: 0 must be at least 1"),
        ("seed: -1", "seed: -1 must be at least 0"),
    ],
)
def test_wrong_values_are_named(tmp_path, text, message):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_yaml(TranslationRun, tmp_path / "run.yaml")
