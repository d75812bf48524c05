"""From sentences to translations: the whole face of a trained translator.

Sentences are put together with others whose lengths, rounded up to a multiple of 8, are the same.
So neither the padding nor the most words of a translation depend on the other sentences.

Shapes: `B` sentences, `S` word pieces of a sentence, boundary included.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

import numpy as np
import torch
from torch import Tensor

from ngsan.config.translation import TranslatingConfig
from ngsan.decoding import Beam, Written
from ngsan.models.saved_translator import load_translator
from ngsan.models.translator import Translator, TranslatorSteps
from ngsan.predict.models import best_device
from ngsan.text.subwords import Subwords
from ngsan.text.vocabulary import BOUNDARY

SHIPPED = Path(__file__).parents[1] / "shipped" / "translation"
"""The translator that comes with the package: short descriptions, English to German."""

_MULTIPLE = 8
_KEPT = 16
"""Searches that are kept ready, one for each shape; a split for validation has a dozen."""

_LONGEST = 1024
"""Most word pieces of a sentence."""

_DEFAULT = TranslatingConfig()


@dataclass(frozen=True)
class Translation:
    """A translation and what the model thinks of it."""

    text: str
    """The text."""

    pieces: tuple[int, ...]
    """Its word pieces."""

    log_probability: float
    """The model's, of the pieces and the end."""

    score: float
    """What it was ranked by: the log-probability divided by a power of the length."""

    ended: bool = True
    """False if it has as many pieces as were allowed, so that nothing but the end could follow."""

    def __str__(self) -> str:
        """The text."""
        return self.text


class TextTranslator:
    """Translates sentences. Several threads may call it; they take turns."""

    def __init__(self, translator: Translator, subwords: Subwords) -> None:
        """Takes the model.

        Args:
            translator: The model, where and in what precision it is to work.
            subwords: Its word pieces.
        """
        size = translator.decoder.embed.num_embeddings
        if size != len(subwords):
            raise ValueError(
                f"the model has {size} word ids and the tokenizer {len(subwords)}: they do not "
                "belong together"
            )
        self.translator, self.subwords = translator.eval(), subwords
        self._ready: dict[object, tuple[TranslatorSteps, Beam]] = {}
        self._turn = RLock()

    def translate(
        self, texts: Sequence[str], *, decoding: TranslatingConfig = _DEFAULT, words: int = 4000
    ) -> list[Translation]:
        """The best translation of each sentence, in the order of the sentences.

        Args:
            texts: Sentences, one each.
            decoding: How to search.
            words: Word pieces of the sentences, padding included, that are looked at together.

        Raises:
            ValueError: A text is too long.
        """
        return [found[0] for found in self.alternatives(texts, decoding=decoding, words=words)]

    def alternatives(
        self,
        texts: Sequence[str],
        *,
        decoding: TranslatingConfig = _DEFAULT,
        words: int = 4000,
    ) -> list[list[Translation]]:
        """The best few translations of each sentence, as many as `decoding.best`.

        Args:
            texts: See `translate`.
            decoding: How to search.
            words: See `translate`.

        Raises:
            ValueError: A text is too long.
        """
        if isinstance(texts, str):
            raise ValueError("texts must be a list of sentences, not one text")
        ids = self.subwords.encode_all(texts)
        for place, sentence in enumerate(ids, start=1):
            if problem := too_long(sentence):
                raise ValueError(f"text {place:,}: {problem}")
        return self.translate_ids(ids, decoding=decoding, words=words)

    def translate_ids(
        self,
        sentences: Sequence[Sequence[int]],
        *,
        decoding: TranslatingConfig = _DEFAULT,
        words: int = 4000,
        on_group: Callable[[int], None] = lambda done: None,
    ) -> list[list[Translation]]:
        """Like `alternatives`, of sentences that have been cut into word pieces.

        Args:
            sentences: Their ids, without boundaries.
            decoding: How to search.
            words: See `translate`.
            on_group: Told before each group how many sentences are done; it may raise to stop.
        """
        found: list[list[Translation]] = [[Translation("", (), 0.0, 0.0)] for _ in sentences]
        with self._turn:
            done = 0
            for places, width in self._groups(sentences, words):
                on_group(done)
                done += len(places)
                written = self._search([sentences[place] for place in places], width, decoding)
                for row, place in enumerate(places):
                    found[place] = self._translations(
                        written, row, most=_most_pieces(width, decoding)
                    )
        return found

    def _groups(
        self, sentences: Sequence[Sequence[int]], words: int
    ) -> Iterator[tuple[list[int], int]]:
        """Places of sentences that are translated together, and their width; no empty ones."""
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

    @torch.inference_mode()
    def _search(
        self, sentences: list[Sequence[int]], width: int, decoding: TranslatingConfig
    ) -> Written:
        """The translations of sentences of one width, on the CPU."""
        weight = self.translator.decoder.embed.weight
        rows = len(sentences)
        if weight.is_cuda:  # few shapes, so that captured work serves again
            rows = 1 << (rows - 1).bit_length()
        source = np.full((rows, width), BOUNDARY, np.int64)
        lengths = np.ones(rows, np.int64)  # rows that fill the shape hold an empty sentence
        for row, sentence in enumerate(sentences):
            source[row, : len(sentence)] = sentence
            lengths[row] = len(sentence) + 1
        mask = np.arange(width) < lengths[:, None]
        search = self._prepare(torch.from_numpy(source), torch.from_numpy(mask), decoding)
        return search.run().to("cpu").check()

    def _prepare(self, source: Tensor, mask: Tensor, decoding: TranslatingConfig) -> Beam:
        """A search over sentences; one of the last few is used again if the shapes are the same."""
        weight = self.translator.decoder.embed.weight
        key = (source.shape, decoding, weight.device, weight.dtype, weight.data_ptr())
        if key in self._ready:
            steps, search = self._ready.pop(key)
            steps.load(source, None, mask)
        else:
            while len(self._ready) >= _KEPT:
                del self._ready[next(iter(self._ready))]
            steps = TranslatorSteps(self.translator, source, mask)
            search = Beam(
                steps,
                beam=decoding.beam,
                best=decoding.best,
                length_penalty=decoding.length_penalty,
                early_stopping=decoding.early_stopping,
                longest=_most_pieces(source.shape[1], decoding) + 1,
                boundary=BOUNDARY,
                must_end=True,
            )
        self._ready[key] = steps, search
        return search

    def _translations(self, written: Written, row: int, *, most: int) -> list[Translation]:
        found = []
        for rank, score in enumerate(written.scores[row].tolist()):
            if score == -float("inf"):
                continue
            pieces = written.words[row, rank, : int(written.lengths[row, rank])].tolist()
            found.append(
                Translation(
                    text=self.subwords.decode(pieces),
                    pieces=tuple(pieces),
                    log_probability=float(written.log_probs[row, rank]),
                    score=score,
                    ended=len(pieces) < most,
                )
            )
        return found


def _most_pieces(width: int, decoding: TranslatingConfig) -> int:
    """Most pieces of a translation, its end not among them."""
    return int(decoding.ratio * width) + decoding.extra


def too_long(sentence: Sequence[int]) -> str:
    """What is wrong with a sentence that has too many word pieces; empty if it has not."""
    if len(sentence) <= _LONGEST:
        return ""
    return f"it has {len(sentence):,} word pieces, more than {_LONGEST:,}: cut it into sentences"


def open_translator(
    folder: str | Path | None = None, *, device: str = "auto", precision: str = "float32"
) -> TextTranslator:
    """Opens a translator: the one that comes with the package, or one in a folder.

    Args:
        folder: What `ngsan train` wrote; None for the model that comes with the package, which
            turns short English descriptions of pictures into German.
        device: Where it is to work: auto, cpu, cuda, cuda:1.
        precision: Of its numbers: float32, bfloat16 or float16.

    Raises:
        ValueError: The folder is no translator, or there is no such device.
    """
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if precision not in kinds:
        raise ValueError(f"precision: {precision!r} is not one of {', '.join(kinds)}")
    path = SHIPPED if folder is None else Path(folder)
    if folder is None and not path.is_dir():
        raise ValueError(
            "this installation comes without a translator: train one, as docs/translation.md "
            "tells, and name its folder"
        )
    translator, _, subwords = load_translator(path)
    return TextTranslator(translator.to(best_device(device), kinds[precision]), subwords)
