"""The Python of the README and of docs/decoding.md runs; the README's commands are valid."""

import re
import shlex
from pathlib import Path

import pytest

from ngsan.__main__ import find_command, main
from ngsan.cli.parser import Group

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
DECODING = (ROOT / "docs" / "decoding.md").read_text(encoding="utf-8")
PYTHON = [
    *(text for language, text in BLOCKS if language == "python"),
    *re.findall(r"```python\n(.*?)```", DECODING, flags=re.DOTALL),
]
SHELL = [
    line for language, text in BLOCKS if language == "sh" for line in text.splitlines() if line
]


def test_readme_has_code_blocks():
    assert PYTHON
    assert SHELL


@pytest.mark.parametrize("source", PYTHON)
def test_python_runs(source):
    exec(compile(source, "README.md", "exec"), {})


def test_commands_are_valid():
    """Every command of the README parses; `ngsan describe` runs."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for line in SHELL:
        words = shlex.split(line.rpartition("| ")[2], comments=True)
        if words[:1] == ["make"]:
            assert words[1] in targets
        elif words[:1] == ["ngsan"]:
            name, command, words = "ngsan", find_command(words[1]), words[2:]
            while isinstance(command, Group):
                name, command, words = command.choose(name, words)
            options = command.parser(name, words).parse(words)
            if command is find_command("describe"):
                assert not command.run(options)


@pytest.mark.slow
def test_selected_commands_run(tmp_path, monkeypatch):
    """The commands of two sections run in sequence: trying models, and a toy training."""
    monkeypatch.chdir(tmp_path)
    small = ["--scenes.train", "64", "--scenes.test", "20", "--training.epochs", "1"]
    quick = {
        "ngsan demo scenes -o": small,
        "ngsan evaluate scenes-demo": ["--metrics", "BLEU"],
        "ngsan export scenes-demo": [],
        "ngsan train toy-scenes": ["--data.scenes.train", "64", "--data.scenes.test", "20"],
    }
    for start, more in quick.items():
        (line,) = [line for line in SHELL if line.startswith(start)]
        assert main([*shlex.split(line)[1:], *more]) == 0, line


def test_links_to_files_exist():
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", README):
        assert (ROOT / target).exists(), target
