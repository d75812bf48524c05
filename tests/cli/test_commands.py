"""What all commands share: help, options, errors, configuration keys, and completion."""

import shutil
import subprocess
import sys

import pytest
import yaml

from ngsan import __version__
from ngsan.__main__ import COMMANDS, find_command, main
from ngsan.cli import keys
from ngsan.cli.completion import SHELLS, script
from ngsan.cli.parser import EXTRAS, Command, Group
from ngsan.config import recipe_names

QUICK = ["--scenes.train", "40", "--scenes.test", "20", "--training.epochs", "1"]


def all_commands(command=None, name="ngsan"):
    """All commands, including those of groups, with their full names."""
    if command is None:
        for word in COMMANDS:
            yield from all_commands(find_command(word), f"ngsan {word}")
    elif isinstance(command, Group):
        for word, one in command.commands.items():
            yield from all_commands(one, f"{name} {word}")
    else:
        yield name, command


def help_of(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_help_lists_every_command(capsys):
    for words in (["--help"], ["-h"], ["help"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert all(name in out for name in COMMANDS)
    assert main(["help", "data", "captions"]) == 0
    assert "ngsan data captions COMMAND" in capsys.readouterr().out


def test_help_of_every_command_has_examples(capsys):
    found = dict(all_commands())
    assert len(found) == len(COMMANDS) - 4 + 21
    for name, command in found.items():
        out = help_of(name.split()[1:], capsys)
        assert out.startswith(f"usage: {name}")
        head = name.removesuffix(" photos")
        assert f"\nexamples:\n  {head}" in out
        for option in ("--help", "-V, --version", "-q, --quiet", "-v, --verbose"):
            assert option in out
        assert command.text[0].isupper()
        assert "_" not in "".join(word for word in out.split() if word.startswith("--"))


def test_examples_are_valid_command_lines():
    for _, command in all_commands():
        for example in command.examples:
            words = example.replace('"', "").replace("'", "").split()
            one, name = find_command(words.pop(0)), "ngsan"
            while isinstance(one, Group):
                name, one, words = one.choose(name, words)
            if words == ["--help"] or ">" in example or '"' in example or "'" in example:
                continue
            one.parser(name, words).parse(words)


def test_options_have_one_meaning_everywhere():
    helps = {}
    for _, command in all_commands():
        for action in command.parser("ngsan", ())._actions:
            for flag in action.option_strings:
                helps.setdefault(flag, set()).add((type(action), action.nargs))
    assert not {flag for flag in helps if len(helps[flag]) > 1}
    assert "--output" in helps
    assert not {"--to", "--json", "--csv", "--pictures", "--explain", "--count"} & set(helps)


def test_groups_have_help(capsys):
    assert main(["data", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: ngsan data COMMAND ...")
    assert "(coco, karpathy, flickr, csv, jsonl, vatex)" in " ".join(out.split())
    assert "\nexamples:\n  ngsan data captions coco " in out
    assert main(["data", "captions", "--help"]) == 0
    assert "'ngsan data captions COMMAND --help'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("captoin", "ngsan: unknown command 'captoin'; did you mean 'caption'?"),
        ("xyz", "ngsan: unknown command 'xyz'; see 'ngsan --help'"),
        ("serve --port eighty", "ngsan serve: --port: 'eighty' is not a whole number"),
        ("--hlep", "ngsan: unknown command '--hlep'; see 'ngsan --help'"),
        ("data", "ngsan data: command is missing; see 'ngsan data --help'"),
        ("data capions", "ngsan data: unknown command 'capions'; did you mean 'captions'?"),
        ("data captions cocoa", "data captions: unknown command 'cocoa'; did you mean 'coco'?"),
        ("caption", "ngsan caption: PATH is missing; see 'ngsan caption --help'"),
        ("caption x --modle y", "ngsan caption: unknown option '--modle'; did you mean '--model'?"),
        ("caption x --num_return 2", "unknown option '--num_return'; did you mean '--num-return'?"),
        ("caption x --mod y", "ngsan caption: unknown option '--mod'; did you mean '--model'?"),
        ("caption x -output y", "unknown option '-output'; did you mean '--output'?"),
        ("caption x --beam three", "--beam: 'three' is not a whole number of at least 1"),
        ("caption x --beam", "ngsan caption: --beam: expected a value"),
        ("caption x --top-p much", "--top-p: 'much' is not a number"),
        ("caption x --format jsno", "txt, json, jsonl, csv; did you mean 'json'?"),
        ("train", "ngsan train: RECIPE_OR_FILE, -o/--output is missing; see 'ngsan train --help'"),
        ("train ng-sam -o x", "no recipe 'ng-sam'; did you mean 'ng-san'?"),
        ("train nowhere.yaml -o x", "ngsan train: nowhere.yaml: no such file"),
        ("train ng-san", "ngsan train: --output is missing; see 'ngsan train --help'"),
        ("train ng-san -o x --model.layer 2", "'--model.layer'; did you mean '--model.layers'?"),
        ("train ng-san -o x --model.layers two", "model.layers: 'two' is not of type int"),
        ("train ng-san -o x --model.layers", "ngsan train: --model.layers: expected a value"),
        ("train ng-san -o x --model.norm groop", "model.norm: 'groop' is not one of"),
        ("train ng-san -o x --cross-entropy 3", "unknown option '--cross-entropy'"),
        ("train ng-san -o x --validation.decoding 3", "set its keys: --validation.decoding.KEY"),
        ("train mcan -o x --images photos", "--images does not apply to the task of this recipe"),
        ("describe --model.layers 0", "layers: 0 must be at least 1"),
        ("describe --model.decoder-norm instance", "autoregressive decoder"),
        ("demo scenes --models sam", "'sam' is not one of"),
        ("demo scenes --models san,san", "twice"),
        ("demo scenes --show -1", "--show: '-1' is not a whole number of at least 0"),
        ("demo scenes --model.geometry key", "follow from the models"),
        ("demo scenes --model.vocab_size 9", "model.vocab_size: 9, but the scenes have 35"),
        ("completion tcsh", "SHELL: 'tcsh' is not one of bash, zsh, fish"),
        ("describe extra words", "ngsan describe: unexpected argument 'words'"),
        ("reproduce norm --data .", "NAME: 'norm' is not one of"),
    ],
)
def test_invalid_command_line_prints_one_line(line, error, capsys):
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert error in err
    assert err.startswith("ngsan")
    assert err.count("\n") == 1
    assert out == ""


def test_command_without_its_extra_names_it(capsys, monkeypatch):
    for module, (package, extra) in EXTRAS.items():

        def fail(options, module=module):
            raise ModuleNotFoundError(f"No module named {module}", name=f"{module}.part")

        monkeypatch.setattr(
            "ngsan.__main__.find_command", lambda name, fail=fail: Command("", lambda _: None, fail)
        )
        assert main(["train"]) == 2
        error = f"ngsan train: needs {package}; pip install 'ngsan[{extra}]'\n"
        assert capsys.readouterr().err == error
    monkeypatch.setattr("ngsan.__main__.find_command", lambda name: __import__("nonsense"))
    with pytest.raises(ModuleNotFoundError):  # our own errors are not hidden
        main(["train"])


def test_version_and_verbosity(capsys):
    for words in (["--version"], ["-V"]):
        assert main(words) == 0
        assert capsys.readouterr().out == f"ngsan {__version__}\n"
    with pytest.raises(SystemExit):
        main(["caption", "-V"])
    assert capsys.readouterr().out == f"ngsan {__version__}\n"
    for words in (["-v", "describe", "none"], ["describe", "none", "--verbose"]):
        assert main(words) == 2
        assert "Traceback" in capsys.readouterr().err
    assert main(["-q", "describe", "none"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_inputs_may_come_before_and_after_options():
    parser = find_command("caption").parser("ngsan caption", ())
    options = parser.parse(["a.jpg", "--beam", "5", "b.jpg", "-q"])
    assert (options.paths, options.beam, options.quiet) == (["a.jpg", "b.jpg"], 5, True)
    assert parser.parse(["--beam", "5", "--", "-x.jpg"]).paths == ["-x.jpg"]


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_scripts(shell):
    text = script(shell)
    for word in ("caption", "num-return", "model.layers", "karpathy"):
        assert word in text
    program = shutil.which(shell)
    if program:
        subprocess.run([program, "-n"], input=text, text=True, check=True, timeout=60)
    if shell == "bash" and program:
        for line, words in {
            "ngsan cap": "caption",
            "ngsan data cap": "captions",
            "ngsan data captions co": "coco",
            "ngsan caption a.jpg --num": "--num-return",
        }.items():
            typed = line.split()
            quoted = " ".join(f"'{word}'" for word in typed)
            code = f"COMP_WORDS=({quoted}); COMP_CWORD={len(typed) - 1}; _ngsan"
            code = f'{text}\n{code}; echo "${{COMPREPLY[@]}}"'
            done = subprocess.run(
                [program], input=code, capture_output=True, text=True, check=True, timeout=60
            )
            assert done.stdout.split() == [words]


def test_demo_scenes_trains_and_compares(capsys):
    assert main(["demo", "scenes", *QUICK]) == 0
    out = capsys.readouterr().out
    for part in ("training SAN", "training NG-SAN", "what is true", "chooses among", "by chance"):
        assert part in out
    few = ["--scenes.train", "32", "--scenes.test", "1", "--models", "san", "--show", "0", "-q"]
    assert main(["demo", "scenes", *few]) == 0
    out = capsys.readouterr().out
    assert "by chance" in out
    assert "training SAN" not in out


def test_describe_counts_parameters(capsys):
    assert main(["describe", "n-san", "--model.layers", "1"]) == 0
    out = capsys.readouterr().out
    assert "18,130,704" in out
    assert "18.1" in out
    assert "41.5" not in out


def test_describe_shows_what_the_paper_prints(capsys):
    assert main(["describe", "ng-san"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "NG-SAN │ instance │ query │ 41.3 │ 41.5 │" in out
    assert "The paper's 41.5 M for query- and key-dependent bias does not follow" in out


def test_describe_counts_parameters_of_other_tasks(capsys):
    assert main(["describe", "transformer-base"]) == 0
    out = capsys.readouterr().out
    words, attention, dense, norm = 32768 * 512, 4 * 513 * 512, 513 * 2048 + 2049 * 512, 1024
    encoder, decoder = attention + dense + 2 * norm, 2 * attention + dense + 3 * norm
    assert f"{words + 6 * (encoder + decoder):,}" in out
    assert "transformer-nsa" in out
    assert main(["describe", "mcan-gsa"]) == 0
    out = capsys.readouterr().out
    assert "question-only" in out
    assert "Assumed sizes, which a dataset sets: vocab_size 20,000" in out
    words = ["--model.vocab-size", "100", "--model.answers", "3", "--model.feature-dim", "8"]
    assert main(["describe", "question-only", *words]) == 0
    out = capsys.readouterr().out
    assert "30,000" in out
    assert "Assumed" not in out


def test_describe_prints_valid_yaml(capsys, tmp_path):
    assert main(["describe", "--yaml", "--model.layers=6", "--data.scenes.train", "40"]) == 0
    text = capsys.readouterr().out
    values = yaml.safe_load(text)
    assert (values["model"]["layers"], values["data"]["scenes"]["train"]) == (6, 40)
    (tmp_path / "model.yaml").write_text(text)
    for words in ([str(tmp_path / "model.yaml")], ["--config", str(tmp_path / "model.yaml")]):
        assert main(["describe", "--yaml", *words]) == 0
        assert capsys.readouterr().out == text


def test_keys_of_recipe_file_and_command_line(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("seed: 3\nmodel: {layers: 2}\n")
    config, values = keys.run_values("ng-san", [str(file)])
    more = {"model.dim": "64", "cross_entropy.schedule.peak_lr": "1e-3", "data.moving": "null"}
    run = keys.with_keys(config, values, {**more, "runtime.compile": "false"}, "ngsan train")
    assert (run.task, run.seed, run.model.layers, run.model.dim) == ("captioning", 3, 2, 64)
    assert (run.cross_entropy.schedule.peak_lr, run.runtime.compile) == (1e-3, False)
    assert run.model.geometry == "query"
    for name in recipe_names():
        found = keys.keys_of_recipe(name)
        config, values = keys.run_values(name)
        assert all(key.text for key in found.values())
        assert keys.with_keys(config, {}, {}, "") is not None
        assert set(keys._names(values)) <= set(found) | {"data.scenes", "data.moving"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- a\n- b\n", "{file}: file: expected keys and values, not ['a', 'b']"),
        (b"a: &a [*a]", "{file}: aliases such as *a are not supported, in line 1"),
        (b"\0", "{file}: unacceptable character"),
        ("model: é".encode("latin-1"), "{file}: 'utf-8' codec can't decode"),
        (b"model: 3", "model: expected keys and values, not 3"),
        (b"model: null", "model: expected keys and values, not None"),
        (b"model: {layerz: 2}", "unknown key 'model.layerz'; did you mean 'model.layers'?"),
        (b"task: captions", "{file}: task: 'captions' is not one of captioning"),
        (b"cross_entropy: {schedule: []}", "cross_entropy.schedule: expected keys and values, not"),
    ],
)
@pytest.mark.parametrize("command", [["describe"], ["reproduce", "norms", "--data", "."]])
def test_invalid_file_prints_one_line(tmp_path, capsys, content, message, command):
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    assert main([*command, "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ngsan {command[0]}: {message.format(file=file)}") or message in error
    assert error.count("\n") == 1


def test_module_runs_and_imports_without_torch():
    version = subprocess.run(
        [sys.executable, "-m", "ngsan", "--version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.startswith("ngsan ")
    quick = "import sys, ngsan, ngsan.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", quick], check=False).returncode == 0


def test_help_of_every_command_needs_no_torch():
    code = (
        "import sys; from ngsan.cli.completion import script; script('bash'); "
        "sys.exit(bool({'torch', 'matplotlib', 'onnx'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_models_are_imported_without_the_compiler():
    # Importing it takes as long as importing torch, and commands on a CPU never compile.
    quick = "import sys, ngsan.models; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", quick], check=False).returncode == 0


def test_a_message_does_not_quote_a_whole_file(tmp_path, capsys):
    path = tmp_path / "long.yaml"
    path.write_text("x" * 100_000)
    assert main(["describe", str(path)]) == 2
    err = capsys.readouterr().err
    assert "expected keys and values" in err
    assert len(err) < 11_000
