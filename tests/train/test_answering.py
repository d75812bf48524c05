"""Training answerers: geometry is necessary, runs resume, model folders are complete."""

import dataclasses
import json
import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import ngsan
from ngsan.__main__ import main
from ngsan.config import (
    AnswerDataConfig,
    AnswererConfig,
    AnsweringConfig,
    AnswerPhaseConfig,
    AnswerValidationConfig,
    RuntimeConfig,
    ScheduleConfig,
    read_recipe,
    read_yaml,
)
from ngsan.config.data import SceneConfig
from ngsan.data.question_set import QuestionSet
from ngsan.data.synthetic.folders import answer_of, write_question_scenes
from ngsan.data.synthetic.scenes import sample_scenes
from ngsan.metrics.vqa import score_answers
from ngsan.models.build import build_answerer
from ngsan.models.checkpoint import load_model, read_metrics, read_task, save_model
from ngsan.predict.answerer import Answerer, TorchAnswerer
from ngsan.predict.answerer import load_answerer as open_answerer
from ngsan.train.run import InterruptedRunError, train
from ngsan.train.step import learning_rate
from ngsan.train.tasks.answering import AnswerLoss

RECIPES = Path(__file__).parents[2] / "src" / "ngsan" / "recipes"

SMALL = AnswererConfig(
    max_length=8,
    word_dim=8,
    dim=16,
    heads=2,
    hidden_dim=16,
    layers=1,
    flat_hidden_dim=8,
    flat_dim=16,
    geometry_dim=8,
)


def small_run(folder, **changes):
    run = AnsweringConfig(
        model=SMALL,
        data=AnswerDataConfig(folder=str(folder)),
        training=AnswerPhaseConfig(
            epochs=2, batch_size=16, schedule=ScheduleConfig("constant", 1e-3, 0)
        ),
        validation=AnswerValidationConfig(batch_size=17),
        runtime=RuntimeConfig(device="cpu", threads=1, log_steps=1),
    )
    return dataclasses.replace(run, **changes)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    write_question_scenes(folder, {"train": 60, "val": 30}, max_objects=3)
    return folder


@pytest.fixture(scope="module")
def trained(scenes, tmp_path_factory):
    output, entries = tmp_path_factory.mktemp("run"), []
    train(small_run(scenes), output, listen=entries.append)
    return output, entries


def torch_answerer(folder):
    answerer, config, companions = load_model(folder, "answering")
    return TorchAnswerer(answerer, config, companions["vocabulary"], companions["answers"])


def test_scene_questions_depend_only_on_boxes(scenes):
    data = QuestionSet(scenes, "train")
    found = Counter((question.question, question.answers[0]) for question in data.questions)
    assert len(found) == 4
    assert set(found.values()) == {15}
    for place, question in enumerate(data.questions):
        low, high = (
            data.store[question.image].boxes[:-1, :2]
            + sign * data.store[question.image].boxes[:-1, 2:] / 2
            for sign in (-1, 1)
        )
        things = range(len(low))
        inside = any(
            (low[b] <= low[a] + 1e-6).all() and (high[a] <= high[b] + 1e-6).all()
            for a in things
            for b in things
            if a != b
        )
        target = data.answers.words[int(data.batch([place]).targets[0].argmax())]
        assert target == question.answers[0]
        if "inside" in question.question:
            assert target == ("yes" if inside else "no")


@pytest.mark.slow
def test_answering_spatial_questions_needs_geometry(tmp_path):
    run = read_recipe("toy-questions")
    train(run, tmp_path / "gsa")
    assert read_metrics(tmp_path / "gsa")["accuracy"] > 92
    blind = dataclasses.replace(
        run,
        model=dataclasses.replace(run.model, geometry="none"),
        data=AnswerDataConfig(folder=str(tmp_path / "gsa" / "scenes")),
        training=dataclasses.replace(run.training, epochs=2),
    )
    train(blind, tmp_path / "mcan")
    assert 44 < read_metrics(tmp_path / "mcan")["accuracy"] < 58


def test_invalid_scenes_raise(tmp_path):
    with pytest.raises(ValueError, match="unknown question"):
        answer_of(next(sample_scenes(1)), "why?")
    with pytest.raises(ValueError, match="max_objects: among 6 to 6 objects"):
        write_question_scenes(tmp_path, {"train": 1}, min_objects=6, max_objects=6)


def test_loss_is_binary_cross_entropy(scenes):
    data = QuestionSet(scenes, "train")
    torch.manual_seed(0)
    config = dataclasses.replace(
        SMALL, vocab_size=len(data.words), answers=len(data.answers.words), feature_dim=32
    )
    model = build_answerer(config).eval()
    batch = data.batch([0, 1, 2], size=5)
    fields = {item.name: getattr(batch, item.name) for item in dataclasses.fields(batch)}
    total, count = AnswerLoss(model)(**fields)
    probabilities = model(
        batch.words, batch.word_mask, batch.features, batch.boxes, batch.mask
    ).sigmoid()[:3]
    targets = batch.targets[:3]
    expected = -(targets * probabilities.log() + (1 - targets) * (1 - probabilities).log()).sum()
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)
    assert count == 3


def test_trained_model_folder_is_complete(trained, scenes):
    output, entries = trained
    start = entries[0]
    assert (start["model"], start["questions"], start["validation_questions"]) == (
        "mcan-gsa",
        60,
        30,
    )
    assert read_task(output) == "answering"
    _, config, _ = load_model(output, "answering")
    assert config.features == "scenes of ngsan, regions x 32"
    assert read_yaml(AnsweringConfig, output / "config.yaml").model == config
    with pytest.raises(ValueError, match="a model for answering, not for captioning"):
        load_model(output, "captioning")
    with pytest.raises(ValueError, match=r"ngsan\.load_answerer"):
        ngsan.load(output)
    with pytest.raises(ValueError, match="it cannot read photographs"):
        open_answerer(output)
    data = QuestionSet(scenes, "val")
    answerer = Answerer(torch_answerer(output))
    given = {}
    for question in data.questions:
        found = data.store[question.image]
        given[question.id] = (
            answerer.answer_regions(found.features, found.boxes, question.question).answers[0].text
        )
    scores = score_answers(given, {question.id: question for question in data.questions})
    assert 100 * scores.overall == pytest.approx(read_metrics(output)["accuracy"])


def test_evaluate_command_answers_and_scores_a_split(trained, scenes, tmp_path, capsys):
    answers, scores = tmp_path / "answers.json", tmp_path / "scores.json"
    words = ["evaluate", str(trained[0]), "--data", str(scenes), "--split", "val"]
    words += ["--output", str(answers), "--device", "cpu"]
    assert main([*words, "--scores", str(scores), "--batch-size", "7"]) == 0
    assert "VQA|questions:30|people:10" in capsys.readouterr().out
    found, trained_to = json.loads(scores.read_text()), read_metrics(trained[0])
    assert found["accuracy"] == pytest.approx(trained_to["accuracy"])
    assert found["yes/no"] == pytest.approx(trained_to["yes/no"])
    rows = json.loads(answers.read_text())
    data = QuestionSet(scenes, "val")
    assert [str(row["question_id"]) for row in rows] == [asked.id for asked in data.questions]
    assert {row["answer"] for row in rows} <= {"yes", "no"}
    assert main([*words, "--metrics", "CIDEr"]) == 2
    assert "--metrics applies to captioners" in capsys.readouterr().err
    other = tmp_path / "other"
    write_question_scenes(other, {"train": 4, "val": 4}, max_objects=3)
    lines = [json.loads(line) for line in (other / "questions.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("answers")
    (other / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words[3] = str(other)
    assert main(words) == 0
    assert "not scored: 4 of the questions" in capsys.readouterr().out


def test_answers_have_attention_weights(trained, scenes):
    answerer = Answerer(torch_answerer(trained[0]))
    data = QuestionSet(scenes, "val")
    found = data.store[data.questions[0].image]
    given = answerer.answer_regions(
        found.features, found.boxes, "is one xylophone inside another?", num_return=2
    )
    assert len(given.answers) == 2
    probabilities = [answer.probability for answer in given.answers]
    assert probabilities == sorted(probabilities, reverse=True)
    assert given.unknown == ("xylophone",)
    assert given.regions.sum() == pytest.approx(1, abs=1e-5)
    assert len(given.regions) == len(found.features)
    assert sum(weight for _, weight in given.words) == pytest.approx(1, abs=1e-5)
    assert (
        len(answerer.answer_regions(found.features, found.boxes, "is", num_return=99).answers) == 2
    )
    with pytest.raises(ValueError, match="has no words"):
        answerer.answer_regions(found.features, found.boxes, "?")
    with pytest.raises(ValueError, match="num_return: 0"):
        answerer.answer_regions(found.features, found.boxes, "is", num_return=0)


def test_quantized_answerer_is_close(trained, tmp_path):
    answerer, config, companions = load_model(trained[0], "answering")
    save_model(tmp_path, answerer, config, companions, quantize=True)
    rounded = load_model(tmp_path, "answering")[0].state_dict()
    for name, tensor in answerer.state_dict().items():
        assert (tensor - rounded[name]).abs().max() <= tensor.abs().max() / 250, name
    answers = companions["answers"]
    with pytest.raises(ValueError, match="do not match"):
        save_model(tmp_path, answerer, config, {"vocabulary": answers, "answers": answers})


@pytest.mark.parametrize("where", ["host", "device"])
def test_resumed_run_equals_an_uninterrupted_one(scenes, trained, tmp_path, where):
    machine = RuntimeConfig(device="cpu", threads=1, log_steps=1, data=where)
    steps = []

    def stop(entry):
        if entry["event"] == "step":
            steps.append(entry)
            if len(steps) == 5:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRunError):
        train(small_run(scenes, runtime=machine), tmp_path, listen=stop)
    train(small_run(scenes, runtime=machine), tmp_path, resume=True)
    mine = load_model(tmp_path, "answering")[0].state_dict()
    its = load_model(trained[0], "answering")[0].state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in its)


def test_word_vectors_initialize_the_embedding(scenes, tmp_path):
    data = QuestionSet(scenes, "train")
    vector = np.linspace(-1, 1, 8)
    (tmp_path / "vectors.txt").write_text("inside " + " ".join(map(str, vector)) + "\n")
    run = small_run(
        scenes,
        data=AnswerDataConfig(folder=str(scenes), word_vectors=str(tmp_path / "vectors.txt")),
        training=AnswerPhaseConfig(epochs=1, schedule=ScheduleConfig("constant", 1e-12, 0)),
    )
    train(run, tmp_path / "run")
    answerer, _, _ = load_model(tmp_path / "run", "answering")
    (place,) = data.words.encode(["inside"])
    found = answerer.question.embed.weight[place].detach().numpy()
    np.testing.assert_allclose(found, vector, atol=1e-6)


def test_default_schedule_equals_mcan():
    rate = AnswerPhaseConfig().schedule
    found = [learning_rate(rate, step=7 * epoch + 3, steps=7, epochs=13) for epoch in range(13)]
    expected = [min(2.5e-5 * (epoch + 1), 1e-4) for epoch in range(10)] + [2e-5, 2e-5, 4e-6]
    assert found == pytest.approx(expected)


def test_question_only_model_needs_no_features(scenes, tmp_path):
    for name in ("questions.jsonl", "question_words.json", "answers.json"):
        (tmp_path / name).write_bytes((scenes / name).read_bytes())
    run = small_run(tmp_path, model=dataclasses.replace(SMALL, regions="none", geometry="none"))
    train(run, tmp_path / "run")
    answerer = open_answerer(tmp_path / "run")
    given = answerer.answer(None, "is one thing inside another?")
    assert given.regions is None
    assert len(given.answers) == 2


def test_run_resumes_with_its_saved_config(scenes, tmp_path):
    run = small_run(scenes)
    train(run, tmp_path)
    written = read_yaml(AnsweringConfig, tmp_path / "config.yaml")
    assert written.model.feature_dim == 32
    for again in (written, run):
        train(again, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": AnswerDataConfig()}, "pass the dataset, made by ngsan data questions"),
        ({"data": AnswerDataConfig(folder="nowhere")}, "nowhere"),
        ({"model": dataclasses.replace(SMALL, answers=3)}, r"model.answers: 3 does not fit"),
        ({"model": dataclasses.replace(SMALL, features="other")}, r"model.features: 'other'"),
        ({"runtime": RuntimeConfig(device="cuda")}, "finds no GPU"),
    ],
)
def test_invalid_settings_raise(scenes, tmp_path, changes, message):
    with pytest.raises((ValueError, OSError), match=message):
        train(small_run(scenes, **changes), tmp_path)


def test_invalid_config_values_raise():
    with pytest.raises(ValueError, match="also the training split"):
        AnswerDataConfig(train_split="val")
    with pytest.raises(ValueError, match="cannot both"):
        AnswerDataConfig(folder="a", scenes=SceneConfig())
    with pytest.raises(ValueError, match="epochs"):
        AnswerPhaseConfig(epochs=0)


def test_train_command_reads_the_task_from_the_config(tmp_path, capsys):
    config = tmp_path / "run.yaml"
    config.write_text("task: answering\ndata:\n  scenes: {train: 40, test: 20}\n")
    options = ["--training.epochs", "1", "--runtime.threads", "1", "--runtime.device", "cpu"]
    for key in ("dim", "hidden_dim", "flat_dim", "flat_hidden_dim", "word_dim"):
        options += [f"--model.{key}", "16"]
    options += ["--model.layers", "1", "--output", str(tmp_path / "run")]
    assert main(["train", str(config), *options]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "signature.json").read_text())["task"] == "answering"
