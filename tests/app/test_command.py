"""End-to-end tests of `ngsan serve`."""

import dataclasses
import signal
import subprocess
import sys
import time

import pytest

from ngsan.__main__ import main
from ngsan.app.context import ServedModel
from ngsan.app.settings import ServeSettings
from ngsan.cli import serve as command
from ngsan.predict.captioner import PHOTO_MODEL


@pytest.fixture
def served(monkeypatch):
    """Returns the settings that a command line gives."""
    monkeypatch.delenv(command.TOKEN, raising=False)
    found = []
    monkeypatch.setattr(command, "serve", found.append)

    def call(*words):
        assert main(["serve", *words]) == 0
        return found.pop()

    return call


def test_defaults_equal_the_settings(served):
    assert served() == ServeSettings()


def test_every_setting_has_an_option_with_help(served, capsys):
    for item in dataclasses.fields(ServeSettings):
        if isinstance(item.default, bool):
            assert getattr(served(f"--{item.name}"), item.name) is True
        elif isinstance(item.default, int | float):
            option = f"--{item.name.replace('_', '-')}"
            value = getattr(served(option, str(int(item.default) + 1)), item.name)
            assert value == int(item.default) + 1
    with pytest.raises(SystemExit) as stopped:
        main(["serve", "--help"])
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "max-total-bytes N bytes of all requests and large answers at the same time" in text


def test_tokens(served, monkeypatch, tmp_path, capsys):
    file = tmp_path / "token"
    file.write_text("from-a-file\n")
    assert served("--token", "from-words").token == "from-words"
    assert served("--token-file", str(file)).token == "from-a-file"
    monkeypatch.setenv(command.TOKEN, "from-outside")
    assert served().token == "from-outside"
    assert served("--token", "from-words").token == "from-words"
    assert main(["serve", "--token", "from-words", "--token-file", str(file)]) == 2
    assert main(["serve", "--token-file", str(tmp_path / "none")]) == 2
    assert "from-words" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "a token is needed"),
        (["--port", "70000"], "port: 70000"),
        (["--queue-size", "0"], "queue_size: 0"),
        (["--model", "/nowhere"], "folder not found: /nowhere"),
        (["--host", "203.0.113.7", "--insecure"], "cannot listen on"),
    ],
)
def test_invalid_command_lines_raise(words, message, monkeypatch, capsys):
    monkeypatch.delenv(command.TOKEN, raising=False)
    assert main(["serve", "--port", "0", *words]) == 2
    assert message in capsys.readouterr().err


def test_damaged_file_error_names_it(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv(command.TOKEN, raising=False)
    model = tmp_path / "model"
    model.mkdir()
    for file in PHOTO_MODEL.iterdir():
        (model / file.name).symlink_to(file)
    (model / "metrics.json").unlink()
    (model / "metrics.json").write_bytes(b"\xff{")
    with pytest.raises(ValueError, match="metrics.json: damaged"):
        ServedModel.open(ServeSettings(model=str(model)))
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    assert main(["serve", "--token-file", str(tmp_path / "token")]) == 2
    assert f"{tmp_path / 'token'} is not text" in capsys.readouterr().err


def test_server_does_not_import_torch():
    check = (
        "import sys; import ngsan.app.server; from ngsan.app.app import build_app;"
        " from ngsan.app.settings import ServeSettings; from ngsan.app.studio import SceneStudio;"
        " build_app(ServeSettings(threads=1)); SceneStudio.open(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.0, 0.2, 1.0])
def test_server_exits_cleanly_at_any_time(wait):
    """Also while the scene models are loading."""
    command_line = [sys.executable, "-m", "ngsan", "serve", "--port", "0", "--threads", "1"]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert b"the studio is at http://127.0.0.1:" in process.stdout.readline()
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (0, b"stopped\n", b"")


def test_server_exits_cleanly_when_its_output_is_closed():
    command = [sys.executable, "-m", "ngsan", "serve", "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert b"the studio is at" in process.stdout.readline()
        process.stdout.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr.read() == b""
