import dataclasses
import time
from typing import get_args, get_type_hints

import pytest
import yaml

from ngsan import config as configs
from ngsan.config import (
    ANSWERERS,
    GEOMETRY_TERMS,
    MODELS,
    TASKS,
    TRANSLATORS,
    AnswererConfig,
    AnsweringConfig,
    CaptionerConfig,
    CrossEntropyConfig,
    DecodingConfig,
    ScheduleConfig,
    TrainConfig,
    TranslationConfig,
    TranslatorConfig,
    config_class,
    explain,
    find_recipe,
    from_dict,
    read_recipe,
    read_yaml,
    recipe_names,
    to_yaml,
)
from ngsan.config.yaml_text import load_yaml
from ngsan.train.step import learning_rate

PAPER = {
    **{name: TrainConfig(model=CaptionerConfig.for_model(name)) for name in MODELS},
    **{name: AnsweringConfig(model=AnswererConfig.for_model(name)) for name in ANSWERERS},
    "transformer-base": TranslationConfig(model=TranslatorConfig.for_model("transformer")),
    "transformer-base-nsa": TranslationConfig(model=TranslatorConfig.for_model("transformer-nsa")),
}


def test_every_key_has_a_description():
    classes = [cls for cls in vars(configs).values() if dataclasses.is_dataclass(cls)]
    assert len(classes) > 20
    for cls in classes:
        assert set(explain(cls)) == {item.name for item in dataclasses.fields(cls)}
        assert all(len(text) > 5 for text in explain(cls).values())


def test_yaml_round_trip_with_descriptions(tmp_path):
    config = TrainConfig(model=CaptionerConfig(layers=2, geometry="query+key"))
    text = to_yaml(config)
    (tmp_path / "run.yaml").write_text(text)
    assert read_yaml(TrainConfig, tmp_path / "run.yaml") == config
    lines = text.splitlines()
    keys = [i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")]
    assert all(lines[i - 1].lstrip().startswith("#") for i in keys)
    assert yaml.safe_load(text)["model"]["geometry"] == "query+key"


def test_recipes_are_complete_and_found_by_name():
    assert set(PAPER) < set(recipe_names())
    for name in recipe_names():
        path = find_recipe(name)
        run = read_recipe(name)
        assert run == read_recipe(path) == PAPER.get(name, run)
        assert path.read_text().endswith(to_yaml(run)), f"{name}: regenerate with to_yaml"


def test_unknown_recipe_raises_with_a_suggestion(tmp_path):
    with pytest.raises(ValueError, match="no recipe 'toy-scene'; did you mean 'toy-scenes'.*photo"):
        find_recipe("toy-scene")
    with pytest.raises(FileNotFoundError, match=r"mine\.yaml: no such file"):
        find_recipe(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_text("task: translation\nmodel: {layer: 3}")
    with pytest.raises(ValueError, match=r"mine\.yaml: unknown key 'model\.layer'"):
        read_recipe(tmp_path / "mine.yaml")


def test_related_recipes_differ_only_as_named():
    scenes, toy = read_recipe("studio-scenes"), read_recipe("toy-scenes")
    assert scenes.model == dataclasses.replace(toy.model, signed_geometry=True)
    assert scenes.cross_entropy.schedule == toy.cross_entropy.schedule
    first, second = read_recipe("multi30k"), read_recipe("multi30k-nsa")
    assert list(TRANSLATORS) == ["transformer", "transformer-nsa"]
    assert dataclasses.replace(first, model=first.model.as_model("transformer-nsa")) == second
    assert first != second


def test_model_defaults_equal_the_paper():
    config = CaptionerConfig()
    assert (config.dim, config.heads, config.hidden_dim, config.layers) == (512, 8, 2048, 4)
    assert (config.dropout, config.norm, config.norm_of, config.geometry) == (
        0.1,
        "instance",
        "query",
        "query",
    )


def test_option_names_agree_with_nn():
    from ngsan.nn.attend import Backend
    from ngsan.nn.geometry import BIAS_TERMS
    from ngsan.nn.layers import NormPlace
    from ngsan.nn.normalize import NormName

    hints = get_type_hints(CaptionerConfig)
    assert get_args(hints["norm"]) == get_args(NormName) == get_args(hints["decoder_norm"])
    assert get_args(hints["backend"]) == get_args(Backend)
    assert get_args(hints["norm_place"]) == get_args(NormPlace)
    assert set(GEOMETRY_TERMS) == {"absolute", *BIAS_TERMS}


WRONG = [
    ("model: {layerz: 2}", r"run\.yaml.*unknown key 'model\.layerz'; did you mean 'layers'"),
    ("modell: {}", "unknown key 'modell'; did you mean 'model'"),
    ("model: {layers: two}", r"model\.layers: 'two' is not of type int"),
    ("model: {layers: true}", r"model\.layers: True is not of type int"),
    ("model: {signed_geometry: 1}", r"model\.signed_geometry: 1"),
    ("model: {norm: groop}", r"model\.norm: 'groop' is not one of none, instance"),
    ("model: 3", "model: expected keys and values, not 3"),
    ("[1, 2]", "expected keys and values"),
    ("model: {layers: [", "run.yaml"),
    (
        "cross_entropy: {schedule: {peak_lr: -1}}",
        r"cross_entropy\.schedule\.peak_lr: -1 must be above 0",
    ),
    ("self_critical: {temperature: .nan}", r"self_critical\.temperature: nan is not finite"),
    (
        "cross_entropy: {clip_grad_norm: .inf}",
        r"cross_entropy\.clip_grad_norm: inf is not finite",
    ),
    ("model: {geometry: query+query}", r"model\.geometry: .* twice"),
    (
        "model: {geometry: absolute, dim: 36, heads: 4}",
        r"model\.dim: 36 must be divisible by 8",
    ),
    ("data: {scenes: {min_objects: 7}}", r"data\.scenes\.min_objects: 7 must be below 7"),
    ("0", "expected keys and values"),
    (
        "data: {scenes: {min_objects: 5, max_objects: 3}}",
        r"data\.scenes\.max_objects: 3 must be at least 5",
    ),
    ("data: {scenes: {max_objects: 9}}", r"data\.scenes\.max_objects: 9 must be below 7"),
    ("self_critical: {num_samples: 1}", "no other samples to compare"),
    ("self_critical: {cider_weight: 0}", "no reward"),
    ("{cross_entropy: {epochs: 0}, self_critical: {epochs: 0}}", "leave no"),
    ("data: {folder: x, scenes: {}}", "cannot both"),
    ("runtime: {device: gpu}", "runtime.device"),
    ("validation: {metric: cider}", "validation.metric: 'cider' is not one of"),
    ("data: {scenes: 3}", "data.scenes: expected keys and values"),
    ("seed: -1", "seed: -1"),
]
WRONG_TRANSLATION = [
    ("task: captioning", "task: 'captioning' is not one of translation"),
    ("model: {layer: 3}", "unknown key 'model.layer'; did you mean 'layers'"),
    ("cross_entropy: {epochs: 0}", "cross_entropy.epochs: 0 must be at least 1"),
    ("cross_entropy: {label_smoothing: 1.0}", "label_smoothing: 1.0 must be below 1"),
    ("validation: {metric: CIDEr}", "validation.metric: 'CIDEr' is not one of BLEU"),
    ("validation: {decoding: {beam: 0}}", "validation.decoding.beam: 0 must be at least 1"),
    ("data: {max_buckets: 0}", "data.max_buckets: 0 must be at least 1"),
    ("data: {val_split: train}", "data.val_split: 'train' is also the training split"),
]


def test_invalid_file_error_names_the_key(tmp_path):
    for cls, cases in ((TrainConfig, WRONG), (TranslationConfig, WRONG_TRANSLATION)):
        for text, message in cases:
            (tmp_path / "run.yaml").write_text(text)
            with pytest.raises(ValueError, match=message):
                read_yaml(cls, tmp_path / "run.yaml")


def test_empty_file_gives_the_defaults(tmp_path):
    (tmp_path / "run.yaml").write_text("")
    assert read_yaml(TrainConfig, tmp_path / "run.yaml") == TrainConfig()


def test_yaml_exponent_numbers_are_floats(tmp_path):
    (tmp_path / "run.yaml").write_text("cross_entropy: {schedule: {peak_lr: 1e-4}}")
    assert read_yaml(TrainConfig, tmp_path / "run.yaml").cross_entropy.schedule.peak_lr == 1e-4


def test_integers_are_accepted_as_floats():
    found = from_dict(CrossEntropyConfig, {"clip_grad_norm": 2}).clip_grad_norm
    assert found == 2
    assert isinstance(found, float)  # the ledger's keys are hashes of the settings


def test_configurations_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CaptionerConfig().layers = 2


def test_partial_sections_keep_their_own_defaults():
    config = from_dict(TrainConfig, {"self_critical": {"schedule": {"peak_lr": 1e-5}}})
    assert config.self_critical.schedule == ScheduleConfig(
        peak_lr=1e-5, warmup_epochs=0.0, step_start=3
    )


def test_second_phase_continues_the_learning_rate_of_the_first():
    paper, epochs = TrainConfig(), 15

    def rate(phase, epoch):
        return learning_rate(phase.schedule, step=epoch, steps=1, epochs=epochs)

    # The paper: min(t 1e-4, 3e-4) in epoch t, and after epoch 6 half of it every three epochs.
    longer = [min(t * 1e-4, 3e-4) * 0.5 ** -(-max(0, t - 6) // 3) for t in range(1, 2 * epochs + 1)]
    found = [rate(paper.cross_entropy, epoch) for epoch in range(epochs)]
    found += [rate(paper.self_critical, epoch) for epoch in range(epochs)]
    assert found == pytest.approx(longer)
    assert found[epochs] == pytest.approx(1.9e-5, rel=0.02)


def test_training_defaults_equal_the_paper():
    config = TrainConfig()
    assert config.cross_entropy.epochs == config.self_critical.epochs == 15
    assert config.cross_entropy.schedule == ScheduleConfig("step", 3e-4, 3.0, 6, 3)
    assert config.validation.decoding.beam == 3
    assert config.self_critical.num_samples == 5
    assert config.self_critical.include_end


def test_config_class_by_task():
    for task, cls in TASKS.items():
        assert config_class(task) is cls
        assert cls().task == task
        assert dataclasses.fields(cls)[0].name == "task"
    with pytest.raises(ValueError, match="task: 'captions' is not one of .*did you mean"):
        config_class("captions")


def test_translation_defaults_equal_fairseq():
    run = TranslationConfig()
    model, phase, decoding = run.model, run.cross_entropy, run.validation.decoding
    assert (model.layers, model.dim, model.hidden_dim, model.heads) == (6, 512, 2048, 8)
    assert (model.dropout, phase.label_smoothing) == (0.1, 0.1)
    assert (decoding.beam, decoding.length_penalty) == (4, 0.6)
    assert phase.schedule == ScheduleConfig(shape="inverse-sqrt", peak_lr=7e-4, warmup_epochs=0.75)


LAUGHS = "a0: &a0 [ha]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
HOSTILE = {
    "aliases": (LAUGHS, "aliases such as"),
    "aliases of a mapping": ("a: &x {b: 1}\nc:\n  <<: *x\n", "aliases|plain word"),
    "keys that occur twice": ("seed: 1\nseed: 2\n", "'seed' occurs twice, in line 2"),
    "inner keys that occur twice": ("model: {dim: 64, dim: 32}\n", "'dim' occurs twice"),
    "deep lists": ("a: " + "[" * 100_000, "nested deeper|more than"),
    "deep mappings": ("{a: " * 5000, "nested deeper"),
    "keys of lists": ("? [1, 2]\n: 3\n", "unhashable|plain word"),
    "numbers without end": ("seed: " + "9" * 5000, "more than 400 digits"),
    "minutes of minutes": ("seed: 1" + ":1" * 50_000, "more than 400 digits|seed"),
    "many values": ("a:\n" + "-\n" * 120_000, "more than 10,000 keys and values"),
    "much text": ("a: " + "b" * 1_000_000, "characters of YAML"),
    "objects": ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_refused_at_once(name, tmp_path):
    text, message = HOSTILE[name]
    path = tmp_path / "run.yaml"
    path.write_text(text)
    started = time.process_time()
    with pytest.raises(ValueError, match=message) as raised:
        read_yaml(TrainConfig, path)
    assert time.process_time() - started < 1
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_yaml_means_what_it_means_to_other_readers():
    for name in recipe_names():
        text = find_recipe(name).read_text()
        assert load_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dim": 10**12, "heads": 1}, "dim"),
        ({"layers": 10**9}, "layers"),
        ({"vocab_size": 10**15}, "vocab_size"),
        ({"image_size": 32 * 10**9}, "image_size"),
        ({"hidden_dim": 10**30}, "hidden_dim"),
    ],
)
def test_absurd_sizes_are_errors(keys, message):
    with pytest.raises(ValueError, match=f"{message}: .* must be at most"):
        from_dict(CaptionerConfig, keys)


def test_seeds_beyond_64_bits_are_errors():
    for config in (DecodingConfig, TrainConfig):
        from_dict(config, {"seed": 2**63 - 1})
        with pytest.raises(ValueError, match="seed: .* 64 bits"):
            from_dict(config, {"seed": 2**63})
