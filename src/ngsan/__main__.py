"""The command line: a table of sub-commands, each imported when it is called."""

import os
import sys
from importlib import import_module

COMMANDS = {
    "answer": "answer questions about a photograph",
    "caption": "write captions of photographs and clips",
    "data": "bring captions, questions and features into a dataset folder, or look into one",
    "demo": "caption the example photographs and show where the model looked",
    "describe": "print a model's configuration and its parameter counts",
    "evaluate": "caption a split of a dataset, or answer its questions, and score that",
    "export": "write a model as ONNX files, also in 8 bits for a CPU",
    "extract": "make features of image files or clips with a backbone or a detector",
    "pack": "write a model small, for use with PyTorch and without it",
    "plot": "draw figures: metrics by epoch",
    "reproduce": "rerun a table or figure of the paper",
    "score": "score a file of captions against references, or check a submission",
    "serve": "serve the studio, a page and an API that caption photographs",
    "train": "train a captioner, a translator, or a model that answers questions",
    "translate": "translate lines of text with a trained translator",
}


def usage() -> str:
    """The list of sub-commands."""
    rows = "\n".join(f"  {name:10} {text}" for name, text in COMMANDS.items())
    return (
        f"usage: ngsan COMMAND ...\n\ncommands:\n{rows}\n\n"
        "'ngsan COMMAND --help' explains a command."
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs a sub-command.

    Args:
        arguments: The command line without the program's name; None for the process's own.

    Returns:
        The exit status: 2 for a wrong command line or wrong input, 130 after Ctrl-C, 141 if nobody
        reads the output any more.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from ngsan import __version__

        print(f"ngsan {__version__}")
        return 0
    if arguments[0] not in COMMANDS:
        _complain(f"ngsan: unknown command {arguments[0]!r}\n\n{usage()}")
        return 2
    try:
        command = import_module(f"ngsan.commands.{arguments[0]}")
        command.main(arguments[1:])
        if sys.stdout is not None:
            sys.stdout.flush()  # what cannot be written is an error here, and not after the end
    except BrokenPipeError:
        # Whoever read the output, such as `head`, has seen enough.
        _write_to_nobody()
        return 141
    except (ValueError, OSError) as error:
        _complain(f"ngsan {arguments[0]}: {error}")
        return 2
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    return 0


def _complain(text: str) -> None:
    if sys.stderr is not None:  # it may be closed, and print would take standard output instead
        print(text, file=sys.stderr)


def _write_to_nobody() -> None:
    """Lets what is still to be written to standard output vanish without a complaint."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # standard output is no file
        return


if __name__ == "__main__":
    sys.exit(main())
