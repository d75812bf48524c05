"""`ngsan demo`: captions the example photographs and writes a page about how."""

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from ngsan.app.explain import write_page
from ngsan.app.maps import Explainer
from ngsan.cli.keys import keys_of, with_keys
from ngsan.cli.output import open_console, say
from ngsan.cli.parser import Command, Group, Parser, natural
from ngsan.config import CaptionerConfig, CrossEntropyConfig, SceneConfig, read_recipe
from ngsan.examples import EXAMPLES
from ngsan.predict.captioner import PHOTO_MODEL, load

PAGE = "demo/captions.html"
"""Where the page is written by default."""


def _add_options(parser: Parser) -> None:
    parser.option("model")
    parser.option("page", default=PAGE, help="HTML page to write")


def _run(options: argparse.Namespace) -> None:
    folder = PHOTO_MODEL if options.model is None else Path(options.model)
    if not folder.is_dir():
        raise ValueError(f"--model: folder not found: {folder}")
    console = open_console(results=True)
    paths = [example.path for example in EXAMPLES]
    start = time.perf_counter()
    captioner = load(folder)
    if captioner.kind != "photos":
        raise ValueError(f"--model: {folder} is a model of {captioner.kind} and not of photographs")
    captions = captioner.caption(paths)
    table = Table(title="Captions of the example photographs", title_justify="left")
    table.add_column("photograph", no_wrap=True)
    table.add_column("caption")
    for example, caption in zip(EXAMPLES, captions, strict=True):
        table.add_row(example.file, escape(str(caption)))
    console.print(table)
    seconds = time.perf_counter() - start
    say(console, f"{len(paths)} photographs in {seconds:.1f} seconds, loading included.")
    write_page(
        Explainer.open(folder),
        paths,
        Path(options.page),
        [[caption.text] for caption in captions],
        credit_lines=[example.credit for example in EXAMPLES],
    )
    say(console, f"Open {options.page} in a browser to see where the model looked.")


_DEFAULT = read_recipe("toy-scenes")


@dataclass(frozen=True)
class SceneDemo:
    """What `ngsan demo scenes` trains."""

    model: CaptionerConfig = _DEFAULT.model
    """Size of the models; norm and geometry follow from each model's name."""

    scenes: SceneConfig = field(default_factory=SceneConfig)
    """The scenes."""

    training: CrossEntropyConfig = _DEFAULT.cross_entropy
    """The training; it neither validates, nor stops early, nor averages."""


def _scene_options(parser: Parser) -> None:
    parser.option(
        "models",
        metavar="NAMES",
        default="san,ng-san",
        help="models to train, separated by commas: san, n-san, g-san, ng-san",
    )
    parser.option("show", type=natural, metavar="N", default=6, help="unseen scenes to print")
    parser.option("output", metavar="DIR", help="folder for the models and the unseen scenes")
    parser.option("seed", default=0, help="seed of the weights, the order of scenes, and dropout")


def _run_scenes(options: argparse.Namespace) -> None:
    config = with_keys(SceneDemo, {}, options.keys, "ngsan demo scenes")
    from ngsan.cli.demo_scenes import demo_scenes  # needs torch

    demo_scenes(options, config.model, config.scenes, config.training)


DEMO = Group(
    "Try the models.",
    {
        "photos": Command(
            """Caption the photographs that come with the package, and write a page that shows where
            the model looked for every word. 'ngsan demo scenes' trains models on built-in scenes
            instead.""",
            _add_options,
            _run,
            ["demo", "demo --page captions.html", "demo scenes --help"],
        ),
        "scenes": Command(
            """Train models on the built-in scenes, and compare their captions of unseen ones.""",
            _scene_options,
            _run_scenes,
            [
                "demo scenes",
                "demo scenes --models san,n-san,g-san,ng-san -o scenes-demo",
                "demo scenes --models ng-san --model.signed-geometry true --training.epochs 8",
            ],
            lambda _: keys_of(SceneDemo),
        ),
    },
    default="photos",
)
