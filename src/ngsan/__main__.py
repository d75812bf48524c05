"""The command line: finds the command, runs it, and reports its errors."""

import os
import sys
from collections.abc import Sequence

from ngsan.cli import COMMANDS, find_command
from ngsan.cli.parser import Group, UsageError, complain, group_help, needs, unknown

TEXT = """Image captioning with normalized and geometry-aware self-attention.

general options:
  -h, --help     show this help and exit
  -V, --version  print the version and exit
  -q, --quiet    print only results and errors
  -v, --verbose  print more, and tracebacks of errors"""

EXAMPLES = [
    "caption photos",
    "serve",
    "train ng-san --data mydata -o runs/mine",
    "score results.json --references captions_val2014.json",
]


def main(arguments: list[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The command line without the program's name; None for the process's own.

    Returns:
        The exit status: 1 if a part of the work failed, 2 for a wrong command line or wrong input,
        130 after Ctrl-C, 141 if nobody reads the output any more.
    """
    words: Sequence[str] = sys.argv[1:] if arguments is None else arguments
    name, status, verbose = "ngsan", 2, {"-v", "--verbose"} & set(words)
    try:
        if words[:1] == ["help"]:
            words = [*words[1:], "--help"]
        general = [word for word in words[:1] if word in ("-q", "--quiet", "-v", "--verbose")]
        words = words[len(general) :]
        if not words or words[0] in ("-h", "--help"):
            print(group_help(name, TEXT, COMMANDS, EXAMPLES))
            return 0 if words else 2
        if words[0] in ("-V", "--version"):
            from ngsan import __version__

            print(f"ngsan {__version__}")
            return 0
        if words[0] not in COMMANDS:
            raise UsageError(unknown("command", words[0], COMMANDS, "ngsan --help"))
        name, command, words = f"ngsan {words[0]}", find_command(words[0]), words[1:]
        while isinstance(command, Group):
            if words[:1] in (["-h"], ["--help"]):
                print(command.help(name))
                return 0
            name, command, words = command.choose(name, words)
        status = command(name, [*words, *general])
        if sys.stdout is not None:
            sys.stdout.flush()  # an output that cannot be written is an error here, not at exit
    except BrokenPipeError:  # the reader of the output, such as `head`, has seen enough
        _discard_output()
        status = 141
    except KeyboardInterrupt:
        complain(f"{name}: interrupted")
        status = 130
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if verbose:
            import traceback

            traceback.print_exc()
        complain(f"{name}: {_message(error)}")
        status = 2
    return status


def _message(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, ModuleNotFoundError):
        return needs(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def _discard_output() -> None:
    """Discards what is still to be written to standard output."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # standard output is not a file
        return


if __name__ == "__main__":
    sys.exit(main())
