"""What models say of whole datasets: captions, how good they are, and answers to questions."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ngsan.config import DecodingConfig
from ngsan.data.collate import pad_regions
from ngsan.data.pictures import PictureStore
from ngsan.data.question_set import QuestionSet
from ngsan.data.resident_questions import HeldQuestions
from ngsan.data.store import FeatureStore
from ngsan.light.photos import PhotoCaption, PhotoCaptioner
from ngsan.metrics.bleu import Bleu
from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.cider import Cider
from ngsan.metrics.metric import Metric
from ngsan.metrics.report import Scores, score_captions
from ngsan.metrics.rouge import RougeL
from ngsan.models.answerer import Answerer
from ngsan.predict import Caption, Predictor

_DEFAULT = DecodingConfig()

FAST_METRICS: tuple[Metric, ...] = (Bleu(), RougeL(), Cider())
"""What takes a second or less for thousands of captions."""


def caption_images(
    predictor: Predictor,
    store: FeatureStore,
    ids: Sequence[str],
    *,
    decoding: DecodingConfig = _DEFAULT,
    batch_size: int = 50,
    on_batch: Callable[[int], None] = lambda done: None,
) -> dict[str, list[Caption]]:
    """Captions images whose features are stored.

    All batches have one shape, the last filled up with its last image, so that work captured on a
    GPU serves all of them.

    Args:
        predictor: What writes the captions.
        store: The features.
        ids: The images.
        decoding: How captions are written.
        batch_size: Images in a batch; no caption depends on it, but for rounding.
        on_batch: Told after each batch how many images are done.

    Returns:
        The captions of each image, the best first.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: {batch_size} must be at least 1")
    missing = [image for image in ids if image not in store]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(ids)} images have no features, such as "
            f"{', '.join(missing[:5])}"
        )
    counts = dict(zip(store.ids(), store.counts().tolist(), strict=True))
    regions = max((counts[image] for image in ids), default=0)
    whole = min(batch_size, len(ids))
    captions: dict[str, list[Caption]] = {}
    for start in range(0, len(ids), batch_size):
        batch = ids[start : start + batch_size]
        filled = [*batch, *[batch[-1]] * (whole - len(batch))]
        tensors = pad_regions([store[image] for image in filled], width=regions)
        found = predictor.caption(*tensors, decoding=decoding, first=start)
        captions.update(zip(batch, found, strict=False))
        on_batch(len(captions))
    return captions


def caption_pictures(
    captioner: PhotoCaptioner,
    pictures: PictureStore,
    ids: Sequence[str],
    *,
    decoding: DecodingConfig = _DEFAULT,
    batch_size: int | None = None,
    on_batch: Callable[[int], None] = lambda done: None,
) -> dict[str, PhotoCaption]:
    """Captions pictures.

    Args:
        captioner: What writes the captions.
        pictures: The pictures.
        ids: The images.
        decoding: How captions are written.
        batch_size: Images in a batch; None for what suits the model.
        on_batch: Told how many images are done.

    Returns:
        The caption of each image.

    Raises:
        ValueError: A picture is missing or cannot be read; names it.
    """
    missing = [image for image in ids if image not in pictures]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(ids)} images have no picture, such as {', '.join(missing[:5])}"
        )
    files = (pictures.read(image) for image in ids)
    results = captioner.stream(files, decoding=decoding, batch_size=batch_size)
    captions: dict[str, PhotoCaption] = {}
    for image, result in zip(ids, results, strict=True):
        if result.caption is None:
            raise ValueError(f"image {image!r}: {result.problem}")
        captions[image] = result.caption
        on_batch(len(captions))
    return captions


@torch.no_grad()
def best_answers(
    answerer: Answerer,
    questions: QuestionSet,
    *,
    places: NDArray[np.int64] | None = None,
    held: HeldQuestions | None = None,
    batch_size: int = 512,
    on_batch: Callable[[int], None] = lambda done: None,
) -> dict[str, str]:
    """The best answer to each of some questions, by the question's id.

    Args:
        answerer: The model, in evaluation mode, wherever it is.
        questions: The questions.
        places: Which of them; None for all.
        held: The same questions where batches are cut from; None for the set itself.
        batch_size: Questions in a batch.
        on_batch: Told before each batch how many questions are done; it may raise to stop.
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
        captions: The caption by image id.
        references: References of at least these images.
        metrics: By which; None for BLEU, ROUGE-L and CIDEr, which take a second or two.
    """
    missing = [image for image in captions if image not in references]
    if missing:
        raise ValueError(f"{len(missing)} images have no references, such as {missing[0]}")
    scored = {image: texts for image, texts in references.items() if image in captions}
    tokenized = TokenizedCaptions.tokenize({image: captions[image] for image in scored}, scored)
    return score_captions(tokenized, metrics or FAST_METRICS)
