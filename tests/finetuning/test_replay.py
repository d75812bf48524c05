"""Ordinary pictures that are replayed, and their loss."""

import copy

import numpy as np
import pytest
import torch

from ngsan.finetuning.encoded import Start, top_of
from ngsan.finetuning.replay import REPLAY, available, read_replay, test_card, unlike, write_replay
from ngsan.finetuning.task import ReplayLoss
from ngsan.predict.backend_onnx import OnnxBackend
from ngsan.predict.captioner import PHOTO_MODEL

test_card.__test__ = False


def test_cells_survive_four_bits(tmp_path):
    random = np.random.default_rng(0)
    cells = random.normal(size=(30, 4, 6)).astype(np.float32) * np.arange(1, 7, dtype=np.float32)
    card = random.normal(size=(4, 6)).astype(np.float32)
    write_replay(tmp_path / "cells", cells, card, "a test")
    assert available(tmp_path / "cells") == 30
    found = read_replay(card, 20, tmp_path / "cells")
    step = (cells.max((0, 1)) - cells.min((0, 1))) / 15
    assert found.shape == (20, 4, 6)
    assert (np.abs(found - cells[:20]) <= 0.51 * step + 1e-6).all()


def test_another_backbone_has_no_replay(tmp_path):
    random = np.random.default_rng(0)
    cells, card = random.normal(size=(5, 4, 6)), random.normal(size=(4, 6))
    write_replay(tmp_path / "cells", cells.astype(np.float32), card, "a test")
    assert len(read_replay(card + 0.01, 5, tmp_path / "cells")) == 5
    assert len(read_replay(random.normal(size=(4, 6)), 5, tmp_path / "cells")) == 0
    assert len(read_replay(card[:, :4], 5, tmp_path / "cells")) == 0
    assert len(read_replay(card, 5, tmp_path / "none")) == 0


def test_the_shipped_pictures_are_those_of_the_shipped_backbone():
    card = OnnxBackend(PHOTO_MODEL, threads=1).describe(test_card(256)[None])[0][0]
    cells = read_replay(card, 3)
    assert cells.shape == (3, 64, 352)
    assert available(REPLAY) == 400


def test_pictures_of_the_users_own_kind_are_not_replayed():
    random = np.random.default_rng(0)
    kinds = random.normal(size=(4, 32)) * 3

    def pictures(kind, count):
        return (kinds[kind] + random.normal(size=(count, 32))).astype(np.float32)

    mine = np.concatenate((pictures(0, 40), pictures(1, 40)))
    ordinary = np.concatenate([pictures(kind, 50) for kind in range(4)])
    kept = np.bincount(unlike(mine, ordinary) // 50, minlength=4)
    assert (kept[2:] == 50).all()
    assert 40 <= kept[:2].sum() <= 60
    # The user's pictures are all the same, and all unlike each other.
    assert len(unlike(np.repeat(mine[:1], 30, 0), ordinary)) == 200
    assert len(unlike(-20 * np.eye(32, dtype=np.float32)[:20], ordinary)) == 100


def test_the_loss_is_that_of_its_definition(rounded):
    model = top_of(Start.load(rounded).model, 1).eval()
    teacher = copy.deepcopy(model)
    with torch.no_grad():
        model.decoder.output.bias.normal_()
    random = torch.Generator().manual_seed(0)
    size = model.decoder.output.out_features
    features = torch.randn(3, 4, 32, generator=random)
    targets = torch.randint(1, size, (3, 2, 5), generator=random)
    words = torch.nn.functional.pad(targets[..., :-1], (1, 0))
    lengths = torch.tensor([[5, 3], [4, 0], [2, 5]])
    real = torch.arange(5) < lengths[..., None]
    replayed, known = torch.tensor([False, True, False]), size - 2
    loss = ReplayLoss(model, teacher, known, label_smoothing=0.1)
    total, count = loss(features, None, None, words, targets, real, replayed)
    wanted = 0.0
    with torch.no_grad():
        logits = model(features, None, None, words).log_softmax(-1)
        given = teacher(features, None, None, words)
        given[..., known:] = -torch.inf
        given = given.softmax(-1)
    for image, caption, place in real.nonzero().tolist():
        row = logits[image, caption, place]
        if replayed[image]:
            wanted -= float(given[image, caption, place] @ row)
        else:
            target = targets[image, caption, place]
            wanted -= 0.9 * float(row[target]) + 0.1 * float(row.mean())
    assert int(count) == int(lengths.sum())
    assert float(total.detach()) == pytest.approx(wanted, rel=1e-4)
    assert all(parameter.requires_grad for parameter in loss.parameters())
    assert len(list(loss.parameters())) == len(list(model.parameters()))
