"""Java programs: which Java there is, and running one to its end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Java", "find_java", "release_of", "run_java"]

_VERSION = re.compile(r'version "([^"]+)"')
_TRACE = re.compile(r"\s+(at |\.\.\. \d+ more)")
_SHOWN = 3


@dataclass(frozen=True)
class Java:
    """A Java that answers."""

    path: str
    """The program."""

    version: str
    """As it says itself, such as "1.8.0_392" or "17.0.15"."""

    @property
    def release(self) -> int:
        """The number that people know the version by, such as 8 or 17."""
        return release_of(self.version)


def release_of(version: str) -> int:
    """The release that a version belongs to: 8 for "1.8.0_392", 17 for "17.0.15", 21 for "21".

    Raises:
        ValueError: It does not begin with a number.
    """
    match = re.match(r"(?:1\.)?(\d+)", version)
    if match is None:
        raise ValueError(f"{version!r} is no version of Java; expected one such as '17.0.15'")
    return int(match[1])


def find_java() -> Java:
    """The Java of the folder that JAVA_HOME names, or else the one on the search path.

    Raises:
        ValueError: There is none, or it does not run; says which one and what to do.
    """
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    if path is None:
        place = f"in JAVA_HOME ({home})" if home else "on the search path"
        raise ValueError(f"there is no java {place}; install Java 8 or newer, or set JAVA_HOME")
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
        raise ValueError(f"'{path} -version' says {said!r}; install Java 8 or newer")
    java = Java(path, match[1])
    if java.release < 8:
        raise ValueError(f"{path} is Java {java.version}; install Java 8 or newer")
    return java


def run_java(java: Java, arguments: Sequence[str], *, what: str) -> None:
    """Runs a program to its end.

    Args:
        java: Which Java.
        arguments: Everything after "java".
        what: The program's name for people.

    Raises:
        ChildProcessError: It failed; says how, with the last that it said for itself.
    """
    # Both streams are read while the program runs: one that is not would stop it when full.
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
    raise ChildProcessError(f"{what} (Java {java.version}) {how}{_last_words(ended.stdout)}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_words(output: str) -> str:
    """The last lines of an output that are no stack trace."""
    lines = [line.strip() for line in output.splitlines() if not _TRACE.match(line)]
    said = [line for line in lines if line][-_SHOWN:]
    return f"; it said: {' / '.join(said)}" if said else " and said nothing"
