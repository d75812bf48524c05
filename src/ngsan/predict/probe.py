"""Asks a captioner which relation holds between two objects, to see whether it uses geometry.

A question takes a true claim about a scene and compares the words of its family: is "the red ball
is left of the blue box" more probable than right of, above, below? Accuracy is averaged over the
true words, so a model that cannot tell has an accuracy of one over the number of words, whatever
word it prefers. `blur` merges words that differ in direction alone, which Eq. 8 cannot see.

Shapes: `S` scenes, `N` regions, `C` captions, `T` words.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from ngsan.data.batch import CaptionBatch
from ngsan.data.synthetic.folders import captions_to_tensors
from ngsan.data.synthetic.scenes import FAMILIES, TEMPLATES, Claim, Scene, true_claims
from ngsan.models.captioner import CaptionerModel
from ngsan.text.vocabulary import Vocabulary

_BLURRED = {
    "left of": "horizontal",
    "right of": "horizontal",
    "above": "vertical",
    "below": "vertical",
    "over": "over/under",
    "under": "over/under",
}


@torch.inference_mode()
def caption_log_probabilities(
    captioner: CaptionerModel,
    batch: CaptionBatch,
    captions: Sequence[Sequence[str]],
    vocabulary: Vocabulary,
) -> Tensor:
    """(S, C) log-probabilities of captions, equally many for each scene."""
    words, targets, target_mask, _ = captions_to_tensors(captions, vocabulary)
    logits = captioner(batch.features, batch.boxes, batch.mask, words)
    chosen = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)  # (S, C, T)
    totals: Tensor = chosen.masked_fill(~target_mask, 0.0).sum(-1)
    return totals


def choose_relations(
    captioner: CaptionerModel,
    scenes: Sequence[Scene],
    batch: CaptionBatch,
    vocabulary: Vocabulary,
    family: str,
) -> list[tuple[str, str]]:
    """Asks one question about each scene in which a word of the family is true.

    Args:
        captioner: The model, in evaluation mode.
        scenes: The scenes.
        batch: The same scenes as tensors.
        vocabulary: Of the captions.
        family: A key of `FAMILIES`.

    Returns:
        Pairs of the true word and the chosen word.
    """
    questions = []
    for index, scene in enumerate(scenes):
        claims = true_claims(scene)[family]
        if claims:
            questions.append((index, claims[index % len(claims)]))
    if not questions:
        return []
    rows = torch.tensor([index for index, _ in questions])
    choices = [
        [Claim(claim.a, word, claim.b).worded(TEMPLATES[2]) for word in FAMILIES[family]]
        for _, claim in questions
    ]
    best = caption_log_probabilities(captioner, batch[rows], choices, vocabulary).argmax(-1)
    return [
        (claim.relation, FAMILIES[family][choice])
        for (_, claim), choice in zip(questions, best.tolist(), strict=True)
    ]


def balanced_accuracy(answers: Sequence[tuple[str, str]]) -> float:
    """Accuracy for each true word, averaged over the words; NaN without answers."""
    right: dict[str, list[bool]] = defaultdict(list)
    for truth, answer in answers:
        right[truth].append(truth == answer)
    if not right:
        return math.nan
    return sum(sum(group) / len(group) for group in right.values()) / len(right)


def blur(answers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same answers without direction: left or right is horizontal, and so on."""
    return [(_BLURRED.get(truth, truth), _BLURRED.get(said, said)) for truth, said in answers]
