"""`ngsan serve`: the studio's page, and captions over HTTP."""

import argparse
import dataclasses
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docstring_parser import parse_from_object

from ngsan.serve.settings import ServeSettings

DESCRIPTION = """Serves the studio, a page to try the models on, and an API for programs. It listens
to this machine alone unless told otherwise. Ctrl-C stops it after the requests that are under
way; a second one at once."""

TOKEN = "NGSAN_TOKEN"
"""The variable of the environment that may hold the token."""

_NEEDED = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    options = vars(_parser().parse_args(arguments))
    token_file = options.pop("token_file")
    names = [item.name for item in dataclasses.fields(ServeSettings)]
    given = {name: options[name] for name in names}
    given["token"] = _token(given["token"], token_file)
    serve(ServeSettings(**given))


def serve(settings: ServeSettings) -> None:
    """Serves until told to stop.

    Args:
        settings: Where to listen, and the limits.

    Raises:
        ValueError: A package or the model is missing, or the port is taken.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ValueError(f"{missing[0]} is not installed: pip install 'ngsan[serve]'")
    from ngsan.serve.app import build_app
    from ngsan.serve.running import address_of, leave, listen, run

    taken = listen(settings)  # first, as this fails at once
    try:
        app = build_app(settings)
        who = "" if settings.token or settings.is_local else ", open to all who reach it"
        said = f"the studio is at {address_of(taken, settings)}{who}; Ctrl-C stops it"
        run(app, settings, taken, lambda: print(said, flush=True))
    finally:
        taken.close()
    print("stopped", flush=True)
    leave()


def _token(given: str | None, file: str | None) -> str | None:
    """The token, wherever it is."""
    if given is not None and file is not None:
        raise ValueError("--token and --token-file: give one of them")
    if file is not None:
        return Path(file).read_text(encoding="utf-8").strip()
    return given if given is not None else os.environ.get(TOKEN) or None


def _parser() -> argparse.ArgumentParser:
    """An option for each of the settings, with its documentation as help."""
    parser = argparse.ArgumentParser(
        prog="ngsan serve", description=DESCRIPTION, allow_abbrev=False
    )
    texts = {about.arg_name: about.description for about in parse_from_object(ServeSettings).params}
    for item in dataclasses.fields(ServeSettings):
        text = " ".join(str(texts[item.name]).split()).rstrip(".").replace("%", "%%")
        option = f"--{item.name.replace('_', '-')}"
        if item.type is bool:
            parser.add_argument(option, action="store_true", help=text.removeprefix("Whether to "))
            continue
        kinds: dict[Any, Any] = {int: int, float: float, int | None: int}
        kind = kinds.get(item.type, str)
        shown = "" if item.default in (None, "") else f" ({item.default})"
        parser.add_argument(
            option,
            type=kind,
            default=item.default,
            metavar={int: "N", float: "X"}.get(kind, item.name.upper()),
            help=text[:1].lower() + text[1:] + shown,
        )
    parser.add_argument(
        "--token-file", type=str, metavar="FILE", help=f"a file with the token; or set {TOKEN}"
    )
    return parser
