"""The whole of fine-tuning, on a small model and small pictures."""

import json
import shutil

import pytest
from safetensors.torch import load_file

import ngsan
from ngsan.__main__ import main
from ngsan.finetuning import plan
from ngsan.finetuning.job import open_job
from ngsan.finetuning.run import PAGE, REPORT, finetune
from ngsan.train.run import InterruptedRunError
from tests.train.helpers import same_tensors


class Stop(BaseException):
    """As if the process were killed."""


@pytest.fixture
def quick(monkeypatch):
    """Leaves out the graphs of ONNX Runtime, which take long to trace, and most epochs."""
    monkeypatch.setattr(
        "ngsan.finetuning.run.pack_model", lambda source, target: copy_files(source, target)
    )
    made = plan.make_plan

    def shorter(*args, **options):
        import dataclasses

        return dataclasses.replace(made(*args, **options), epochs=2, peak_lr=3e-3, mirror=False)

    monkeypatch.setattr("ngsan.finetuning.job.make_plan", shorter)


def copy_files(source, target):
    ignored = shutil.ignore_patterns("states", "cross-entropy", "log.jsonl", "*.lock")
    shutil.copytree(source, target, ignore=ignored)


def run(photos, rounded, output, **options):
    return finetune(
        photos, photos / "captions.csv", output=output, model=rounded, threads=1, **options
    )


def test_a_model_learns_the_new_word(photos, rounded, quick, tmp_path):
    entries = []
    result = run(photos, rounded, tmp_path / "mine", listen=entries.append)
    report = json.loads((tmp_path / "mine" / REPORT).read_text())
    assert report["pictures"] == {"learned": 34, "held_out": 6}
    captioner = ngsan.load(result.folder)
    assert result.improved == (result.scores[0].after > result.scores[0].before)
    assert result.improved
    assert result.new_words == ("wug",)
    assert "wug" in captioner.vocabulary
    shown = {one.path.name: one.after for one in result.examples}
    for name, text in shown.items():
        assert captioner.caption(photos / name).text == text
    page = (tmp_path / "mine" / PAGE).read_text()
    assert all(f'alt="{name}"' in page for name in shown)
    assert "<b>wug</b>" in page
    assert "http" not in page.replace("http-equiv", "")
    done = [entry for entry in entries if entry["event"] == "progress"]
    assert done[0]["done"] == 1
    assert done[-1]["done"] == done[-1]["total"] == 6
    with pytest.raises(ValueError, match="is finished"):
        run(photos, rounded, tmp_path / "mine")


@pytest.mark.slow
@pytest.mark.parametrize("event", ["progress", "step", "checkpoint"])
def test_a_killed_run_resumes_and_gives_the_same_model(photos, rounded, quick, tmp_path, event):
    seen = []

    def listen(entry):
        seen.append(entry["event"])
        if seen.count(event) == (20 if event == "progress" else 3):
            raise Stop

    with pytest.raises(Stop):
        run(photos, rounded, tmp_path / "mine", listen=listen)
    with pytest.raises(ValueError, match="interrupted run: continue it with --resume"):
        run(photos, rounded, tmp_path / "mine")
    resumed = run(photos, rounded, tmp_path / "mine", resume=True)
    whole = run(photos, rounded, tmp_path / "other")
    first, second = (load_file(one.folder / "model.safetensors", "cpu") for one in (resumed, whole))
    assert same_tensors(first, second)
    assert [one.after for one in resumed.examples] == [one.after for one in whole.examples]


def test_damaged_features_are_computed_again(photos, rounded, tmp_path):
    seen = []

    def listen(entry):
        seen.append(entry)
        if entry["event"] == "start":
            raise Stop

    with pytest.raises(Stop):
        run(photos, rounded, tmp_path / "mine", listen=listen)
    (shard,) = tmp_path.rglob("mine.work/features/shard-00000.safetensors")
    whole = shard.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    shard.write_bytes(damaged)
    with pytest.raises(Stop):
        run(photos, rounded, tmp_path / "mine", listen=listen, resume=True)
    assert shard.read_bytes() == whole


@pytest.mark.slow
def test_a_run_with_other_captions_does_not_continue(photos, rounded, quick, tmp_path):
    def listen(entry):
        raise Stop

    with pytest.raises(Stop):
        run(photos, rounded, tmp_path / "mine", listen=listen)
    table = (photos / "captions.csv").read_text().splitlines()
    (tmp_path / "fewer.csv").write_text("\n".join(table[:-2]))
    with pytest.raises(ValueError, match="not those of the interrupted run"):
        finetune(
            photos,
            tmp_path / "fewer.csv",
            output=tmp_path / "mine",
            model=rounded,
            resume=True,
        )


@pytest.mark.slow
def test_the_start_is_kept_if_training_does_not_help(photos, rounded, quick, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "ngsan.finetuning.run.caption_photos",
        lambda model, given, *_args, **_options: {
            photo.id: photo.captions[0] if model == rounded else "nothing" for photo in given
        },
    )
    result = run(photos, rounded, tmp_path / "mine")
    assert not result.improved
    assert result.new_words == ()
    before, after = (
        load_file(folder / "model.safetensors", "cpu") for folder in (rounded, result.folder)
    )
    assert same_tensors(before, after)
    assert "kept as it was" in (tmp_path / "mine" / PAGE).read_text()


@pytest.mark.slow
def test_signals_stop_a_run(photos, rounded, quick, tmp_path):
    import os
    import signal

    def listen(entry):
        if entry["event"] == "step":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedRunError):
        run(photos, rounded, tmp_path / "mine", listen=listen)
    assert run(photos, rounded, tmp_path / "mine", resume=True).folder.is_dir()


@pytest.mark.slow
def test_broken_pictures_are_skipped(photos, rounded, quick, tmp_path):
    pictures = shutil.copytree(photos, tmp_path / "photos")
    for name in ("3.png", "9.png"):
        (pictures / name).write_bytes(b"broken")
    notes = []
    result = run(pictures, rounded, tmp_path / "mine", listen=notes.append)
    texts = [entry["text"] for entry in notes if entry["event"] == "note"]
    assert sum("unsupported image format" in text for text in texts) == 2
    report = json.loads((result.folder / REPORT).read_text())
    assert sum(report["pictures"].values()) == 38


def test_few_pictures_are_refused_in_one_line(photos, tmp_path, capsys):
    table = (photos / "captions.csv").read_text().splitlines()
    (tmp_path / "few.csv").write_text("\n".join(table[:3]))
    arguments = [str(photos), str(tmp_path / "few.csv"), "-o", str(tmp_path / "few")]
    assert main(["finetune", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "1 captioned picture: fine-tuning needs 20 at least" in error


def test_dry_run_shows_what_would_be_learned(photos, rounded, tmp_path, capsys):
    arguments = [str(photos), str(photos / "captions.csv"), "--model", str(rounded), "--dry-run"]
    assert main(["finetune", *arguments]) == 0
    output = capsys.readouterr().out
    assert "34 photographs to learn from, with 66 captions; 6 held out" in output
    assert "1 new words: wug (" in output
    assert list(tmp_path.iterdir()) == []


def test_held_out_pictures_stay_held_out_when_others_are_added(photos, rounded, tmp_path):
    table = (photos / "captions.csv").read_text().splitlines()
    (tmp_path / "fewer.csv").write_text("\n".join(table[:61]))
    more, fewer = (
        open_job(photos, path, rounded)
        for path in (photos / "captions.csv", tmp_path / "fewer.csv")
    )
    names = {photo.path.name for photo in more.held_out}
    assert {photo.path.name for photo in fewer.held_out if photo.path.name in names}
    assert not {photo.path for photo in more.train} & {photo.path for photo in more.held_out}


@pytest.mark.slow
def test_the_result_is_a_packed_model(photos, rounded, tmp_path):
    result = run(photos, rounded, tmp_path / "mine")
    captioner = ngsan.load(result.folder)
    assert type(captioner.backend).__name__ == "OnnxBackend"
    by_torch = ngsan.load(result.folder, device="cpu")
    names = [photos / f"{number}.png" for number in range(6)]
    assert [one.text for one in captioner.caption(names)]
    assert by_torch.vocabulary.words == captioner.vocabulary.words
    again = finetune(
        photos,
        photos / "captions.csv",
        output=tmp_path / "again",
        model=result.folder,
        threads=1,
    )
    assert again.scores[0].before == pytest.approx(result.scores[0].after, abs=1e-6)
