"""Training translators on a small artificial language; resuming and invalid settings."""

import dataclasses
import os
import signal
from itertools import permutations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

from ngsan.config import (
    ParallelConfig,
    TranslationConfig,
    TranslationPhaseConfig,
    read_yaml,
    to_yaml,
)
from ngsan.data.parallel.batches import PairTable, TokenBatches
from ngsan.data.parallel.dataset import ParallelSplit
from ngsan.models.build import build_translator
from ngsan.models.checkpoint import load_model
from ngsan.models.translator import TranslatorModel
from ngsan.predict.translator import load_translator as open_translator
from ngsan.train.run import InterruptedRunError, train
from ngsan.train.tasks.translation import TranslationLoss, TranslationPhase
from tests.train.helpers import same_tensors
from tests.translation_helpers import backwards_folder, small_run, translated

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return backwards_folder(tmp_path_factory.mktemp("backwards") / "texts")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["transformer", "transformer-nsa"])
def test_translator_learns_reversed_sentences(folder, tmp_path, model):
    entries = []
    train(small_run(folder, model, epochs=6), tmp_path / "run", listen=entries.append)
    best = max(entry["metrics"]["BLEU"] for entry in entries if entry["event"] == "epoch")
    assert best > 90
    start = next(entry for entry in entries if entry["event"] == "start")
    assert (start["model"], start["sentences"]) == (model, 1500)
    assert any(entry.get("tokens_per_second", 0) > 0 for entry in entries)
    right, _ = accuracy_and_chance(tmp_path / "run", folder)
    assert right > 0.8


def accuracy_and_chance(run, folder):
    """The share of test sentences translated correctly, and the expected share of a model that
    knows the words but not their order.
    """
    sources = ParallelSplit(folder, "val").texts("source")
    found = open_translator(run, device="cpu").translate(sources)
    right = [one.text == translated(text) for text, one in zip(sources, found, strict=True)]
    orders = [len(set(permutations(text.split()))) for text in sources]
    return np.mean(right), np.mean([1 / count for count in orders])


def encode_without_positions(self, source, mask=None, *, record=None):
    """`TranslatorModel.encode` without positions: a sentence is a set of words."""
    words = self.decoder.embed(source)
    return self.encoder(words * words.shape[-1] ** 0.5, mask, record=record)


@pytest.mark.slow
def test_translator_without_positions_does_not_learn_order(folder, tmp_path, monkeypatch):
    """The control for the test above: learning the order needs positions."""
    monkeypatch.setattr(TranslatorModel, "encode", encode_without_positions)
    train(small_run(folder, epochs=6), tmp_path / "run")
    right, chance = accuracy_and_chance(tmp_path / "run", folder)
    assert chance < 0.15
    assert right < 0.25


def test_loss_is_label_smoothed_cross_entropy(folder):
    split = ParallelSplit(folder, "train")
    torch.manual_seed(0)
    model = build_translator(
        "transformer-nsa", vocab_size=split.vocab_size, dim=16, heads=2, hidden_dim=16, layers=1
    ).eval()
    table = PairTable(split)
    batches = TokenBatches(split.lengths("source"), split.lengths("target"), 128, shapes=2)
    most = batches.max_targets(1)
    plain = TranslationLoss(model, label_smoothing=0.1)
    bounded = TranslationLoss(model, label_smoothing=0.1, capacities=most)
    for share in list(batches.epoch(0))[:4]:
        batch = table.batch(share.indices, share.width)
        inputs = dataclasses.asdict(batch)
        total, count = plain(**inputs)
        expected = 0.0
        words = 0
        for index in share.indices[share.indices >= 0]:
            source, target = (split.sentence(side, index) for side in ("source", "target"))
            scores = model(torch.tensor([[*source, 0]]), None, torch.tensor([[0, *target]]))[0]
            wanted = torch.tensor([*target, 0])
            log_probs = scores.log_softmax(-1)
            right = F.nll_loss(log_probs, wanted, reduction="sum")
            spread = -log_probs.mean(-1).sum()
            expected += 0.9 * right.item() + 0.1 * spread.item()
            words += len(wanted)
        assert count.item() == words
        assert total.item() == pytest.approx(expected, rel=1e-4)
        for one, other in zip((total, count), bounded(**inputs), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore")  # the compiler reads missing gradients
def test_equal_layers_are_compiled_once_per_shape(folder):
    split = ParallelSplit(folder, "train")
    model = build_translator(
        "transformer-nsa", vocab_size=split.vocab_size, dim=16, heads=2, hidden_dim=16, layers=3
    ).eval()
    batches = TokenBatches(split.lengths("source"), split.lengths("target"), 128, shapes=2)
    table = PairTable(split)
    shares = {share.width: share for share in batches.epoch(0, 0)}.values()
    assert len(shares) == 2
    loss = TranslationLoss(model, capacities={share.width: 128 for share in shares})
    phase = TranslationPhase(loss, TranslationPhaseConfig(), batches, table)
    given = [phase.prepare(table.batch(share.indices, share.width), 0)[0] for share in shares]
    wanted = [loss(**inputs)[0] for inputs in given]
    torch.compiler.reset()
    counters.clear()
    for part in phase.parts:
        part.compile(dynamic=False, backend="eager")
    found = [loss(**inputs)[0] for inputs in given]
    torch.testing.assert_close(found, wanted)
    # One encoder and one decoder layer in two shapes, and the loss in one.
    assert counters["stats"]["unique_graphs"] == 5
    torch.compiler.reset()


def test_target_counts(folder):
    split = ParallelSplit(folder, "train")
    lengths = split.lengths("target")
    batches = TokenBatches(split.lengths("source"), lengths, 256, shapes=3)
    for epoch in (0, 3):
        counts = [
            lengths[share.indices[share.indices >= 0]].sum() for share in batches.epoch(epoch)
        ]
        np.testing.assert_array_equal(batches.targets(epoch), counts)
    most = batches.max_targets(2)
    for epoch in (0, 1):
        widths = [share.width for share in batches.epoch(epoch)]
        counts = batches.targets(epoch)
        assert all(count <= most[width] for count, width in zip(counts, widths, strict=True))


def test_resumed_run_equals_an_uninterrupted_one(folder, tmp_path):
    run = small_run(folder, epochs=2)
    run = dataclasses.replace(
        run,
        cross_entropy=dataclasses.replace(run.cross_entropy, average_epochs=2, batch_size=1024),
        runtime=dataclasses.replace(run.runtime, log_steps=1),
    )
    train(run, tmp_path / "whole")

    def stop_at(step):
        def listen(entry):
            if entry["event"] == "step" and entry["step"] == step:
                os.kill(os.getpid(), signal.SIGTERM)

        return listen

    for step in (3, 15):
        with pytest.raises(InterruptedRunError):
            train(run, tmp_path / "parts", resume=step != 3, listen=stop_at(step))
    train(run, tmp_path / "parts", resume=True)
    (first, _, _), (second, _, _) = (
        load_model(tmp_path / name, "translation") for name in ("whole", "parts")
    )
    assert same_tensors(first.state_dict(), second.state_dict())


def test_invalid_settings_raise(folder, tmp_path):
    run = small_run(folder)
    with pytest.raises(ValueError, match="data.folder: pass the dataset"):
        train(dataclasses.replace(run, data=ParallelConfig()), tmp_path / "a")
    with pytest.raises(ValueError, match="holds no parallel text"):
        train(dataclasses.replace(run, data=ParallelConfig(folder=str(tmp_path))), tmp_path / "b")
    small = dataclasses.replace(run.cross_entropy, batch_size=5)
    with pytest.raises(ValueError, match="batch_size: .* cannot hold the longest sentence"):
        train(dataclasses.replace(run, cross_entropy=small), tmp_path / "c")
    with pytest.raises(ValueError, match="val_split: 'train' is also the training split"):
        ParallelConfig(val_split="train")


@pytest.mark.slow
def test_init_from_starts_with_the_given_model(folder, tmp_path):
    run = small_run(folder, epochs=1)
    train(run, tmp_path / "first")
    scores = []
    again = dataclasses.replace(run, init_from=str(tmp_path / "first"), seed=1)
    train(again, tmp_path / "second", listen=lambda entry: scores.append(entry.get("loss")))
    losses = [loss for loss in scores if loss is not None]
    assert losses[0] < 3.5
    wider = dataclasses.replace(again, model=dataclasses.replace(run.model, layers=1))
    with pytest.raises(ValueError, match="is of another shape than the model: model.layers"):
        train(wider, tmp_path / "third")
    assert "vocab_size: 320" in (tmp_path / "first" / "config.yaml").read_text()
    assert "task: translation" in to_yaml(run)


def test_run_resumes_with_its_saved_config(folder, tmp_path):
    run = small_run(folder, epochs=1)
    asked = dataclasses.replace(run, model=dataclasses.replace(run.model, vocab_size=999))
    train(asked, tmp_path)
    written = read_yaml(TranslationConfig, tmp_path / "config.yaml")
    assert written.model.vocab_size == 320
    for again in (written, asked):
        train(again, tmp_path, resume=True)
