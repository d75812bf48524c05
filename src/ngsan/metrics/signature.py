"""One line that says how a score was made: scores with the same line can be compared.

Example:
    ``ROUGE-L|images:5000|refs:5-7|tok:ptb-3.4.1-b|beta:1.2|version:ngsan-0.1.0``
"""

from __future__ import annotations

from collections.abc import Mapping

from ngsan import __version__
from ngsan.metrics.captions import TokenizedCaptions

__all__ = ["signature_line"]


def signature_line(name: str, parts: Mapping[str, str], captions: TokenizedCaptions) -> str:
    """The signature of a score.

    Args:
        name: Of the score, such as "CIDEr".
        parts: What the metric says of itself.
        captions: What was scored: the number of images, the smallest and largest number of
            references, and the tokenizer are taken from it.

    Returns:
        ``name|key:value|...``, ending in the version of this program.
    """
    counts = [len(references) for references in captions.references]
    fewest, most = min(counts), max(counts)
    shared = {
        "images": str(len(captions.ids)),
        "refs": str(most) if fewest == most else f"{fewest}-{most}",
        "tok": captions.tokenizer,
    }
    program = {"version": f"ngsan-{__version__}"}
    if taken := parts.keys() & (shared.keys() | program.keys()):
        raise ValueError(
            f"signature part {min(taken)!r} of {name} has a meaning already; rename it"
        )
    whole = {**shared, **parts, **program}
    for key, value in whole.items():
        if set("|:\n") & set(key + value):
            raise ValueError(f"signature part {key!r}: {value!r} may not contain '|' or ':'")
    return "|".join([name, *(f"{key}:{value}" for key, value in whole.items())])
