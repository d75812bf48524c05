"""`ngsan describe`: what a configuration builds."""

import argparse
import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ngsan.cli.keys import keys_of_recipe, run_values, with_keys
from ngsan.cli.output import open_console, say
from ngsan.cli.parser import Command, Parser
from ngsan.config import (
    ANSWERERS,
    MODELS,
    TRANSLATORS,
    AnswererConfig,
    CaptionerConfig,
    TranslatorConfig,
    from_dict,
    recipe_names,
    to_yaml,
)
from ngsan.reproduce.published import paper_millions

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

_SIZES = {"vocab_size": 20000, "answers": 3129, "feature_dim": 2048}
"""Sizes of VQA v2 and bottom-up features, for configurations that take them from a dataset."""


def _add_options(parser: Parser) -> None:
    parser.add_argument(
        "recipe",
        metavar="RECIPE_OR_FILE",
        nargs="?",
        default="ng-san",
        help=f"a YAML file, a model folder, or one of {', '.join(recipe_names())}",
    )
    parser.option("config", action="append", default=[])
    parser.option("yaml", action="store_true", help="print the configuration as explained YAML")


def _run(options: argparse.Namespace) -> None:
    kind, values = run_values(options.recipe, options.config)
    config: Any = with_keys(kind, values, options.keys, "ngsan describe")
    if options.yaml:
        print(to_yaml(config), end="")
        return
    import torch

    console, model = open_console(results=True), config.model
    with torch.device("meta"):  # parameters are counted and take no memory
        if isinstance(model, TranslatorConfig):
            _translator(console, model)
        elif isinstance(model, AnswererConfig):
            _answerer(console, model)
        else:
            _captioner(console, model)


def _captioner(console: "Console", config: CaptionerConfig) -> None:
    from torch import nn

    from ngsan.models import build_captioner
    from ngsan.models.captioner import PhotoEncoder, RegionEncoder
    from ngsan.models.decoder import WordDecoder
    from ngsan.models.recurrent import RecurrentDecoder

    captioner = build_captioner(config)
    encoder, parts = captioner.encoder, dict[str, nn.Module]()
    if isinstance(encoder, PhotoEncoder):
        parts["backbone"] = encoder.backbone
        encoder = encoder.regions
    decoder = captioner.decoder
    assert isinstance(encoder, RegionEncoder)
    assert isinstance(decoder, WordDecoder | RecurrentDecoder)
    parts |= {
        "feature embedding": encoder.embed,
        "encoder layers": encoder.layers,
        "word embedding": decoder.embed,
        "LSTM over words": getattr(decoder, "reader", None) or nn.Identity(),
        "decoder layers": decoder.layers if isinstance(decoder, WordDecoder) else decoder.cell,
        "output": decoder.output or nn.Identity(),
    }
    console.print(_parts(captioner, parts))
    paper = CaptionerConfig()
    sizes = ("vocab_size", "feature_dim", "dim", "hidden_dim")
    is_paper = all(getattr(config, name) == getattr(paper, name) for name in sizes)
    table = Table("model", "norm", "geometry", title=f"The paper's models with L = {config.layers}")
    table.add_column("millions of parameters", justify="right")
    table.add_column("paper", justify="right")
    shown = {name: paper_millions(name, config.layers) if is_paper else None for name in MODELS}
    for name, keys in MODELS.items():
        millions = _millions(build_captioner(config.as_model(name)))
        printed = shown[name]
        table.add_row(
            name.upper(),
            keys["norm"],
            keys["geometry"],
            millions,
            "-" if printed is None else f"{printed:.1f}",
        )
    console.print(table)
    if shown["g-san"] is not None:
        say(
            console,
            "The paper's 41.5 M for query- and key-dependent bias does not follow from its text: "
            "one more projection of 512 x 512 per layer makes 41.3 M.",
            style="dim",
        )


def _translator(console: "Console", config: TranslatorConfig) -> None:
    from ngsan.models.build import build_translator

    translator = build_translator(config)
    parts: dict[str, nn.Module] = {
        "word vectors, shared": translator.decoder.embed,
        "encoder layers": translator.encoder.layers,
        "decoder layers": translator.decoder.layers,
    }
    console.print(_parts(translator, parts))
    models = ((name, build_translator(config.as_model(name))) for name in TRANSLATORS)
    console.print(_models(models, f"The paper's translators with L = {config.layers}"))


def _answerer(console: "Console", config: AnswererConfig) -> None:
    from ngsan.models.build import build_answerer

    assumed = {name: size for name, size in _SIZES.items() if not getattr(config, name)}
    config = from_dict(AnswererConfig, {**dataclasses.asdict(config), **assumed})
    answerer = build_answerer(config)
    parts: dict[str, nn.Module] = {
        "word vectors": answerer.question.embed,
        "LSTM": answerer.question.lstm,
        "question layers": answerer.question.layers,
        "question reduction": answerer.reduction,
    }
    if answerer.regions is not None:
        parts |= {
            "feature embedding": answerer.regions.embed,
            "region layers": answerer.regions.layers,
            "region reduction": answerer.regions.reduction,
        }
    console.print(_parts(answerer, parts | {"answers": answerer.output}))
    models = ((name, build_answerer(config, **keys)) for name, keys in ANSWERERS.items())
    console.print(_models(models, f"The models of this task with L = {config.layers}"))
    if assumed:
        sizes = ", ".join(f"{name} {size:,}" for name, size in assumed.items())
        say(console, f"Assumed sizes, which a dataset sets: {sizes}.", style="dim")


def _parts(model: "nn.Module", parts: "Mapping[str, nn.Module]") -> Table:
    """The parameters of a model by part; those of no part belong to its final norms."""
    table = Table("part", title="The configured model")
    table.add_column("parameters", justify="right")
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
    total = sum(p.numel() for p in model.parameters())
    counts["final norms"] = total - sum(counts.values())
    for name, count in counts.items():
        if count:
            table.add_row(name, f"{count:,}")
    table.add_section()
    table.add_row("total", f"{total:,}")
    return table


def _models(models: "Iterable[tuple[str, nn.Module]]", title: str) -> Table:
    table = Table("model", title=title)
    table.add_column("millions of parameters", justify="right")
    for name, model in models:
        table.add_row(name, _millions(model))
    return table


def _millions(model: "nn.Module") -> str:
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}"


DESCRIBE = Command(
    """Print what a configuration builds: parameters by part, and of the paper's models of that
    task. With --yaml, print the configuration itself.""",
    _add_options,
    _run,
    [
        "describe ng-san --model.layers 6",
        "describe g-san --model.geometry content-independent",
        "describe photo --yaml",
        "describe runs/mine",
    ],
    lambda words: keys_of_recipe(words[0] if words else "ng-san"),
)
