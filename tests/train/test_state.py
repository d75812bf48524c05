import errno
import json
import os
import shutil

import pytest
import torch

from ngsan.atomic_io import seal
from ngsan.train.state import read_state, write_state
from tests.kills import end_of, fork, kills, random_kills


def content(number):
    """Progress and tensors that differ for every step."""
    progress = {"step": number, "phase": "cross-entropy", "best": 0.1 + number, "seen": [1, None]}
    values = torch.linspace(number, number + 1, 12).view(3, 4)
    return progress, {
        "weights": {"a": values, "b": values.to(torch.bfloat16).T, "c": values[0].half()},
        "optimizer": {
            "0.exp_avg": values.double(),
            "0.step": torch.tensor(float(number)),
            "random": torch.arange(5, dtype=torch.uint8),
            "none": torch.zeros(0, 3),
            "flag": torch.tensor(True),
        },
        "empty": {},
    }


def write(folder, number):
    return write_state(folder, number, *content(number))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def unexpected(message):
    raise AssertionError(message)


def check(state, number):
    progress, tensors = content(number)
    assert state.progress == progress
    assert state.tensors.keys() == tensors.keys()
    for group, named in tensors.items():
        assert state.tensors[group].keys() == named.keys()
        for name, tensor in named.items():
            found = state.tensors[group][name]
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor), name


def test_write_and_read_round_trip(tmp_path):
    folder = tmp_path / "run" / "state"
    assert write(folder, 12) == folder / "step-00000012"
    check(read_state(str(folder), unexpected), 12)
    assert names(folder) == ["step-00000012"]
    assert names(folder / "step-00000012") == [
        "empty.safetensors",
        "manifest.json",
        "optimizer.safetensors",
        "progress.json",
        "weights.safetensors",
    ]


def test_progress_numbers_are_exact(tmp_path):
    progress = {"a": 0.1 + 0.2, "b": 5e-324, "c": 2**70, "d": -0.0, "e": {"ü": ["\x00", True]}}
    write_state(tmp_path, 0, progress, {})
    found = read_state(tmp_path, unexpected).progress
    assert found == progress
    assert str(found) == str(progress)


def test_gpu_tensors_are_saved(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    progress, tensors = content(3)
    there = {
        group: {name: tensor.cuda() for name, tensor in named.items()}
        for group, named in tensors.items()
    }
    write_state(tmp_path, 3, progress, there)
    check(read_state(tmp_path, unexpected), 3)


def test_missing_state_reads_as_none(tmp_path):
    assert read_state(tmp_path / "nowhere", unexpected) is None
    for name in ("partial-12", "step-1", "step-00000001.old", "other"):
        (tmp_path / name).mkdir()
    assert read_state(tmp_path, unexpected) is None


def test_newest_two_states_are_kept(tmp_path):
    for number in (5, 50, 100, 99_999_999, 100_000_000):
        write(tmp_path, number)
        check(read_state(tmp_path, unexpected), number)
    assert names(tmp_path) == ["step-100000000", "step-99999999"]


def test_rewriting_a_step_adds_a_suffix(tmp_path):
    write(tmp_path, 1)
    first = write(tmp_path, 2)
    for turn in range(1, 12):
        progress, tensors = content(2)
        again = write_state(tmp_path, 2, {**progress, "turn": turn}, tensors)
        assert again.name == f"{first.name}-{turn}"
        assert read_state(tmp_path, unexpected).progress["turn"] == turn
    assert len(names(tmp_path)) == 2
    write(tmp_path, 3)
    assert names(tmp_path) == ["step-00000002-11", "step-00000003"]


def test_state_written_after_a_fallback_is_the_newest(tmp_path):
    write(tmp_path, 10)
    later = write(tmp_path, 20)
    (later / "manifest.json").unlink()
    write(tmp_path, 15)
    check(read_state(tmp_path, unexpected), 15)
    assert names(tmp_path) == ["step-00000010", "step-00000015"]


def test_other_files_are_not_removed(tmp_path):
    others = ["partial-results", "step-1", "notes"]
    for name in (*others, "partial-123"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "file").touch()
    for number in range(4):
        write(tmp_path, number)
    assert names(tmp_path) == sorted(["file", *others, "step-00000002", "step-00000003"])


FILES = ("manifest.json", "progress.json", "weights.safetensors", "optimizer.safetensors")


def damage(path, how):
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[:-1])
    elif how == "longer":
        path.write_bytes(data + b" ")
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(data[: len(data) // 2] + b"\x07" + data[len(data) // 2 + 1 :])


@pytest.mark.parametrize("how", ["missing", "cut", "longer", "empty", "flipped"])
@pytest.mark.parametrize("name", FILES)
def test_damaged_state_is_skipped(tmp_path, name, how):
    write(tmp_path, 1)
    newest = write(tmp_path, 2)
    damage(newest / name, how)
    messages = []
    check(read_state(tmp_path, messages.append), 1)
    (message,) = messages
    assert message.startswith(f"{newest}: {name} ")
    assert message.endswith("; resuming from the state before")


def test_every_changed_byte_is_detected(tmp_path):
    write_state(tmp_path, 1, {"a": 1.5}, {"weights": {"b": torch.ones(3)}})
    state = tmp_path / "step-00000001"
    before = read_state(tmp_path, unexpected)
    for path in state.iterdir():
        data = path.read_bytes()
        for place in range(len(data)):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(ValueError, match=f"no training state .* is complete: {state}: "):
                read_state(tmp_path, unexpected)
        path.write_bytes(data)
    assert read_state(tmp_path, unexpected).progress == before.progress


def test_no_complete_state_raises(tmp_path):
    states = [write(tmp_path, number) for number in (1, 2)]
    (states[0] / "progress.json").unlink()
    (states[1] / "weights.safetensors").unlink()
    messages = []
    with pytest.raises(ValueError, match="no training state of .* is complete") as caught:
        read_state(tmp_path, messages.append)
    for problem in ("2: weights.safetensors is missing", "1: progress.json is missing"):
        assert f"step-0000000{problem}" in str(caught.value)
    assert len(messages) == 1


def test_unreadable_file_is_reported(tmp_path):
    write(tmp_path, 1)
    newest = write(tmp_path, 2)
    (newest / "weights.safetensors").unlink()
    (newest / "weights.safetensors").mkdir()
    messages = []
    check(read_state(tmp_path, messages.append), 1)
    assert "weights.safetensors cannot be read: Is a directory" in messages[0]


def change_manifest(state, **changes):
    """Changes a manifest and renews its seal."""
    path = state / "manifest.json"
    manifest = {**json.loads(path.read_text("utf-8")), **changes}
    del manifest["digest"]
    path.write_text(seal(manifest), "utf-8")


def test_unsupported_format_or_missing_progress_raises(tmp_path):
    state = write(tmp_path, 1)
    change_manifest(state, format=3)
    with pytest.raises(ValueError, match="manifest.json has format 3, supported: 2"):
        read_state(tmp_path, unexpected)
    change_manifest(state, format=2, files={})
    with pytest.raises(ValueError, match="progress.json has no keys and values"):
        read_state(tmp_path, unexpected)


@pytest.mark.parametrize(
    ("progress", "message"),
    [
        ({"a": {"b": [0.0, float("nan")]}}, r"progress.a.b\[1\]: nan is not finite"),
        ({"best": float("-inf")}, "progress.best: -inf is not finite"),
        ({"a": {1: 2}}, "progress.a: the key 1 is not a string"),
        ({"a": torch.ones(())}, r"progress.a: tensor\(1.\) is not a JSON value"),
    ],
)
def test_progress_that_json_cannot_represent_raises(tmp_path, progress, message):
    with pytest.raises(ValueError, match=message):
        write_state(tmp_path / "run", 1, progress, {})
    assert not (tmp_path / "run").exists()


def test_invalid_arguments_raise(tmp_path):
    with pytest.raises(ValueError, match="group '../a': use only"):
        write_state(tmp_path / "run", 1, {}, {"../a": {}})
    with pytest.raises(ValueError, match="number: -1 must be at least 0"):
        write_state(tmp_path / "run", -1, {}, {})


@pytest.mark.parametrize("number", [30, 20, 15])
def test_kill_leaves_the_old_or_the_new_state(tmp_path, number):
    write(tmp_path / "old", 10)
    write(tmp_path / "old", 20)
    folder, found = tmp_path / "run", []
    shutil.copytree(tmp_path / "old", folder)
    for _ in kills(lambda: write_state(folder, number, {"new": True}, content(1)[1])):
        state = read_state(folder, unexpected)
        found.append("new" in state.progress)
        if not found[-1]:
            check(state, 20)
        write(folder, 40)  # the run continues from whatever was left
        check(read_state(folder, unexpected), 40)
        assert len(names(folder)) == 2
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "old", folder)
    assert found == sorted(found)
    assert not found[0]
    assert found[-1]


def test_kill_at_the_first_state_leaves_none_or_it(tmp_path):
    found = []
    for _ in kills(lambda: write(tmp_path / "run", 1)):
        found.append(read_state(tmp_path / "run", unexpected))
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert found[0] is None
    check(found[-1], 1)


def test_random_kills_leave_a_whole_state(tmp_path):
    write(tmp_path, 0)
    reached = [0]

    def write_next(turn):
        write(tmp_path, reached[0] + turn + 1)

    for _ in random_kills(write_next, times=25, max_length=0.05):
        state = read_state(tmp_path, unexpected)
        check(state, state.progress["step"])
        assert state.progress["step"] >= reached[0]
        reached[0] = state.progress["step"]
    assert reached[0]
    write(tmp_path, reached[0] + 1)
    assert len(names(tmp_path)) == 2


@pytest.mark.parametrize("after", range(8))
def test_full_disk_leaves_existing_states(tmp_path, monkeypatch, after):
    write(tmp_path, 1)
    last = write(tmp_path, 2)
    fsync, left = os.fsync, [after]

    def full(number):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        fsync(number)

    monkeypatch.setattr(os, "fsync", full)
    if after == 7:  # by then 3 groups, progress, manifest and 2 folders are flushed
        write(tmp_path, 3)
        return
    with pytest.raises(OSError, match="No space left on device") as caught:
        write(tmp_path, 3)
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert f"the training state {tmp_path / 'step-00000003'} could not be" in str(caught.value)
    if after < 6:
        assert str(caught.value).endswith(f"; {last} is intact")
        assert names(tmp_path) == ["step-00000001", "step-00000002"]
        check(read_state(tmp_path, unexpected), 2)
    write(tmp_path, 4)
    check(read_state(tmp_path, unexpected), 4)


def test_file_size_limit_leaves_existing_states(tmp_path):
    resource = pytest.importorskip("resource")
    big = {"weights": {"a": torch.zeros(5000)}}

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        message = "weights.safetensors of the training state .* could not .*: File too large; "
        with pytest.raises(OSError, match=message + "no earlier one exists"):
            write_state(tmp_path, 1, {}, big)
        write(tmp_path, 2)
        with pytest.raises(OSError, match=message + ".*step-00000002 is intact"):
            write_state(tmp_path, 3, {}, big)

    assert end_of(fork(limited)) == 0
    assert names(tmp_path) == ["step-00000002"]
    check(read_state(tmp_path, unexpected), 2)
