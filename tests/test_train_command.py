"""What `ngsan train` is to learn."""

import pytest

from ngsan.__main__ import main
from ngsan.commands.command_line import task_of


def test_the_task_is_the_file_s_or_the_line_s(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("task: translation\nseed: 3\n")
    other = tmp_path / "other.yaml"
    other.write_text("seed: 3\n")
    assert task_of([]) == "captioning"
    assert task_of(["--config", str(other), "--seed", "1"]) == "captioning"
    assert task_of(["--config", str(file)]) == "translation"
    assert task_of([f"--config={file}", "--config", str(other)]) == "translation"
    assert task_of(["--config", str(file), "--task", "captioning"]) == "captioning"
    assert task_of(["--task=answering"]) == "answering"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("task: captions\n", "task: 'captions' is not one of captioning"),
        ("task: [\n", "run.yaml: while parsing"),
        ("task: captioning\nmodle: {layers: 2}\n", "modle"),
    ],
)
def test_a_wrong_file_is_told(tmp_path, capsys, content, told):
    file = tmp_path / "run.yaml"
    file.write_text(content)
    try:
        status = main(["train", "--config", str(file), "--output", str(tmp_path / "run")])
    except SystemExit as exit_:
        status = exit_.code
    assert status == 2
    assert told in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["train", "--config", str(tmp_path / "no.yaml"), "--output", "x"]) == 2
    assert "no.yaml" in capsys.readouterr().err
