"""Tables of answers to questions about images."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ngsan.config.answering import AnswererConfig, AnswerRun
from ngsan.config.phases import ANSWERING
from ngsan.data.question_set import QuestionSet
from ngsan.data.questions import Question, read_questions
from ngsan.data.store import FeatureStore
from ngsan.evaluate import best_answers
from ngsan.metrics.bootstrap import Floats
from ngsan.metrics.vqa import VqaScores, score_answers
from ngsan.models.saved_answerer import load_answerer
from ngsan.predict import best_device
from ngsan.reproduce.ledger import Written
from ngsan.reproduce.statistics import sum_of_first
from ngsan.reproduce.task import Fitted, Measured, measured_splits
from ngsan.text.answers import graded_answers


class Answering:
    """Learning to answer questions about images."""

    phases: Sequence[str] = (ANSWERING,)
    unit = "questions"
    sizes: Sequence[str] = ()

    def free(self, phase: str) -> Sequence[str]:
        """See `TableTask.free`."""
        return ("data.folder", "validation.batch_size", "machine")

    def fit(self, config: AnswerRun, models: Sequence[AnswererConfig] = ()) -> Fitted:
        """See `TableTask.fit`.

        The sizes are not given to the run: a model without regions has others, and all of them
        follow from the data. Where no model sees regions, images without any are no matter.
        """
        sees = any(model.regions != "none" for model in models or [config.model])
        validation, *others = _splits(config)

        def opened(split: str, *with_features: str) -> QuestionSet:
            return QuestionSet(
                config.data.folder,
                split,
                longest=config.model.longest,
                regions=sees or _features(config, *with_features) is not None,
                skip_missing=config.data.skip_missing,
            )

        learned, validated = (opened(split) for split in (config.data.train, validation))
        return Fitted(
            config,
            {"train": learned.origin, "validation": validated.origin},
            {"train": learned.signature, "validation": validated.signature},
            {split: opened(split, split).origin for split in others},
        )

    def until(self, config: AnswerRun, phase: str) -> AnswerRun:
        """See `TableTask.until`; there is one phase."""
        return config

    def check_tools(self) -> None:
        """See `TableTask.check_tools`; nothing is needed."""

    def measure(self, config: AnswerRun, folder: Path) -> dict[str, Measured]:
        """See `TableTask.measure`."""
        saved = load_answerer(folder)
        model = saved.answerer.to(best_device(config.machine.device))
        found = {}
        for split in _splits(config):
            questions = QuestionSet(
                config.data.folder,
                split,
                longest=saved.config.longest,
                regions=saved.config.regions != "none",
                words=saved.words,
                answers=saved.answers,
                skip_missing=config.data.skip_missing,
            )
            places = np.arange(len(questions))
            store = _features(config) if config.data.skip_missing else None
            if questions.store is None and store is not None:
                # A model that sees nothing is asked what the others are asked.
                seen = [question.image in store for question in questions.questions]
                places = np.flatnonzero(seen)
            batch = config.validation.batch_size
            given = best_answers(model, questions, places=places, batch_size=batch)
            asked = {question.id: question for question in questions.questions}
            scores = score_answers(given, {name: asked[name] for name in given})
            single = [[100 * scores.single[name]] for name in given]
            found[split] = Measured(
                _percent(scores), Written(list(given), list(given.values()), single)
            )
        return found

    def score(self, totals: Floats) -> Floats:
        """See `TableTask.score`; accuracy is a mean over the questions."""
        return sum_of_first(totals)

    def baselines(self, config: AnswerRun, split: str) -> Mapping[str, Mapping[str, float]]:
        """See `TableTask.baselines`: the answer priors."""
        questions = [*read_questions(config.data.folder)]
        learned = [asked for asked in questions if asked.split == config.data.train]
        asked = {question.id: question for question in questions if question.split == split}
        store = _features(config) if config.data.skip_missing else None
        if store is not None:
            asked = {name: question for name, question in asked.items() if question.image in store}
        return {
            label: _percent(score_answers(given, asked))
            for label, given in answer_priors(learned, asked).items()
        }


def answer_priors(
    learned: Sequence[Question], asked: Mapping[str, Question]
) -> dict[str, dict[str, str]]:
    """Answers without a look at the image: the most frequent of all, and of the question's type.

    Args:
        learned: Questions with their answers; each counts for its best one.
        asked: What is to be answered, by id.

    Returns:
        Answers by id, by the prior's label.
    """
    overall: Counter[str] = Counter()
    by_type: dict[str, Counter[str]] = defaultdict(Counter)
    for question in learned:
        best = next(iter(graded_answers(question.answers)))
        overall[best] += 1
        by_type[question.question_type][best] += 1
    first = overall.most_common(1)[0][0]
    kinds = {kind: counts.most_common(1)[0][0] for kind, counts in by_type.items()}
    return {
        f'prior: "{first}"': dict.fromkeys(asked, first),
        "prior by question type": {
            name: kinds.get(question.question_type, first) for name, question in asked.items()
        },
    }


def _percent(scores: VqaScores) -> dict[str, float]:
    return {name: round(value, 4) for name, value in scores.percent().items()}


def _splits(config: AnswerRun) -> list[str]:
    """The splits that models are measured on: questions that nobody answered are not."""
    data = read_questions(config.data.folder)
    answered = {question.split for question in data if question.answers}
    return measured_splits(config.data.validation, answered)


def _features(config: AnswerRun, *splits: str) -> FeatureStore | None:
    """The features, if models that see regions could learn from them.

    Args:
        config: The run.
        splits: Those whose images are looked for; none for what is learned from and validated on.
    """
    data = config.data
    try:
        store = FeatureStore(data.folder)
    except FileNotFoundError:
        return None
    splits = splits or (data.train, data.validation)
    asked = {question.image for question in read_questions(data.folder) if question.split in splits}
    return store if data.skip_missing or all(image in store for image in asked) else None
