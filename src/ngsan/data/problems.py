"""Bad records: stop at the first, or skip, count and report them; and the checks that find them."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from ngsan.data.ids import canonical_id

_MAX_EXAMPLES = 20
_SURROGATE = re.compile("[\ud800-\udfff]")


class Problems:
    """Collects the bad records of an import, or stops at the first.

    Args:
        skip: Whether bad records are skipped and counted instead of raising an error.
    """

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = defaultdict(list)

    def report(self, kind: str, where: str, message: str) -> None:
        """Records a bad record; the caller then continues with the next one.

        Args:
            kind: A few words shared by similar problems, such as "broken base64".
            where: File, line and id.
            message: What is wrong and, if possible, what to do.

        Raises:
            ValueError: Bad records are not skipped.
        """
        if not self.skip:
            raise ValueError(f"{where}: {kind}: {message}")
        self.leave_out(kind, where, message)

    def leave_out(self, kind: str, where: str, message: str) -> None:
        """Records that a record was skipped on purpose; never raises."""
        self.counts[kind] += 1
        if len(self.examples[kind]) < _MAX_EXAMPLES:
            self.examples[kind].append(f"{where}: {message}")

    def resume(self, counts: Mapping[str, int]) -> None:
        """Adds the counts of an interrupted import."""
        for kind, count in counts.items():
            self.counts[kind] += count
            self.examples[kind].append("before the import was interrupted")

    def summary(self) -> list[str]:
        """A line per kind of problem, with its count and first example."""
        return [
            f"skipped {count}: {kind} (first: {self.examples[kind][0]})"
            for kind, count in self.counts.most_common()
        ]


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: it has no lone surrogate."""
    return not _SURROGATE.search(text)


def shown(value: object) -> str:
    """A value for an error message, in ASCII and at most 60 characters."""
    try:
        text = ascii(value)
    except RecursionError:
        text = "a deeply nested value"
    return text if len(text) <= 60 else text[:57] + "..."


def is_length(value: object) -> bool:
    """Whether a value is a valid width or height in pixels."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


# The following checks return None after reporting a problem.


def caption_text(
    value: object, problems: Problems, where: str, kind: str = "caption"
) -> str | None:
    """A caption, or another `kind` of text, with runs of white space replaced by one space."""
    if not isinstance(value, str):
        problems.report("wrong type", where, f"a {kind} must be a string, not {shown(value)}")
        return None
    text = " ".join(value.split())
    if not text:
        problems.report(f"empty {kind}", where, "it has no text")
        return None
    if not is_unicode(text):
        problems.report("invalid Unicode", where, f"{shown(text)} has a lone surrogate")
        return None
    return text


def caption_texts(values: object, problems: Problems, where: str) -> tuple[str, ...]:
    """The usable captions of a list."""
    if not isinstance(values, list):
        problems.report("wrong type", where, f"captions must be a list, not {shown(values)}")
        return ()
    texts = (
        caption_text(value, problems, f"{where}, caption {number}")
        for number, value in enumerate(values, start=1)
    )
    captions = tuple(text for text in texts if text is not None)
    if not captions:
        problems.report("image without captions", where, "no usable caption is left")
    return captions


def entry_fields(
    entry: object, keys: tuple[str, ...], problems: Problems, where: str
) -> dict[str, object] | None:
    """The entry itself, if it is an object with these keys."""
    if not isinstance(entry, dict):
        problems.report("wrong type", where, f"expected an object, not {shown(entry)}")
        return None
    missing = [key for key in keys if key not in entry]
    if missing:
        problems.report("missing key", where, f"there is no {' and no '.join(map(repr, missing))}")
        return None
    return entry


def image_id(value: object, problems: Problems, where: str) -> str | None:
    """The canonical form of an id."""
    if isinstance(value, str | int):
        try:
            identity = canonical_id(value)
        except ValueError as error:
            problems.report("wrong id", where, str(error))
            return None
        if is_unicode(identity):
            return identity
    problems.report("wrong id", where, f"an id is a string or an integer, not {shown(value)}")
    return None


def file_name(value: object, problems: Problems, where: str) -> str | None:
    """The name of a file."""
    if isinstance(value, str) and value.strip() and is_unicode(value):
        return value.strip()
    problems.report("wrong file name", where, f"expected the name of a file, not {shown(value)}")
    return None
