"""Self-critical training against its definition and an enumeration of all captions."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ngsan.data.batch import CaptionBatch
from ngsan.data.synthetic.folders import scene_vocabulary, scenes_to_batch
from ngsan.data.synthetic.scenes import sample_scenes
from ngsan.metrics.reward import Bleu4Reward, CiderDReward, MixedReward, References
from ngsan.models import build_captioner
from ngsan.text.vocabulary import UNKNOWN, Vocabulary
from ngsan.train.self_critical import (
    SelfCritical,
    SelfCriticalLoss,
    self_critical_sums,
    set_dropout,
)
from tests.train.slow_self_critical import (
    SlowSampler,
    advantages_over_others,
    gradients,
    image_of,
    slow_bleu_4,
    slow_cider_d,
    slow_gradient,
)

SHAPE = dict(dim=16, heads=2, hidden_dim=24, geometry_dim=8)


@dataclasses.dataclass(frozen=True)
class Setup:
    """Images with references, and a model that knows only word frequencies."""

    captioner: torch.nn.Module
    vocabulary: Vocabulary
    batch: CaptionBatch
    references: list
    max_length: int

    @property
    def unknown(self):
        return self.vocabulary.encode([UNKNOWN])[0]

    @property
    def places(self):
        return torch.arange(len(self.batch))

    def reward(self, *, end=True, bleu=0.0):
        prepared = References.build(self.references, vocab_size=len(self.vocabulary), end=end)
        cider = CiderDReward(prepared)
        return MixedReward([(1.0, cider), (bleu, Bleu4Reward(prepared))]) if bleu else cider

    def learner(self, reward=None, **options):
        reward = self.reward() if reward is None else reward
        options = {"max_length": self.max_length, **options}
        return SelfCritical(self.captioner, reward, self.vocabulary, **options)

    def slow(self, *, temperature=1.0, allow_unknown=False):
        forbidden = frozenset() if allow_unknown else frozenset([self.unknown])
        return SlowSampler(
            self.captioner, len(self.vocabulary), forbidden, temperature, self.max_length
        )

    def images(self):
        return [image_of(self.batch, place) for place in range(len(self.batch))]


def build(model, vocabulary, batch, references, *, max_length, dtype=torch.float64):
    """A random model whose word frequencies are those of the references.

    The unknown word is the most probable one, so code that forgets to forbid it fails.
    """
    torch.manual_seed(3)
    captioner = build_captioner(
        model,
        vocab_size=len(vocabulary),
        feature_dim=batch.features.shape[-1],
        layers=2 if model == "ng-san" else 1,
        **SHAPE,
    )
    captioner = captioner.double().eval()
    counts = torch.full((len(vocabulary),), 0.3, dtype=torch.float64)
    for words in (words for several in references for words in several):
        counts += F.one_hot(torch.tensor([*words, 0]), len(vocabulary)).sum(0)
    with torch.no_grad():
        for parameter in captioner.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        counts[vocabulary.encode([UNKNOWN])] = 2 * counts.max()
        captioner.decoder.output.bias.copy_(counts.log())
    batch = dataclasses.replace(
        batch,
        features=batch.features.to(dtype),
        boxes=None if batch.boxes is None else batch.boxes.to(dtype),
    )
    return Setup(captioner.to(dtype), vocabulary, batch, references, max_length)


def scene_setup(dtype=torch.float64, images=7):
    """Scenes of two to five objects, so most are padded, for a model with geometry."""
    vocabulary = Vocabulary([*scene_vocabulary().words, UNKNOWN])
    batch = scenes_to_batch(
        list(sample_scenes(images, min_objects=2, max_objects=5, seed=4)), vocabulary
    )
    assert len(set(batch.mask.sum(1).tolist())) > 2
    references = [
        [vocabulary.encode(vocabulary.decode(row)) for row in rows]
        for rows in batch.targets.tolist()
    ]
    return build("ng-san", vocabulary, batch, references, max_length=8, dtype=dtype)


def letter_setup(*, letters=3, images=6, max_length=6, copies=1, dtype=torch.float64):
    """Images without boxes whose captions are letters; the first image may be repeated."""
    vocabulary = Vocabulary([*"abcdefgh"[:letters], UNKNOWN])
    rng = np.random.default_rng(5)
    references = [
        [
            rng.integers(1, letters + 1, size=rng.integers(max(1, max_length - 2), max_length + 1))
            for _ in range(3)
        ]
        for _ in range(images)
    ]
    references = [[words.tolist() for words in several] for several in references]
    random = torch.Generator().manual_seed(6)
    features = torch.randn(images, 4, 5, generator=random)
    mask = torch.arange(4) < torch.tensor([4, 1, 3, 2]).repeat(images)[:images, None]
    captions = torch.zeros(images, 1, 1, dtype=torch.long)
    real = torch.ones(images, 1, 1, dtype=torch.bool)
    batch = CaptionBatch(
        features,
        None,
        mask,
        captions,
        captions,
        real,
        real[..., 0],
        [str(i) for i in range(images)],
    )
    index = torch.tensor([0] * (copies - 1) + list(range(images)))
    references = [references[place] for place in index.tolist()]
    return build("san", vocabulary, batch[index], references, max_length=max_length, dtype=dtype)


def written(sampled):
    """The captions (words, ended) as plain Python, by image and sample."""
    assert sampled.targets.shape == sampled.words.shape == sampled.target_mask.shape
    assert sampled.target_mask.dtype == torch.bool
    captions = []
    for rows, real, lengths in zip(
        sampled.targets.tolist(),
        sampled.target_mask.tolist(),
        sampled.lengths.tolist(),
        strict=True,
    ):
        several = []
        for row, mask, length in zip(rows, real, lengths, strict=True):
            targets = [word for word, counts in zip(row, mask, strict=True) if counts]
            assert mask == sorted(mask, reverse=True)  # real targets come first
            ended = targets[-1] == 0
            words = targets[:-1] if ended else targets
            assert 0 not in words
            assert len(words) == length
            several.append((words, ended))
        captions.append(several)
    return captions


def loss_of(learner, logits, targets, target_mask, advantages):
    return self_critical_sums(
        logits,
        targets,
        target_mask,
        advantages.unsqueeze(-1),
        forbidden=learner.forbidden,
        temperature=learner.temperature,
    )


def teacher_forced(setup, learner, sampled, batch=None, *, advantages=None):
    """The loss of one pass over all captions, as in a training step."""
    batch = setup.batch if batch is None else batch
    logits = setup.captioner(batch.features, batch.boxes, batch.mask, sampled.words)
    return loss_of(
        learner,
        logits,
        sampled.targets,
        sampled.target_mask,
        sampled.advantages if advantages is None else advantages,
    )


def gradient_of(setup, loss):
    setup.captioner.zero_grad()
    loss.backward()
    return gradients(setup.captioner)


def assert_same_gradient(found, expected, tolerance):
    """Asserts equal gradients up to a fraction of the norm of the whole gradient."""
    length = math.sqrt(sum(part.square().sum().item() for part in expected.values()))
    assert length > 0.1
    for name, part in expected.items():
        assert (found[name] - part).norm() <= tolerance * (part.norm() + 1e-2 * length), name


def assert_close_to(found, expected):
    """Compares with the tolerance of single-precision rewards."""
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def slow_rewards(setup, captions, *, end, bleu):
    return [
        [
            slow_cider_d(caption, place, setup.references, end=end)
            + (bleu * slow_bleu_4(caption, place, setup.references, end=end) if bleu else 0.0)
            for caption in several
        ]
        for place, several in enumerate(captions)
    ]


def assert_equals_definition(
    setup, *, tolerance, num_samples=3, baseline, end=True, bleu=0.0, **settings
):
    """Compares captions, rewards, advantages, loss, entropy and gradient with the slow version."""
    learner = setup.learner(
        setup.reward(end=end, bleu=bleu),
        num_samples=num_samples,
        baseline=baseline,
        seed=11,
        **settings,
    )
    sampled = learner.prepare(setup.batch, setup.places, 5)
    captions, images = written(sampled), setup.images()
    slow = setup.slow(**settings)
    assert {ended for several in captions for _, ended in several} == {True, False}
    for several in captions:
        assert len(several) == num_samples
        for words, ended in several:
            assert len(words) < setup.max_length if ended else len(words) == setup.max_length
    expected = slow_rewards(setup, captions, end=end, bleu=bleu)
    assert_close_to(sampled.rewards, expected)
    assert sampled.rewards.std() > 0.05
    if baseline == "samples":
        advantages = [advantages_over_others(rewards) for rewards in expected]
    else:
        chosen = [[slow.greedy(image)] for image in images]
        # Without the mask, greedy captions would contain the unknown word.
        free = dataclasses.replace(slow, forbidden=frozenset())
        assert any(setup.unknown in free.greedy(image)[0] for image in images)
        greedy = slow_rewards(setup, chosen, end=end, bleu=bleu)
        assert_close_to(sampled.greedy_rewards, [one for [one] in greedy])
        advantages = [
            [reward - one for reward in rewards]
            for rewards, [one] in zip(expected, greedy, strict=True)
        ]
    assert_close_to(sampled.advantages, advantages)
    total, count, entropy = teacher_forced(setup, learner, sampled)
    found = gradient_of(setup, total)
    slow_total, slow_parts = slow_gradient(slow, images, captions, advantages)
    assert int(count) == sum(len(words) + ended for several in captions for words, ended in several)
    assert total.item() == pytest.approx(slow_total, rel=1e-5, abs=1e-4)
    assert not entropy.requires_grad
    with torch.no_grad():
        slow_entropy = sum(
            slow.caption_entropy(image, caption)
            for image, several in zip(images, captions, strict=True)
            for caption in several
        )
    assert entropy.item() == pytest.approx(slow_entropy, rel=1e-5)
    assert_same_gradient(found, slow_parts, tolerance)


@pytest.mark.parametrize("baseline", ["samples", "greedy"])
@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.7}, {"allow_unknown": True, "temperature": 1.6}, {"end": False}],
    ids=["plain", "low temperature", "unknown allowed, high temperature", "without end token"],
)
def test_loss_and_gradient_equal_the_definition(baseline, options):
    assert_equals_definition(scene_setup(), baseline=baseline, tolerance=1e-5, **options)


@pytest.mark.parametrize("baseline", ["samples", "greedy"])
def test_definition_in_single_precision(baseline):
    assert_equals_definition(scene_setup(torch.float32), baseline=baseline, tolerance=1e-5)


@pytest.mark.parametrize("baseline", ["samples", "greedy"])
@pytest.mark.parametrize("end", [False, True])
def test_reward_mixed_with_bleu(baseline, end):
    setup = letter_setup()
    assert_equals_definition(
        setup, baseline=baseline, end=end, bleu=3.0, num_samples=4, tolerance=1e-5
    )
    alone = setup.learner(setup.reward(end=end), num_samples=4, seed=11)
    mixed = setup.learner(setup.reward(end=end, bleu=3.0), num_samples=4, seed=11)
    first, second = (which.prepare(setup.batch, setup.places, 5) for which in (alone, mixed))
    assert written(first) == written(second)  # samples do not depend on the reward
    assert (second.rewards - first.rewards).max() > 0.5


def test_advantages_of_two_and_of_equal_samples():
    setup = scene_setup()
    sampled = setup.learner(num_samples=2).prepare(setup.batch, setup.places, 0)
    torch.testing.assert_close(sampled.advantages[:, 0], -sampled.advantages[:, 1])
    setup = letter_setup(letters=1, max_length=1)
    learner = setup.learner(num_samples=4, temperature=1e-3)
    sampled = learner.prepare(setup.batch, setup.places, 0)
    assert all(several == [several[0]] * 4 for several in written(sampled))
    torch.testing.assert_close(
        sampled.advantages, torch.zeros(6, 4), rtol=0, atol=1e-6, check_dtype=False
    )


def test_greedy_rewards_can_be_computed_with_the_samples_baseline():
    setup = scene_setup()
    one, two = (setup.learner(baseline=baseline) for baseline in ("samples", "greedy"))
    plain = one.prepare(setup.batch, setup.places, 0)
    both = one.prepare(setup.batch, setup.places, 0, greedy=True)
    assert plain.greedy_rewards is None
    expected = two.prepare(setup.batch, setup.places, 0)
    assert torch.equal(both.greedy_rewards, expected.greedy_rewards)
    assert both.greedy_rewards.unique().numel() > 1
    assert torch.equal(both.rewards, expected.rewards)
    assert torch.equal(both.advantages, plain.advantages)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("unknown", [False, True])
def test_loss_module_equals_the_loss_function(unknown, static):
    """Also in training mode, with dropout set to zero."""
    setup = scene_setup()
    learner = setup.learner(temperature=0.8, allow_unknown=unknown)
    sampled = learner.prepare(setup.batch, setup.places, 0)
    expected = teacher_forced(setup, learner, sampled)
    gradient = gradient_of(setup, expected[0])
    module = SelfCriticalLoss(setup.captioner, learner, static=static)
    assert set(module.state_dict()) == {f"captioner.{name}" for name in gradient}
    names = ("words", "targets", "target_mask", "advantages")
    inputs = {name: getattr(setup.batch, name) for name in ("features", "boxes", "mask")}
    inputs |= {name: getattr(sampled, name) for name in names}
    assert module.train()(**inputs)[0] != expected[0]
    set_dropout(setup.captioner, 0.0)
    found = module(**inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert_same_gradient(gradient_of(setup, found[0]), gradient, 1e-9)


def test_fully_masked_batch_has_no_gradient():
    setup = scene_setup()
    learner = setup.learner()
    sampled = learner.prepare(setup.batch, setup.places, 0)
    total, count, entropy = SelfCriticalLoss(setup.captioner, learner)(
        setup.batch.features,
        setup.batch.boxes,
        setup.batch.mask,
        sampled.words,
        sampled.targets,
        torch.zeros_like(sampled.target_mask),
        sampled.advantages,
    )
    assert (total.item(), count.item(), entropy.item()) == (0, 0, 0)
    assert not any(gradient.any() for gradient in gradient_of(setup, total).values())


def test_half_precision_logits_are_summed_in_single_precision():
    setup = scene_setup()
    learner = setup.learner(temperature=0.7)
    sampled = learner.prepare(setup.batch, setup.places, 0)
    logits = 5 * torch.randn(*sampled.words.shape, len(setup.vocabulary))
    arguments = sampled.targets, sampled.target_mask, sampled.advantages
    for dtype in (torch.bfloat16, torch.float16):
        rounded = logits.to(dtype)
        found = loss_of(learner, rounded, *arguments)
        assert found[0].dtype == torch.float32
        for one, other in zip(found, loss_of(learner, rounded.double(), *arguments), strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-3)


def test_prepared_samples_carry_no_gradient():
    setup = scene_setup()
    sampled = setup.learner(baseline="greedy").prepare(setup.batch, setup.places, 0)
    for field in dataclasses.fields(sampled):
        value = getattr(sampled, field.name)
        assert not value.requires_grad
        assert not value.is_inference()  # so it can be part of a loss
    assert (sampled.words[..., 0] == 0).all()
    before = sampled.target_mask[..., 1:]
    assert torch.equal(sampled.words[..., 1:][before], sampled.targets[..., :-1][before])


# The sampling distribution equals the distribution that the loss scores with.


def scored_probabilities(learner, logits):
    """The probability of each word according to the loss: exp(-loss)."""
    vocab_size = logits.shape[-1]
    found = []
    for word in range(vocab_size):
        loss, count, _ = loss_of(
            learner,
            logits.view(1, 1, 1, vocab_size),
            torch.tensor([[[word]]]),
            torch.ones(1, 1, 1, dtype=torch.bool),
            torch.ones(1, 1),
        )
        assert int(count) == 1
        found.append(math.exp(-loss.item()))
    return np.array(found)


def assert_drawn_from(counts, probabilities):
    """Pearson's chi-square test with a false alarm rate of about one in a million."""
    expected = probabilities * counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    # Wilson and Hilferty's normal approximation of the chi-square distribution.
    spread = 2 / (9 * freedom)
    assert ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < 4.75


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
def test_first_words_follow_the_distribution_of_the_loss(temperature):
    setup = letter_setup(letters=7, copies=100, images=4, max_length=2)
    copies = setup.batch[:100]
    learner = setup.learner(num_samples=8, temperature=temperature)
    sampled = [learner.prepare(copies, torch.arange(100), step) for step in range(8)]
    words = torch.stack([part.targets[..., 0] for part in sampled])
    assert not any((part.targets == setup.unknown).any() for part in sampled)
    assert not any((part.words == setup.unknown).any() for part in sampled)
    features, _ = image_of(setup.batch, 0)
    start = torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        logits = setup.captioner(features[None], None, None, start)[0, 0]
    probabilities = scored_probabilities(learner, logits)
    assert probabilities[setup.unknown] == pytest.approx(0, abs=1e-30)
    assert logits.argmax() == setup.unknown
    allowed = np.arange(len(setup.vocabulary)) != setup.unknown
    assert probabilities[allowed].sum() == pytest.approx(1, abs=1e-5)
    counts = np.bincount(words.flatten().numpy(), minlength=len(allowed))
    assert_drawn_from(counts[allowed], probabilities[allowed])


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_captions_follow_the_model_distribution(temperature):
    """All captions of at most two words; their probabilities sum to one."""
    setup = letter_setup(copies=100, images=4, max_length=2)
    learner = setup.learner(num_samples=8, temperature=temperature, seed=2)
    slow = setup.slow(temperature=temperature)
    image = image_of(setup.batch, 0)
    captions = slow.all_captions()
    with torch.no_grad():
        logs = [slow.caption_log_prob(image, caption).item() for caption in captions]
    probabilities = np.exp(logs)
    assert len(captions) == 1 + 3 + 9
    assert probabilities.sum() == pytest.approx(1)
    counts = np.zeros(len(captions), dtype=int)
    for step in range(8):
        sampled = learner.prepare(setup.batch[:100], torch.arange(100), step)
        for caption in (caption for several in written(sampled) for caption in several):
            counts[captions.index(caption)] += 1
    assert_drawn_from(counts, probabilities)


# The gradient in expectation.


def exact_gradient(setup, *, temperature):
    """The gradient of the first image's expected reward, over all possible captions."""
    slow, image = setup.slow(temperature=temperature), image_of(setup.batch, 0)
    setup.captioner.zero_grad()
    expected = 0.0
    for caption in slow.all_captions():
        reward = slow_cider_d(caption, 0, setup.references)
        expected = expected + slow.caption_log_prob(image, caption).exp() * reward
    expected.backward()
    return expected.item(), gradients(setup.captioner)


def flat(parts):
    return torch.cat([part.flatten() for part in parts.values()])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("baseline", ["samples", "greedy"])
def test_mean_gradient_equals_the_gradient_of_the_expected_reward(baseline, temperature):
    """The mean over many batches is minus the gradient of the expected reward.

    If the baseline included the sample itself, a third of the gradient would be missing.
    """
    setup = letter_setup(copies=100, images=20, max_length=2)
    value, exact = exact_gradient(setup, temperature=temperature)
    exact, samples, batches = flat(exact), 3, 60
    learner = setup.learner(num_samples=samples, baseline=baseline, temperature=temperature, seed=1)
    copies, places = setup.batch[:100], torch.arange(100)
    ascents, rewards = [], []
    for step in range(batches):
        sampled = learner.prepare(copies, places, step)
        loss, _, _ = teacher_forced(setup, learner, sampled, copies)
        ascents.append(-flat(gradient_of(setup, loss)) / (100 * samples))
        rewards.append(sampled.rewards.double().mean())
    rewards = torch.stack(rewards)
    assert abs(rewards.mean() - value) < 4 * rewards.std() / math.sqrt(batches)
    ascents = torch.stack(ascents)
    error = ascents.std(0) / math.sqrt(batches)
    # Five standard errors for each of about 5,000 numbers.
    assert ((ascents.mean(0) - exact).abs() <= 5 * error + 1e-9).all()
    along = ascents @ exact / exact.square().sum()  # 1 in expectation
    error = along.std() / math.sqrt(batches)
    assert error < 0.05
    assert abs(along.mean() - 1) < 4 * error


# Why the loss must use the distribution that was sampled from.


def test_masked_softmax_does_not_raise_the_forbidden_word():
    """Bad captions push probability to other words; a word that is never drawn only gains."""
    setup = scene_setup()
    learner = setup.learner(num_samples=4)
    sampled = learner.prepare(setup.batch, setup.places, 0)
    worse = -torch.ones(len(setup.batch), 4)
    output, unknown = setup.captioner.decoder.output, setup.unknown
    begin = output.weight.detach().clone(), output.bias.detach().clone()

    def logits():
        batch = setup.batch
        return setup.captioner(batch.features, batch.boxes, batch.mask, sampled.words)

    def unknown_mass():
        """The mean probability of the unknown word in the unmasked softmax."""
        with torch.no_grad():
            return logits().softmax(-1)[..., unknown][sampled.target_mask].mean().item()

    def step(loss):
        """One step of gradient descent on the output layer."""
        setup.captioner.zero_grad()
        loss.backward()
        found = output.weight.grad[unknown].clone(), output.bias.grad[unknown].clone()
        with torch.no_grad():
            for parameter in (output.weight, output.bias):
                parameter.sub_(parameter.grad, alpha=2e-3)
        return found

    before = unknown_mass()
    chosen = logits().log_softmax(-1).gather(-1, sampled.targets.unsqueeze(-1)).squeeze(-1)
    _, bias = step(chosen[sampled.target_mask].sum())  # the loss without the mask
    assert bias < 0
    assert unknown_mass() > before + 0.01
    with torch.no_grad():
        output.weight.copy_(begin[0])
        output.bias.copy_(begin[1])
    loss, _, _ = teacher_forced(setup, learner, sampled, advantages=worse)
    weight, bias = step(loss)
    assert bias == 0
    assert not weight.any()
    assert torch.equal(output.weight[unknown], begin[0][unknown])


def test_logit_of_the_forbidden_word_has_no_effect():
    setup = scene_setup()
    learner = setup.learner()
    sampled = learner.prepare(setup.batch, setup.places, 0)
    shape = (*sampled.words.shape, len(setup.vocabulary))
    random = torch.randn(shape, dtype=torch.float64)
    found = []
    for value in (-100.0, 0.0, 100.0):
        logits = random.clone()
        logits[..., setup.unknown] = value
        logits.requires_grad_()
        parts = loss_of(
            learner, logits, sampled.targets, sampled.target_mask, sampled.advantages.double()
        )
        parts[0].backward()
        assert not logits.grad[..., setup.unknown].any()
        assert not logits.grad[~sampled.target_mask].any()
        assert logits.grad.isfinite().all()
        found.append([*(part.item() for part in parts), logits.grad])
    for other in found[1:]:
        assert other[:3] == pytest.approx(found[0][:3])
        torch.testing.assert_close(other[3], found[0][3])


def test_logits_after_the_end_have_no_effect():
    setup = scene_setup()
    learner = setup.learner()
    sampled = learner.prepare(setup.batch, setup.places, 0)
    logits = torch.randn(*sampled.words.shape, len(setup.vocabulary), dtype=torch.float64)
    spoilt = torch.where(sampled.target_mask.unsqueeze(-1), logits, 1e4 * logits)
    assert not torch.equal(logits, spoilt)
    arguments = sampled.targets, sampled.target_mask, sampled.advantages
    for one, other in zip(
        loss_of(learner, logits, *arguments), loss_of(learner, spoilt, *arguments), strict=True
    ):
        torch.testing.assert_close(one, other)


# Batches.


def test_samples_do_not_depend_on_the_batch():
    setup = scene_setup()
    learner = setup.learner(num_samples=4, seed=8, baseline="greedy")
    together = learner.prepare(setup.batch, setup.places, 3)
    captions = written(together)
    shuffled = torch.tensor([4, 0, 6, 2])
    some = learner.prepare(setup.batch[shuffled], shuffled, 3)
    assert written(some) == [captions[place] for place in shuffled.tolist()]
    torch.testing.assert_close(some.advantages, together.advantages[shuffled])
    total, parts = 0.0, []
    for place in setup.places.tolist():
        count = int(setup.batch.mask[place].sum())
        one = setup.batch[place : place + 1]
        one = dataclasses.replace(
            one,
            features=one.features[:, :count],
            boxes=one.boxes[:, :count],
            mask=one.mask[:, :count],
        )
        alone = learner.prepare(one, setup.places[place : place + 1], 3)
        assert written(alone) == [captions[place]]
        torch.testing.assert_close(alone.rewards, together.rewards[place : place + 1])
        torch.testing.assert_close(alone.advantages, together.advantages[place : place + 1])
        loss, _, _ = teacher_forced(setup, learner, alone, one)
        total += loss.item()
        parts.append(gradient_of(setup, loss))
    loss, _, _ = teacher_forced(setup, learner, together)
    assert loss.item() == pytest.approx(total, rel=1e-5)
    summed = {name: sum(part[name] for part in parts) for name in parts[0]}
    assert_same_gradient(gradient_of(setup, loss), summed, 1e-5)


def test_number_of_samples_does_not_change_the_first():
    setup = scene_setup()
    few, many = (
        written(setup.learner(num_samples=count).prepare(setup.batch, setup.places, 0))
        for count in (2, 5)
    )
    assert [several[:2] for several in many] == few


def test_samples_depend_on_step_seed_and_index():
    setup = letter_setup(copies=6, images=8)

    def drawn(step, seed=0, places=setup.places):
        return written(setup.learner(seed=seed).prepare(setup.batch, places, step))

    first = drawn(4)
    assert drawn(4) == first
    assert drawn(5) != first
    assert drawn(4, seed=1) != first
    # Step and seed are not simply added.
    assert drawn(3, seed=1) != first
    assert drawn(5, seed=-1) != first
    assert len({str(several) for several in first[:6]}) > 1  # one image at six indices
    other = setup.places.roll(1)
    assert drawn(4, places=other) != first


def test_rewards_use_the_references_of_each_index():
    setup = letter_setup(images=8)
    places = torch.tensor([5, 2, 5, 0, 7, 1, 3, 6])
    sampled = setup.learner(num_samples=3).prepare(setup.batch, places, 0)
    for place, several, rewards in zip(
        places.tolist(), written(sampled), sampled.rewards.tolist(), strict=True
    ):
        expected = [slow_cider_d(caption, place, setup.references) for caption in several]
        assert rewards == pytest.approx(expected, abs=2e-5)


def test_padding_values_have_no_effect():
    setup = scene_setup()
    learner = setup.learner()
    padding = ~setup.batch.mask.unsqueeze(-1)
    spoilt = dataclasses.replace(
        setup.batch,
        features=setup.batch.features.masked_fill(padding, 1e3),
        boxes=setup.batch.boxes.masked_fill(padding, 0.7),
    )
    found = []
    for batch in (setup.batch, spoilt):
        sampled = learner.prepare(batch, setup.places, 0)
        loss, _, _ = teacher_forced(setup, learner, sampled, batch)
        found.append((written(sampled), gradient_of(setup, loss)))
    assert found[0][0] == found[1][0]
    assert_same_gradient(found[1][1], found[0][1], 1e-9)


@pytest.mark.parametrize("baseline", ["samples", "greedy"])
def test_prepare_uses_current_weights_and_images(baseline):
    """Whatever is cached between steps, the captions are those of the current model."""
    setup = scene_setup()
    learner = setup.learner(baseline=baseline)
    places = setup.places
    batches = [slice(0, 3), slice(3, 6), slice(0, 2), slice(3, 6), slice(0, 7)]
    earlier = []
    for step, some in enumerate(batches):
        found = learner.prepare(setup.batch[some], places[some], step)
        fresh = setup.learner(baseline=baseline).prepare(setup.batch[some], places[some], step)
        assert written(found) == written(fresh)
        torch.testing.assert_close(found.advantages, fresh.advantages)
        earlier.append((found, written(found)))
        with torch.no_grad():
            for parameter in setup.captioner.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3 * parameter.std())
    again = learner.prepare(setup.batch[batches[0]], places[batches[0]], 0)
    assert written(again) != earlier[0][1]
    assert all(written(found) == captions for found, captions in earlier)  # not overwritten


@pytest.mark.parametrize("baseline", ["samples", "greedy"])
def test_vocabulary_without_unknown_word(baseline):
    """All words can be sampled."""
    setup = letter_setup(letters=3)
    plain = Vocabulary(["a", "b", "c", "d"])
    learner = SelfCritical(
        setup.captioner, setup.reward(), plain, num_samples=3, baseline=baseline, max_length=6
    )
    allowed = setup.learner(num_samples=3, baseline=baseline, allow_unknown=True)
    one, other = (which.prepare(setup.batch, setup.places, 0) for which in (learner, allowed))
    assert written(one) == written(other)
    assert (one.targets == 4).any()
    for found, expected in zip(
        teacher_forced(setup, learner, one), teacher_forced(setup, allowed, one), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_one_sample_needs_the_greedy_baseline():
    setup = scene_setup()
    with pytest.raises(ValueError, match="samples"):
        setup.learner(num_samples=1, baseline="samples")
    sampled = setup.learner(num_samples=1, baseline="greedy").prepare(setup.batch, setup.places, 0)
    assert sampled.rewards.shape == sampled.advantages.shape == (7, 1)
    torch.testing.assert_close(
        sampled.advantages[:, 0], sampled.rewards[:, 0] - sampled.greedy_rewards
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0, "baseline": "greedy"}, "samples: 0"),
        ({"temperature": 0.0}, "temperature: 0"),
    ],
)
def test_invalid_values_raise(options, message):
    setup = scene_setup()
    with pytest.raises(ValueError, match=message):
        setup.learner(**options).prepare(setup.batch, setup.places, 0)
