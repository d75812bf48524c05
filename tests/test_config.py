import dataclasses
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import yaml

from ngsan.config import (
    GEOMETRY_TERMS,
    MODELS,
    RUNS,
    CaptionerConfig,
    CrossEntropyConfig,
    DataConfig,
    DecodingConfig,
    MachineConfig,
    RateConfig,
    SceneConfig,
    SelfCriticalConfig,
    TrainConfig,
    ValidationConfig,
    explain,
    from_dict,
    photo_run,
    read_yaml,
    run_class,
    scene_run,
    to_yaml,
)

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "cls",
    [
        CaptionerConfig,
        CrossEntropyConfig,
        DataConfig,
        DecodingConfig,
        MachineConfig,
        RateConfig,
        SceneConfig,
        SelfCriticalConfig,
        TrainConfig,
        ValidationConfig,
    ],
)
def test_every_key_is_explained(cls):
    assert set(explain(cls)) == {item.name for item in dataclasses.fields(cls)}
    assert all(len(text) > 5 for text in explain(cls).values())


def test_yaml_round_trip_with_every_key_under_its_explanation(tmp_path):
    config = TrainConfig(model=CaptionerConfig(layers=2, geometry="query+key"))
    text = to_yaml(config)
    (tmp_path / "run.yaml").write_text(text)
    assert read_yaml(TrainConfig, tmp_path / "run.yaml") == config
    lines = text.splitlines()
    keys = [i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")]
    assert all(lines[i - 1].lstrip().startswith("#") for i in keys)
    assert yaml.safe_load(text)["model"]["geometry"] == "query+key"


@pytest.mark.parametrize("model", MODELS)
def test_shipped_image_configs_are_the_paper_s(model):
    path = ROOT / "configs" / "image" / f"{model.replace('-', '_')}.yaml"
    wanted = TrainConfig(model=CaptionerConfig.for_model(model))
    assert read_yaml(TrainConfig, path) == wanted
    assert path.read_text().endswith(to_yaml(wanted))


def test_shipped_toy_config_is_the_demo_s():
    for path, run in (("toy/scenes.yaml", scene_run()), ("photo/coco.yaml", photo_run())):
        text = (ROOT / "configs" / path).read_text()
        assert read_yaml(TrainConfig, ROOT / "configs" / path) == run
        assert text.endswith(to_yaml(run))


def test_the_studio_s_config_is_that_of_the_scenes_but_longer():
    path = ROOT / "configs" / "toy" / "studio.yaml"
    run, toy = read_yaml(TrainConfig, path), scene_run()
    assert path.read_text().endswith(to_yaml(run))
    assert run.model == dataclasses.replace(toy.model, signed_geometry=True)
    assert run.cross_entropy.rate == toy.cross_entropy.rate
    assert run.self_critical.epochs == 0


def test_the_paper_s_defaults():
    config = CaptionerConfig()
    assert (config.dim, config.heads, config.hidden_dim, config.layers) == (512, 8, 2048, 4)
    assert (config.dropout, config.norm, config.norm_of, config.geometry) == (
        0.1,
        "instance",
        "query",
        "query",
    )


def test_names_agree_with_those_of_nn():
    from ngsan.nn.attend import Backend
    from ngsan.nn.geometry import BIAS_TERMS
    from ngsan.nn.layers import NormPlace
    from ngsan.nn.normalize import NormName

    hints = get_type_hints(CaptionerConfig)
    assert get_args(hints["norm"]) == get_args(NormName) == get_args(hints["decoder_norm"])
    assert get_args(hints["backend"]) == get_args(Backend)
    assert get_args(hints["norm_place"]) == get_args(NormPlace)
    assert set(GEOMETRY_TERMS) == {"absolute", *BIAS_TERMS}


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
            "cross_entropy: {rate: {highest: -1}}",
            r"cross_entropy\.rate\.highest: -1 must be above 0",
        ),
        ("self_critical: {temperature: .nan}", r"self_critical\.temperature: nan is not finite"),
        ("cross_entropy: {clip_norm: .inf}", r"cross_entropy\.clip_norm: inf is not finite"),
        ("model: {geometry: query+query}", r"model\.geometry: .* twice"),
        (
            "model: {geometry: absolute, dim: 36, heads: 4}",
            r"model\.dim: 36 must be divisible by 8",
        ),
        ("data: {scenes: {fewest: 7}}", r"data\.scenes\.fewest: 7 must be below 7"),
        ("0", "expected keys and values"),
        ("data: {scenes: {fewest: 5, most: 3}}", r"data\.scenes\.most: 3 must be at least 5"),
        ("data: {scenes: {most: 9}}", r"data\.scenes\.most: 9 must be below 7"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_key(tmp_path, text, message):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_yaml(TrainConfig, tmp_path / "run.yaml")


def test_an_empty_file_means_the_defaults(tmp_path):
    (tmp_path / "run.yaml").write_text("")
    assert read_yaml(TrainConfig, tmp_path / "run.yaml") == TrainConfig()


def test_numbers_as_yaml_has_them(tmp_path):
    (tmp_path / "run.yaml").write_text("cross_entropy: {rate: {highest: 1e-4}}")
    assert read_yaml(TrainConfig, tmp_path / "run.yaml").cross_entropy.rate.highest == 1e-4


def test_a_whole_number_is_a_float_too():
    assert from_dict(CrossEntropyConfig, {"clip_norm": 2}).clip_norm == 2


def test_configurations_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CaptionerConfig().layers = 2


def test_a_section_that_is_given_in_part_keeps_its_own_defaults():
    config = from_dict(TrainConfig, {"self_critical": {"rate": {"highest": 1e-5}}})
    assert config.self_critical.rate == RateConfig(shape="constant", highest=1e-5, rise=0.0)


def test_the_paper_s_schedule():
    config = TrainConfig()
    assert config.cross_entropy.epochs == config.self_critical.epochs == 15
    assert config.cross_entropy.rate == RateConfig("halving", 3e-4, 3.0, 6, 3)
    assert config.validation.decoding.beam == 3
    assert config.self_critical.samples == 5
    assert config.self_critical.end


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("self_critical: {samples: 1}", "no other samples"),
        ("self_critical: {cider: 0}", "no reward"),
        ("{cross_entropy: {epochs: 0}, self_critical: {epochs: 0}}", "leave no"),
        ("data: {folder: x, scenes: {}}", "cannot both"),
        ("machine: {device: gpu}", "machine.device"),
        ("validation: {metric: cider}", "validation.metric: 'cider' is not one of"),
        ("data: {scenes: 3}", "data.scenes: expected keys and values"),
        ("seed: -1", "seed: -1"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(tmp_path, text, message):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_yaml(TrainConfig, tmp_path / "run.yaml")


def test_the_class_of_a_run_is_known_by_its_task():
    for task, cls in RUNS.items():
        assert run_class(task) is cls
        assert cls().task == task
        assert dataclasses.fields(cls)[0].name == "task"
    with pytest.raises(ValueError, match="task: 'captions' is not one of .*did you mean"):
        run_class("captions")
