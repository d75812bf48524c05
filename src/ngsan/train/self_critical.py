"""Self-critical learning: captions better than the baseline become more probable.

The method is that of Rennie et al. (CVPR 2017). Captions are sampled without gradient, word by word
through the cached decoder, and rewarded on the device. One pass over the finished captions then
gives the gradient. It scores with exactly the distribution that was sampled from: the same words
forbidden, the same temperature. If it did not, a sample that is worse than the baseline would push
probability onto words that are never sampled, and nothing would ever push it back.

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
from ngsan.decoding import Constraints, Greedy, Sampling
from ngsan.metrics.reward import Bleu4Reward, CiderDReward, MixedReward, References, Reward
from ngsan.models.captioner import Captioner
from ngsan.models.steps import CaptionerSteps
from ngsan.nn.attend import Attend
from ngsan.nn.losses import allowed_log_probs
from ngsan.nn.packing import Packing
from ngsan.text.vocabulary import BOUNDARY, UNKNOWN, Vocabulary

_SEEDS = 0x9E3779B97F4A7C15
_KEPT = 2

_MANY = 512
"""Samples of which one or the other always takes all steps."""


@dataclass(frozen=True)
class SampledCaptions:
    """Captions that were sampled, and how they compare."""

    words: Tensor
    """(B, S, T) what the decoder is given, the boundary first."""

    targets: Tensor
    """(B, S, T) the sampled words, the boundary as end."""

    target_mask: Tensor
    """(B, S, T) boolean, True = a word or the end."""

    advantages: Tensor
    """(B, S) rewards above the baseline."""

    rewards: Tensor
    """(B, S)"""

    lengths: Tensor
    """(B, S) words."""

    greedy_rewards: Tensor | None
    """(B,) rewards of the greedy captions, or None."""


class SelfCritical:
    """Samples, rewards, advantages and the loss."""

    def __init__(
        self,
        writer: Captioner,
        reward: Reward,
        vocabulary: Vocabulary,
        *,
        samples: int = 5,
        baseline: Literal["samples", "greedy"] = "samples",
        temperature: float = 1.0,
        unknown: bool = False,
        longest: int = 20,
        seed: int = 0,
    ) -> None:
        """Takes the parts.

        Args:
            writer: The model that samples, in evaluation mode, with the weights that are trained.
            reward: Of captions.
            vocabulary: The model's words.
            samples: S.
            baseline: What a sample is compared with: the mean of the image's other samples, or
                the greedy caption.
            temperature: Of sampling.
            unknown: Whether the unknown word may be sampled.
            longest: T.
            seed: Of the samples.
        """
        if baseline not in ("samples", "greedy"):
            raise ValueError(f"baseline: {baseline!r} is not one of samples, greedy")
        if writer.training:
            raise ValueError("the writer must be in evaluation mode, or it samples with dropout")
        if baseline == "samples" and samples < 2:
            raise ValueError(
                f"samples: {samples} has no other samples to be compared with; take 2 or more, or "
                "the greedy baseline"
            )
        self.writer, self.reward, self.samples = writer, reward, samples
        self.baseline, self.temperature, self.longest = baseline, temperature, longest
        self._seed = seed
        words = [] if unknown or UNKNOWN not in vocabulary else vocabulary.encode([UNKNOWN])
        self._constraints = Constraints(forbidden=words)
        device = writer.decoder.embed.weight.device
        self.forbidden = torch.tensor(words, device=device) if words else None
        self._ready: dict[tuple[object, ...], tuple[CaptionerSteps, Sampling, Greedy]] = {}

    @torch.no_grad()
    def prepare(
        self, batch: CaptionBatch, places: Tensor, step: int, *, greedy: bool = False
    ) -> SampledCaptions:
        """Samples captions and compares them.

        Args:
            batch: The images.
            places: (B,) their places among those that the reward knows; what is sampled of an
                image depends on its place and the step, not on the batch.
            step: Any number; another one gives other samples.
            greedy: Whether to reward the greedy captions, too, if the baseline does not need it.
        """
        sampling, search = self._searches(batch)
        sampling.reseed((self._seed * _SEEDS + step) % 2**63, places)
        written = sampling.run()
        rewards = self.reward(places, written.words)
        greedy_rewards = None
        if greedy or self.baseline == "greedy":
            greedy_rewards = self.reward(places, search.run().words.squeeze(1))
        if self.baseline == "greedy":
            assert greedy_rewards is not None
            advantages = rewards - greedy_rewards.unsqueeze(1)
        else:
            above = rewards - rewards.mean(1, keepdim=True)
            advantages = above * self.samples / (self.samples - 1)
        positions = torch.arange(self.longest, device=written.words.device)
        return SampledCaptions(
            words=torch.nn.functional.pad(written.words[..., :-1], (1, 0), value=BOUNDARY),
            targets=written.words,
            target_mask=positions <= written.lengths.unsqueeze(-1),
            advantages=advantages,
            rewards=rewards,
            lengths=written.lengths,
            greedy_rewards=greedy_rewards,
        )

    def loss(
        self, logits: Tensor, targets: Tensor, target_mask: Tensor, advantages: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The loss of sampled captions, whose gradient is that of minus the expected reward.

        Args:
            logits: (B, S, T, V) of the model that is trained, given the sampled words.
            targets: (B, S, T) the sampled words.
            target_mask: (B, S, T) boolean.
            advantages: (B, S).

        Returns:
            The sum over the words of -advantage log p; the number of words; and the sum of the
            entropies of the distributions they were sampled from, without gradient.
        """
        return self_critical_sums(
            logits,
            targets,
            target_mask,
            advantages.unsqueeze(-1),
            forbidden=self.forbidden,
            temperature=self.temperature,
        )

    def _searches(self, batch: CaptionBatch) -> tuple[Sampling, Greedy]:
        """Searches over a batch; those of the same shapes are used again."""
        shapes = (batch.features.shape, batch.boxes is None)
        if shapes in self._ready:
            steps, sampling, greedy = self._ready[shapes]
            steps.load(batch.features, batch.boxes, batch.mask)
            return sampling, greedy
        while len(self._ready) >= _KEPT:
            del self._ready[next(iter(self._ready))]
        steps = CaptionerSteps(self.writer, batch.features, batch.boxes, batch.mask)
        sampling = Sampling(
            steps,
            samples=self.samples,
            temperature=self.temperature,
            longest=self.longest,
            boundary=BOUNDARY,
            constraints=self._constraints,
            look=len(batch) * self.samples < _MANY,
        )
        greedy = Greedy(
            steps, longest=self.longest, boundary=BOUNDARY, constraints=self._constraints
        )
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
    """See `SelfCritical.loss`.

    Args:
        logits: (..., V).
        targets: (...).
        target_mask: (...) boolean.
        advantages: Of the words, broadcastable to (...).
        forbidden: Of sampling.
        temperature: Of sampling.
    """
    log_probs = allowed_log_probs(logits, forbidden=forbidden, temperature=temperature)
    chosen = log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)  # (...)
    # Where there is no word the chosen one may be forbidden, and zero times infinity is no number.
    total = -(advantages * chosen.masked_fill(~target_mask, 0.0)).sum()
    entropies = torch.special.entr(log_probs.detach().exp()).sum(-1)
    return total, target_mask.sum(), entropies.masked_fill(~target_mask, 0.0).sum()


class SelfCriticalLoss(nn.Module):
    """The model that is trained, and its loss on sampled captions."""

    def __init__(self, captioner: Captioner, rules: SelfCritical, *, static: bool = False) -> None:
        """Takes the model and what sampled the captions.

        Args:
            captioner: The model.
            rules: What sampled.
            static: Whether shapes must not depend on how long the samples are. Padding, half of
                the places, is then scored, too.
        """
        super().__init__()
        self.captioner, self.static = captioner, static
        self.temperature = rules.temperature
        self.register_buffer("forbidden", rules.forbidden, persistent=False)

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
        """See `SelfCritical.loss`."""
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
    """The reward of captions of a dataset's images, against all their captions at full length."""
    vocabulary = dataset.vocabulary

    def encode(captions: Sequence[str]) -> list[list[int]]:
        return [vocabulary.encode(vocabulary.tokenize(caption)) for caption in captions]

    references = References.build(
        [encode(dataset.captions(place)) for place in range(len(dataset))],
        vocab_size=len(vocabulary),
        end=config.end,
        boundary=BOUNDARY,
        device=device,
    )
    parts: list[tuple[float, Reward]] = []
    if config.cider:
        parts.append((config.cider, CiderDReward(references)))
    if config.bleu:
        parts.append((config.bleu, Bleu4Reward(references)))
    return parts[0][1] if [weight for weight, _ in parts] == [1.0] else MixedReward(parts)


def set_dropout(captioner: Captioner, dropout: float) -> None:
    """Changes the dropout of all parts of a captioner."""
    for part in captioner.modules():
        if isinstance(part, nn.Dropout):
            part.p = dropout
        elif isinstance(part, Attend):
            part.dropout = dropout
