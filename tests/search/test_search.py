"""What all searches share: the loop, the result, and torch steps without host synchronisation."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ngsan.models import build_captioner
from ngsan.models.steps import CaptionerSteps
from ngsan.search import Beam, Constraints, Ensemble, Greedy, Sampling, Written
from tests.search.models import PositionModel, TableModel

SMALL = dict(vocab_size=11, feature_dim=7, dim=16, heads=2, hidden_dim=24, layers=2, geometry_dim=6)

ALL = Constraints(
    min_length=1, forbidden=[10], required=[2, 5], prefix=[3], bad_endings=[1, 4], no_repeat_ngram=2
)

SEARCHES = {
    "greedy": lambda model: Greedy(model, max_length=6),
    "greedy, conditions": lambda model: Greedy(model, max_length=6, constraints=ALL),
    "sample": lambda model: Sampling(model, samples=3, max_length=6, temperature=0.8),
    "sample, truncated": lambda model: Sampling(
        model, samples=3, max_length=6, top_k=4, top_p=0.8, constraints=ALL
    ),
    "beam": lambda model: Beam(model, beam=3, num_return=3, max_length=6),
    "beam, mean": lambda model: Beam(
        model, beam=3, max_length=6, length_penalty=1.0, early_stopping=True
    ),
    "beam, conditions": lambda model: Beam(model, beam=3, max_length=6, constraints=ALL),
    "groups": lambda model: Beam(model, beam=4, groups=2, max_length=6),
    "groups, conditions": lambda model: Beam(
        model, beam=4, groups=2, max_length=6, constraints=ALL
    ),
}


ON_TORCH = pytest.mark.parametrize("backend", ["torch"], indirect=True)


class SyncGuard(TorchDispatchMode):
    """Records every operation with its shapes; rejects those that depend on a value."""

    def __init__(self):
        super().__init__()
        self.seen = []

    @staticmethod
    def _synchronizes(func, args):
        if func is torch.ops.aten.index.Tensor:  # only a boolean index has a data-dependent shape
            return any(index is not None and index.dtype == torch.bool for index in args[1])
        return {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not self._synchronizes(func, args), f"{func} synchronizes with the device"
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


@ON_TORCH
def test_guard_detects_synchronization():
    for wait in (
        lambda x: bool(x.any()),
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: int(x[0]),
        lambda x: x.unique(),
    ):
        with pytest.raises(AssertionError, match="synchronizes"), SyncGuard():
            wait(torch.ones(3))


@pytest.mark.parametrize("make", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("models", [1, 2], ids=["one", "ensemble"])
@ON_TORCH
@torch.inference_mode()
def test_steps_do_not_synchronize_and_are_identical(make, models, monkeypatch):
    """So a step can be captured once and replayed; no tensor is reallocated either."""
    for name in ("tolist", "numpy", "cpu"):  # on a CPU these are not dispatched
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
        with SyncGuard() as guard:
            search.advance()
        rounds.append(guard.seen)
    assert rounds[0]
    assert all(round_ == rounds[0] for round_ in rounds[1:])
    assert addresses() == before
    with SyncGuard():
        assert search.finished().shape == ()


@pytest.mark.parametrize("make", SEARCHES.values(), ids=SEARCHES)
def test_second_run_does_not_change_the_first_result(make):
    model = TableModel(images=2, vocab_size=11)
    search = make(model)
    first = search.run()
    copy = {name: np.asarray(value).copy() for name, value in vars(first).items()}
    model.first = 40
    second = search.run()
    assert (second.log_probs != first.log_probs).any()
    for name, value in vars(first).items():
        np.testing.assert_array_equal(value, copy[name], name)


@pytest.mark.parametrize("make", SEARCHES.values(), ids=SEARCHES)
def test_lengths_and_ends_are_consistent_with_the_words(make):
    written = make(TableModel(images=9, vocab_size=11, seed=2)).run()
    for image in range(9):
        for rank in range(written.words.shape[1]):
            words = written.words[image, rank].tolist()
            length = (*words, 0).index(0)
            assert written.lengths[image, rank] == length
            assert written.ended[image, rank] == (length < 6)
            assert set(words[length:]) <= {0}
            assert (written.word_log_probs[image, rank, length + 1 :] == 0).all()


def test_search_stops_when_all_captions_have_ended():
    """The search checks every few steps instead of running to max_length."""

    class Counting(PositionModel):
        steps = 0

        def step(self, words, parents):
            self.steps += 1
            return super().step(words)

    for make in (Greedy, Beam, Sampling):
        model = Counting([60.0, 0.0, 0.0], images=2)
        written = make(model, max_length=200).run()
        assert written.lengths.max() == 0
        assert model.steps < 10
    model = Counting([0.0, 9.0, 0.0])
    Beam(model, beam=3, max_length=200, constraints=Constraints(forbidden=[1, 2])).run()
    assert model.steps < 10  # only one caption exists, though the beam is 3


@pytest.mark.parametrize("max_length", range(1, 11))
def test_search_takes_at_most_max_length_steps(max_length):
    """`TableModel` rejects any further step; min_length prevents earlier ends."""
    model = TableModel(images=2, vocab_size=4)
    rules = Constraints(min_length=max_length)
    for make in (Greedy, Beam, Sampling):
        written = make(model, max_length=max_length, constraints=rules).run()
        assert (written.lengths == max_length).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_log_probs_are_single_precision(dtype, backend):
    if dtype == "bfloat16" and backend == "numpy":
        pytest.skip("NumPy has no bfloat16")

    class Other(PositionModel):
        def convert(self, logits):
            if backend == "numpy":
                return logits.astype(dtype)
            return torch.from_numpy(logits).to(getattr(torch, dtype))

    model = Other([1.0, 2.0, 3.0])
    for make in (Greedy, Beam, Sampling):
        written = make(model, max_length=4).run()
        assert str(written.word_log_probs.dtype).endswith("float32")
        assert str(written.scores.dtype).endswith("float32")
    expected = 3 - math.log(sum(map(math.exp, (1, 2, 3))))
    assert Greedy(model, max_length=4).run().log_probs[0, 0] == pytest.approx(4 * expected)


def test_check_finds_images_without_captions(backend):
    zeros, scores = np.zeros((2, 2, 3), "f4"), np.array([[-1.0, -np.inf], [-np.inf, -np.inf]], "f4")
    if backend == "torch":
        zeros, scores = torch.from_numpy(zeros), torch.from_numpy(scores)
    with pytest.raises(ValueError, match="for 1 of 2 images .* number 1"):
        Written.of(zeros != 0, zeros, scores).check()
    fine = Written.of(zeros[:1] != 0, zeros[:1], scores[:1])
    assert fine.check() is fine
    if backend == "torch":
        there = fine.to("cpu")
        assert all(torch.equal(getattr(there, name), value) for name, value in vars(fine).items())


@pytest.mark.parametrize("make", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_is_reported(make, value):
    class Broken(TableModel):
        def step(self, words, parents):
            logits = super().step(words, parents)
            logits[1, :, 3] = value
            return logits

    written = make(Broken(images=3, vocab_size=11)).run()
    with pytest.raises(ValueError, match="NaN in the scores of 1 of 3 .* number 1.; check the fea"):
        written.check()
    assert (written.scores[0] > -math.inf).any()


@ON_TORCH
@pytest.mark.parametrize("make", SEARCHES.values(), ids=SEARCHES)
def test_captured_steps_give_the_same_captions(make, monkeypatch):
    """A fake CUDA graph runs the work on capture and again on replay."""
    expected = make(TableModel(images=3, vocab_size=11)).run()
    calls = []

    class Graph:
        def __init__(self, work, warm_up):
            self.work, self.warm_up = work, warm_up

        def prepare(self):
            calls.append("prepare")
            self.warm_up()
            self.work()

        def __call__(self):
            calls.append("replay")
            self.work()

    monkeypatch.setattr(
        "ngsan.search.torch_ops.TorchOps.capture", lambda self, work, warm_up: Graph(work, warm_up)
    )
    search = make(TableModel(images=3, vocab_size=11))
    for _ in range(2):
        written = search.run()
        for name, value in vars(written).items():
            assert torch.equal(value, getattr(expected, name)), name
    assert calls == ["prepare", "replay"] * 2


class Step(torch.nn.Module):
    """A step of a search as a function of its state."""

    def __init__(self, search):
        super().__init__()
        self.search = search

    def forward(self, state, logits):
        self.search.steps.logits = logits
        for name, value in state.items():
            setattr(self.search, name, value.clone())
        self.search.advance()
        return {name: getattr(self.search, name) for name in state}


class GivenLogits:
    """A model whose logits are an input of the step."""

    images, vocab_size, device = 3, 5000, torch.device("cpu")

    def start(self, rows, max_length):
        pass

    def step(self, words, parents):
        return self.logits.clone()


@ON_TORCH
@pytest.mark.parametrize("name", ["sample, truncated", "groups, conditions", "beam, mean"])
def test_step_exports_with_static_shapes(name):
    """`torch.export` rejects whatever depends on a value: shapes, branches, copies to the host."""
    search = SEARCHES[name](GivenLogits())
    search.begin()
    state = {
        name: value.clone()
        for name, value in vars(search).items()
        if isinstance(value, torch.Tensor) and not name.startswith("_")
    }
    random = torch.Generator().manual_seed(0)
    draw = lambda: 2 * torch.randn(3, search.rows, 5000, generator=random)  # noqa: E731
    program = torch.export.export(Step(search), (state, draw()), strict=False).module()
    for _ in range(6):
        logits = draw()
        expected = Step(search)(state, logits)
        state = program(state, logits)
        for name, value in expected.items():
            assert torch.equal(value, state[name]), name
    assert state["position"] == 6
