"""`ngsan serve`: the studio's page, and captions over HTTP."""

import argparse
import dataclasses
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ngsan.app.settings import ServeSettings
from ngsan.cli.parser import SHARED, Command, Parser
from ngsan.config import explain

TOKEN = "NGSAN_TOKEN"
"""The environment variable that may hold the token."""


def _add_options(parser: Parser) -> None:
    """Adds an option for each of the settings, with its documentation as help."""
    texts = explain(ServeSettings)
    for item in dataclasses.fields(ServeSettings):
        name = item.name.replace("_", "-")
        if name == "quiet":  # an option of all commands
            continue
        text = texts[item.name].rstrip(".").replace("%", "%%")
        if item.type is bool:
            text = text.removeprefix("Whether to ")
            parser.option(name, action="store_true", help=text)
            continue
        kinds: dict[Any, Any] = {int: int, float: float, int | None: int}
        kind = kinds.get(item.type, str)
        metavar = {int: "N", float: "X"}.get(kind, item.name.upper())
        parser.option(
            name,
            type=kind,
            default=item.default,
            metavar=SHARED.get(name, {}).get("metavar", metavar),
            help=text[:1].lower() + text[1:],
        )
    parser.option("token-file", metavar="FILE", help=f"file with the token; or set {TOKEN}")


def _run(options: argparse.Namespace) -> None:
    names = [item.name for item in dataclasses.fields(ServeSettings)]
    given = {name: getattr(options, name) for name in names}
    given["token"] = _token(given["token"], options.token_file)
    serve(ServeSettings(**given))


def serve(settings: ServeSettings) -> None:
    """Serves until stopped; raises a `ValueError` if the model is missing or the port is taken."""
    from ngsan.app.app import build_app
    from ngsan.app.memory import limit_memory
    from ngsan.app.server import address_of, exit_process, listen, run

    taken = listen(settings)  # first, as this fails at once
    try:
        limit_memory()
        app = build_app(settings)
        who = "" if settings.token or settings.is_local else ", open to everyone who reaches it"
        text = f"the studio is at {address_of(taken, settings)}{who}; Ctrl-C stops it"
        run(app, settings, taken, lambda: print(text, flush=True))
    finally:
        taken.close()
    with suppress(OSError):  # the reader may be gone
        print("stopped", flush=True)
    exit_process()


def _token(given: str | None, file: str | None) -> str | None:
    if given is not None and file is not None:
        raise ValueError("--token and --token-file: pass one of them")
    if file is not None:
        try:
            return Path(file).read_text(encoding="utf-8").strip()
        except ValueError:
            raise ValueError(f"--token-file: {file} is not text in UTF-8") from None
    return given if given is not None else os.environ.get(TOKEN) or None


SERVE = Command(
    """Serve the studio, a page to try the models on, and an HTTP API. By default it listens to this
    machine only. Ctrl-C stops it after the requests in progress; a second Ctrl-C at once.""",
    _add_options,
    _run,
    ["serve", "serve --port 9000 --model runs/mine", "serve --host 0.0.0.0 --token-file token"],
)
