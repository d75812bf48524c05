"""Asks a captioner which relation holds, and finds out whether geometry has reached it.

A question takes a true claim of a scene and lets the model choose between the words of its family:
does it find "the red ball is left of the blue box" most probable, or right of, above, below?
Accuracy is the mean over the words that are true, so a model that cannot tell gets one over the
number of words, whatever it prefers to say. `blur` maps the words that differ in direction alone
to one, so that what Eq. 8 can see is told from what it cannot.

Shapes: `S` scenes, `N` regions, `C` captions, `T` words.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from ngsan.data.batch import CaptionBatch
from ngsan.data.synthetic.relations import FAMILIES
from ngsan.data.synthetic.scene import Scene
from ngsan.data.synthetic.tensors import captions_to_tensors
from ngsan.data.synthetic.wording import TEMPLATES, Claim, true_claims
from ngsan.models.captioner import Captioner
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
    captioner: Captioner,
    batch: CaptionBatch,
    captions: Sequence[Sequence[str]],
    vocabulary: Vocabulary,
) -> Tensor:
    """Log-probability of captions, equally many for each scene.

    Returns:
        (S, C)
    """
    words, targets, target_mask, _ = captions_to_tensors(captions, vocabulary)
    logits = captioner(batch.features, batch.boxes, batch.mask, words)
    chosen = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)  # (S, C, T)
    totals: Tensor = chosen.masked_fill(~target_mask, 0.0).sum(-1)
    return totals


def choose_relations(
    captioner: Captioner,
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
    """The share of right answers for each true word, averaged over the words; NaN of none."""
    right: dict[str, list[bool]] = defaultdict(list)
    for truth, answer in answers:
        right[truth].append(truth == answer)
    if not right:
        return math.nan
    return sum(sum(group) / len(group) for group in right.values()) / len(right)


def blur(answers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same answers with direction left out: left or right is horizontal, and so on."""
    return [(_BLURRED.get(truth, truth), _BLURRED.get(said, said)) for truth, said in answers]
