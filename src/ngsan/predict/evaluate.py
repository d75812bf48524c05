"""Whole datasets: their captions, the scores of captions, and answers to their questions."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ngsan.config import DecodingConfig
from ngsan.data.batch import pad_regions
from ngsan.data.pictures import PictureStore
from ngsan.data.question_set import HeldQuestions, QuestionSet
from ngsan.data.store import FeatureStore
from ngsan.metrics.bleu import Bleu
from ngsan.metrics.captions import Metric, TokenizedCaptions
from ngsan.metrics.cider import Cider
from ngsan.metrics.rouge import RougeL
from ngsan.metrics.scores import Scores, score_captions
from ngsan.models.answerer import AnswererModel
from ngsan.predict.captioner import Caption, Captioner
from ngsan.predict.quality import FAST

_DEFAULT = DecodingConfig()

FAST_METRICS: tuple[Metric, ...] = (Bleu(), RougeL(), Cider())
"""Metrics that take a second or less for thousands of captions."""


def caption_dataset(
    captioner: Captioner,
    store: FeatureStore | PictureStore,
    ids: Sequence[str],
    *,
    decoding: DecodingConfig = _DEFAULT,
    batch_size: int | None = None,
    quality: str = FAST,
    on_batch: Callable[[int], None] = lambda done: None,
) -> dict[str, Caption]:
    """Captions images of a dataset, from their features or from their pictures.

    Args:
        captioner: Of regions for a `FeatureStore`, of photographs for a `PictureStore`.
        store: The features or the pictures.
        ids: The images.
        decoding: How captions are written.
        batch_size: Images in a batch; captions do not depend on it, up to rounding. None for 50 of
            features, and for what suits the model of photographs.
        quality: Of the captions of photographs; by default, the captioner is alone.
        on_batch: Called with the number of images that are done.

    Returns:
        The caption of each image.

    Raises:
        ValueError: An image is missing or cannot be read; the message names it.
    """
    missing = [image for image in ids if image not in store]
    if missing:
        what = "features" if isinstance(store, FeatureStore) else "picture"
        raise ValueError(
            f"{len(missing)} of {len(ids)} images have no {what}, such as {', '.join(missing[:5])}"
        )
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size: {batch_size} must be at least 1")
    captions: dict[str, Caption] = {}
    if isinstance(store, PictureStore):
        files = (store.read(image) for image in ids)
        results = captioner.stream(files, batch_size=batch_size, quality=quality, **vars(decoding))
        for image, result in zip(ids, results, strict=True):
            if result.caption is None:
                raise ValueError(f"image {image!r}: {result.error}")
            captions[image] = result.caption
            on_batch(len(captions))
        return captions
    counts = dict(zip(store.ids(), store.counts().tolist(), strict=True))
    regions = max((counts[image] for image in ids), default=0)
    whole = min(batch_size or 50, len(ids))
    for start in range(0, len(ids), whole or 1):
        batch = ids[start : start + whole]
        # The last batch is filled up with its last image: work captured on a GPU serves one shape.
        filled = [*batch, *[batch[-1]] * (whole - len(batch))]
        tensors = pad_regions([store[image] for image in filled], width=regions)
        found = captioner.caption_regions(*tensors, first=start, **vars(decoding))
        captions.update(zip(batch, found, strict=False))
        on_batch(len(captions))
    return captions


@torch.no_grad()
def best_answers(
    answerer: AnswererModel,
    questions: QuestionSet,
    *,
    places: NDArray[np.int64] | None = None,
    held: HeldQuestions | None = None,
    batch_size: int = 512,
    on_batch: Callable[[int], None] = lambda done: None,
) -> dict[str, str]:
    """The best answer to each question, by the question's id.

    Args:
        answerer: The model, in evaluation mode, wherever it is.
        questions: The questions.
        places: Which of them; None for all.
        held: The same questions where batches are cut from; None for the set itself.
        batch_size: Questions in a batch.
        on_batch: Called before each batch with the number of questions done; it may raise to stop.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: {batch_size} must be at least 1")
    places = np.arange(len(questions)) if places is None else places
    held = questions if held is None else held
    answers, device = questions.answers.words, answerer.output.weight.device
    given: dict[str, str] = {}
    for start in range(0, len(places), batch_size):
        on_batch(start)
        mine = places[start : start + batch_size]
        batch = held.batch(mine).to(device, non_blocking=True)
        logits = answerer(batch.words, batch.word_mask, batch.features, batch.boxes, batch.mask)
        for place, answer in zip(mine, logits.argmax(1).tolist(), strict=True):
            given[questions.questions[place].id] = answers[answer]
    return given


def score_results(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    metrics: Sequence[Metric] | None = None,
) -> Scores:
    """Scores a caption of each image.

    Args:
        captions: A caption by image id.
        references: References of at least these images.
        metrics: None for BLEU, ROUGE-L and CIDEr.
    """
    missing = [image for image in captions if image not in references]
    if missing:
        raise ValueError(f"{len(missing)} images have no references, such as {missing[0]}")
    scored = {image: texts for image, texts in references.items() if image in captions}
    tokenized = TokenizedCaptions.tokenize({image: captions[image] for image in scored}, scored)
    return score_captions(tokenized, metrics or FAST_METRICS)
