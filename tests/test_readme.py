"""The Python of the README and of docs/decoding.md runs; the README's commands exist."""

import re
import shlex
from pathlib import Path

import pytest

from ngsan.__main__ import COMMANDS, main

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


def test_there_is_something_to_check():
    assert PYTHON
    assert SHELL


@pytest.mark.parametrize("source", PYTHON)
def test_python_runs(source):
    exec(compile(source, "README.md", "exec"), {})


@pytest.mark.parametrize("line", SHELL)
def test_commands_exist(line):
    words = shlex.split(line, comments=True)
    if words[:1] == ["make"]:
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert words[1] in targets
    elif words[0] == "ngsan":
        assert words[1] in COMMANDS
        if words[1] == "describe":
            assert main(words[1:]) == 0


def test_links_to_files_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", README):
        assert (ROOT / target).exists(), target
