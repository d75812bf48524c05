import subprocess
import sys

import pytest
import yaml

from ngsan.__main__ import COMMANDS, main

QUICK = ["--scenes.train", "40", "--scenes.test", "20", "--training.epochs", "1"]


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    assert f"usage: ngsan {name}" in capsys.readouterr().out


def test_no_command_and_an_unknown_one_are_errors(capsys):
    assert main([]) == 2
    assert main(["captoin"]) == 2
    assert "unknown command 'captoin'" in capsys.readouterr().err


def test_demo_trains_and_compares(capsys):
    assert main(["demo", "scenes", *QUICK]) == 0
    out = capsys.readouterr().out
    for part in ("training SAN", "training NG-SAN", "what is true", "chooses among", "by chance"):
        assert part in out


def test_demo_with_hardly_anything_to_score(capsys):
    words = ["--scenes.train", "32", "--scenes.test", "1", "--compare", "san", "--show", "0"]
    assert main(["demo", "scenes", *words]) == 0
    assert "by chance" in capsys.readouterr().out


def test_describe_counts_parameters(capsys):
    assert main(["describe", "--config", "configs/image/n_san.yaml", "--model.layers", "1"]) == 0
    out = capsys.readouterr().out
    assert "18,130,704" in out
    assert "18.1" in out


def test_describe_counts_the_parameters_of_other_tasks(capsys):
    assert main(["describe", "--config", "configs/translation/base.yaml"]) == 0
    out = capsys.readouterr().out
    words, attention, dense, norm = 32768 * 512, 4 * 513 * 512, 513 * 2048 + 2049 * 512, 1024
    encoder, decoder = attention + dense + 2 * norm, 2 * attention + dense + 3 * norm
    assert f"{words + 6 * (encoder + decoder):,}" in out
    assert "transformer-nsa" in out
    assert main(["describe", "--config", "configs/vqa/mcan_gsa.yaml"]) == 0
    out = capsys.readouterr().out
    assert "question-only" in out
    assert "The dataset decides on what was assumed here: vocab_size 20,000" in out
    words = ["--model.vocab_size", "100", "--model.answers", "3", "--model.feature_dim", "8"]
    assert main(["describe", "--config", "configs/vqa/question_only.yaml", *words]) == 0
    out = capsys.readouterr().out
    assert "30,000" in out
    assert "assumed" not in out


def test_describe_prints_yaml_that_can_be_read_back(capsys, tmp_path):
    assert main(["describe", "--yaml", "--model.layers", "6"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["model"]["layers"] == 6
    (tmp_path / "model.yaml").write_text(text)
    assert main(["describe", "--yaml", "--config", str(tmp_path / "model.yaml")]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "--model.layers", "0"], "layers: 0 must be at least 1"),
        (["describe", "--model.geometry", "kye"], "geometry: 'kye'"),
        (["describe", "--model.decoder_norm", "instance"], "autoregressive decoder"),
        (["demo", "scenes", "--compare", "sam"], "'sam' is not one of"),
        (["demo", "scenes", "--compare", "san,san"], "twice"),
        (["demo", "scenes", "--compare", ""], "compare: ''"),
        (["demo", "scenes", "--show", "-1"], "show: -1"),
        (["demo", "scenes", "--model.geometry", "key"], "follow from the models"),
        (
            ["demo", "scenes", "--model.vocab_size", "9"],
            "model.vocab_size: 9, but the scenes have 35",
        ),
    ],
)
def test_wrong_values_are_errors_that_name_them(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "--model.layer", "2"], "--model.layer"),
        (["describe", "--model.layers", "two"], "model.layers"),
        (["describe", "--model.norm", "groop"], "model.norm"),
    ],
)
def test_wrong_options_are_errors_that_name_them(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_key_that_no_config_has_is_an_error(tmp_path, capsys):
    (tmp_path / "model.yaml").write_text("model:\n  layerz: 2\n")
    with pytest.raises(SystemExit) as stopped:
        main(["describe", "--config", str(tmp_path / "model.yaml")])
    assert stopped.value.code == 2
    assert "layerz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "{file}: expected keys and values, such as seed: 1, and found nothing"),
        (b"- a\n- b\n", "{file}: expected keys and values, such as seed: 1, and found ['a', 'b']"),
        (b"a: &a [*a]", "{file}: Circular reference detected"),
        (b"\0", "{file}: unacceptable character"),
        ("model: é".encode("latin-1"), "{file}: 'utf-8' codec can't decode"),
        (b"model: 3", "model: expected keys and values, not 3"),
        (b"model: null", "model: expected keys and values, not None"),
        (b"cross_entropy: {rate: []}", "cross_entropy.rate: expected keys and values, not []"),
    ],
)
@pytest.mark.parametrize("command", [["describe"], ["reproduce", "norms", "--data", "."]])
def test_a_config_without_keys_is_told_in_a_line(tmp_path, capsys, content, message, command):
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    assert main([*command, "--config", str(file)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"ngsan {command[0]}: {message.format(file=file)}")
    assert told.count("\n") == 1


def test_a_value_for_a_section_is_told(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--output", "runs", "--data", "mydata"])
    assert stopped.value.code == 2
    assert "--data: 'mydata' is no section" in capsys.readouterr().err


def test_the_module_runs_and_importing_it_needs_no_torch():
    version = subprocess.run(
        [sys.executable, "-m", "ngsan", "--version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.startswith("ngsan ")
    quick = "import sys, ngsan, ngsan.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", quick], check=False).returncode == 0


def test_models_are_imported_without_the_compiler():
    # It takes as long to import as torch itself, and commands on a CPU never compile.
    quick = "import sys, ngsan.models; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", quick], check=False).returncode == 0
