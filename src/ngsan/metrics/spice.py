"""SPICE: the overlap of scene graphs, computed by its authors' Java program.

The program is `spice-1.0.jar` of the package pycocoevalcap. It parses captions with Stanford
CoreNLP 3.6.0, which no package holds and which has to be fetched once: `Spice` says what to get and
where to put it.

Note: pycocoevalcap keeps parsed captions in a folder of the installed package. We do not use that
    cache: its library needs Java's internals opened from Java 16 on, and two runs would share it.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.java import Java, find_java, run_java
from ngsan.metrics.metric import mean_of_rows, rows_of_values

__all__ = ["STANFORD_JARS", "Spice"]

STANFORD_JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
"""What has to be fetched: two files of the archive stanford-corenlp-full-2015-12-09.zip."""

_ARCHIVE = "https://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip"
_HEAP = "8G"
_LAST_WITH_JAVASCRIPT = 14
_LAUNCHER = Path(__file__).with_name("spice_launcher.java")
_SERVICE = "META-INF/services/javax.script.ScriptEngineFactory"


class Spice:
    """SPICE (Anderson et al., 2016): F1 of the propositions of a caption and its references.

    Each scoring starts one Java process, which uses all cores.
    """

    names = ("SPICE",)

    def __init__(self, *, heap: str | None = None) -> None:
        """Finds Java and the program's parts.

        Args:
            heap: The most memory that Java may use, such as "8G" or "6000m"; None: what
                NGSAN_SPICE_HEAP says, or 8G.

        Raises:
            ValueError: Something is missing; says what to get and where to put it.
        """
        heap = heap or os.environ.get("NGSAN_SPICE_HEAP") or _HEAP
        if not re.fullmatch(r"[1-9][0-9]*[kKmMgG]", heap):
            raise ValueError(f"heap: {heap!r} is no amount of memory; write it as 8G or 6000m")
        self._heap = heap
        self._program = _program()
        self._stanford = _stanford_jars(self._program.parent / "lib")
        self._java = find_java()

    @property
    def signature(self) -> Mapping[str, str]:
        """Versions of the program and of its parser."""
        return {"spice": "1.0", "parser": "corenlp-3.6.0"}

    def statistics(self, captions: TokenizedCaptions) -> NDArray[np.float64]:
        """F1 of each image, and 1.

        Args:
            captions: What to score.

        Returns:
            (images, 2)

        Raises:
            ChildProcessError: The program failed, or its answer is not one.
        """
        values = np.zeros(len(captions.ids))
        # A caption without words has no propositions and scores 0; a reference without adds none.
        requests = []
        for place, words in enumerate(captions.hypotheses):
            references = [" ".join(reference) for reference in captions.references[place]]
            if words and any(references):
                texts = list(filter(None, references))
                requests.append({"image_id": place, "test": " ".join(words), "refs": texts})
        if requests:
            with tempfile.TemporaryDirectory(prefix="ngsan-spice-") as folder:
                answer = self._run(requests, Path(folder))
            for place, value in _read_answer(answer, requests).items():
                values[place] = value
        return rows_of_values(values)

    def score(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean F1, (..., 1), from totals (..., 2)."""
        return mean_of_rows(totals)

    def _run(self, requests: Sequence[Mapping[str, object]], folder: Path) -> str:
        """Has the program answer; the folder is for its files."""
        asked, answered = folder / "captions.json", folder / "scores.json"
        asked.write_text(json.dumps(requests), encoding="ascii")
        # The jar names the rest of its libraries itself, relative to its own place.
        classes = [*map(str, self._stanford), str(self._program)]
        main = "edu.anu.spice.SpiceScorer"
        if self._java.release > _LAST_WITH_JAVASCRIPT:
            service = folder / _SERVICE
            service.parent.mkdir(parents=True)
            service.write_text("SpiceLauncher$Factory\n", encoding="ascii")
            classes.append(str(folder))
            main = str(_LAUNCHER)
        arguments = [f"-Xmx{self._heap}", "-cp", os.pathsep.join(classes), main, str(asked)]
        arguments += ["-out", str(answered), "-silent"]
        try:
            run_java(self._java, arguments, what="SPICE")
        except ChildProcessError as error:
            raise ChildProcessError(
                f"{error}{_advice(str(error), self._heap, self._java)}"
            ) from error
        try:
            return answered.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError as error:
            raise ChildProcessError("SPICE ended without an answer") from error


def _read_answer(text: str, requests: Sequence[Mapping[str, object]]) -> dict[int, float]:
    """The F1 by place; every place that was asked for, once."""
    asked = {request["image_id"] for request in requests}
    values: dict[int, float] = {}
    try:
        for item in json.loads(text):
            place, value = item["image_id"], float(item["scores"]["All"]["f"])
            if place not in asked or place in values or not 0 <= value <= 1:
                raise ChildProcessError(f"SPICE answered {item!r:.200}, which makes no sense")
            values[place] = value
    except (ValueError, KeyError, TypeError) as error:
        raise ChildProcessError(f"SPICE's answer cannot be read: {text[:100]!r}") from error
    if len(values) < len(asked):
        raise ChildProcessError(f"SPICE answered for {len(values)} of {len(asked)} captions")
    return values


def _advice(message: str, heap: str, java: Java) -> str:
    """What to do about a failure that is known."""
    if "OutOfMemoryError" in message or "SIGKILL" in message:
        return f"; Java may use {heap} of memory: set NGSAN_SPICE_HEAP to what the machine has"
    if "jdk.compiler" in message:
        return (
            f"; {java.path} is a runtime without compiler, and SPICE needs one from Java 15 on: "
            "install a JDK, or Java 8 to 14, and set JAVA_HOME"
        )
    return ""


def _program() -> Path:
    """The jar of the installed pycocoevalcap, which is not imported."""
    spec = find_spec("pycocoevalcap")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "spice" / "spice-1.0.jar"
        if path.is_file():
            return path.resolve()
    raise ValueError(
        "SPICE needs the package pycocoevalcap, which holds its program; "
        "install it with: pip install 'ngsan[metrics]'"
    )


def _stanford_jars(lib: Path) -> list[Path]:
    """The two files of CoreNLP, both from one folder."""
    own = os.environ.get("NGSAN_SPICE_LIB")
    home = _cache_folder() / "spice"
    folders = [Path(own).expanduser().absolute()] if own else [lib, home]
    for folder in folders:
        paths = [folder / name for name in STANFORD_JARS]
        if all(path.is_file() for path in paths):
            return paths
    missing = [name for name in STANFORD_JARS if not (folders[-1] / name).is_file()]
    raise ValueError(
        f"SPICE needs Stanford CoreNLP 3.6.0: get {_ARCHIVE} and put {' and '.join(missing)} of it "
        f"into {folders[-1]}" + ("" if own else " (or another folder, named by NGSAN_SPICE_LIB)")
    )


def _cache_folder() -> Path:
    """Where this program keeps what it fetched or was given."""
    if own := os.environ.get("NGSAN_CACHE"):
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "ngsan"
