"""Validation of answerers uses the current weights, wherever an LSTM stores them."""

import dataclasses

import pytest
import torch
from torch import nn

from ngsan.config import RuntimeConfig
from ngsan.data.synthetic.folders import write_question_scenes
from ngsan.models.checkpoint import load_model
from ngsan.train.run import train
from ngsan.train.tasks import answering
from ngsan.train.tasks.answering import AnswerValidation
from tests.train.test_answering import small_run


def move_weights(lstm):
    """Moves the weights, as cuDNN does when an LSTM is moved to a device."""
    for weight in lstm._flat_weights:
        weight.data = weight.data.clone()


@pytest.mark.filterwarnings("ignore:RNN module weights")
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
        ),
    ],
)
def test_validated_weights_are_saved(tmp_path, monkeypatch, device):
    validated = []

    class Watched(AnswerValidation):
        def __call__(self):
            weights = self._model.state_dict().items()
            validated.append({name: tensor.cpu().clone() for name, tensor in weights})
            return super().__call__()

    monkeypatch.setattr(answering, "AnswerValidation", Watched)
    if device == "cpu":
        monkeypatch.setattr(nn.LSTM, "flatten_parameters", move_weights)
    write_question_scenes(tmp_path / "scenes", {"train": 20, "val": 10}, max_objects=3)
    run = small_run(tmp_path / "scenes")
    machine = RuntimeConfig(device=device, precision="float32", threads=1, compile=False)
    learning = dataclasses.replace(run.training, epochs=1)
    train(dataclasses.replace(run, runtime=machine, training=learning), tmp_path / "run")
    saved = load_model(tmp_path / "run", "answering")[0].state_dict()
    (seen,) = validated
    assert [name for name in saved if not torch.equal(seen[name], saved[name])] == []
