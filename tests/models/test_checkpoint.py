import errno
import hashlib
import json
import os
import random
import shutil
from dataclasses import asdict, dataclass, field

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ngsan.config import CaptionerConfig
from ngsan.models import build_captioner, checkpoint
from ngsan.models.checkpoint import (
    copy_model,
    load_model,
    model_signature,
    read_checkpoint,
    read_metrics,
    save_model,
)
from ngsan.models.weights import content_signature, on_host
from ngsan.text.vocabulary import Vocabulary
from tests.kills import end_of, fork, kills, random_kills

WORDS = ("a", "man", "on", "horse", "<unk>")
FILES = ["config.yaml", "metrics.json", "model.safetensors", "signature.json", "vocabulary.json"]


def config(**overrides):
    small = dict(feature_dim=7, dim=16, heads=2, hidden_dim=24, layers=1, geometry_dim=6)
    return CaptionerConfig.for_model("ng-san", vocab_size=6, **{**small, **overrides})


def save(folder, dtype=torch.float32, **overrides):
    """Saves a small model and returns it."""
    captioner = build_captioner(config(**overrides)).to(dtype)
    save_model(folder, captioner, config(**overrides), {"vocabulary": Vocabulary(WORDS)})
    return captioner


def run(captioner):
    dtype = captioner.decoder.embed.weight.dtype
    features = torch.linspace(-1, 1, 2 * 3 * 7, dtype=dtype).view(2, 3, 7)
    boxes = torch.linspace(0.1, 0.6, 2 * 3 * 4).view(2, 3, 4)
    words = torch.tensor([[0, 1, 2], [0, 5, 4]])
    with torch.no_grad():
        return captioner(features, boxes, None, words)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "overrides", [{}, {"norm": "batch", "norm_place": "pre"}, {"signed_geometry": True}], ids=str
)
def test_save_and_load_round_trip(tmp_path, dtype, overrides):
    captioner = save(tmp_path / "deep" / "model", dtype, **overrides)
    for buffer in captioner.buffers():
        buffer.copy_(torch.rand_like(buffer, dtype=torch.float32))
    save_model(
        tmp_path / "deep" / "model",
        captioner,
        config(**overrides),
        {"vocabulary": Vocabulary(WORDS)},
    )
    loaded, its_config, companions = load_model(tmp_path / "deep" / "model", "captioning")
    vocabulary = companions["vocabulary"]
    assert its_config == config(**overrides)
    assert vocabulary.words == WORDS
    assert not loaded.training
    assert loaded.decoder.embed.weight.dtype == dtype
    state, expected = loaded.state_dict(), captioner.state_dict()
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), name
        assert state[name].dtype == tensor.dtype, name
    torch.testing.assert_close(run(loaded), run(captioner.eval()), atol=0, rtol=0)


def test_saving_replaces_the_old_model(tmp_path):
    save(tmp_path)
    second = save(tmp_path, layers=2)
    loaded, its_config, _ = load_model(str(tmp_path), "captioning")
    assert its_config.layers == 2
    assert torch.equal(run(loaded), run(second.eval()))


def test_saving_leaves_no_temporary_files(tmp_path):
    save(tmp_path)
    save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


@pytest.mark.parametrize("name", ["config.yaml", "vocabulary.json", "model.safetensors"])
def test_missing_file_error_names_it(tmp_path, name):
    save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=f"is not a model: {name} missing"):
        load_model(tmp_path, "captioning")


def test_missing_folder_raises(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a model: .* and .* and .* missing"):
        load_model(tmp_path / "nowhere", "captioning")


@pytest.mark.parametrize("keep", [0, 7, 500, -1])
def test_damaged_weights_raise(tmp_path, keep):
    save(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(ValueError, match="model.safetensors: damaged or no weights"):
        load_model(tmp_path, "captioning")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vocabulary.json", "{"),
        ("vocabulary.json", "[]"),
        ("config.yaml", "model: {layers: none}"),
        ("config.yaml", "model: {vocab: 6}"),
        ("config.yaml", "a: ["),
    ],
)
def test_damaged_file_error_names_it(tmp_path, name, text):
    save(tmp_path)
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=name):
        load_model(tmp_path, "captioning")


def test_model_of_another_task_raises(tmp_path):
    captioner = build_captioner(config())
    save_model(tmp_path, captioner, config(), {"vocabulary": Vocabulary(WORDS)}, task="translation")
    with pytest.raises(ValueError, match="is a model for translation, not for captioning"):
        load_model(tmp_path, "captioning")


def test_wrong_vocabulary_raises(tmp_path):
    save(tmp_path)
    Vocabulary(WORDS[:-1]).save(tmp_path / "vocabulary.json")
    with pytest.raises(ValueError, match="belongs to vocabulary .* they do not match"):
        load_model(tmp_path, "captioning")
    swapped = Vocabulary([*WORDS[1::-1], *WORDS[2:]])
    swapped.save(tmp_path / "vocabulary.json")
    with pytest.raises(ValueError, match=f"{swapped.signature}.*do not match"):
        load_model(tmp_path, "captioning")


def test_edited_vocabulary_raises(tmp_path):
    save(tmp_path)
    path = tmp_path / "vocabulary.json"
    content = json.loads(path.read_text("utf-8"))
    content["words"][0] = "the"
    path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(ValueError, match="the file was edited"):
        load_model(tmp_path, "captioning")


def test_weights_of_another_config_raise(tmp_path):
    save(tmp_path / "one")
    save(tmp_path / "two", layers=2)
    save(tmp_path / "wide", hidden_dim=32)
    weights = (tmp_path / "one" / "model.safetensors").read_bytes()
    for other, message in (
        ("two", "saved with layers: 1, and config.yaml says model.layers: 2"),
        ("wide", "saved with hidden_dim: 24, and config.yaml says model.hidden_dim: 32"),
    ):
        (tmp_path / other / "model.safetensors").write_bytes(weights)
        with pytest.raises(ValueError, match=f"does not fit config.yaml: it was {message}"):
            load_model(tmp_path / other, "captioning")


def metadata_of(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return file.metadata()


def rewrite(folder, *, without=(), tensors=None, **metadata):
    """Rewrites the weights file with other content and a valid signature."""
    path = folder / "model.safetensors"
    meta = {**metadata_of(folder), **metadata}
    meta = {key: value for key, value in meta.items() if key not in without}
    tensors = load_file(path) if tensors is None else tensors
    if "signature" not in without:
        meta["signature"] = content_signature(tensors, meta)
    save_file(tensors, path, metadata=meta)


def test_extra_missing_or_misshapen_tensor_is_named(tmp_path):
    save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    bias = tensors.pop("decoder.output.bias")
    for other, message in (
        (tensors, r"decoder.output.bias is absent, expected \(6,\)"),
        ({**tensors, "decoder.output.bias": bias[:5].clone()}, r"is \(5,\), expected \(6,\)"),
        (
            {**tensors, "decoder.output.bias": bias, "a.b": bias[:2].clone()},
            r"a.b is \(2,\), expected nothing of that name",
        ),
    ):
        rewrite(tmp_path, tensors=other)
        with pytest.raises(ValueError, match=f"does not fit config.yaml: .*{message}"):
            load_model(tmp_path, "captioning")
    rewrite(tmp_path, tensors={**tensors, "decoder.output.bias": bias})
    load_model(tmp_path, "captioning")


def test_saving_with_wrong_vocabulary_size_raises(tmp_path):
    captioner = build_captioner(config())
    with pytest.raises(ValueError, match="the vocabulary has 5 entries and the model 6"):
        save_model(tmp_path / "model", captioner, config(), {"vocabulary": Vocabulary(WORDS[:-1])})
    assert not (tmp_path / "model").exists()


@dataclass(frozen=True)
class Run:
    """A run configuration, as the training command saves it."""

    name: str = "first"
    """A word."""

    model: CaptionerConfig = field(default_factory=config)
    """The captioner."""


def flip(content, place, value):
    assert content[place] != value
    return content[:place] + bytes([value]) + content[place + 1 :]


def weights_of(folder):
    return read_checkpoint(folder, "captioning").tensors


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_signature_covers_metadata_and_tensors(tmp_path):
    captioner = save(tmp_path)
    metadata = metadata_of(tmp_path)
    rest = {key: metadata[key] for key in ("config", "format", "metrics", "task", "vocabulary")}
    assert metadata == {**rest, "signature": model_signature(tmp_path)}
    digest = hashlib.sha256(json.dumps(dict(sorted(rest.items()))).encode())
    for name, tensor in sorted(captioner.state_dict().items()):
        digest.update(json.dumps([name, "torch.float32", list(tensor.shape)]).encode())
        digest.update(tensor.numpy().tobytes())
    assert digest.hexdigest() == metadata["signature"]


def test_signatures_are_equal_only_for_equal_models(tmp_path):
    captioner = save(tmp_path / "one")

    def signature(**arguments):
        given = {"model": captioner, "companions": {"vocabulary": Vocabulary(WORDS)}, **arguments}
        save_model(tmp_path / "two", config=config(), **given)
        return model_signature(tmp_path / "two")

    assert signature() == model_signature(tmp_path / "one")
    others = [
        signature(metrics={"CIDEr-D": 1.0}),
        signature(task="translation"),
        signature(companions={"vocabulary": Vocabulary(WORDS[::-1])}),
        signature(model=build_captioner(config())),
    ]
    assert len({*others, signature()}) == 5


def test_every_changed_byte_of_the_weights_is_detected(tmp_path, monkeypatch):
    save(tmp_path)
    path = tmp_path / "model.safetensors"
    few = ("decoder.embed.weight", "decoder.output.bias")  # as the header names each of them
    rewrite(tmp_path, tensors={name: load_file(path)[name] for name in few})
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    # Not under test here, and slow to read each time.
    monkeypatch.setattr(checkpoint, "_read_config", lambda path, kind: config())
    rng = random.Random(0)
    places = rng.sample(range(header), 300) + rng.sample(range(header, len(content)), 100)
    for place in places:
        value = content[place] ^ rng.choice([1, 2, 0x20, 0x80, 0xFF])
        path.write_bytes(flip(content, place, value))
        with pytest.raises(ValueError, match="model.safetensors: damaged"):
            load_model(tmp_path, "captioning")
    for place in range(header - 8, header):
        for value in b"\t\n\r ":  # white space in JSON
            if content[place] != value:
                path.write_bytes(flip(content, place, value))
                with pytest.raises(ValueError, match="model.safetensors: damaged"):
                    load_model(tmp_path, "captioning")
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not fit config.yaml"):
        load_model(tmp_path, "captioning")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x02\0\0\0\0\0\0\0{}",
        b"\x02\0\0\0\0\0\0\0[]",
        b"\xff\xff\xff\xff\xff\xff\xff\xff{}",
        (200_000).to_bytes(8, "little") + b'{"a":' * 40_000,
        (200_001).to_bytes(8, "little") + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=len,
)
def test_files_without_weights_raise(tmp_path, content):
    save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    for read in (load_model, read_metrics, model_signature):
        with pytest.raises(ValueError, match="model.safetensors: damaged or no weights"):
            read(tmp_path)


def test_missing_signature_raises(tmp_path):
    save(tmp_path)
    rewrite(tmp_path, without=["signature"])
    with pytest.raises(ValueError, match="no signature in its metadata; save the model anew"):
        load_model(tmp_path, "captioning")


@pytest.mark.parametrize("name", ["config", "vocabulary"])
def test_missing_metadata_raises(tmp_path, name):
    save(tmp_path)
    rewrite(tmp_path, without=[name])
    with pytest.raises(ValueError, match="configuration is not known|belongs to vocabulary None"):
        load_model(tmp_path, "captioning")


def test_missing_config_key_gets_its_default(tmp_path):
    save(tmp_path)
    values = asdict(config())
    assert values.pop("backend") == CaptionerConfig().backend
    rewrite(tmp_path, config=json.dumps(values))
    assert load_model(tmp_path, "captioning")[1] == config()
    rewrite(tmp_path, config=json.dumps({**values, "unheard_of": 1}))
    with pytest.raises(ValueError, match="configuration is not known: unknown key 'unheard_of'"):
        load_model(tmp_path, "captioning")


def test_only_the_model_section_of_a_run_config_is_read(tmp_path):
    captioner = build_captioner(config())
    save_model(tmp_path, captioner, config(), {"vocabulary": Vocabulary(WORDS)}, run=Run())
    text = (tmp_path / "config.yaml").read_text("utf-8")
    assert "name: first" in text
    assert load_model(tmp_path, "captioning")[1] == config()
    (tmp_path / "config.yaml").write_text(text.replace("layers: 1", "layers: 0"), "utf-8")
    with pytest.raises(ValueError, match="config.yaml: model.layers: 0 must be at least 1"):
        load_model(tmp_path, "captioning")
    for other in ("", "name: first", "[]"):
        (tmp_path / "config.yaml").write_text(other, "utf-8")
        with pytest.raises(ValueError, match="config.yaml: no section 'model'"):
            load_model(tmp_path, "captioning")
    with pytest.raises(ValueError, match="run.model: .*layers=2.* is not the model's"):
        save_model(
            tmp_path,
            captioner,
            config(),
            {"vocabulary": Vocabulary(WORDS)},
            run=Run(model=config(layers=2)),
        )


def test_metrics_round_trip(tmp_path):
    captioner = build_captioner(config())
    scores = {"CIDEr-D": 1.1250000000000002, "epoch": 3, "of": {"val": [1, None]}, "é": "ü"}
    save_model(tmp_path, captioner, config(), {"vocabulary": Vocabulary(WORDS)}, metrics=scores)
    assert read_metrics(tmp_path) == scores
    assert json.loads((tmp_path / "metrics.json").read_text("utf-8")) == scores
    about = json.loads((tmp_path / "signature.json").read_text("utf-8"))
    assert about == {
        "format": 1,
        "signature": model_signature(tmp_path),
        "task": "captioning",
        "vocabulary": Vocabulary(WORDS).signature,
    }
    save(tmp_path)
    assert read_metrics(tmp_path) == {}
    for wrong in ({"a": float("nan")}, {"a": torch.ones(1)}):
        with pytest.raises(ValueError, match="metrics: .*; pass finite numbers"):
            save_model(
                tmp_path, captioner, config(), {"vocabulary": Vocabulary(WORDS)}, metrics=wrong
            )
    for wrong in ("[]", "{"):
        rewrite(tmp_path, metrics=wrong)
        with pytest.raises(ValueError, match="damaged or no weights: its metrics"):
            read_metrics(tmp_path)


@pytest.mark.parametrize("name", ["metrics.json", "signature.json"])
def test_redundant_files_may_be_stale_or_missing(tmp_path, name):
    captioner = save(tmp_path)
    (tmp_path / name).write_text("{", "utf-8")
    assert same(weights_of(tmp_path), captioner.state_dict())
    (tmp_path / name).unlink()
    assert same(weights_of(tmp_path), captioner.state_dict())


def test_saving_tensors_other_than_the_models_own(tmp_path):
    captioner, other = build_captioner(config()), build_captioner(config())
    flat = torch.cat([tensor.flatten() for tensor in other.state_dict().values()])
    sizes = [tensor.numel() for tensor in other.state_dict().values()]
    averaged = {  # views of one buffer, as weight averaging returns them
        name: part.view_as(tensor)
        for (name, tensor), part in zip(other.state_dict().items(), flat.split(sizes), strict=True)
    }
    save_model(tmp_path, captioner, config(), {"vocabulary": Vocabulary(WORDS)}, tensors=averaged)
    assert same(weights_of(tmp_path), other.state_dict())
    before = weights_of(tmp_path)
    name = next(iter(averaged))
    for wrong in ({name: averaged[name]}, {**averaged, name: averaged[name][:1]}):
        with pytest.raises(ValueError, match="tensors do not fit the model: .* expected"):
            save_model(
                tmp_path, captioner, config(), {"vocabulary": Vocabulary(WORDS)}, tensors=wrong
            )
    assert same(weights_of(tmp_path), before)


def test_shared_and_transposed_tensors_can_be_saved(tmp_path):
    shared = torch.arange(6.0).view(2, 3)
    found = on_host({"a": shared, "b": shared, "c": shared.T, "d": shared[0], "e": shared[1]})
    save_file(found, tmp_path / "file")
    loaded = load_file(tmp_path / "file")
    assert torch.equal(loaded["a"], shared)
    assert torch.equal(loaded["b"], shared)
    assert torch.equal(loaded["c"], shared.T)
    assert torch.equal(torch.stack([loaded["d"], loaded["e"]]), shared)


def test_unchanged_files_are_not_rewritten(tmp_path):
    save(tmp_path)
    names = ("config.yaml", "vocabulary.json", "model.safetensors")
    before = {name: (tmp_path / name).stat().st_ino for name in names}
    opened = (tmp_path / "model.safetensors").open("rb")
    with opened:
        save(tmp_path)
        after = {name: (tmp_path / name).stat().st_ino for name in names}
    assert [name for name in names if before[name] != after[name]] == ["model.safetensors"]


def outcome(folder, *known):
    """The index of the known weights that a folder holds; None if loading fails."""
    try:
        found = weights_of(folder)
    except ValueError:
        return None
    (which,) = [index for index, weights in enumerate(known) if same(found, weights)]
    return which


def make_model(words=WORDS, **overrides):
    captioner = build_captioner(config(**overrides))

    def write(folder):
        save_model(folder, captioner, config(**overrides), {"vocabulary": Vocabulary(words)})

    return captioner.state_dict(), write


@pytest.mark.parametrize(
    ("other", "linked"),
    [
        ({"dropout": 0.5}, False),  # only the configuration distinguishes the weights
        ({}, True),
        pytest.param({}, False, marks=pytest.mark.slow),
        pytest.param({"words": WORDS[::-1]}, False, marks=pytest.mark.slow),
        pytest.param({"dropout": 0.5, "words": WORDS[::-1]}, True, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_kill_leaves_the_old_or_the_new_model(tmp_path, other, linked):
    old, write_old = make_model()
    new, write_new = make_model(**other)
    folder = tmp_path / "model"
    write_new(tmp_path / "source")
    write_old(tmp_path / "old")

    def replace():
        if linked:
            copy_model(tmp_path / "source", folder)
        else:
            write_new(folder)

    found = []
    shutil.copytree(tmp_path / "old", folder)
    for _ in kills(replace):
        found.append(outcome(folder, old, new))
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "old", folder)
    assert found[0] == 0
    assert found[-1] == 1
    order = [step for step, before in zip(found, [-1, *found], strict=False) if step != before]
    assert order == ([0, None, 1] if other else [0, 1])


@pytest.mark.slow
def test_kill_during_the_first_save_leaves_no_model(tmp_path):
    new, write = make_model()
    found = [outcome(tmp_path / "model", new) for _ in kills(lambda: write(tmp_path / "model"))]
    assert found[0] is None
    assert found[-1] == 0
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == FILES


@pytest.mark.slow
def test_random_kills_leave_a_whole_model(tmp_path):
    both = make_model(), make_model()
    both[0][1](tmp_path)

    def replace(turn):
        both[turn % 2][1](tmp_path)

    for _ in random_kills(replace, times=25, max_length=0.05):
        assert outcome(tmp_path, both[0][0], both[1][0]) in (0, 1)
    both[1][1](tmp_path)
    assert outcome(tmp_path, both[0][0], both[1][0]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


@pytest.mark.parametrize("other", [{}, {"layers": 2}], ids=str)
def test_full_disk_leaves_the_old_model(tmp_path, monkeypatch, other):
    captioner = save(tmp_path)

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device: '.*model.safetensors'"):
        save(tmp_path, **other)
    monkeypatch.undo()
    assert same(weights_of(tmp_path), captioner.state_dict())
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_file_size_limit_leaves_the_old_model(tmp_path):
    resource = pytest.importorskip("resource")
    captioner = save(tmp_path)

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        with pytest.raises(OSError, match="File too large: '.*model.safetensors'"):
            save(tmp_path)

    assert end_of(fork(limited)) == 0
    assert same(weights_of(tmp_path), captioner.state_dict())
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_copy_model(tmp_path):
    source, target = tmp_path / "source", tmp_path / "deep" / "target"
    first, write = make_model()
    write(source)
    (source / "metrics.json").unlink()
    (source / "signature.json").write_text("{}", "utf-8")

    for _ in range(2):
        copy_model(source, target)
        assert same(weights_of(target), first)
        assert model_signature(target) == model_signature(source)
        assert sorted(path.name for path in target.iterdir()) == FILES
    about = json.loads((target / "signature.json").read_text("utf-8"))
    assert about["signature"] == model_signature(source)
    assert not (source / "model.safetensors").samefile(target / "model.safetensors")
    second, write = make_model()
    write(source)
    assert same(weights_of(target), first)
    copy_model(source, target)
    assert same(weights_of(target), second)


def test_copying_an_invalid_model_raises(tmp_path):
    _, write = make_model()
    write(tmp_path / "model")
    copy_model(tmp_path / "model", tmp_path / "model")
    load_model(tmp_path / "model", "captioning")
    with pytest.raises(ValueError, match="nowhere is not a model"):
        copy_model(tmp_path / "nowhere", tmp_path / "target")
    assert not (tmp_path / "target").exists()
    shutil.copytree(tmp_path / "model", tmp_path / "target")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="damaged or no weights"):
        copy_model(tmp_path / "model", tmp_path / "target")
    load_model(tmp_path / "target", "captioning")


def test_equal_models_are_saved_as_equal_bytes_in_every_process(tmp_path):
    # The library's metadata order depends on the hash seed of the process.
    _, write = make_model()
    for name in ("a", "b", "c", "d"):
        assert end_of(fork(lambda name=name: write(tmp_path / name))) == 0
    found = {(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b", "c", "d")}
    assert len(found) == 1


@pytest.mark.parametrize("name", ["config.yaml", "model.safetensors", "vocabulary.json"])
@pytest.mark.parametrize("kind", ["pipe", "holes"])
def test_model_folders_with_pipes_and_holes_are_refused(name, kind, tmp_path):
    save(tmp_path)
    (tmp_path / name).unlink()
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(ValueError, match="missing|not a regular file|damaged|more than"):
        load_model(tmp_path)
    if name == "model.safetensors":
        with pytest.raises(ValueError, match="damaged or no weights"):
            read_metrics(tmp_path)
