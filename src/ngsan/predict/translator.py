"""From sentences to translations, with ONNX Runtime or PyTorch.

Sentences are batched with others whose lengths, rounded up to a multiple of 8, are the same. So
neither the padding nor the longest possible translation depends on the other sentences.

Shapes: `B` sentences, `S` subwords of a sentence, boundary included, `M` translations of each,
`T` most subwords of a translation, its end included.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from ngsan.config import TranslationDecodingConfig, TranslatorConfig
from ngsan.predict.backend_onnx import Encoded, OnnxSteps
from ngsan.predict.manifest import (
    DECODER,
    ENCODER,
    Manifest,
    Provider,
    layer_names,
    needs_torch,
    onnxruntime,
    open_graphs,
    require_torch,
)
from ngsan.search import Beam, StepModel
from ngsan.text.subwords import Subwords
from ngsan.text.vocabulary import BOUNDARY

if TYPE_CHECKING:
    from ngsan.models.translator import TranslatorModel

SHIPPED = Path(__file__).parents[1] / "shipped" / "translation"
"""The translator that comes with the package: short descriptions, English to German."""

TASK = "translation"

WORDS = 4000
"""Subwords that are translated together by default."""

_MULTIPLE = 8
_KEPT = 16
"""Searches that are kept ready, one for each shape; a split for validation has a dozen."""

_LONGEST = 1024
"""Most subwords of a sentence."""

_DEFAULT = TranslationDecodingConfig()

Words = NDArray[np.int64]
Mask = NDArray[np.bool_]
Reals = NDArray[np.float32]


class Translation(str):
    """The text of a translation, and how the model rates it."""

    log_probability: float = 0.0
    """The model's, of the subwords and the end."""

    score: float = 0.0
    """What it was ranked by: the log-probability divided by a power of the length."""

    pieces: tuple[int, ...] = ()
    """Ids of its subwords."""

    ended: bool = True
    """False if it has as many pieces as allowed, so that nothing but the end could follow."""

    others: Sequence["Translation"] = ()
    """The next best translations, the best first."""

    @property
    def text(self) -> str:
        """The translation as a plain string."""
        return str.__str__(self)


class Found(NamedTuple):
    """What a search returns."""

    words: Words
    """(B, M, T) ids; the boundary follows the end."""

    log_probs: Reals
    """(B, M)."""

    scores: Reals
    """(B, M); minus infinity for a translation that does not exist."""


class Backend(Protocol):
    """What runs a model: PyTorch or ONNX Runtime."""

    vocab_size: int

    def search(
        self, source: Words, mask: Mask, decoding: TranslationDecodingConfig, max_length: int
    ) -> Found:
        """Searches for the translations of sentences.

        Args:
            source: (B, S) ids, the boundary last among the real ones.
            mask: (B, S), True = real.
            decoding: How to search.
            max_length: T.
        """


class OnnxTranslator:
    """An exported or packed model on ONNX Runtime."""

    def __init__(
        self,
        folder: Path,
        *,
        threads: int | None = None,
        providers: Sequence[Provider] | None = None,
    ) -> None:
        manifest = Manifest.load(folder, TASK)
        self.config: TranslatorConfig = manifest.model
        self.vocab_size = self.config.vocab_size
        self.subwords: Subwords = manifest.companion(folder / "tokenizer.json", Subwords.load)
        sessions = open_graphs(folder, manifest, threads=threads, providers=providers)
        self.encoder, self.decoder = sessions[ENCODER], sessions[DECODER]
        self._runtime = onnxruntime()

    def search(
        self, source: Words, mask: Mask, decoding: TranslationDecodingConfig, max_length: int
    ) -> Found:
        """See `Backend.search`."""
        names = layer_names("region", self.config.layers)
        fed = {"source": self._value(source), "mask": self._value(mask)}
        encoded = dict(zip(names, self.encoder.run_with_ort_values(names, fed), strict=True))
        steps = OnnxSteps(self, Encoded({**encoded, "mask": fed["mask"]}, *source.shape))
        written = _beam(steps, decoding, max_length).run().check()
        return Found(written.words, written.log_probs, written.scores)

    def _value(self, array: NDArray[Any]) -> Any:
        return self._runtime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def _beam(steps: StepModel, decoding: TranslationDecodingConfig, max_length: int) -> Beam:
    return Beam(
        steps,
        beam=decoding.beam,
        num_return=decoding.num_return,
        length_penalty=decoding.length_penalty,
        early_stopping=decoding.early_stopping,
        max_length=max_length,
        must_end=True,
    )


class TorchTranslator:
    """A model on PyTorch, where and in what precision it is."""

    def __init__(self, model: "TranslatorModel") -> None:
        self.model = model.eval()
        self.vocab_size = model.decoder.embed.num_embeddings
        self._ready: dict[object, tuple[Any, Any]] = {}

    def search(
        self, source: Words, mask: Mask, decoding: TranslationDecodingConfig, max_length: int
    ) -> Found:
        """See `Backend.search`."""
        import torch

        rows = len(source)
        if self.model.decoder.embed.weight.is_cuda:  # few shapes, so that captured work is reused
            more = (1 << (rows - 1).bit_length()) - rows
            source = np.pad(source, ((0, more), (0, 0)), constant_values=BOUNDARY)
            mask = np.pad(mask, ((0, more), (0, 0)))
            mask[rows:, 0] = True
        given = torch.from_numpy(source), torch.from_numpy(mask)
        with torch.inference_mode():
            written = self._prepare(*given, decoding, max_length).run().to("cpu").check()
        parts = written.words, written.log_probs, written.scores
        return Found(*(part[:rows].numpy() for part in parts))

    def _prepare(
        self, source: Any, mask: Any, decoding: TranslationDecodingConfig, max_length: int
    ) -> Any:
        """A search over sentences; one of the last few is used again if the shapes are the same."""
        from ngsan.models.steps import TranslatorSteps

        weight = self.model.decoder.embed.weight
        key = (source.shape, decoding, weight.device, weight.dtype, weight.data_ptr())
        if key in self._ready:
            steps, found = self._ready.pop(key)
            steps.load(source, None, mask)
        else:
            while len(self._ready) >= _KEPT:
                del self._ready[next(iter(self._ready))]
            steps = TranslatorSteps(self.model, source, mask)
            found = _beam(steps, decoding, max_length)
        self._ready[key] = steps, found
        return found


class Translator:
    """Translates sentences. Several threads may call it; they take turns."""

    def __init__(self, backend: Backend, subwords: Subwords) -> None:
        if backend.vocab_size != len(subwords):
            raise ValueError(
                f"the model has {backend.vocab_size} word ids and the tokenizer {len(subwords)}: "
                "they do not match"
            )
        self.backend, self.subwords = backend, subwords
        self._turn = RLock()

    @overload
    def translate(self, texts: str, *, words: int = ..., **decoding: Any) -> Translation: ...

    @overload
    def translate(
        self, texts: Sequence[str], *, words: int = ..., **decoding: Any
    ) -> list[Translation]: ...

    def translate(
        self, texts: str | Sequence[str], *, words: int = WORDS, **decoding: Any
    ) -> Translation | list[Translation]:
        """Translates a sentence, or each of a list.

        Args:
            texts: A sentence, or a list of them.
            words: Subwords of the sentences, padding included, that are translated together.
            **decoding: Keys of `TranslationDecodingConfig`, such as `beam=5, num_return=3`.

        Returns:
            The best translation of each, with the next best in `others`.

        Raises:
            ValueError: A text is too long, or a key is unknown.
        """
        how = dataclasses.replace(_DEFAULT, **_known(decoding))
        several = [texts] if isinstance(texts, str) else texts
        ids = self.subwords.encode_all(several)
        for place, sentence in enumerate(ids, start=1):
            if problem := too_long(sentence):
                raise ValueError(f"text {place:,}: {problem}")
        found = self.translate_ids(ids, decoding=how, words=words)
        return found[0] if isinstance(texts, str) else found

    def translate_ids(
        self,
        sentences: Sequence[Sequence[int]],
        *,
        decoding: TranslationDecodingConfig = _DEFAULT,
        words: int = WORDS,
        on_group: Callable[[int], None] = lambda done: None,
    ) -> list[Translation]:
        """Like `translate`, of sentences that have been cut into subwords.

        Args:
            sentences: Their ids, without boundaries.
            decoding: How to search.
            words: See `translate`.
            on_group: Called before each batch with the number of sentences done; it may raise to
                stop.
        """
        found = [Translation("") for _ in sentences]
        with self._turn:
            done = 0
            for places, width in _groups(sentences, words):
                on_group(done)
                done += len(places)
                most = int(decoding.max_length_ratio * width) + decoding.max_length_extra
                source, mask = _padded([sentences[place] for place in places], width)
                batch = self.backend.search(source, mask, decoding, most + 1)
                for row, place in enumerate(places):
                    found[place] = self._translation(batch, row, most)
        return found

    def _translation(self, found: Found, row: int, most: int) -> Translation:
        """The best translation of a sentence, with the others."""
        several = []
        for rank, score in enumerate(found.scores[row].tolist()):
            if score == -math.inf:
                continue
            words = found.words[row, rank]
            length = int((words != BOUNDARY).cumprod().sum())
            pieces = tuple(words[:length].tolist())
            made = Translation(self.subwords.decode(pieces))
            made.pieces, made.score, made.ended = pieces, score, length < most
            made.log_probability = float(found.log_probs[row, rank])
            several.append(made)
        several[0].others = several[1:]
        return several[0]


def _known(decoding: dict[str, Any]) -> dict[str, Any]:
    names = [item.name for item in dataclasses.fields(TranslationDecodingConfig)]
    for name in decoding:
        if name not in names:
            raise ValueError(f"unknown key {name!r}; known keys: {', '.join(names)}")
    return decoding


def _groups(sentences: Sequence[Sequence[int]], words: int) -> Iterator[tuple[list[int], int]]:
    """Places of the sentences of each batch, and their width; empty ones are skipped."""
    if words < 1:
        raise ValueError(f"words: {words} must be at least 1")
    by_width: dict[int, list[int]] = {}
    for place, sentence in enumerate(sentences):
        if sentence:
            width = -(-(len(sentence) + 1) // _MULTIPLE) * _MULTIPLE
            by_width.setdefault(width, []).append(place)
    for width in sorted(by_width, reverse=True):  # what takes most memory comes first
        places, rows = by_width[width], max(1, words // width)
        for start in range(0, len(places), rows):
            yield places[start : start + rows], width


def _padded(sentences: list[Sequence[int]], width: int) -> tuple[Words, Mask]:
    """(B, S) ids and mask of sentences, each with its boundary."""
    source = np.full((len(sentences), width), BOUNDARY, np.int64)
    for row, sentence in zip(source, sentences, strict=True):
        row[: len(sentence)] = sentence
    lengths = np.array([len(sentence) + 1 for sentence in sentences])
    return source, np.arange(width) < lengths[:, None]


def too_long(sentence: Sequence[int]) -> str:
    """An error message if a sentence has too many subwords, else an empty text."""
    if len(sentence) <= _LONGEST:
        return ""
    return f"it has {len(sentence):,} subwords, more than {_LONGEST:,}: cut it into sentences"


def load_translator(
    model: str | Path | None = None,
    *,
    device: str | None = None,
    threads: int | None = None,
    providers: Sequence[Provider] | None = None,
    precision: str = "float32",
) -> Translator:
    """Opens a translator: the one that comes with the package, or one in a folder.

    Args:
        model: What `ngsan train`, `ngsan pack` or `ngsan export` wrote; None for the model that
            comes with the package, which turns short English descriptions of pictures into German.
        device: Where PyTorch runs it, such as "cuda", or "auto" for a GPU if there is one. None for
            the CPU, where packed and exported models run on ONNX Runtime.
        threads: Threads of ONNX Runtime; None for one a core.
        providers: Execution providers of ONNX Runtime, the preferred first.
        precision: Of PyTorch's numbers: float32, bfloat16 or float16.

    Raises:
        ValueError: The folder is not a translator, or the device does not exist.
    """
    if precision not in ("float32", "bfloat16", "float16"):
        raise ValueError(f"precision: {precision!r} is not one of float32, bfloat16, float16")
    folder = SHIPPED if model is None else Path(model)
    if model is None and not folder.is_dir():
        raise ValueError(
            "this installation has no translator: train one (see docs/translation.md) and pass "
            "its folder"
        )
    if precision == "float32" and not needs_torch(folder, device):
        backend = OnnxTranslator(folder, threads=threads, providers=providers)
        return Translator(backend, backend.subwords)
    require_torch(folder, providers)
    import torch

    from ngsan.models.checkpoint import load_model
    from ngsan.predict.backend_torch import best_device

    translator, _, companions = load_model(folder, "translation")
    subwords = companions["tokenizer"]
    where, kind = best_device(device or "cpu"), getattr(torch, precision)
    return Translator(TorchTranslator(translator.to(where, kind)), subwords)
