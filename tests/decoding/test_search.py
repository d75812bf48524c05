"""What all searches keep to: a step never waits for the device and is the same work each time."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ngsan.decoding import Beam, Constraints, Ensemble, Greedy, Sampling, Written
from ngsan.models import build_captioner
from ngsan.models.steps import CaptionerSteps
from tests.decoding.models import PositionModel, TableModel

SMALL = dict(vocab_size=11, feature_dim=7, dim=16, heads=2, hidden_dim=24, layers=2, geometry_dim=6)

ALL = Constraints(
    fewest=1, forbidden=[10], required=[2, 5], prefix=[3], bad_endings=[1, 4], no_repeat=2
)

SEARCHES = {
    "greedy": lambda model: Greedy(model, longest=6),
    "greedy, conditions": lambda model: Greedy(model, longest=6, constraints=ALL),
    "sample": lambda model: Sampling(model, samples=3, longest=6, temperature=0.8),
    "sample, truncated": lambda model: Sampling(
        model, samples=3, longest=6, top_k=4, top_p=0.8, constraints=ALL
    ),
    "beam": lambda model: Beam(model, beam=3, best=3, longest=6),
    "beam, mean": lambda model: Beam(
        model, beam=3, longest=6, length_penalty=1.0, early_stopping=True
    ),
    "beam, conditions": lambda model: Beam(model, beam=3, longest=6, constraints=ALL),
    "groups": lambda model: Beam(model, beam=4, groups=2, longest=6),
    "groups, conditions": lambda model: Beam(model, beam=4, groups=2, longest=6, constraints=ALL),
}


class Watch(TorchDispatchMode):
    """Writes down every operation with its shapes; refuses those that need to know a value."""

    def __init__(self):
        super().__init__()
        self.seen = []

    @staticmethod
    def _waits(func, args):
        if func is torch.ops.aten.index.Tensor:  # only a boolean index has to be counted
            return any(index is not None and index.dtype == torch.bool for index in args[1])
        return {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not self._waits(func, args), f"{func} waits for the device"
        result = func(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves((args, kwargs, result))
        described = [
            (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves
        ]
        self.seen.append((str(func), described))
        return result


def steps_of(images=3, mask=True):
    captioner = build_captioner("san", **SMALL).eval()
    real = torch.arange(5) < torch.tensor([[5], [3], [1]])[:images] if mask else None
    return CaptionerSteps(captioner, torch.randn(images, 5, 7), None, real)


def test_the_watch_sees_what_waits():
    for wait in (
        lambda x: bool(x.any()),
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: int(x[0]),
        lambda x: x.unique(),
    ):
        with pytest.raises(AssertionError, match="waits"), Watch():
            wait(torch.ones(3))


@pytest.mark.parametrize("make", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("models", [1, 2], ids=["one", "ensemble"])
@torch.inference_mode()
def test_a_step_never_waits_and_is_always_the_same_work(make, models, monkeypatch):
    """So it can be captured once and replayed; no tensor is replaced by another either."""
    for name in ("tolist", "numpy", "cpu"):  # on a CPU these are no operations
        monkeypatch.setattr(torch.Tensor, name, None)
    model = steps_of() if models == 1 else Ensemble([steps_of(), steps_of(mask=False)])
    search = make(model)
    search.begin()

    def addresses():
        return {
            name: value.data_ptr()
            for name, value in vars(search).items()
            if isinstance(value, torch.Tensor)
        }

    before, rounds = addresses(), []
    for _ in range(6):
        with Watch() as watch:
            search.advance()
        rounds.append(watch.seen)
    assert rounds[0]
    assert all(round_ == rounds[0] for round_ in rounds[1:])
    assert addresses() == before
    with Watch():
        assert search.finished().shape == ()


@pytest.mark.parametrize("make", SEARCHES.values(), ids=SEARCHES)
def test_a_second_run_does_not_change_the_first_result(make):
    model = TableModel(images=2, vocab_size=11)
    search = make(model)
    first = search.run()
    copy = {name: value.clone() for name, value in vars(first).items()}
    model.first = 40
    second = search.run()
    assert not torch.equal(second.log_probs, first.log_probs)
    for name, value in vars(first).items():
        assert torch.equal(value, copy[name]), name


@pytest.mark.parametrize("make", SEARCHES.values(), ids=SEARCHES)
def test_lengths_ends_and_sums_follow_from_the_words(make):
    written = make(TableModel(images=9, vocab_size=11, seed=2)).run()
    for image in range(9):
        for rank in range(written.words.shape[1]):
            words = written.words[image, rank].tolist()
            length = (*words, 0).index(0)
            assert written.lengths[image, rank] == length
            assert written.ended[image, rank] == (length < 6)
            assert set(words[length:]) <= {0}
            assert (written.word_log_probs[image, rank, length + 1 :] == 0).all()


def test_no_step_is_taken_when_all_have_ended():
    """The search looks every few steps, and not into what the longest caption allows."""

    class Counting(PositionModel):
        steps = 0

        def step(self, words):
            self.steps += 1
            return super().step(words)

    for make in (Greedy, Beam, Sampling):
        model = Counting([60.0, 0.0, 0.0], images=2)
        written = make(model, longest=200).run()
        assert written.lengths.max() == 0
        assert model.steps < 10
    model = Counting([0.0, 9.0, 0.0])
    Beam(model, beam=3, longest=200, constraints=Constraints(forbidden=[1, 2])).run()
    assert model.steps < 10  # there is but one caption, though three could have been followed


@pytest.mark.parametrize("longest", range(1, 11))
def test_a_search_takes_as_many_steps_as_words_at_most(longest):
    """`TableModel` refuses one more; ends are out of reach here."""
    model = TableModel(images=2, vocab_size=4)
    rules = Constraints(fewest=longest)
    for make in (Greedy, Beam, Sampling):
        written = make(model, longest=longest, constraints=rules).run()
        assert (written.lengths == longest).all()


def test_another_boundary():
    """Any id can begin and end captions."""
    written = Beam(PositionModel([0.1, 0.2, 5.0]), boundary=2, longest=3).run()
    assert written.words.tolist() == [[[2, 2, 2]]]
    assert written.lengths.tolist() == [[0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_probabilities_are_kept_in_single_precision(dtype):
    model = PositionModel(torch.tensor([1.0, 2.0, 3.0], dtype=dtype))
    for make in (Greedy, Beam, Sampling):
        written = make(model, longest=4).run()
        assert written.word_log_probs.dtype == torch.float32
        assert written.scores.dtype == torch.float32
    expected = torch.tensor([1.0, 2.0, 3.0]).log_softmax(-1)[2]
    torch.testing.assert_close(Greedy(model, longest=4).run().log_probs[0, 0], 4 * expected)


def test_check_finds_images_without_captions():
    zeros = torch.zeros(2, 2, 3)
    scores = torch.tensor([[-1.0, -torch.inf], [-torch.inf, -torch.inf]])
    written = Written.of(zeros.long(), zeros, 0, scores)
    with pytest.raises(ValueError, match="for 1 of 2 images .* number 1"):
        written.check()
    fine = Written.of(zeros[:1].long(), zeros[:1], 0, scores[:1])
    assert fine.check() is fine
    there = fine.to("cpu")
    assert all(torch.equal(getattr(there, name), value) for name, value in vars(fine).items())
