"""What to do about bad data: stop at once, or skip it, count it and report it."""

from collections import Counter, defaultdict
from collections.abc import Mapping

_KEPT = 20


class Problems:
    """Collects the bad records of an import, or stops at the first."""

    def __init__(self, *, skip: bool = False) -> None:
        """Chooses.

        Args:
            skip: Whether bad records are skipped and counted rather than raised.
        """
        self.skip = skip
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = defaultdict(list)

    def report(self, kind: str, where: str, message: str) -> None:
        """Takes note of a bad record; the caller then goes on to the next one.

        Args:
            kind: A few words that similar problems share, such as "broken base64".
            where: File, line and id.
            message: What is wrong and, if it can be said, what to do.

        Raises:
            ValueError: Bad records are not to be skipped.
        """
        if not self.skip:
            raise ValueError(f"{where}: {kind}: {message}")
        self.leave_out(kind, where, message)

    def leave_out(self, kind: str, where: str, message: str) -> None:
        """Takes note of a record that is known not to belong to the data; it never stops."""
        self.counts[kind] += 1
        if len(self.examples[kind]) < _KEPT:
            self.examples[kind].append(f"{where}: {message}")

    def take_up(self, counts: Mapping[str, int]) -> None:
        """Adds what was counted before an import was interrupted."""
        for kind, count in counts.items():
            self.counts[kind] += count
            self.examples[kind].append("before the import was interrupted")

    def summary(self) -> list[str]:
        """A line for each kind of problem, with its count and first example."""
        return [
            f"skipped {count}: {kind} (first: {self.examples[kind][0]})"
            for kind, count in self.counts.most_common()
        ]
