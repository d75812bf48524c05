"""The self-critical phase: captions better than the baseline become more probable.

The method is that of Rennie et al. (CVPR 2017). Captions are sampled without gradient, word by word
through the cached decoder, and rewarded on the device. One forward pass over the finished captions
then gives the gradient. It scores with exactly the distribution that was sampled from: the same
words forbidden, the same temperature. Otherwise a sample below the baseline would push probability
onto words that are never sampled, and nothing would ever push it back.

Shapes: `B` images, `S` samples an image, `T` most words, `V` vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ngsan.config import SelfCriticalConfig
from ngsan.data.batch import CaptionBatch
from ngsan.data.dataset import CaptionDataset
from ngsan.metrics.reward import Bleu4Reward, CiderDReward, MixedReward, References, Reward
from ngsan.models.captioner import CaptionerModel
from ngsan.models.steps import CaptionerSteps
from ngsan.nn.attend import Attend
from ngsan.nn.losses import allowed_log_probs
from ngsan.nn.masks import Packing
from ngsan.search import Constraints, Greedy, Sampling
from ngsan.text.vocabulary import BOUNDARY, UNKNOWN, Vocabulary

_SEEDS = 0x9E3779B97F4A7C15

_KEPT = 2
"""Searches that are kept for batches of the same shape."""

_MANY = 512
"""Samples of which at least one nearly always has the maximum length."""

GREEDY_EVERY = 50
"""Steps between rewards of greedy captions in the log, if the baseline does not need them."""


@dataclass(frozen=True)
class SampledCaptions:
    """Sampled captions and their advantages."""

    words: Tensor
    """(B, S, T) the decoder's input, the boundary first."""

    targets: Tensor
    """(B, S, T) the sampled words, the boundary as end."""

    target_mask: Tensor
    """(B, S, T) boolean, True = word or end."""

    advantages: Tensor
    """(B, S) rewards above the baseline."""

    rewards: Tensor
    """(B, S)"""

    lengths: Tensor
    """(B, S) words."""

    greedy_rewards: Tensor | None
    """(B,) rewards of the greedy captions, or None."""


class SelfCritical:
    """Samples captions and computes their rewards and advantages."""

    def __init__(
        self,
        eval_model: CaptionerModel,
        reward: Reward,
        vocabulary: Vocabulary,
        *,
        num_samples: int = 5,
        baseline: Literal["samples", "greedy"] = "samples",
        temperature: float = 1.0,
        allow_unknown: bool = False,
        max_length: int = 20,
        seed: int = 0,
    ) -> None:
        """Holds the parts.

        Args:
            eval_model: The model that samples, in evaluation mode, with the current weights.
            reward: The reward of captions.
            vocabulary: The model's words.
            num_samples: S.
            baseline: What a sample is compared with: the mean of the image's other samples, or
                the greedy caption.
            temperature: Temperature of sampling.
            allow_unknown: Whether the unknown word may be sampled.
            max_length: T.
            seed: Seed of the samples.
        """
        if baseline not in ("samples", "greedy"):
            raise ValueError(f"baseline: {baseline!r} is not one of samples, greedy")
        if eval_model.training:
            raise ValueError("eval_model must be in evaluation mode, or it samples with dropout")
        if baseline == "samples" and num_samples < 2:
            raise ValueError(
                f"num_samples: {num_samples} leaves no other samples to compare with; use 2 or "
                "more, or the greedy baseline"
            )
        self.eval_model, self.reward, self.num_samples = eval_model, reward, num_samples
        self.baseline, self.temperature, self.max_length = baseline, temperature, max_length
        self._seed = seed
        words = [] if allow_unknown or UNKNOWN not in vocabulary else vocabulary.encode([UNKNOWN])
        self._constraints = Constraints(forbidden=words)
        device = eval_model.decoder.embed.weight.device
        self.forbidden = torch.tensor(words, device=device) if words else None
        self._ready: dict[tuple[object, ...], tuple[CaptionerSteps, Sampling, Greedy]] = {}

    @torch.no_grad()
    def prepare(
        self, batch: CaptionBatch, places: Tensor, step: int, *, greedy: bool = False
    ) -> SampledCaptions:
        """Samples captions and compares them.

        Args:
            batch: The images.
            places: (B,) their indices in the dataset; the samples of an image depend on its index
                and the step, not on the batch.
            step: Any number; another one gives other samples.
            greedy: Whether to reward the greedy captions, even if the baseline does not need it.
        """
        sampling, search = self._searches(batch)
        sampling.reseed((self._seed * _SEEDS + step) % 2**63, places)
        sampled = sampling.run()
        rewards = self.reward(places, sampled.words)
        greedy_rewards = None
        if greedy or self.baseline == "greedy":
            greedy_rewards = self.reward(places, search.run().words.squeeze(1))
        if self.baseline == "greedy":
            assert greedy_rewards is not None
            advantages = rewards - greedy_rewards.unsqueeze(1)
        else:
            above = rewards - rewards.mean(1, keepdim=True)
            advantages = above * self.num_samples / (self.num_samples - 1)
        positions = torch.arange(self.max_length, device=sampled.words.device)
        return SampledCaptions(
            words=torch.nn.functional.pad(sampled.words[..., :-1], (1, 0), value=BOUNDARY),
            targets=sampled.words,
            target_mask=positions <= sampled.lengths.unsqueeze(-1),
            advantages=advantages,
            rewards=rewards,
            lengths=sampled.lengths,
            greedy_rewards=greedy_rewards,
        )

    def _searches(self, batch: CaptionBatch) -> tuple[Sampling, Greedy]:
        """Searches over a batch; those of the same shapes are reused."""
        shapes = (batch.features.shape, batch.boxes is None)
        if shapes in self._ready:
            steps, sampling, greedy = self._ready[shapes]
            steps.load(batch.features, batch.boxes, batch.mask)
            return sampling, greedy
        while len(self._ready) >= _KEPT:
            del self._ready[next(iter(self._ready))]
        steps = CaptionerSteps(self.eval_model, batch.features, batch.boxes, batch.mask)
        sampling = Sampling(
            steps,
            samples=self.num_samples,
            temperature=self.temperature,
            max_length=self.max_length,
            constraints=self._constraints,
            look=len(batch) * self.num_samples < _MANY,
        )
        greedy = Greedy(steps, max_length=self.max_length, constraints=self._constraints)
        self._ready[shapes] = steps, sampling, greedy
        return sampling, greedy


def self_critical_sums(
    logits: Tensor,
    targets: Tensor,
    target_mask: Tensor,
    advantages: Tensor,
    *,
    forbidden: Tensor | None,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of sampled captions; its gradient is that of minus the expected reward.

    Args:
        logits: (..., V) of the trained model, given the sampled words.
        targets: (...) the sampled words.
        target_mask: (...) boolean.
        advantages: Advantages of the words, broadcastable to (...).
        forbidden: The words that sampling forbids.
        temperature: The temperature of sampling.

    Returns:
        The sum over the words of -advantage log p; the number of words; and the sum of the
        entropies of the sampled distributions, without gradient.
    """
    log_probs = allowed_log_probs(logits, forbidden=forbidden, temperature=temperature)
    chosen = log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)  # (...)
    # Padding may be a forbidden word, and zero times infinity is NaN.
    total = -(advantages * chosen.masked_fill(~target_mask, 0.0)).sum()
    entropies = torch.special.entr(log_probs.detach().exp()).sum(-1)
    return total, target_mask.sum(), entropies.masked_fill(~target_mask, 0.0).sum()


class SelfCriticalLoss(nn.Module):
    """The trained model and its loss on sampled captions."""

    def __init__(
        self, captioner: CaptionerModel, method: SelfCritical, *, static: bool = False
    ) -> None:
        """Holds the model.

        Args:
            captioner: The model.
            method: The sampler of the captions.
            static: Whether shapes must not depend on the lengths of the samples. Padding, half of
                the positions, is then scored, too.
        """
        super().__init__()
        self.captioner, self.static = captioner, static
        self.temperature = method.temperature
        self.register_buffer("forbidden", method.forbidden, persistent=False)

    def forward(
        self,
        features: Tensor,
        boxes: Tensor | None,
        mask: Tensor | None,
        words: Tensor,
        targets: Tensor,
        target_mask: Tensor,
        advantages: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `self_critical_sums`."""
        packing = None if self.static else Packing.of(target_mask)
        logits = self.captioner(features, boxes, mask, words, packing=packing)
        advantages = advantages.unsqueeze(-1)
        if packing is not None:
            advantages = advantages.expand(target_mask.shape).flatten()[packing.places]
            targets, target_mask = targets.flatten()[packing.places], packing.real
        return self_critical_sums(
            logits,
            targets,
            target_mask,
            advantages,
            forbidden=self.forbidden,  # type: ignore[arg-type]
            temperature=self.temperature,
        )


def build_reward(
    dataset: CaptionDataset, config: SelfCriticalConfig, device: torch.device
) -> Reward:
    """The reward of captions of a dataset's images, against all their references in full."""
    vocabulary = dataset.vocabulary

    def encode(captions: Sequence[str]) -> list[list[int]]:
        return [vocabulary.encode(vocabulary.tokenize(caption)) for caption in captions]

    references = References.build(
        [encode(dataset.captions(place)) for place in range(len(dataset))],
        vocab_size=len(vocabulary),
        end=config.include_end,
        boundary=BOUNDARY,
        device=device,
    )
    parts: list[tuple[float, Reward]] = []
    if config.cider_weight:
        parts.append((config.cider_weight, CiderDReward(references)))
    if config.bleu_weight:
        parts.append((config.bleu_weight, Bleu4Reward(references)))
    return parts[0][1] if [weight for weight, _ in parts] == [1.0] else MixedReward(parts)


def set_dropout(captioner: CaptionerModel, dropout: float) -> None:
    """Changes the dropout of all parts of a captioner."""
    for part in captioner.modules():
        if isinstance(part, nn.Dropout):
            part.p = dropout
        elif isinstance(part, Attend):
            part.dropout = dropout
