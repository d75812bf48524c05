"""SPICE: the overlap of scene graphs, computed by its authors' Java program.

The program is `spice-1.0.jar` of the package pycocoevalcap. It parses captions with Stanford
CoreNLP 3.6.0, which is not on PyPI and must be downloaded once: `Spice` says what to get and where
to put it.

Parsed captions are kept in the program's own cache, an LMDB database: a kill cannot damage it, and
several processes may use it. Captions are parsed in parts, so that a run that was killed continues
with the next part.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngsan.metrics.captions import MeanMetric, TokenizedCaptions, rows_of_values

STANFORD_JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
"""The two required files, as Maven Central names them."""

_COORDINATES = (
    "edu.stanford.nlp:stanford-corenlp:3.6.0",
    "edu.stanford.nlp:stanford-corenlp:3.6.0:models",
)
_MAVEN = "https://repo1.maven.org/maven2/edu/stanford/nlp/stanford-corenlp/3.6.0/"
_HEAP = "8G"
_LAST_WITH_JAVASCRIPT = 14
_FIRST_WITH_MODULES = 9
_OPENED = ("java.lang", "java.util", "java.math", "java.text", "java.net", "java.util.concurrent")
"""Java's packages that the cache's library looks into."""

_NATIVE = ("x86_64", "AMD64")
"""The processors that the cache's library has been compiled for."""

_LAUNCHER = Path(__file__).with_name("spice_launcher.java")
_SERVICE = "META-INF/services/javax.script.ScriptEngineFactory"

_VERSION = re.compile(r'version "([^"]+)"')
_TRACE = re.compile(r"\s+(at |\.\.\. \d+ more)")
_SHOWN = 3  # lines of output in an error


class Spice(MeanMetric):
    """SPICE (Anderson et al., 2016): F1 of the propositions of a caption and its references.

    Each call of `statistics` starts one Java process, which uses all cores.
    """

    names = ("SPICE",)

    def __init__(self, *, heap: str | None = None, jars: str | Path | None = None) -> None:
        """Finds Java and the program's files.

        Args:
            heap: Java's heap size, such as "8G" or "6000m"; None: NGSAN_SPICE_HEAP, or 8G.
            jars: The folder of CoreNLP's two files; None: NGSAN_SPICE_LIB, or ngsan's own.

        Raises:
            ValueError: A file or Java is missing; the message says what to get and where to put it.
        """
        heap = heap or os.environ.get("NGSAN_SPICE_HEAP") or _HEAP
        if not re.fullmatch(r"[1-9][0-9]*[kKmMgG]", heap):
            raise ValueError(f"heap {heap!r} is not an amount of memory such as 8G or 6000m")
        self._heap = heap
        self._program = _program()
        self._stanford = _stanford_jars(self._program.parent / "lib", jars)
        self._java = find_java()

    @property
    def signature(self) -> Mapping[str, str]:
        return {"spice": "1.0", "parser": "corenlp-3.6.0"}

    def statistics(self, captions: TokenizedCaptions) -> NDArray[np.float64]:
        """Statistics (images, 2): F1 of each image, and 1.

        Raises:
            ChildProcessError: The program failed, or its output is invalid.
        """
        values = np.zeros(len(captions.ids))
        # A caption without words has no propositions and scores 0; an empty reference adds none.
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

    def _run(self, requests: Sequence[Mapping[str, object]], folder: Path) -> str:
        """Runs the program, with its files in `folder`, and returns its output."""
        asked, answered = folder / "captions.json", folder / "scores.json"
        asked.write_text(json.dumps(requests), encoding="ascii")
        # The jar lists its other libraries itself, relative to its own folder.
        classes = [*map(str, self._stanford), str(self._program)]
        main = "edu.anu.spice.SpiceScorer"
        if self._java.release > _LAST_WITH_JAVASCRIPT:
            service = folder / _SERVICE
            service.parent.mkdir(parents=True)
            service.write_text("SpiceLauncher$Factory\n", encoding="ascii")
            classes.append(str(folder))
            main = str(_LAUNCHER)
        # What the cache's library unpacks goes with the folder.
        arguments = [f"-Xmx{self._heap}", f"-Djava.io.tmpdir={folder}"]
        cache = _parsed_folder()
        if cache and self._java.release >= _FIRST_WITH_MODULES:
            arguments += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
        arguments += ["-cp", os.pathsep.join(classes), main, str(asked)]
        arguments += ["-out", str(answered), "-silent", *(["-cache", str(cache)] if cache else [])]
        try:
            run_java(self._java, arguments, what="SPICE")
        except ChildProcessError as error:
            raise ChildProcessError(
                f"{error}{_advice(str(error), self._heap, self._java)}"
            ) from error
        try:
            return answered.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError as error:
            raise ChildProcessError("SPICE wrote no output") from error


def _read_answer(text: str, requests: Sequence[Mapping[str, object]]) -> dict[int, float]:
    """F1 by place; each requested place occurs once."""
    asked = {request["image_id"] for request in requests}
    values: dict[int, float] = {}
    try:
        for item in json.loads(text):
            place, value = item["image_id"], float(item["scores"]["All"]["f"])
            if place not in asked or place in values or not 0 <= value <= 1:
                raise ChildProcessError(f"SPICE gave an invalid result: {item!r:.200}")
            values[place] = value
    except (ValueError, KeyError, TypeError) as error:
        raise ChildProcessError(f"SPICE's output is malformed: {text[:100]!r}") from error
    if len(values) < len(asked):
        raise ChildProcessError(f"SPICE scored {len(values)} of {len(asked)} captions")
    return values


def _advice(message: str, heap: str, java: Java) -> str:
    """What to do about known failures."""
    if "OutOfMemoryError" in message or "SIGKILL" in message:
        return f"; Java's heap size is {heap}: set NGSAN_SPICE_HEAP to what the machine has"
    if "jdk.compiler" in message:
        return (
            f"; {java.path} has no compiler, which SPICE needs from Java 15 on: install a JDK, or "
            "Java 8 to 14, and set JAVA_HOME"
        )
    return ""


def _program() -> Path:
    """The jar in the installed pycocoevalcap, which is not imported."""
    spec = find_spec("pycocoevalcap")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "spice" / "spice-1.0.jar"
        if path.is_file():
            return path.resolve()
    raise ValueError(
        "SPICE needs the package pycocoevalcap, which contains its program: "
        "pip install 'ngsan[metrics]'"
    )


def _parsed_folder() -> Path | None:
    """The folder of parsed captions, which is created; None where its library does not run."""
    if platform.machine() not in _NATIVE:
        return None
    folder = _cache_folder() / "spice" / "parsed-3.6.0"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"parsed captions cannot be kept in {folder} ({error.strerror}); set NGSAN_CACHE to a "
            "folder that can be written"
        ) from error
    return folder


def _stanford_jars(lib: Path, jars: str | Path | None) -> list[Path]:
    """The two files of CoreNLP, from one folder."""
    own = jars or os.environ.get("NGSAN_SPICE_LIB")
    home = _cache_folder() / "spice"
    folders = [Path(own).expanduser().absolute()] if own else [lib, home]
    for folder in folders:
        paths = [folder / name for name in STANFORD_JARS]
        if all(path.is_file() for path in paths):
            return paths
    lacking = [
        f"{_MAVEN}{name} ({coordinates})"
        for name, coordinates in zip(STANFORD_JARS, _COORDINATES, strict=True)
        if not (folders[-1] / name).is_file()
    ]
    raise ValueError(
        f"SPICE needs Stanford CoreNLP 3.6.0: download {' and '.join(lacking)} to {folders[-1]}"
        + ("" if own else " (or to another folder: --spice-jars DIR or NGSAN_SPICE_LIB)")
    )


def _cache_folder() -> Path:
    """The folder of ngsan's downloaded and derived files."""
    if own := os.environ.get("NGSAN_CACHE"):
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "ngsan"


@dataclass(frozen=True)
class Java:
    """An installed Java."""

    path: str
    """The program."""
    version: str
    """The reported version, such as "1.8.0_392" or "17.0.15"."""

    @property
    def release(self) -> int:
        """The release number: 8 for "1.8.0_392", 17 for "17.0.15"."""
        match = re.match(r"(?:1\.)?(\d+)", self.version)
        if match is None:
            raise ValueError(f"{self.version!r} is not a version of Java such as '17.0.15'")
        return int(match[1])


def find_java() -> Java:
    """The Java in JAVA_HOME, else the one on the search path.

    Raises:
        ValueError: There is no Java, or it does not run, or it is older than Java 8.
    """
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    if path is None:
        place = f"in JAVA_HOME ({home})" if home else "on the search path"
        raise ValueError(f"no java {place}; install Java 8 or newer, or set JAVA_HOME")
    try:
        answer = subprocess.run(
            [path, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise ValueError(f"{path} does not run ({error}); install Java 8 or newer") from error
    text = answer.stderr + answer.stdout
    match = _VERSION.search(text)
    if answer.returncode or match is None:
        said = " ".join(text.split())[:200] or "nothing"
        raise ValueError(f"'{path} -version' printed {said!r}; install Java 8 or newer")
    java = Java(path, match[1])
    if java.release < 8:
        raise ValueError(f"{path} is Java {java.version}; install Java 8 or newer")
    return java


def run_java(java: Java, arguments: Sequence[str], *, what: str) -> None:
    """Runs a Java program.

    Args:
        java: Which Java.
        arguments: The arguments of "java".
        what: The program's name in error messages.

    Raises:
        ChildProcessError: The program failed; the message has the end of its output.
    """
    # Both streams are read while the program runs; a full pipe would block it.
    ended = subprocess.run(
        [java.path, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if ended.returncode == 0:
        return
    if ended.returncode < 0:
        how = f"was killed by {_signal_name(-ended.returncode)}"
    else:
        how = f"failed with exit status {ended.returncode}"
    raise ChildProcessError(f"{what} (Java {java.version}) {how}{_last_lines(ended.stdout)}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_lines(output: str) -> str:
    """The last lines of an output, without stack traces."""
    lines = [line.strip() for line in output.splitlines() if not _TRACE.match(line)]
    said = [line for line in lines if line][-_SHOWN:]
    return f": {' / '.join(said)}" if said else " without output"
