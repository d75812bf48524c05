"""The public face of captioning: photographs, clips or given regions in, captions out.

Photographs are decoded ahead in another process while the model works.

Shapes: `B` images, `S` side of the square that a photograph is resized to, `N` regions,
`M` captions of an image, `T` words.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from ngsan.config import CaptionerConfig, DecodingConfig
from ngsan.predict.agreement import AGREEMENT, Agreement, Evidence
from ngsan.predict.confidence import (
    CONFIDENCE,
    Formula,
    keyword_clues,
    load_formulas,
    object_clues,
    word_clues,
)
from ngsan.predict.quality import BEST, FAST, check_quality, views_of, whole_side
from ngsan.predict.second_eye import SecondEye, Sight
from ngsan.search import Written
from ngsan.text.articles import with_articles
from ngsan.text.vocabulary import Vocabulary
from ngsan.threads import WorkerThreads
from ngsan.vision.decoding import Squares, shared_service
from ngsan.vision.detector import MIN_CONFIDENCE, Detector, Object, load_detector, objects_of
from ngsan.vision.images import ImageError, ImageSource
from ngsan.vision.keywords import LIMIT, Keyword, load_keywords

if TYPE_CHECKING:
    from ngsan.predict.clips import FrameDescriber
    from ngsan.predict.manifest import Provider

Pixels: TypeAlias = NDArray[np.uint8]

PHOTO_MODEL = Path(__file__).parents[1] / "shipped" / "coco"
"""The model of photographs that comes with the package."""

CLIP_MODEL = PHOTO_MODEL.parent / "clips"
"""The model of clips that comes with the package; it knows moving shapes only."""

SHIPPED = {"photos": PHOTO_MODEL, "clips": CLIP_MODEL}
"""The models that come with the package, by the names that `load` accepts."""

PHOTO_DECODING = DecodingConfig(no_repeat_ngram=3, no_bad_ending=True)
"""Default decoding of photographs and clips. That of given regions is the paper's."""


class Caption(str):
    """A caption: a string with attributes.

    Attributes:
        log_probability: Log-probability of the words and of the end.
        score: What the captions of an image are ranked by: the log-probability and the evidence of
            the second eye, with a length penalty.
        others: The image's further captions: the rest of an n-best list or of the samples.
        attention: (words, N) attention of each word to the regions, in the decoder's last layer,
            the mean of its heads; None unless requested. The cells of a photograph come row by row
            from the top left.
        ids: Ids of the words in the model's vocabulary.
        word_log_probabilities: Log-probability of each word and of the end; a caption that was cut
            off at `max_length` has no end.
        confidence: Probability that the caption is right, see `ngsan.predict.confidence`; None if
            the model has no formula for it.
        clues: What the confidence follows from, by name.
        objects: The objects in the photograph, if the second eye has seen it.
        keywords: Likewise, words that people would use for it.
    """

    log_probability: float = 0.0
    score: float = 0.0
    others: Sequence["Caption"] = ()
    attention: NDArray[np.float32] | None = None
    ids: tuple[int, ...] = ()
    word_log_probabilities: tuple[float, ...] = ()
    confidence: float | None = None
    clues: Mapping[str, float] = MappingProxyType({})
    objects: Sequence[Object] | None = None
    keywords: Sequence[Keyword] | None = None

    @property
    def text(self) -> str:
        """The caption as a plain string."""
        return str.__str__(self)

    @property
    def words(self) -> list[str]:
        """The words."""
        return self.split()


@dataclass(frozen=True)
class Result:
    """The outcome for one image of a stream: its index and a caption, or an error."""

    index: int
    caption: Caption | None
    error: ImageError | None = None


Found: TypeAlias = tuple[Written, NDArray[np.float32] | None]
"""What a search found, as NumPy arrays, and the attention (B, M, T, N) if asked for."""


class Backend(Protocol):
    """A model with its search: ONNX Runtime and NumPy, or PyTorch."""

    vocabulary: Vocabulary
    image_size: int | None
    """S; None for a model of regions or clips."""

    batch_size: int
    first_batch: int
    """Number of images in the first batch; then it doubles up to `batch_size`."""

    @property
    def config(self) -> CaptionerConfig | None:
        """What it was built from, if known."""

    def search_regions(
        self,
        features: Any,
        boxes: Any | None,
        mask: Any | None,
        *,
        decoding: DecodingConfig,
        attention: bool,
        first: int,
    ) -> Found:
        """Searches for captions of (B, N, feature_dim), (B, N, 4) and (B, N)."""

    def search_images(
        self,
        views: Sequence[Pixels],
        *,
        decoding: DecodingConfig,
        attention: bool,
        first: int,
        evidence: NDArray[np.float32] | None = None,
    ) -> Found:
        """Searches for captions of views of images, each (B, S, S, 3), that vote on every word.

        The attention is to the first. Evidence is (B, V), see `ngsan.search`.
        """

    def score_regions(
        self, features: Any, boxes: Any | None, mask: Any | None, words: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """(B, R) log-probabilities of sentences (B, R, T); see `ngsan.search.sentences`."""

    def score_images(self, images: Pixels, words: NDArray[np.int64]) -> NDArray[np.float64]:
        """The same for images (B, S, S, 3)."""


class Captioner:
    """Writes captions; `ngsan.load` opens one. Several threads may use it.

    The options of decoding are keyword arguments, the keys of `ngsan.config.DecodingConfig`, such
    as `beam=5`, `num_return=3`, `max_length=12`, `method="sample"` or `forbid="man woman"`.
    """

    def __init__(
        self,
        backend: Backend,
        describer: "FrameDescriber | None" = None,
        open_detector: Callable[[], Detector] | None = None,
        eye: SecondEye | None = None,
        agreement: Agreement | None = None,
        formulas: Mapping[str, Formula] = MappingProxyType({}),
    ) -> None:
        """Puts the parts together.

        Args:
            backend: The model.
            describer: Computes the features of frames, for a model of clips.
            open_detector: Opens the detector of `objects`; None for that of the second eye.
            eye: The second eye, for keywords and agreement; None for what comes with the package.
            agreement: How captions agree with the second eye; None if they do not.
            formulas: The confidence of captions of photographs, by quality.
        """
        self.backend, self.describer = backend, describer
        self._open_detector, self._opening = open_detector, Lock()
        self._detector: Detector | None = None
        self.eye = SecondEye() if eye is None else eye
        self.agreement = agreement
        self._evidence: Evidence | None = None
        self.formulas = formulas
        self.vocabulary = backend.vocabulary

    @classmethod
    def from_model(cls, models: Any, vocabulary: Vocabulary) -> "Captioner":
        """Wraps a torch model, which stays on its device, or a list of models.

        Args:
            models: A `CaptionerModel`, or several whose word probabilities are averaged.
            vocabulary: Their words.
        """
        from ngsan.predict.backend_torch import TorchBackend

        return cls(TorchBackend(models, vocabulary))

    @property
    def image_size(self) -> int | None:
        """Side of the square that photographs are resized to; None for other models."""
        return self.backend.image_size

    @property
    def kind(self) -> str:
        """What the model captions: "photos", "clips" or "regions"."""
        if self.describer is not None:
            return "clips"
        return "regions" if self.image_size is None else "photos"

    @overload
    def caption(self, images: list[Any] | tuple[Any, ...], **options: Any) -> list[Caption]: ...

    @overload
    def caption(self, images: ImageSource, **options: Any) -> Caption: ...

    def caption(
        self,
        images: Any,
        *,
        attention: bool = False,
        batch_size: int | None = None,
        frames: int | None = None,
        quality: str | None = None,
        **decoding: Any,
    ) -> Caption | list[Caption]:
        """Captions a photograph or a clip, or each of a list.

        Args:
            images: One image or a list of images: paths, Pillow images, the bytes of files, or
                arrays of (H, W), (H, W, 3) or (H, W, 4) of uint8, uint16 or floats from 0 to 1.
                For a model of clips one clip or a list of clips: paths of videos, of animated GIF,
                PNG or WebP files or of folders of frames, arrays of (frames, H, W, 3), or, within a
                list, lists of images.
            attention: Whether captions carry the attention of their words.
            batch_size: Photographs in a batch. Captions do not depend on it, up to rounding.
            frames: Frames sampled from each clip; None for the default. For clips only.
            quality: For photographs: "fast", "good" or "best", see `ngsan.predict.quality`; None
                for "good", or for "fast" if the model has no agreement.json.
            **decoding: Keys of `DecodingConfig`. Samples depend on the seed and on an image's place
                in the list.

        Returns:
            A caption, or a list of captions for a list.

        Raises:
            ImageError: An image cannot be read; the message names it, and its place in a list.
            ValueError: The model captions something else, or an option is out of range.
            TypeError: An option is unknown.
        """
        several = isinstance(images, list | tuple)
        captions: list[Caption] = []
        for result in self.stream(
            images if several else [images],
            attention=attention,
            batch_size=batch_size,
            frames=frames,
            quality=quality,
            **decoding,
        ):
            if result.caption is None:
                name = "clips" if self.kind == "clips" else "images"
                place = f"{name}[{result.index}]: " if several else ""
                raise ImageError(f"{place}{result.error}")
            captions.append(result.caption)
        return captions if several else captions[0]

    def stream(
        self,
        images: Iterable[Any],
        *,
        attention: bool = False,
        batch_size: int | None = None,
        frames: int | None = None,
        quality: str | None = None,
        **decoding: Any,
    ) -> Iterator[Result]:
        """Captions any number of photographs or clips, yielding each result as soon as it is ready.

        The arguments are those of `caption`. An image that cannot be read gives a result with an
        error. Few images are read ahead.
        """
        options = decoding_options(PHOTO_DECODING, decoding)
        if quality is not None and self.kind != "photos":
            raise ValueError(f"quality applies only to photographs, and this model has {self.kind}")
        if self.describer is not None:
            return self._stream_clips(images, options, attention, frames)
        if self.image_size is None:
            raise ValueError(
                "this is a model of regions and not of photographs: it has no backbone to make "
                "regions of pixels; call caption_regions(features, boxes)"
            )
        if frames is not None:
            raise ValueError("frames applies only to clips, and this is a model of photographs")
        size = self.backend.batch_size if batch_size is None else batch_size
        if size < 1:
            raise ValueError(f"batch_size: {size} must be at least 1")
        quality = check_quality(quality, agrees=self.agreement is not None)
        return self._stream_photos(images, size, options, attention, quality)

    @property
    def detector(self) -> Detector:
        """The detector of objects, opened when it is first needed."""
        if self._open_detector is None:
            return self.eye.detector
        with self._opening:
            if self._detector is None:
                self._detector = self._open_detector()
        return self._detector

    def objects(
        self, image: ImageSource, *, min_confidence: float = MIN_CONFIDENCE
    ) -> list[Object]:
        """Finds the objects in a photograph, the most certain first.

        Args:
            image: A path, a Pillow image, the bytes of a file or an array; see `caption`.
            min_confidence: Limit of their confidence, from 0 to 1.

        Raises:
            ImageError: The image cannot be read.
            ValueError: The limit is out of range.
        """
        if not 0 <= min_confidence <= 1:
            raise ValueError(f"min_confidence: {min_confidence} is not from 0 to 1")
        (pixels,), _ = shared_service().squares(image, (self.detector.size,))
        found = self.detector.detect(pixels, min_score=min_confidence)
        return objects_of(found, self.detector.names)

    def keywords(self, image: ImageSource, limit: int = LIMIT) -> list[Keyword]:
        """Finds words that people would use for a photograph, the most probable first.

        Args:
            image: A path, a Pillow image, the bytes of a file or an array; see `caption`.
            limit: The most that are returned.

        Raises:
            ImageError: The image cannot be read.
            ValueError: The limit is out of range.
        """
        model = self.eye.keywords
        (pixels,), _ = shared_service().squares(image, (model.size,))
        return model.rank(model.confidences(model.logits(pixels[None]))[0], limit)

    def caption_pixels(
        self, images: Pixels, *, attention: bool = False, first: int = 0, **decoding: Any
    ) -> list[Caption]:
        """Captions a batch of prepared photographs by the captioner alone.

        Args:
            images: (B, S, S, 3) RGB, as `ngsan.vision.images.to_square` returns them.
            attention: Whether captions carry the attention of their words.
            first: Number of the first image; samples depend on it.
            **decoding: Keys of `DecodingConfig`.
        """
        options = decoding_options(PHOTO_DECODING, decoding)
        found = self.backend.search_images(
            [images], decoding=options, attention=attention, first=first
        )
        return self._judged(self._captions(found, options), [], FAST)

    def sides(self, quality: str | None = None) -> tuple[int, ...]:
        """The sides of the squares that a photograph is resized to, S first."""
        quality = check_quality(quality, agrees=self.agreement is not None)
        assert self.image_size is not None
        sides = [self.image_size]
        if quality != FAST:
            sides += self.eye.sides
        if quality == BEST:
            sides.append(whole_side(self.image_size))
        return tuple(dict.fromkeys(sides))

    def caption_squares(
        self,
        photographs: Sequence[Sequence[Pixels]],
        *,
        quality: str | None = None,
        attention: bool = False,
        first: int = 0,
        **decoding: Any,
    ) -> list[Caption]:
        """Captions a batch of prepared photographs with a quality.

        Args:
            photographs: The squares of each, (S, S, 3) RGB with the sides that `sides` names, as
                `ngsan.vision.images.to_square` returns them.
            quality: See `caption`.
            attention: Whether captions carry the attention of their words.
            first: Number of the first image; samples depend on it.
            **decoding: Keys of `DecodingConfig`.
        """
        options = decoding_options(PHOTO_DECODING, decoding)
        quality = check_quality(quality, agrees=self.agreement is not None)
        squares = [{len(one): one for one in mine} for mine in photographs]
        return self._caption_photos(squares, quality, options, attention, first)

    def _caption_photos(
        self,
        photographs: Sequence[Mapping[int, Pixels]],
        quality: str,
        options: DecodingConfig,
        attention: bool,
        first: int,
    ) -> list[Caption]:
        """Captions photographs, each given as squares by their sides."""
        size = self.image_size
        assert size is not None
        if not photographs:
            return []
        upright = [squares[size] for squares in photographs]
        views = [np.stack(upright)]
        if quality == BEST:
            side = whole_side(size)
            seen = [views_of(squares[size], squares[side]) for squares in photographs]
            views = [np.stack(view) for view in zip(*seen, strict=True)]
        sights: list[Sight] = []
        evidence = None
        if quality != FAST:
            sights = [self.eye.look(squares) for squares in photographs]
            evidence = self._weigh(sights)
        found = self.backend.search_images(
            views, decoding=options, attention=attention, first=first, evidence=evidence
        )
        return self._judged(self._captions(found, options), sights, quality)

    def _weigh(self, sights: Sequence[Sight]) -> NDArray[np.float32]:
        """The evidence of the second eye."""
        assert self.agreement is not None
        if self._evidence is None:
            self._evidence = Evidence(self.eye, self.vocabulary)
        return self._evidence(self.agreement, sights)

    def caption_regions(
        self,
        features: Any,
        boxes: Any | None = None,
        mask: Any | None = None,
        *,
        attention: bool = False,
        first: int = 0,
        **decoding: Any,
    ) -> list[Caption]:
        """Captions a batch of images that are given as regions.

        Args:
            features: (B, N, feature_dim) array; with PyTorch also a tensor, like the others.
            boxes: (B, N, 4) `cxcywh`, or None for a model without geometry.
            mask: (B, N) boolean, True = a real region, or None.
            attention: Whether captions carry the attention of their words.
            first: Number of the first image; samples depend on it rather than on the batch.
            **decoding: Keys of `DecodingConfig`.

        Returns:
            The best caption of each image, with fewer `others` than asked for if the constraints
            allow no more.

        Raises:
            ValueError: The arrays do not fit the model or each other, an option is out of range, or
                an image has no caption that meets the constraints.
            TypeError: An option is unknown.
        """
        options = decoding_options(DecodingConfig(), decoding)
        return self._captions(
            self.backend.search_regions(
                features, boxes, mask, decoding=options, attention=attention, first=first
            ),
            options,
        )

    def _captions(self, found: Found, options: DecodingConfig) -> list[Caption]:
        """The first caption of each image, with the others behind it."""
        written, attention = found
        spell = self._spells_articles(options)
        captions: list[Caption] = []
        for image, scores in enumerate(written.scores.tolist()):
            of_image: list[Caption] = []
            for rank, score in enumerate(scores):
                if score == -float("inf"):
                    continue  # the constraints allow fewer captions than asked for
                length = int(written.lengths[image, rank])
                ids = written.words[image, rank, :length].tolist()
                words = self.vocabulary.decode(ids)
                if spell:
                    words = with_articles(words)
                    ids = self.vocabulary.encode(words)
                caption = Caption(" ".join(words))
                if options.method == "beam" and caption in of_image:
                    continue  # it differed by an article
                caption.ids, caption.score = tuple(ids), score
                caption.log_probability = float(written.log_probs[image, rank])
                log_probs = written.word_log_probs[image, rank, : length + 1]
                caption.word_log_probabilities = tuple(log_probs.tolist())
                if attention is not None:
                    caption.attention = attention[image, rank, :length]
                of_image.append(caption)
            of_image[0].others = of_image[1:]
            captions.append(of_image[0])
        return captions

    def _judged(
        self, captions: list[Caption], sights: Sequence[Sight], quality: str
    ) -> list[Caption]:
        """The captions of photographs with their confidence and what the second eye has seen."""
        formula = self.formulas.get(quality)
        for place, caption in enumerate(captions):
            for one in (caption, *caption.others):
                one.clues = word_clues(one.word_log_probabilities)
                if sights:
                    one.clues = {**one.clues, **self._second_clues(one, sights[place])}
                one.confidence = None if formula is None else formula(one.clues)
            if sights:
                caption.objects = self.eye.objects(sights[place])
                caption.keywords = self.eye.ranked_keywords(sights[place])
        return captions

    def _second_clues(self, caption: Caption, sight: Sight) -> dict[str, float]:
        scores = sight.found.class_scores.tolist()
        return {
            **keyword_clues(caption.words, self.eye.keywords, sight.logits),
            **object_clues(caption.words, dict(zip(self.eye.detector.names, scores, strict=True))),
        }

    def _spells_articles(self, options: DecodingConfig) -> bool:
        """Whether articles are chosen by the words after them, "an animal" for "a animal".

        The model is unsure of it, as "an" is rare. Regions are captioned as in the paper, and
        articles that the user asks for or forbids are left alone.
        """
        asked = f"{options.forbid} {options.require} {options.prefix}".split()
        articles = ("a", "an")
        known = all(word in self.vocabulary and word not in asked for word in articles)
        return known and self.kind != "regions"

    def _stream_clips(
        self, clips: Iterable[Any], options: DecodingConfig, attention: bool, frames: int | None
    ) -> Iterator[Result]:
        from ngsan.vision.clips import FRAMES, open_clip

        assert self.describer is not None
        for index, clip in enumerate(clips):
            try:
                pixels = open_clip(
                    clip, frames=FRAMES if frames is None else frames, size=self.describer.size
                )
            except ImageError as error:
                yield Result(index, None, error)
                continue
            features, boxes = self.describer.describe(pixels)
            (caption,) = self.caption_regions(
                features[None], boxes[None], attention=attention, first=index, **vars(options)
            )
            yield Result(index, caption)

    def _stream_photos(
        self,
        images: Iterable[ImageSource],
        size: int,
        options: DecodingConfig,
        attention: bool,
        quality: str,
    ) -> Iterator[Result]:
        # Samples are numbered from the first image of a batch, so that batch may have no gaps.
        gaps = options.method != "sample"
        room = min(self.backend.first_batch, size)
        batch: dict[int, Squares | ImageError] = {}
        waiting = 0
        # Two batches: one is read while the model works on the other.
        for index, read in enumerate(_read_ahead(images, self.sides(quality), 2 * size)):
            batch[index] = read
            bad = isinstance(read, ImageError)
            waiting += not bad
            if waiting == room or (bad and (not gaps or len(batch) - waiting >= size)):
                yield from self._results(batch, options, attention, quality)
                room = min(2 * room, size) if waiting == room else room
                batch, waiting = {}, 0
        yield from self._results(batch, options, attention, quality)

    def _results(
        self,
        batch: dict[int, Squares | ImageError],
        options: DecodingConfig,
        attention: bool,
        quality: str,
    ) -> Iterator[Result]:
        """Captions a batch, by index; what could not be read becomes a result with an error."""
        squares = {
            index: {len(one): one for one in read.squares}
            for index, read in batch.items()
            if isinstance(read, Squares)
        }
        first = min(squares, default=0)
        found = self._caption_photos([*squares.values()], quality, options, attention, first)
        captions = iter(found)
        for index, read in batch.items():
            if isinstance(read, ImageError):
                yield Result(index, None, read)
            else:
                yield Result(index, next(captions))


def _read_ahead(
    images: Iterable[ImageSource], sides: tuple[int, ...], ahead: int
) -> Iterator[Squares | ImageError]:
    """Images as squares, in order; up to `ahead` of them are read before they are asked for."""
    given = iter(images)
    waiting: deque[Future[Squares | ImageError]] = deque()
    # One thread: the model takes the other cores, and a large image takes a lot of memory.
    threads = WorkerThreads(1, "pictures")
    try:
        while True:
            for image in islice(given, ahead - len(waiting)):
                waiting.append(threads.submit(_read, image, sides))
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:
        threads.close()


def _read(image: Any, sides: tuple[int, ...]) -> Squares | ImageError:
    """An image as squares, or what is wrong."""
    try:
        return shared_service().squares(image, sides)
    except ImageError as error:
        return error


def decoding_options(default: DecodingConfig, options: dict[str, Any]) -> DecodingConfig:
    """Changes some keys of a decoding configuration; the beam is widened for more captions.

    Raises:
        TypeError: An option is unknown; the message suggests another.
        ValueError: A value is out of range.
    """
    known = [item.name for item in fields(DecodingConfig)]
    for name in options:
        if name not in known:
            from difflib import get_close_matches

            close = get_close_matches(
                name, [*known, "attention", "batch_size", "frames", "quality"], 1
            )
            hint = f"did you mean {close[0]!r}?" if close else f"options: {', '.join(known)}"
            raise TypeError(f"unknown option {name!r}; {hint}")
    if isinstance(count := options.get("num_return"), int) and "beam" not in options:
        options = {**options, "beam": max(default.beam, count)}
    return replace(default, **options)


def load(
    model: str | Path | None = None,
    *,
    device: str | None = None,
    threads: int | None = None,
    providers: "Sequence[Provider] | None" = None,
    detector: str | None = None,
) -> Captioner:
    """Opens a captioner.

    Args:
        model: A folder that `ngsan train`, `ngsan pack` or `ngsan export` wrote, or the name of a
            model that comes with the package: "photos" or "clips". None for "photos".
        device: Run the model with PyTorch on this device: "cpu", "cuda", "cuda:1", or "auto" for a
            GPU if there is one. None runs exported and packed models with ONNX Runtime, others with
            PyTorch on the CPU. Without PyTorch, "cpu" and "auto" mean ONNX Runtime, too.
        threads: Number of CPU threads; None chooses by the size of the model. With PyTorch the
            number holds for the whole process.
        providers: Execution providers of ONNX Runtime, the preferred one first; None for the CPU.
        detector: The detector of `Captioner.objects`, see `ngsan.vision.detector.load_detector`;
            None for the one that comes with the package.

    Raises:
        ValueError: The folder holds no captioner, its files do not match, or an argument
            does not fit the model.
    """
    path = _find(model)
    backend = _open(path, device, threads, providers)
    if not backend.config.frame_grid:
        named = None if detector is None else partial(load_detector, detector, threads=threads)
        return Captioner(
            backend,
            open_detector=named,
            eye=SecondEye(
                partial(load_detector, threads=threads), partial(load_keywords, threads=threads)
            ),
            agreement=Agreement.load(path / AGREEMENT),
            formulas=load_formulas(path / CONFIDENCE),
        )
    from ngsan.predict.backend_onnx import OnnxBackend
    from ngsan.predict.clips import FrameDescriber

    photos = OnnxBackend(PHOTO_MODEL, threads=threads)
    return Captioner(backend, FrameDescriber.for_model(photos, backend.config))


def _find(model: str | Path | None) -> Path:
    ships = model is None or str(model) in SHIPPED
    path = PHOTO_MODEL if model is None else SHIPPED.get(str(model), Path(model))
    if path.is_dir():
        return path
    if ships:
        raise ValueError(
            f"this installation comes without a model ({path} is missing); pass a model folder"
        )
    raise ValueError(
        f"model: folder not found: {path}; models that come with the package: {', '.join(SHIPPED)}"
    )


def _open(
    path: Path,
    device: str | None,
    threads: int | None,
    providers: "Sequence[Provider] | None",
) -> Any:
    """The backend of a model."""
    from ngsan.predict.backend_onnx import OnnxBackend
    from ngsan.predict.manifest import DECODER, ENCODER, MANIFEST, WEIGHTS, require_torch

    is_export = any((path / name).exists() for name in (MANIFEST, ENCODER, DECODER))
    on_cpu = device in ("cpu", "auto") and find_spec("torch") is None
    if is_export and (device is None or on_cpu):
        return OnnxBackend(path, threads=threads, providers=providers)
    if is_export and not (path / WEIGHTS).is_file():
        raise ValueError(
            f"device: {device!r} runs models with PyTorch, and {path} is an export without weights "
            "for PyTorch: use providers"
        )
    if providers is not None:
        raise ValueError(f"providers: {providers!r} is for ONNX Runtime, and PyTorch runs {path}")
    require_torch(path)
    from ngsan.predict.backend_torch import TorchBackend

    return TorchBackend.open(path, device=device or "cpu", threads=threads)
