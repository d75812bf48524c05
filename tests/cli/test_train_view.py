"""The progress view of a training run, with and without a terminal."""

import io
import math
import re

import pytest
from rich.console import Console

from ngsan.cli.train_view import TrainView

STEPS = 100
METRICS = {"BLEU-1": 77.77, "BLEU-4": 36.12, "METEOR": 27.93, "ROUGE-L": 56.64}


def start(**more):
    phases = [
        {"phase": "cross-entropy", "epochs": 3, "steps": STEPS},
        {"phase": "self-critical", "epochs": 2, "steps": STEPS},
    ]
    about = {"model": "ng-san", "parameters": 41_300_000, "images": 113_287}
    about |= {"validation_images": 5_000, "device": "NVIDIA H200", "processes": 1}
    return {
        "event": "start",
        **about,
        "precision": "bfloat16",
        "resumed_at": None,
        "phases": phases,
        **more,
    }


def step(number, epoch=None):
    epoch = epoch or (number - 1) // STEPS + 1
    entry = {"event": "step", "phase": "cross-entropy", "epoch": epoch, "step": number}
    entry |= {"epoch_step": (number - 1) % STEPS + 1, "loss": 2.345, "lr": 3e-4}
    entry |= {"images_per_second": 11_900.0, "seconds_left": 312.0}
    if epoch > 3:
        entry |= {"phase": "self-critical", "loss": -0.012, "lr": 5e-6, "reward": 1.125}
        entry |= {"greedy_reward": 1.205, "length": 9.8, "entropy": 1.21}
    return entry


def epoch(number, **more):
    entry = {"event": "epoch", "phase": "cross-entropy", "epoch": number, "step": number * STEPS}
    entry |= {"metrics": {**METRICS, "CIDEr": 110.25 + number}, "best": number != 2, "loss": 2.3}
    entry |= {"seconds": 9.4, "validation_seconds": 0.8}
    if number > 3:
        entry |= {"phase": "self-critical", "loss": -0.011, "reward": 1.126}
    return {**entry, **more}


BEFORE = {
    "event": "before",
    "phase": "self-critical",
    "epoch": 3,
    "reward": 1.103,
    "greedy_reward": 1.155,
    "length": 9.7,
    "entropy": 1.35,
}
AVERAGE = {"event": "average", "phase": "self-critical", "epochs": [4, 5], "best": False}
AVERAGE["metrics"] = {**METRICS, "CIDEr": 112.5}
STOP = {"event": "stop", "reason": "no better CIDEr", "phase": "self-critical", "epoch": 5}
NOTE = {"event": "note", "text": "[red]no curve[/red] is drawn :smile:"}
END = {
    "event": "end",
    "best": {"phase": "self-critical", "epoch": 5, "metrics": epoch(5)["metrics"]},
    "seconds": 3912.0,
    "model": "runs/x/model.safetensors",
}


def whole_run():
    yield start()
    for number in range(1, 6):
        if number == 4:
            yield BEFORE
        yield from (step(done, number) for done in range(number * 100 - 99, number * 100 + 1))
        yield {"event": "checkpoint", "step": number * STEPS, "seconds": 0.2}
        yield epoch(number)
    yield from (AVERAGE, STOP, NOTE, END)


def console_of(width, terminal):
    return Console(
        file=io.StringIO(),
        width=width,
        height=30,
        force_terminal=terminal,
        force_interactive=terminal,
        color_system="truecolor" if terminal else None,
        _environ={"TERM": "xterm-256color"},
    )


def show(entries, *, width=80, terminal=False, pace=0.1):
    """All printed output, including cursor codes on a terminal."""
    console, seconds = console_of(width, terminal), [0.0]
    with TrainView(console, now=lambda: seconds[0]) as view:
        for entry in entries:
            view.write(entry)
            seconds[0] += pace
    return console.file.getvalue()


def screen(output):
    """The final rows of a terminal, by interpreting the codes."""
    lines, row, column = {}, 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x1b]", output):
        if part == "\n":
            row, column = row + 1, 0
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b"):
            if part.endswith("A"):
                row -= int(part[2:-1])
            elif part == "\x1b[2K":
                lines[row] = {}
            else:
                assert part[-1] in "mhl", f"unknown terminal code: {part!r}"
        else:
            lines.setdefault(row, {})[column] = part
            column += 1
    rows = []
    for number in range(max(lines) + 1):
        cells = lines.get(number, {})
        rows.append("".join(cells.get(place, " ") for place in range(max(cells, default=-1) + 1)))
    return rows


@pytest.mark.parametrize("terminal", [False, True])
def test_final_output_of_a_run(terminal):
    output = show(whole_run(), width=140, terminal=terminal)
    rows = screen(output)
    text = "\n".join(rows)
    for part in (
        "ng-san, 41.3 M parameters, on NVIDIA H200, bfloat16",
        "113,287 images, 5,000 for validation",
        "cross-entropy: 3 epochs of 100 steps, then self-critical: 2 epochs of 100 steps",
        "before self-critical: reward 1.103, greedy 1.155, length 9.7, entropy 1.35",
        "self-critical stops after epoch 5: no better CIDEr",
        "[red]no curve[/red] is drawn :smile:",
        "best: self-critical, epoch 5: BLEU-4 36.12, METEOR 27.93, ROUGE-L 56.64, CIDEr 115.25",
        "done in 1:05:12; the model is runs/x/model.safetensors",
    ):
        assert part in text
    table = [row for row in rows if re.match(r"epoch \d  |average of", row)]
    assert [row[:8].strip() for row in table] == [*(f"epoch {n}" for n in range(1, 6)), "average"]
    marks = [row.endswith("best") for row in table]
    assert marks == [True, False, True, True, True, False]
    for number, row in enumerate(table[:5], start=1):
        assert f"CIDEr {110.25 + number:.2f}" in row
        assert "BLEU-4 36.12" in row
        assert ("reward 1.126" in row) == (number > 3)
        assert "9.4 s" in row
    assert table[5].startswith("average of 2")
    assert "CIDEr 112.50" in table[5]
    assert "images/s" not in rows[-1], "the live view is removed at the end"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_live_view_during_a_run(width):
    entries = list(whole_run())
    stop_index = next(n for n, entry in enumerate(entries) if entry.get("step") == 350)
    rows = screen(show(entries[: stop_index + 1], width=width, terminal=True, pace=1))
    title, run, part, work, reward = rows[-5:]
    assert title.startswith("self-critical, epoch 4 of 5   ng-san on NVIDIA H200")
    assert ("saved at step 300" in title) == (width > 60)
    assert re.search(r"run .* 70% +350 of 500 steps", run)
    assert re.search(r"epoch .* 50% +50 of 100 steps", part)
    assert work.split("   ") == [
        "loss -0.012",
        "lr 5e-06",
        "11,900 images/s",
        "5:12 left",
    ]
    assert reward.split("   ") == ["reward 1.125", "greedy 1.205", "length 9.8", "entropy 1.21"]
    assert max(len(row) for row in rows[-5:]) <= width


def test_live_view_before_the_first_step_and_at_validation():
    rows = screen(show([start()], terminal=True))
    assert rows[-3].startswith("preparing   ng-san on NVIDIA H200")
    assert "0 of 500 steps" in rows[-2]
    validating = [start(), step(99), step(100)]
    assert any("epoch 1 of 5, validating" in row for row in screen(show(validating, terminal=True)))
    console = console_of(80, terminal=True)
    with TrainView(console) as view:
        for entry in (*validating, epoch(1)):
            view.write(entry)
        after = screen(console.file.getvalue())
    assert not any("validating" in row for row in after)
    assert any("cross-entropy, epoch 1 of 5" in row for row in after)


def test_early_stop_shortens_the_run():
    stop = {"event": "stop", "reason": "enough", "phase": "cross-entropy", "epoch": 2}
    first = {**step(201, 4), "epoch": 3, "epoch_step": 1}
    for between in ([], [{**BEFORE, "epoch": 2}]):
        entries = [start(), step(200), epoch(2), stop, *between, first]
        rows = screen(show(entries, terminal=True, pace=1))
        assert rows[-5].startswith("self-critical, epoch 3 of 4 ")
        assert "201 of 400 steps" in rows[-4]


def test_resumed_run_shows_its_position():
    rows = screen(show([start(resumed_at=350)], terminal=True))
    assert "resuming after step 350" in rows
    assert "350 of 500 steps" in rows[-2]
    rows = screen(show([start(resumed_at=350), step(351)], terminal=True, pace=1))
    assert rows[-5].startswith("self-critical, epoch 4 of 5 ")
    assert "351 of 500 steps" in rows[-4]


def test_live_view_refreshes_at_most_four_times_per_second():
    entries = [start(), *(step(number, 1) for number in range(1, 100))]
    for pace in (0.01, 0.1):
        drawn = len(re.findall(r" run ", show(entries, terminal=True, pace=pace)))
        # The first drawing is at the start, the last at the end of the block.
        assert 100 * pace * 4 / 2 <= drawn - 2 <= 100 * pace * 4


def test_steps_are_printed_twice_a_minute_without_a_terminal():
    entries = [start(), *(step(number) for number in range(1, 100)), step(301)]
    output = show(entries, pace=1)
    steps = [line for line in output.splitlines() if line.startswith("epoch ")]
    assert [line.split(":")[0] for line in steps] == [
        "epoch 1, step 1",
        "epoch 1, step 31",
        "epoch 1, step 61",
        "epoch 1, step 91",
    ]
    assert steps[0].endswith("loss  2.345, lr 0.0003, 11,900 images/s, 5:12 left")
    assert "\x1b" not in output
    assert "reward 1.125" in show([start(), step(301)])


def test_failed_run_restores_the_terminal():
    console = console_of(80, terminal=True)
    view = TrainView(console)
    view.write(start())
    view.write(step(42))
    with pytest.raises(RuntimeError), view:
        raise RuntimeError("no memory")
    output = console.file.getvalue()
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h") == 1
    assert "42 of 500 steps" in "\n".join(screen(output))


@pytest.mark.parametrize("terminal", [False, True])
def test_missing_fields_do_not_raise(terminal):
    kinds = [start(), step(1), step(301), BEFORE, epoch(1), epoch(4), AVERAGE, STOP, NOTE, END]
    kinds += [{"event": "checkpoint", "step": 3, "seconds": 1.0}]
    for entry in kinds:
        for key in entry:
            for others in ([], [start()], [start(), step(5)]):
                partial_entry = {name: entry[name] for name in entry if name != key}
                show([*others, partial_entry, {**entry, key: None}, step(301)], terminal=terminal)
    show([{"event": entry["event"]} for entry in kinds], terminal=terminal, pace=40)
    show([{}, {"event": "unknown"}], terminal=terminal)
    show([start(phases=[{}, {"phase": "cross-entropy"}]), step(1), step(2)], terminal=terminal)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_are_shown(terminal, value):
    broken = {**step(301), "loss": value, "seconds_left": value, "reward": value, "lr": value}
    row = epoch(4, loss=value, reward=value, seconds=value, metrics={"CIDEr": value})
    rows = screen(show([start(), broken, row], terminal=terminal))
    text = "\n".join(rows)
    assert f"loss {value:6.3f}" in text
    assert f"reward {value}" in text
    row = next(line for line in rows if line.startswith("epoch 4  "))
    assert f"CIDEr {value}" in row


def test_other_tasks_have_other_metrics():
    metrics = {"accuracy": 70.5, "yes/no": 86.25, "number": 50.0, "other": 60.0, "fifth": 1.0}
    row = show([epoch(1, metrics=metrics)])
    assert "accuracy 70.50  yes/no 86.25  number 50.00  other 60.00" in row
    assert "fifth" not in row


def test_best_model_may_be_an_average():
    end = {**END, "best": {"phase": "self-critical", "epoch": 0, "metrics": {"CIDEr": 120.0}}}
    assert "best: self-critical, averaged weights: CIDEr 120.00" in show([end])


def test_skipped_phases_are_not_listed():
    phases = [*start()["phases"][:1], {"phase": "self-critical", "epochs": 0, "steps": 7}]
    output = show([start(phases=phases)])
    assert "cross-entropy: 3 epochs of 100 steps\n" in output
