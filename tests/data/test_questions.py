"""Questions as records, as tensors from the store and in device memory; word vectors."""

import gzip

import numpy as np
import pytest
import torch

from ngsan.data.question_set import QuestionSet, ResidentQuestions
from ngsan.data.questions import (
    ANSWERS,
    QUESTIONS,
    WORDS,
    Question,
    count_answers,
    count_words,
    read_questions,
    write_questions,
)
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.data.text_files import read_vectors
from ngsan.text.answers import answer_accuracy

RECORDS = [
    Question("1", "7", "train", "What is red?", ("ball", "a ball", *["box"] * 8), "other", "what"),
    Question("2", "7", "train", "Is it big?", ("yes",) * 10, "yes/no", "is it"),
    Question("3", "8", "train", "Is it the big, big one?", ("no",) * 6 + ("yes",) * 4),
    Question("4", "9", "val", "?!", ("yes",) * 2 + ("purple",) * 8),
    Question("5", "9", "test", "What unheard-of word?"),
]


@pytest.fixture
def folder(tmp_path):
    write_questions(tmp_path, RECORDS)
    count_words(RECORDS[:3]).save(tmp_path / WORDS)
    count_answers(RECORDS[:3], more_than=0).save(tmp_path / ANSWERS)
    rng = np.random.default_rng(0)
    with StoreWriter(tmp_path, source="test") as writer:
        for image, count in (("7", 2), ("8", 4), ("9", 3)):
            boxes = rng.uniform(0.2, 0.4, (count, 4)).astype(np.float32)
            writer.add(image, Regions(rng.standard_normal((count, 5)), boxes))
    return tmp_path


def test_questions_round_trip(folder):
    assert list(read_questions(folder)) == RECORDS
    with pytest.raises(ValueError, match="exists already"):
        write_questions(folder, RECORDS)
    with pytest.raises(ValueError, match="question 1 occurs twice"):
        write_questions(folder, [RECORDS[0], RECORDS[0]], overwrite=True)
    assert list(read_questions(folder)) == RECORDS
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", "id and image and split and question missing"),
        ('{"id": 1, "image": 2, "split": "dev", "question": "a?"}', "split: 'dev'"),
        ('{"id": 1, "image": 2, "split": "val", "question": ""}', "question: ''"),
        ('{"id": 1, "image": 2, "split": "val", "question": "a", "answers": 3}', "answers must be"),
        ('{"id": 1, "image": 2, "split": "val", "question": "a", "answers": [3]}', "not 3"),
        ('{"id": 1', "Expecting"),
        ("[]", "expected a JSON object"),
    ],
)
def test_invalid_line_error_names_it(tmp_path, line, message):
    (tmp_path / QUESTIONS).write_text(f"\n{line}\n")
    with pytest.raises(ValueError, match=rf"questions.jsonl:2: .*{message}"):
        list(read_questions(tmp_path))


def test_count_answers_selects_frequent_answers():
    assert count_answers(RECORDS[:3], more_than=0).words == ("box", "no", "yes")
    assert count_answers(RECORDS[:3], more_than=0, max_answers=2).words == ("box", "no")
    with pytest.raises(ValueError, match="of more than 1 of 3 questions"):
        count_answers(RECORDS[:3], more_than=1)


def test_batch_equals_the_written_data(folder):
    found = QuestionSet(folder, "train", max_length=5)
    batch = found.batch([0, 2], size=3)
    assert batch.real.tolist() == [True, True, False]
    assert found.words.decode(batch.words[0].tolist()) == ["what", "is", "red"]
    assert batch.word_mask.sum(1).tolist() == [3, 5, 5]
    for row, record in ((0, RECORDS[0]), (1, RECORDS[2])):
        for place, answer in enumerate(found.answers.words):
            expected = answer_accuracy(answer, record.answers)
            assert batch.targets[row, place] == pytest.approx(expected)
    assert batch.features.shape == (3, 4, 5)
    assert batch.mask.sum(1).tolist() == [2, 4, 4]
    torch.testing.assert_close(
        batch.features[0, :2], torch.from_numpy(found.store["7"].features.astype(np.float32))
    )
    torch.testing.assert_close(batch.boxes[1], torch.from_numpy(found.store["8"].boxes.copy()))


@pytest.mark.parametrize("regions", [True, False])
def test_resident_questions_give_equal_batches(folder, regions):
    found = QuestionSet(folder, "train", regions=regions)
    held = ResidentQuestions(found, "cpu")
    for indices, size in (([2, 0], None), ([1], 3), ([], 2)):
        mine, its = found.batch(indices, size=size), held.batch(indices, size=size)
        for name in ("words", "word_mask", "features", "boxes", "mask", "targets", "real"):
            expected, got = getattr(mine, name), getattr(its, name)
            assert (got is None) is (expected is None), name
            assert got is None or torch.equal(got, expected), name


def test_question_of_unknown_words(folder):
    found = QuestionSet(folder, "val")
    batch = found.batch([0])
    assert found.words.decode(batch.words[0].tolist()) == ["<unk>"]
    assert batch.targets.tolist() == [[0, 0, pytest.approx(0.6)]]


def test_invalid_training_data_raises(folder):
    with pytest.raises(ValueError, match="no questions in the split 'dev'"):
        QuestionSet(folder, "dev")
    with pytest.raises(ValueError, match="1 questions of the split 'test' have no answers"):
        QuestionSet(folder, "test")
    assert len(QuestionSet(folder, "test", answered=False)) == 1
    more = [*RECORDS, Question("6", "10", "train", "Where?", ("here",) * 10)]
    words, answers = ((folder / name).read_bytes() for name in (WORDS, ANSWERS))
    write_questions(folder, more, overwrite=True)
    with pytest.raises(ValueError, match="no vocabulary"):
        QuestionSet(folder, "train")
    (folder / WORDS).write_bytes(words)
    (folder / ANSWERS).write_bytes(answers)
    with pytest.raises(ValueError, match=r"1 of 3 images .* such as 10"):
        QuestionSet(folder, "train")
    left = QuestionSet(folder, "train", skip_missing=True)
    assert (len(left), left.missing) == (3, 1)


def test_signature_depends_on_the_answers(folder):
    before = QuestionSet(folder, "train", regions=False).signature
    path = folder / QUESTIONS
    path.write_text(path.read_text().replace("a ball", "a bell"))
    assert QuestionSet(folder, "train", regions=False).signature != before


VECTORS = "400 3\nred 1 2 3\nunused x y z\n. . . 7 8 9\nblue -1 0.5 1e-2\nred 9 9 9\n"


def test_word_vectors(tmp_path):
    plain, packed = tmp_path / "vectors.txt", tmp_path / "vectors.txt.gz"
    plain.write_text(VECTORS)
    packed.write_bytes(gzip.compress(VECTORS.encode()))
    for path in (plain, packed):
        vectors, found = read_vectors(path, ["blue", "green", "red", ". . ."], 3)
        assert found.tolist() == [True, False, True, True]
        expected = [[-1, 0.5, 0.01], [0, 0, 0], [1, 2, 3], [7, 8, 9]]
        np.testing.assert_allclose(vectors, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("red 1 2\n", r":1: expected a word and 3 numbers, not 2"),
        ("red 1 2 3 4 5\n", r":1: expected a word and 3 numbers"),
        ("blue 1 2 3\nred 1 x 3\n", r":2: could not convert"),
        ("blue 1 2 3\nred 1 nan 3\n", r":2: a number of 'red' is not finite"),
        ("red 1 2 3\n\nblue 1 2\n", r":3: expected a word and 3 numbers, not 3 parts"),
        ("blue 1 2 3\n", "has none of the 1 words"),
    ],
)
def test_damaged_word_vectors_raise(tmp_path, text, message):
    path = tmp_path / "vectors.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_vectors(path, ["red"], 3)
