"""Training logs, read back by the standard library and by TensorBoard."""

import json
import math
import resource
import signal
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from ngsan.plots import read_curve
from ngsan.train.log import JsonLines, TensorBoard

ENTRIES = [
    {"event": "start", "model": "ng-san", "resumed_at": None, "phases": []},
    {
        "event": "step",
        "phase": "cross-entropy",
        "epoch": 1,
        "step": 1,
        "epoch_step": 1,
        "loss": 9.1,
    },
    {"event": "epoch", "epoch": 1, "step": 2, "metrics": {"CIDEr": 50.5}, "loss": 8.0},
    {"event": "checkpoint", "step": 2, "seconds": 0.1},
    {
        "event": "step",
        "phase": "cross-entropy",
        "epoch": 2,
        "step": 3,
        "epoch_step": 1,
        "loss": 7.0,
    },
    {"event": "epoch", "epoch": 2, "step": 4, "metrics": {"CIDEr": 60.5}, "loss": 6.0},
    {"event": "average", "phase": "cross-entropy", "epochs": [1, 2], "metrics": {"CIDEr": 99.0}},
    {"event": "before", "phase": "self-critical", "epoch": 2, "reward": 0.5},
    {"event": "end", "best": {"epoch": 2, "metrics": {"CIDEr": 60.5}}, "seconds": 3.0},
]


def lines_of(path):
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def without_time(entries):
    return [{key: entry[key] for key in entry if key != "time"} for entry in entries]


def test_entries_are_json_lines_with_a_time(tmp_path):
    path = tmp_path / "run" / "log.jsonl"
    before = datetime.now(UTC) - timedelta(seconds=1)
    with closing(JsonLines(path)) as log:
        assert log.position == 0
        for count, entry in enumerate(ENTRIES, start=1):
            log.write(entry)
            assert len(lines_of(path)) == count, "each line is flushed before the next step"
            assert log.position == path.stat().st_size
    assert path.read_bytes().endswith(b"}\n")
    assert without_time(lines_of(path)) == ENTRIES
    for line in lines_of(path):
        assert before <= datetime.fromisoformat(line["time"]) <= datetime.now(UTC)
        assert line["time"].endswith("+00:00")


def test_curve_is_read_from_epoch_entries_only(tmp_path):
    with closing(JsonLines(tmp_path / "log.jsonl")) as log:
        for entry in ENTRIES:
            log.write(entry)
    curve = read_curve(tmp_path / "log.jsonl", "CIDEr")
    assert (curve.epochs, curve.values) == ((1.0, 2.0), (50.5, 60.5))
    assert read_curve(tmp_path / "log.jsonl", "loss").values == (8.0, 6.0)


def test_nan_and_infinity_become_null(tmp_path):
    values = {"loss": math.nan, "metrics": {"CIDEr": math.inf}, "list": [-math.inf, (1, math.nan)]}
    with closing(JsonLines(tmp_path / "log")) as log:
        log.write(values)
    assert without_time(lines_of(tmp_path / "log")) == [
        {"loss": None, "metrics": {"CIDEr": None}, "list": [None, [1, None]]}
    ]


def test_line_breaks_in_text_are_escaped(tmp_path):
    text = "two\nlines\u2028three \x85 \udcff é"
    with closing(JsonLines(tmp_path / "log")) as log:
        log.write({"event": "note", "text": text})
        log.write({"event": "epoch", "epoch": 1, "metrics": {"CIDEr": 1.5}})
    assert lines_of(tmp_path / "log")[0]["text"] == text
    assert read_curve(tmp_path / "log", "CIDEr").values == (1.5,)


def test_resuming_truncates_the_log_at_the_state(tmp_path):
    path = tmp_path / "log"
    with closing(JsonLines(path)) as log:
        for entry in ENTRIES[:3]:
            log.write(entry)
        kept = log.position
        for entry in ENTRIES[3:5]:
            log.write(entry)
    for _ in range(2):
        with closing(JsonLines(path, keep=kept)) as log:
            assert log.position == kept == path.stat().st_size
            for entry in ENTRIES[3:]:
                log.write(entry)
        assert without_time(lines_of(path)) == ENTRIES


def test_log_truncated_at_any_byte_continues(tmp_path):
    path = tmp_path / "log"
    with closing(JsonLines(path)) as log:
        for entry in ENTRIES[:2]:
            log.write(entry)
        end = log.position
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in {*range(0, end, 3), first - 1, first, end - 1, end}:
        for keep in (None, end, cut):
            path.write_bytes(whole[:cut])
            with closing(JsonLines(path, keep=keep)) as log:
                assert log.position == (end if cut == end else first if cut >= first else 0)
                log.write({"event": "note"})
            assert without_time(lines_of(path))[-1] == {"event": "note"}


def test_long_incomplete_last_line_is_removed(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"a":1}\n' + b"x" * 200_000)
    JsonLines(path).close()
    assert path.read_bytes() == b'{"a":1}\n'
    path.write_bytes(b"\0" * 200_000)
    JsonLines(path).close()
    assert path.read_bytes() == b""


def test_missing_or_short_log_is_accepted(tmp_path):
    with closing(JsonLines(tmp_path / "none", keep=1000)) as log:
        assert log.position == 0
        log.write({"event": "note"})
    with closing(JsonLines(tmp_path / "none", keep=1000)) as log:
        log.write({"event": "note"})
    assert len(lines_of(tmp_path / "none")) == 2


def test_full_disk_raises_and_leaves_whole_lines(tmp_path):
    path = tmp_path / "log"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with closing(JsonLines(path)) as log:
        log.write({"event": "note", "text": "short"})
        position = log.position
        resource.setrlimit(resource.RLIMIT_FSIZE, (position + 50, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                log.write({"event": "note", "text": "long" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert log.position == position == path.stat().st_size
        log.write({"event": "note", "text": "room again"})
    assert [line["text"] for line in lines_of(path)] == ["short", "room again"]


def curves(folder):
    """Steps and values by name, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_tensorboard_reads_the_curves(tmp_path):
    step = {"event": "step", "phase": "self-critical", "epoch": 2, "epoch_step": 1, "lr": 0.25}
    with closing(TensorBoard(tmp_path)) as board:
        for entry in ENTRIES[:-2]:
            board.write(entry)
        board.write({**ENTRIES[-2], "length": 8.5, "entropy": None})
        board.write({**step, "step": 5, "reward": 0.75, "loss": math.nan, "seconds_left": 9.0})
        board.write({"event": "epoch", "step": 6, "metrics": None, "best": True, "seconds": 4.0})
        board.write({"event": "note", "text": "nothing to draw"})
    found = curves(tmp_path)
    loss = found.pop("training/loss")
    assert loss[:2] == [(1, pytest.approx(9.1)), (3, 7.0)]
    assert math.isnan(loss[2][1])
    assert found == {
        "validation/CIDEr": [(2, 50.5), (4, 60.5)],
        "epoch/loss": [(2, 8.0), (4, 6.0)],
        "epoch/seconds": [(6, 4.0)],
        "average/CIDEr": [(4, 99.0)],
        "training/reward": [(4, 0.5), (5, 0.75)],
        "training/length": [(4, 8.5)],
        "training/lr": [(5, 0.25)],
    }


def test_tensorboard_hides_repeated_steps(tmp_path):
    for start, end, value in ((0, 6, 1.0), (3, 5, 2.0), (0, 2, 3.0)):
        with closing(TensorBoard(tmp_path, step=start)) as board:
            for step in range(start + 1, end + 1):
                board.write({"event": "step", "step": step, "loss": value})
        expected = {
            1.0: [1.0] * 6,
            2.0: [1.0, 1.0, 1.0, 2.0, 2.0],
            3.0: [3.0, 3.0],
        }[value]
        assert curves(tmp_path) == {"training/loss": list(enumerate(expected, start=1))}


def test_missing_tensorboard_error_names_the_extra(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ValueError, match=r"ngsan\[tensorboard\]"):
        TensorBoard(tmp_path / "board")
    assert not (tmp_path / "board").exists()
