"""Self-critical training from its definition: one image, one caption, one word at a time.

Only the captioner's plain forward pass is shared with the program. The logits of every word are
computed from the whole prefix, without cache, padding or batch; rewards come from the COCO tools on
strings. A caption is a pair (words, ended); one that has not ended was cut off. The boundary is 0.
"""

import dataclasses
import math

import torch
from pycocoevalcap.bleu.bleu_scorer import BleuScorer
from pycocoevalcap.cider.cider_scorer import CiderScorer

END = "<end>"


def image_of(batch, place):
    """Features and boxes of an image without padding."""
    real = batch.mask[place]
    boxes = None if batch.boxes is None else batch.boxes[place][real]
    return batch.features[place][real], boxes


@dataclasses.dataclass(frozen=True)
class SlowSampler:
    """A captioner with its allowed words."""

    captioner: torch.nn.Module
    vocab_size: int
    forbidden: frozenset
    temperature: float
    max_length: int

    def log_probs(self, image, before):
        """Log-probabilities (V,) of the next word, in double precision."""
        features, boxes = image
        boxes = None if boxes is None else boxes[None]
        words = torch.tensor([[0, *before]])
        logits = self.captioner(features[None], boxes, None, words)[0, -1].double()
        allowed = [word for word in range(self.vocab_size) if word not in self.forbidden]
        values = [logits[word] / self.temperature for word in allowed]
        highest = max(value.item() for value in values)
        total = sum((value - highest).exp() for value in values)
        found = [torch.tensor(-math.inf, dtype=torch.float64)] * self.vocab_size
        for word, value in zip(allowed, values, strict=True):
            found[word] = value - highest - total.log()
        return torch.stack(found)

    def caption_log_prob(self, image, caption):
        """The sum over the words, and the end token if there is one."""
        words, ended = caption
        choices = [*words, 0] if ended else words
        return sum(self.log_probs(image, choices[:i])[word] for i, word in enumerate(choices))

    def caption_entropy(self, image, caption):
        """The sum of the entropies of the distributions of all words and the end token."""
        words, ended = caption
        total = 0.0
        for place in range(len(words) + ended):
            for value in self.log_probs(image, words[:place]).tolist():
                total -= math.exp(value) * value if value > -math.inf else 0.0
        return total

    def greedy(self, image):
        """The caption of the most probable words."""
        words = []
        while len(words) < self.max_length:
            word = self.log_probs(image, words).argmax().item()
            if word == 0:
                return words, True
            words.append(word)
        return words, False

    def all_captions(self):
        """Every possible caption."""
        open_ones, found = [[]], []
        for _ in range(self.max_length):
            found += [(words, True) for words in open_ones]
            open_ones = [
                [*words, word]
                for words in open_ones
                for word in range(1, self.vocab_size)
                if word not in self.forbidden
            ]
        return found + [(words, False) for words in open_ones]


def _sentence(caption, end):
    words, ended = caption
    return " ".join([*(f"w{word}" for word in words), *([END] if end and ended else [])])


def slow_cider_d(caption, place, references, *, end=True):
    """CIDEr-D of a caption of one image, with the document frequencies of all references."""
    scorer = CiderScorer()
    for number, several in enumerate(references):
        tried = _sentence(caption, end) if number == place else ""
        scorer += (tried, [_sentence((words, True), end) for words in several])
    scorer.compute_doc_freq()
    return scorer.compute_cider()[place]


def slow_bleu_4(caption, place, references, *, end=True):
    """BLEU-4 of a caption of one image."""
    scorer = BleuScorer()
    several = [_sentence((words, True), end) for words in references[place]]
    scorer += (_sentence(caption, end), several)
    return scorer.compute_score(option="closest")[1][3][0]


def advantages_over_others(rewards):
    """The reward of each sample minus the mean of the other samples of its image."""
    found = []
    for place, reward in enumerate(rewards):
        others = [other for index, other in enumerate(rewards) if index != place]
        found.append(reward - sum(others) / len(others))
    return found


def slow_gradient(writer, images, captions, advantages):
    """The loss summed over images and captions, and its gradient by parameter."""
    writer.captioner.zero_grad()
    total = 0.0
    for image, several, caption_advantages in zip(images, captions, advantages, strict=True):
        for caption, advantage in zip(several, caption_advantages, strict=True):
            loss = -advantage * writer.caption_log_prob(image, caption)
            loss.backward()
            total += loss.item()
    return total, gradients(writer.captioner)


def gradients(captioner):
    """Copies of the gradients by name, in double precision."""
    return {
        name: torch.zeros_like(parameter).double()
        if parameter.grad is None
        else parameter.grad.double().clone()
        for name, parameter in captioner.named_parameters()
    }
