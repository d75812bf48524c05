"""True and false sentences about images, as in Visual Spatial Reasoning (Liu et al., 2023)."""

import json
from dataclasses import dataclass
from pathlib import Path

from ngsan.data.ids import canonical_id
from ngsan.data.text_files import numbered_lines


@dataclass(frozen=True)
class Claim:
    """A sentence about an image."""

    image: str
    text: str
    true: bool
    relation: str
    """The phrase of the sentence that names the relation."""


def read_claims(path: str | Path) -> list[Claim]:
    """The sentences of a file of JSON lines, which may be a .gz file.

    Each line has `id`, the image's; `text`; `true`, 1 or 0; and `rel`, the relation's phrase.

    Raises:
        ValueError: A line is not such an object, or there is none; names the line.
    """
    found = []
    for line, text in numbered_lines(path):
        if not text.strip():
            continue
        where = f"{path}:{line.number}"
        try:
            record = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{where}: not JSON: {error}") from error
        if not isinstance(record, dict) or not {"id", "text", "true", "rel"} <= record.keys():
            raise ValueError(f"{where}: must be an object with id, text, true and rel")
        sentence, relation, truth = record["text"], record["rel"], record["true"]
        if not isinstance(sentence, str) or not isinstance(relation, str) or truth not in (0, 1):
            raise ValueError(f"{where}: text and rel must be strings, and true 1 or 0")
        try:
            image = canonical_id(record["id"])
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        found.append(Claim(image, sentence, bool(truth), relation))
    if not found:
        raise ValueError(f"{path} has no sentences")
    return found
