"""The VQA importer, on valid and invalid files."""

import gzip
import json

import pytest

from ngsan.__main__ import main
from ngsan.data.importers.questions import vqa_questions
from ngsan.data.problems import Problems
from ngsan.data.questions import Question, read_questions
from ngsan.text.vocabulary import Vocabulary


def questions_of(*numbers):
    return {
        "info": {"version": 2},
        "questions": [
            {"image_id": n, "question": f"What  is {n}?", "question_id": 10 * n} for n in numbers
        ],
    }


def annotations_of(*numbers, answer="red"):
    return {
        "annotations": [
            {
                "question_id": 10 * n,
                "image_id": n,
                "question_type": "what is",
                "answer_type": "other",
                "multiple_choice_answer": answer,
                "answers": [{"answer": answer, "answer_id": k} for k in range(10)],
            }
            for n in numbers
        ]
    }


def write(folder, **files):
    paths = []
    for name, content in files.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(content))
        paths.append(path)
    return paths


def read(paths, skip=False, **options):
    problems = Problems(skip=skip)
    return list(vqa_questions(paths, problems=problems, **options)), problems


def test_questions_and_annotations_in_any_order(tmp_path):
    paths = write(
        tmp_path,
        v2_mscoco_train2014_annotations=annotations_of(1, 2),
        v2_OpenEnded_mscoco_test2015_questions=questions_of(5),
        v2_OpenEnded_mscoco_train2014_questions=questions_of(2, 1),
    )
    found, _ = read(paths)
    assert found == [
        Question("20", "2", "train", "What is 2?", ("red",) * 10, "other", "what is"),
        Question("10", "1", "train", "What is 1?", ("red",) * 10, "other", "what is"),
        Question("50", "5", "test", "What is 5?"),
    ]


def test_compressed_files(tmp_path):
    path = tmp_path / "questions_train.json.gz"
    content = gzip.compress(json.dumps(questions_of(*range(1, 400))).encode())
    path.write_bytes(content)
    assert len(read([path])[0]) == 399
    for damaged in (content[:-100], b"{}", content[:50] + b"\0\0\0\0" + content[54:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"questions_train.json.gz"):
            read([path])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, a: q["questions"].append(q["questions"][0]), "duplicate question"),
        (lambda q, a: a["annotations"].append(a["annotations"][0]), "duplicate question"),
        (lambda q, a: a["annotations"].pop(), "question without answers"),
        (lambda q, a: q["questions"].pop(), "answers without question"),
        (lambda q, a: a["annotations"][0].update(image_id=7), "two images"),
        (lambda q, a: a["annotations"][0].update(answers=[]), "wrong answers"),
        (lambda q, a: a["annotations"][0].update(answers=[{"answer": 3}]), "wrong answers"),
        (lambda q, a: a["annotations"][0].update(answer_type=4), "wrong type"),
        (lambda q, a: q["questions"][0].update(question=" "), "empty question"),
        (lambda q, a: q["questions"][0].update(question=3), "a question must be a string"),
        (lambda q, a: q["questions"][0].pop("image_id"), "missing key"),
        (lambda q, a: q["questions"][0].update(question_id=None), "wrong id"),
    ],
)
def test_invalid_questions_raise_or_are_counted(tmp_path, change, message):
    questions, annotations = questions_of(1, 2, 3), annotations_of(1, 2, 3)
    change(questions, annotations)
    paths = write(tmp_path, questions_train=questions, annotations_train=annotations)
    with pytest.raises(ValueError, match=message):
        read(paths)
    found, problems = read(paths, skip=True)
    assert message in " ".join(problems.summary())
    assert 2 <= len(found) <= 3


def test_unsupported_files_raise(tmp_path):
    (other,) = write(tmp_path, captions_train={"images": [{"id": 1}]})
    with pytest.raises(ValueError, match=r"neither questions nor annotations"):
        read([other])
    (alone,) = write(tmp_path, annotations_val=annotations_of(1))
    with pytest.raises(ValueError, match="has annotations but no questions"):
        read([alone])
    (unclear,) = write(tmp_path, questions=questions_of(1))
    with pytest.raises(ValueError, match="its name has no split"):
        read([unclear])
    assert read([unclear], split="val")[0][0].split == "val"
    with pytest.raises(OSError, match="No such file"):
        read([tmp_path / "nowhere.json"])


def test_import_command(tmp_path, capsys):
    paths = write(
        tmp_path,
        questions_train=questions_of(*range(1, 7)),
        annotations_train=annotations_of(*range(1, 7)),
        questions_val=questions_of(8),
        annotations_val=annotations_of(8, answer="blue"),
    )
    to = tmp_path / "data"
    arguments = ["data", "questions", *map(str, paths), "--output", str(to)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "train: 6 questions" in printed
    assert "answers: 1" in printed
    assert Vocabulary.load(to / "answers.json").words == ("red",)
    assert "what" in Vocabulary.load(to / "question_words.json")
    assert len(list(read_questions(to))) == 7
    assert main(arguments) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--answers-more-than", "6"]) == 2
    assert "lower more_than" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--split", "val"]) == 2
    assert "no question is in the training split" in capsys.readouterr().err
