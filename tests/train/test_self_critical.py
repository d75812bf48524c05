"""Self-critical learning against its definition, enumeration of all captions, and counting."""

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
    SlowWriter,
    advantages_over_others,
    gradients,
    image_of,
    slow_bleu_4,
    slow_cider_d,
    slow_gradient,
)

SHAPE = dict(dim=16, heads=2, hidden_dim=24, geometry_dim=8)


@dataclasses.dataclass(frozen=True)
class World:
    """Images with references and a model that has learnt nothing but how often words come."""

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
        return SlowWriter(
            self.captioner, len(self.vocabulary), forbidden, temperature, self.max_length
        )

    def images(self):
        return [image_of(self.batch, place) for place in range(len(self.batch))]


def build(model, vocabulary, batch, references, *, max_length, dtype=torch.float64):
    """A model whose every parameter is random, and whose words come as often as in references.

    The unknown word is the most probable one: whoever forgets that it is forbidden is found out.
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
    return World(captioner.to(dtype), vocabulary, batch, references, max_length)


def scene_world(dtype=torch.float64, images=7):
    """Scenes of two to five objects, so that most are padded, for a model with geometry."""
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


def letter_world(*, letters=3, images=6, max_length=6, copies=1, dtype=torch.float64):
    """Images without boxes whose captions are few letters; the first may be there many times."""
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
    """The captions as plain Python: by image, by sample, words and whether they ended."""
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
            assert mask == sorted(mask, reverse=True)  # the real ones stand first
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


def teacher_forced(world, learner, sampled, batch=None, *, advantages=None):
    """The loss on one pass over all captions, as a training step has it."""
    batch = world.batch if batch is None else batch
    logits = world.captioner(batch.features, batch.boxes, batch.mask, sampled.words)
    return loss_of(
        learner,
        logits,
        sampled.targets,
        sampled.target_mask,
        sampled.advantages if advantages is None else advantages,
    )


def gradient_of(world, loss):
    world.captioner.zero_grad()
    loss.backward()
    return gradients(world.captioner)


def assert_same_gradient(found, expected, tolerance):
    """Every parameter's is the same, but for a share of the whole gradient's length."""
    length = math.sqrt(sum(part.square().sum().item() for part in expected.values()))
    assert length > 0.1
    for name, part in expected.items():
        assert (found[name] - part).norm() <= tolerance * (part.norm() + 1e-2 * length), name


def assert_close_to(found, expected):
    """Rewards are in single precision."""
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def slow_rewards(world, captions, *, end, bleu):
    return [
        [
            slow_cider_d(caption, place, world.references, end=end)
            + (bleu * slow_bleu_4(caption, place, world.references, end=end) if bleu else 0.0)
            for caption in several
        ]
        for place, several in enumerate(captions)
    ]


def assert_is_the_definition(
    world, *, tolerance, num_samples=3, baseline, end=True, bleu=0.0, **how
):
    """Captions, rewards, advantages, loss, entropy and gradient against the slow version."""
    learner = world.learner(
        world.reward(end=end, bleu=bleu), num_samples=num_samples, baseline=baseline, seed=11, **how
    )
    sampled = learner.prepare(world.batch, world.places, 5)
    captions, images = written(sampled), world.images()
    slow = world.slow(**how)
    assert {ended for several in captions for _, ended in several} == {True, False}
    for several in captions:
        assert len(several) == num_samples
        for words, ended in several:
            assert len(words) < world.max_length if ended else len(words) == world.max_length
    expected = slow_rewards(world, captions, end=end, bleu=bleu)
    assert_close_to(sampled.rewards, expected)
    assert sampled.rewards.std() > 0.05
    if baseline == "samples":
        advantages = [advantages_over_others(rewards) for rewards in expected]
    else:
        chosen = [[slow.greedy(image)] for image in images]
        # Without the mask the unknown word would be among them.
        free = dataclasses.replace(slow, forbidden=frozenset())
        assert any(world.unknown in free.greedy(image)[0] for image in images)
        greedy = slow_rewards(world, chosen, end=end, bleu=bleu)
        assert_close_to(sampled.greedy_rewards, [one for [one] in greedy])
        advantages = [
            [reward - one for reward in rewards]
            for rewards, [one] in zip(expected, greedy, strict=True)
        ]
    assert_close_to(sampled.advantages, advantages)
    total, count, entropy = teacher_forced(world, learner, sampled)
    found = gradient_of(world, total)
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
    ids=["plain", "cooler", "unknown allowed, hotter", "end does not count"],
)
def test_loss_and_gradient_are_those_of_the_definition(baseline, options):
    assert_is_the_definition(scene_world(), baseline=baseline, tolerance=1e-5, **options)


@pytest.mark.parametrize("baseline", ["samples", "greedy"])
def test_single_precision(baseline):
    assert_is_the_definition(scene_world(torch.float32), baseline=baseline, tolerance=1e-5)


@pytest.mark.parametrize("baseline", ["samples", "greedy"])
@pytest.mark.parametrize("end", [False, True])
def test_a_reward_mixed_with_bleu(baseline, end):
    world = letter_world()
    assert_is_the_definition(
        world, baseline=baseline, end=end, bleu=3.0, num_samples=4, tolerance=1e-5
    )
    alone = world.learner(world.reward(end=end), num_samples=4, seed=11)
    mixed = world.learner(world.reward(end=end, bleu=3.0), num_samples=4, seed=11)
    first, second = (which.prepare(world.batch, world.places, 5) for which in (alone, mixed))
    assert written(first) == written(second)  # what is drawn does not depend on what it is worth
    assert (second.rewards - first.rewards).max() > 0.5


def test_two_samples_have_opposite_advantages_and_equal_ones_have_none():
    world = scene_world()
    sampled = world.learner(num_samples=2).prepare(world.batch, world.places, 0)
    torch.testing.assert_close(sampled.advantages[:, 0], -sampled.advantages[:, 1])
    world = letter_world(letters=1, max_length=1)
    learner = world.learner(num_samples=4, temperature=1e-3)
    sampled = learner.prepare(world.batch, world.places, 0)
    assert all(several == [several[0]] * 4 for several in written(sampled))
    torch.testing.assert_close(
        sampled.advantages, torch.zeros(6, 4), rtol=0, atol=1e-6, check_dtype=False
    )


def test_greedy_rewards_can_be_had_beside_the_mean_of_samples():
    world = scene_world()
    one, two = (world.learner(baseline=baseline) for baseline in ("samples", "greedy"))
    plain = one.prepare(world.batch, world.places, 0)
    both = one.prepare(world.batch, world.places, 0, greedy=True)
    assert plain.greedy_rewards is None
    expected = two.prepare(world.batch, world.places, 0)
    assert torch.equal(both.greedy_rewards, expected.greedy_rewards)
    assert both.greedy_rewards.unique().numel() > 1
    assert torch.equal(both.rewards, expected.rewards)
    assert torch.equal(both.advantages, plain.advantages)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("unknown", [False, True])
def test_the_module_that_is_trained_has_the_same_loss(unknown, static):
    """Also in training mode, once dropout is taken out."""
    world = scene_world()
    learner = world.learner(temperature=0.8, allow_unknown=unknown)
    sampled = learner.prepare(world.batch, world.places, 0)
    expected = teacher_forced(world, learner, sampled)
    gradient = gradient_of(world, expected[0])
    module = SelfCriticalLoss(world.captioner, learner, static=static)
    assert set(module.state_dict()) == {f"captioner.{name}" for name in gradient}
    names = ("words", "targets", "target_mask", "advantages")
    inputs = {name: getattr(world.batch, name) for name in ("features", "boxes", "mask")}
    inputs |= {name: getattr(sampled, name) for name in names}
    assert module.train()(**inputs)[0] != expected[0]
    set_dropout(world.captioner, 0.0)
    found = module(**inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert_same_gradient(gradient_of(world, found[0]), gradient, 1e-9)


def test_a_batch_without_references_teaches_nothing():
    world = scene_world()
    learner = world.learner()
    sampled = learner.prepare(world.batch, world.places, 0)
    total, count, entropy = SelfCriticalLoss(world.captioner, learner)(
        world.batch.features,
        world.batch.boxes,
        world.batch.mask,
        sampled.words,
        sampled.targets,
        torch.zeros_like(sampled.target_mask),
        sampled.advantages,
    )
    assert (total.item(), count.item(), entropy.item()) == (0, 0, 0)
    assert not any(gradient.any() for gradient in gradient_of(world, total).values())


def test_half_precision_scores_are_summed_in_single_precision():
    world = scene_world()
    learner = world.learner(temperature=0.7)
    sampled = learner.prepare(world.batch, world.places, 0)
    logits = 5 * torch.randn(*sampled.words.shape, len(world.vocabulary))
    arguments = sampled.targets, sampled.target_mask, sampled.advantages
    for dtype in (torch.bfloat16, torch.float16):
        rounded = logits.to(dtype)
        found = loss_of(learner, rounded, *arguments)
        assert found[0].dtype == torch.float32
        for one, other in zip(found, loss_of(learner, rounded.double(), *arguments), strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-3)


def test_nothing_that_is_prepared_carries_a_gradient():
    world = scene_world()
    sampled = world.learner(baseline="greedy").prepare(world.batch, world.places, 0)
    for field in dataclasses.fields(sampled):
        value = getattr(sampled, field.name)
        assert not value.requires_grad
        assert not value.is_inference()  # a loss can be taken of it
    assert (sampled.words[..., 0] == 0).all()
    before = sampled.target_mask[..., 1:]
    assert torch.equal(sampled.words[..., 1:][before], sampled.targets[..., :-1][before])


# What is drawn, and with which probability the loss scores it.


def scored_probabilities(learner, logits):
    """By word, the probability that the loss takes a word to have had: exp of minus the loss."""
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
    """Pearson's chi-square, with a limit that chance passes about once in a million times."""
    expected = probabilities * counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    # Wilson and Hilferty's normal approximation of the chi-square distribution.
    spread = 2 / (9 * freedom)
    assert ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < 4.75


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
def test_first_words_are_drawn_by_what_the_loss_scores_with(temperature):
    world = letter_world(letters=7, copies=100, images=4, max_length=2)
    copies = world.batch[:100]
    learner = world.learner(num_samples=8, temperature=temperature)
    sampled = [learner.prepare(copies, torch.arange(100), step) for step in range(8)]
    words = torch.stack([part.targets[..., 0] for part in sampled])
    assert not any((part.targets == world.unknown).any() for part in sampled)
    assert not any((part.words == world.unknown).any() for part in sampled)
    features, _ = image_of(world.batch, 0)
    start = torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        logits = world.captioner(features[None], None, None, start)[0, 0]
    probabilities = scored_probabilities(learner, logits)
    assert probabilities[world.unknown] == pytest.approx(0, abs=1e-30)
    assert logits.argmax() == world.unknown
    allowed = np.arange(len(world.vocabulary)) != world.unknown
    assert probabilities[allowed].sum() == pytest.approx(1, abs=1e-5)
    counts = np.bincount(words.flatten().numpy(), minlength=len(allowed))
    assert_drawn_from(counts[allowed], probabilities[allowed])


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_whole_captions_come_by_their_probability(temperature):
    """Over all captions of at most two words, whose probabilities sum to one."""
    world = letter_world(copies=100, images=4, max_length=2)
    learner = world.learner(num_samples=8, temperature=temperature, seed=2)
    slow = world.slow(temperature=temperature)
    image = image_of(world.batch, 0)
    captions = slow.all_captions()
    with torch.no_grad():
        logs = [slow.caption_log_prob(image, caption).item() for caption in captions]
    probabilities = np.exp(logs)
    assert len(captions) == 1 + 3 + 9
    assert probabilities.sum() == pytest.approx(1)
    counts = np.zeros(len(captions), dtype=int)
    for step in range(8):
        sampled = learner.prepare(world.batch[:100], torch.arange(100), step)
        for caption in (caption for several in written(sampled) for caption in several):
            counts[captions.index(caption)] += 1
    assert_drawn_from(counts, probabilities)


# The gradient in expectation.


def exact_gradient(world, *, temperature):
    """Of the expected reward of one caption of the first image, over all captions there are."""
    slow, image = world.slow(temperature=temperature), image_of(world.batch, 0)
    world.captioner.zero_grad()
    expected = 0.0
    for caption in slow.all_captions():
        reward = slow_cider_d(caption, 0, world.references)
        expected = expected + slow.caption_log_prob(image, caption).exp() * reward
    expected.backward()
    return expected.item(), gradients(world.captioner)


def flat(parts):
    return torch.cat([part.flatten() for part in parts.values()])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("baseline", ["samples", "greedy"])
def test_the_gradient_climbs_the_expected_reward(baseline, temperature):
    """Its mean over many batches is minus the gradient of the expected reward, of each sample.

    With the sample itself in the mean that it is compared with, a third of it would be missing.
    """
    world = letter_world(copies=100, images=20, max_length=2)
    value, exact = exact_gradient(world, temperature=temperature)
    exact, samples, batches = flat(exact), 3, 60
    learner = world.learner(num_samples=samples, baseline=baseline, temperature=temperature, seed=1)
    copies, places = world.batch[:100], torch.arange(100)
    climbs, rewards = [], []
    for step in range(batches):
        sampled = learner.prepare(copies, places, step)
        loss, _, _ = teacher_forced(world, learner, sampled, copies)
        climbs.append(-flat(gradient_of(world, loss)) / (100 * samples))
        rewards.append(sampled.rewards.double().mean())
    rewards = torch.stack(rewards)
    assert abs(rewards.mean() - value) < 4 * rewards.std() / math.sqrt(batches)
    climbs = torch.stack(climbs)
    error = climbs.std(0) / math.sqrt(batches)
    # The limit is five standard errors of each number, and there are some five thousand of them.
    assert ((climbs.mean(0) - exact).abs() <= 5 * error + 1e-9).all()
    along = climbs @ exact / exact.square().sum()  # 1 in expectation
    error = along.std() / math.sqrt(batches)
    assert error < 0.05
    assert abs(along.mean() - 1) < 4 * error


# Why the loss must score with what was sampled from.


def test_the_unmasked_softmax_feeds_the_forbidden_word_and_ours_does_not():
    """After bad captions, probability has to go somewhere; a word never drawn gives none back."""
    world = scene_world()
    learner = world.learner(num_samples=4)
    sampled = learner.prepare(world.batch, world.places, 0)
    worse = -torch.ones(len(world.batch), 4)
    output, unknown = world.captioner.decoder.output, world.unknown
    begin = output.weight.detach().clone(), output.bias.detach().clone()

    def logits():
        batch = world.batch
        return world.captioner(batch.features, batch.boxes, batch.mask, sampled.words)

    def unknown_mass():
        """Mean over real words of the probability that the whole softmax gives the unknown."""
        with torch.no_grad():
            return logits().softmax(-1)[..., unknown][sampled.target_mask].mean().item()

    def step(loss):
        """Of plain descent, on the scores of words alone."""
        world.captioner.zero_grad()
        loss.backward()
        found = output.weight.grad[unknown].clone(), output.bias.grad[unknown].clone()
        with torch.no_grad():
            for parameter in (output.weight, output.bias):
                parameter.sub_(parameter.grad, alpha=2e-3)
        return found

    before = unknown_mass()
    chosen = logits().log_softmax(-1).gather(-1, sampled.targets.unsqueeze(-1)).squeeze(-1)
    _, bias = step(chosen[sampled.target_mask].sum())  # what the loss would be without the mask
    assert bias < 0
    assert unknown_mass() > before + 0.01
    with torch.no_grad():
        output.weight.copy_(begin[0])
        output.bias.copy_(begin[1])
    loss, _, _ = teacher_forced(world, learner, sampled, advantages=worse)
    weight, bias = step(loss)
    assert bias == 0
    assert not weight.any()
    assert torch.equal(output.weight[unknown], begin[0][unknown])


def test_the_forbidden_word_s_score_changes_nothing():
    world = scene_world()
    learner = world.learner()
    sampled = learner.prepare(world.batch, world.places, 0)
    shape = (*sampled.words.shape, len(world.vocabulary))
    random = torch.randn(shape, dtype=torch.float64)
    found = []
    for value in (-100.0, 0.0, 100.0):
        logits = random.clone()
        logits[..., world.unknown] = value
        logits.requires_grad_()
        parts = loss_of(
            learner, logits, sampled.targets, sampled.target_mask, sampled.advantages.double()
        )
        parts[0].backward()
        assert not logits.grad[..., world.unknown].any()
        assert not logits.grad[~sampled.target_mask].any()
        assert logits.grad.isfinite().all()
        found.append([*(part.item() for part in parts), logits.grad])
    for other in found[1:]:
        assert other[:3] == pytest.approx(found[0][:3])
        torch.testing.assert_close(other[3], found[0][3])


def test_scores_after_the_end_change_nothing():
    world = scene_world()
    learner = world.learner()
    sampled = learner.prepare(world.batch, world.places, 0)
    logits = torch.randn(*sampled.words.shape, len(world.vocabulary), dtype=torch.float64)
    spoilt = torch.where(sampled.target_mask.unsqueeze(-1), logits, 1e4 * logits)
    assert not torch.equal(logits, spoilt)
    arguments = sampled.targets, sampled.target_mask, sampled.advantages
    for one, other in zip(
        loss_of(learner, logits, *arguments), loss_of(learner, spoilt, *arguments), strict=True
    ):
        torch.testing.assert_close(one, other)


# Batches.


def test_the_samples_of_an_image_do_not_depend_on_the_batch():
    world = scene_world()
    learner = world.learner(num_samples=4, seed=8, baseline="greedy")
    together = learner.prepare(world.batch, world.places, 3)
    captions = written(together)
    shuffled = torch.tensor([4, 0, 6, 2])
    some = learner.prepare(world.batch[shuffled], shuffled, 3)
    assert written(some) == [captions[place] for place in shuffled.tolist()]
    torch.testing.assert_close(some.advantages, together.advantages[shuffled])
    total, parts = 0.0, []
    for place in world.places.tolist():
        count = int(world.batch.mask[place].sum())
        one = world.batch[place : place + 1]
        one = dataclasses.replace(
            one,
            features=one.features[:, :count],
            boxes=one.boxes[:, :count],
            mask=one.mask[:, :count],
        )
        alone = learner.prepare(one, world.places[place : place + 1], 3)
        assert written(alone) == [captions[place]]
        torch.testing.assert_close(alone.rewards, together.rewards[place : place + 1])
        torch.testing.assert_close(alone.advantages, together.advantages[place : place + 1])
        loss, _, _ = teacher_forced(world, learner, alone, one)
        total += loss.item()
        parts.append(gradient_of(world, loss))
    loss, _, _ = teacher_forced(world, learner, together)
    assert loss.item() == pytest.approx(total, rel=1e-5)
    summed = {name: sum(part[name] for part in parts) for name in parts[0]}
    assert_same_gradient(gradient_of(world, loss), summed, 1e-5)


def test_more_samples_begin_with_the_same_ones():
    world = scene_world()
    few, many = (
        written(world.learner(num_samples=count).prepare(world.batch, world.places, 0))
        for count in (2, 5)
    )
    assert [several[:2] for several in many] == few


def test_steps_seeds_and_places_draw_anew_and_the_same_ones_again():
    world = letter_world(copies=6, images=8)

    def drawn(step, seed=0, places=world.places):
        return written(world.learner(seed=seed).prepare(world.batch, places, step))

    first = drawn(4)
    assert drawn(4) == first
    assert drawn(5) != first
    assert drawn(4, seed=1) != first
    # A step on and a seed back, or the other way, is no way to the same numbers.
    assert drawn(3, seed=1) != first
    assert drawn(5, seed=-1) != first
    assert len({str(several) for several in first[:6]}) > 1  # one image at six places
    other = world.places.roll(1)
    assert drawn(4, places=other) != first


def test_rewards_are_those_of_the_places():
    world = letter_world(images=8)
    places = torch.tensor([5, 2, 5, 0, 7, 1, 3, 6])
    sampled = world.learner(num_samples=3).prepare(world.batch, places, 0)
    for place, several, rewards in zip(
        places.tolist(), written(sampled), sampled.rewards.tolist(), strict=True
    ):
        expected = [slow_cider_d(caption, place, world.references) for caption in several]
        assert rewards == pytest.approx(expected, abs=2e-5)


def test_padding_may_hold_anything():
    world = scene_world()
    learner = world.learner()
    padding = ~world.batch.mask.unsqueeze(-1)
    spoilt = dataclasses.replace(
        world.batch,
        features=world.batch.features.masked_fill(padding, 1e3),
        boxes=world.batch.boxes.masked_fill(padding, 0.7),
    )
    found = []
    for batch in (world.batch, spoilt):
        sampled = learner.prepare(batch, world.places, 0)
        loss, _, _ = teacher_forced(world, learner, sampled, batch)
        found.append((written(sampled), gradient_of(world, loss)))
    assert found[0][0] == found[1][0]
    assert_same_gradient(found[1][1], found[0][1], 1e-9)


@pytest.mark.parametrize("baseline", ["samples", "greedy"])
def test_prepares_with_the_weights_and_images_of_the_moment(baseline):
    """Whatever is kept between steps, the captions are those of the model as it is now."""
    world = scene_world()
    learner = world.learner(baseline=baseline)
    places = world.places
    batches = [slice(0, 3), slice(3, 6), slice(0, 2), slice(3, 6), slice(0, 7)]
    earlier = []
    for step, some in enumerate(batches):
        found = learner.prepare(world.batch[some], places[some], step)
        fresh = world.learner(baseline=baseline).prepare(world.batch[some], places[some], step)
        assert written(found) == written(fresh)
        torch.testing.assert_close(found.advantages, fresh.advantages)
        earlier.append((found, written(found)))
        with torch.no_grad():
            for parameter in world.captioner.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3 * parameter.std())
    again = learner.prepare(world.batch[batches[0]], places[batches[0]], 0)
    assert written(again) != earlier[0][1]
    assert all(written(found) == captions for found, captions in earlier)  # not written over


@pytest.mark.parametrize("baseline", ["samples", "greedy"])
def test_a_vocabulary_without_the_unknown_word(baseline):
    """Every word may be drawn."""
    world = letter_world(letters=3)
    plain = Vocabulary(["a", "b", "c", "d"])
    learner = SelfCritical(
        world.captioner, world.reward(), plain, num_samples=3, baseline=baseline, max_length=6
    )
    allowed = world.learner(num_samples=3, baseline=baseline, allow_unknown=True)
    one, other = (which.prepare(world.batch, world.places, 0) for which in (learner, allowed))
    assert written(one) == written(other)
    assert (one.targets == 4).any()
    for found, expected in zip(
        teacher_forced(world, learner, one), teacher_forced(world, allowed, one), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_one_sample_needs_the_greedy_baseline():
    world = scene_world()
    with pytest.raises(ValueError, match="samples"):
        world.learner(num_samples=1, baseline="samples")
    sampled = world.learner(num_samples=1, baseline="greedy").prepare(world.batch, world.places, 0)
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
def test_wrong_values_are_named(options, message):
    world = scene_world()
    with pytest.raises(ValueError, match=message):
        world.learner(**options).prepare(world.batch, world.places, 0)
