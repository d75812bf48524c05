"""From photographs to captions: pictures are read ahead in a thread while the model works.

Shapes: `B` images, `S` side of the square that they are squashed to, `N` cells, `C` their features.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ngsan.config import DecodingConfig
from ngsan.light.caption import Caption
from ngsan.light.captioner import LightCaptioner
from ngsan.light.model import LightModel
from ngsan.text.vocabulary import Vocabulary
from ngsan.vision.images import ImageError, ImageSource, open_image, to_square

Squares: TypeAlias = NDArray[np.uint8]

PHOTO_DECODING = DecodingConfig(no_repeat=3, no_bad_ending=True)
"""How photographs are captioned unless told otherwise: the paper's beam, and no caption that says
three words a second time or breaks off."""

_KINDS = (str, os.PathLike, bytes, bytearray, memoryview, Image.Image, np.ndarray)


class PhotoCaption(str):
    """A caption's text, and what the model thinks of it."""

    score: float = 0.0
    """What it was ranked by."""

    log_probability: float = 0.0
    """The model's, of the words and the end."""

    others: Sequence["PhotoCaption"] = ()
    """Further captions of the photograph, of an n-best list or of sampling, in their order."""

    attention: NDArray[np.float32] | None = None
    """(words, N) how much of each word's attention fell on each cell of the image, row by row from
    the top left; None unless asked for."""

    @property
    def text(self) -> str:
        """The caption as a plain string."""
        return str.__str__(self)

    @property
    def words(self) -> list[str]:
        """Its words."""
        return self.split()

    @classmethod
    def of(cls, captions: Sequence[Caption]) -> "PhotoCaption":
        """The first of some captions of a photograph, with the others behind it."""
        first, *others = captions
        made = cls(first.text)
        made.score, made.log_probability = first.score, first.log_probability
        made.attention = first.attention
        made.others = [cls.of([other]) for other in others]
        return made


class PhotoModel(Protocol):
    """What writes captions of squares of pixels: ONNX Runtime's model here, or PyTorch's."""

    image_size: int
    """S."""

    vocabulary: Vocabulary
    """Its words."""

    batch_size: int
    """Images to give it at a time, unless told otherwise."""

    starts_small: bool
    """Whether to give it fewer images at first, so that the first captions come at once."""

    def caption(
        self, squares: Squares, *, decoding: DecodingConfig, attention: bool, first: int
    ) -> list[list[Caption]]:
        """The captions of each image of (B, S, S, 3); see `LightCaptioner.caption`."""


class LightPhotos:
    """An exported model of photographs; a `PhotoModel` without torch."""

    batch_size = 8
    starts_small = True

    def __init__(self, model: LightModel) -> None:
        """Takes the model.

        Raises:
            ValueError: It is a model of regions that are given to it.
        """
        if model.image_size is None:
            raise ValueError(
                "this is a model of regions and not of photographs: it has no backbone to make "
                "regions of pixels"
            )
        self.image_size: int = model.image_size
        self.vocabulary = model.vocabulary
        self._model, self._captioner = model, LightCaptioner(model)

    def caption(
        self, squares: Squares, *, decoding: DecodingConfig, attention: bool, first: int
    ) -> list[list[Caption]]:
        """See `PhotoModel.caption`."""
        features, boxes = self._model.describe(squares)  # (B, N, C) and (B, N, 4)
        return self._captioner.caption(
            features, boxes, decoding=decoding, attention=attention, first=first
        )


@dataclass(frozen=True)
class PhotoResult:
    """What came of an image."""

    number: int
    """Its place among the images that were given, from 0."""

    caption: PhotoCaption | None
    """Its caption, or None."""

    problem: ImageError | None = None
    """Why there is none."""


class PhotoCaptioner:
    """Writes captions of photographs. Several threads may call it."""

    def __init__(self, model: PhotoModel) -> None:
        """Takes the model."""
        self.model = model
        self.image_size, self.vocabulary = model.image_size, model.vocabulary

    @classmethod
    def open(cls, folder: str | Path, *, threads: int | None = None) -> "PhotoCaptioner":
        """Opens an exported or packed model; `ngsan.load` opens models of every kind.

        Args:
            folder: What `ngsan pack`, or `ngsan export` of a model with a backbone, wrote.
            threads: Threads of ONNX Runtime; None for one a core.

        Raises:
            ValueError: Something is missing or damaged, or it is no model of photographs.
        """
        return cls(LightPhotos(LightModel(folder, threads=threads)))

    @overload
    def caption(
        self,
        images: list[Any] | tuple[Any, ...],
        *,
        decoding: DecodingConfig = ...,
        attention: bool = ...,
        batch_size: int | None = ...,
    ) -> list[PhotoCaption]: ...

    @overload
    def caption(
        self,
        images: ImageSource,
        *,
        decoding: DecodingConfig = ...,
        attention: bool = ...,
        batch_size: int | None = ...,
    ) -> PhotoCaption: ...

    def caption(
        self,
        images: Any,
        *,
        decoding: DecodingConfig = PHOTO_DECODING,
        attention: bool = False,
        batch_size: int | None = None,
    ) -> PhotoCaption | list[PhotoCaption]:
        """Writes the caption of a photograph, or of each of a list.

        Args:
            images: One image or a list of them: each a path, a Pillow image, an array of (H, W),
                (H, W, 3) or (H, W, 4) of uint8, uint16 or floats from 0 to 1, or the bytes of a
                file.
            decoding: How. What is sampled depends on the seed and on an image's place in the list.
            attention: Whether captions carry the attention of their words.
            batch_size: Images that the model is given at a time; captions do not depend on it, but
                for rounding. None for what suits the model.

        Returns:
            A caption, or those of a list in its order.

        Raises:
            ImageError: An image cannot be read; names it, and of a list the place.
            ValueError: `decoding` asks for what the model cannot do.
        """
        several = isinstance(images, list | tuple)
        found: list[PhotoCaption] = []
        for result in self.stream(
            images if several else [images],
            decoding=decoding,
            attention=attention,
            batch_size=batch_size,
        ):
            if result.caption is None:
                place = f"images[{result.number}]: " if several else ""
                raise ImageError(f"{place}{result.problem}")
            found.append(result.caption)
        return found if several else found[0]

    def stream(
        self,
        images: Iterable[ImageSource],
        *,
        decoding: DecodingConfig = PHOTO_DECODING,
        attention: bool = False,
        batch_size: int | None = None,
    ) -> Iterator[PhotoResult]:
        """Writes captions as it goes; an image that cannot be read is reported in its place.

        The first batches are small where the model likes that, so that something is there soon.

        Args:
            images: Any number of them; a few more are taken than have been captioned.
            decoding: See `caption`, as for the others.
            attention: Whether captions carry the attention of their words.
            batch_size: Images that the model is given at a time.

        Yields:
            What came of each image, in their order.
        """
        size = self.model.batch_size if batch_size is None else batch_size
        if size < 1:
            raise ValueError(f"batch_size: {size} is not at least 1")
        write = partial(self.model.caption, decoding=decoding, attention=attention)
        # Sampling counts on from the first image of a batch, so there may be no gaps.
        return self._stream(images, write, size, gaps=decoding.method != "sample")

    def _stream(
        self, images: Iterable[ImageSource], write: "_Write", size: int, *, gaps: bool
    ) -> Iterator[PhotoResult]:
        room = 1 if self.model.starts_small else size
        batch: dict[int, Squares | ImageError] = {}
        waiting = 0
        # Two batches: one is read while the model works on the other.
        for number, read in enumerate(_read_ahead(images, self.image_size, 2 * size)):
            batch[number] = read
            bad = isinstance(read, ImageError)
            waiting += not bad
            if waiting == room or (bad and (not gaps or len(batch) - waiting >= size)):
                yield from _results(batch, write)
                room = min(2 * room, size) if waiting == room else room
                batch, waiting = {}, 0
        yield from _results(batch, write)


_Write: TypeAlias = Callable[..., list[list[Caption]]]


def _results(batch: dict[int, Squares | ImageError], write: _Write) -> Iterator[PhotoResult]:
    """Captions a batch, of squares and of what could not be read, by their numbers."""
    squares = {number: read for number, read in batch.items() if isinstance(read, np.ndarray)}
    captions: Iterator[list[Caption]] = iter(())
    if squares:
        captions = iter(write(np.stack(list(squares.values())), first=min(squares)))
    for number, read in batch.items():
        if isinstance(read, ImageError):
            yield PhotoResult(number, None, read)
        else:
            yield PhotoResult(number, PhotoCaption.of(next(captions)))


def _read_ahead(
    images: Iterable[ImageSource], size: int, ahead: int
) -> Iterator[Squares | ImageError]:
    """Images as squares, in order, some read already before they are asked for."""
    given = iter(images)
    waiting: deque[Future[Squares | ImageError]] = deque()
    # One thread: the model takes the other cores, and a picture may take a lot of memory.
    with ThreadPoolExecutor(1, thread_name_prefix="pictures") as pool:
        try:
            while True:
                for image in islice(given, ahead - len(waiting)):
                    waiting.append(pool.submit(_read, image, size))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _read(image: Any, size: int) -> Squares | ImageError:
    """(S, S, 3), or what is wrong."""
    if not isinstance(image, _KINDS):
        return ImageError(
            f"an image is a path, a Pillow image, an array or the bytes of a file, "
            f"not {type(image).__name__}"
        )
    if isinstance(image, bytearray | memoryview):
        image = bytes(image)
    # A JPEG may be decoded at a fraction of its size, but not one that the caller has opened: it
    # would stay small.
    near = None if isinstance(image, Image.Image) else 2 * size
    try:
        return to_square(open_image(image, near=near), size)
    except ImageError as error:
        return error
