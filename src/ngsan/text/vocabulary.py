"""The vocabulary: words to ids and back."""

from collections.abc import Iterable, Sequence

BOUNDARY = 0
"""The id that begins, ends and pads every caption; it is no word."""

UNKNOWN = "<unk>"


class Vocabulary:
    """An ordered list of words; word k has id k + 1, id 0 is the boundary.

    One id serves as beginning, end and padding, as in the field's public code: a caption is
    given to the decoder as `0 w1 w2 ...` and expected back as `w1 w2 ... 0`.
    """

    def __init__(self, words: Sequence[str]) -> None:
        """Takes the words.

        Args:
            words: Distinct words. If one of them is `UNKNOWN`, it stands for every other word.
        """
        self.words = tuple(words)
        self._ids = {word: index for index, word in enumerate(self.words, start=BOUNDARY + 1)}
        if len(self._ids) < len(self.words):
            raise ValueError("a vocabulary cannot hold a word twice")

    def __len__(self) -> int:
        """The number of ids, V: the words and the boundary."""
        return len(self.words) + 1

    def encode(self, words: Iterable[str]) -> list[int]:
        """The ids of words, without the boundary.

        Raises:
            ValueError: A word is not in the vocabulary and neither is `UNKNOWN`.
        """
        unknown = self._ids.get(UNKNOWN)
        ids = []
        for word in words:
            index = self._ids.get(word, unknown)
            if index is None:
                raise ValueError(f"{word!r} is not in the vocabulary, which has no {UNKNOWN!r}")
            ids.append(index)
        return ids

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The words of ids, up to the first boundary."""
        words = []
        for index in ids:
            if index == BOUNDARY:
                break
            words.append(self.words[index - 1])
        return words
