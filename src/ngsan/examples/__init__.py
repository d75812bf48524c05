"""Photographs under free licences to try a captioner on; CREDITS.md says where they come from."""

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Example:
    """A photograph that comes with the package."""

    file: str
    """Its name in the folder of this module."""

    author: str
    """Who took it."""

    licence: str
    """How it may be used."""

    @property
    def path(self) -> Path:
        """Where it is."""
        return _FOLDER / self.file

    @property
    def credit(self) -> str:
        """What to write beside it."""
        return f"{self.author}, {self.licence}"


EXAMPLES = (
    Example("street.jpg", "Anna Ceccarelli", "CC BY 4.0"),
    Example("coffee.jpg", "Rachel Michetti", "CC0"),
    Example("fisherman.jpg", "Quangpraha (Pixabay)", "CC0"),
    Example("dogs.jpg", "Aitzol Berasategi", "CC BY 4.0"),
    Example("bed.jpg", "congerdesign (Pixabay)", "CC0"),
    Example("gull.jpg", "Atlantios (Pixabay)", "CC0"),
    Example("bridge.jpg", "Derek Jensen", "public domain"),
    Example("cat.jpg", "Stefan van der Walt", "CC0"),
    Example("railway.jpg", "Matt Bailey/Forsaken Media", "CC BY 2.0"),
    Example("moose.jpg", "Ryan Hagerty", "public domain"),
    Example("pier.jpg", "Oliver_hb", "CC BY 2.0"),
    Example("mountains.jpg", "Aitzol Berasategi", "CC BY 4.0"),
)
"""The photographs, in the order in which they are shown."""
