"""What configurations of translators and of models that answer questions build."""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ngsan.commands.describe import table_of_parts
from ngsan.config import from_dict
from ngsan.config.answering import ANSWERERS, AnswererConfig
from ngsan.config.translation import TRANSLATORS, TranslatorConfig

if TYPE_CHECKING:
    from torch import nn

_SIZES = {"vocab_size": 20000, "answers": 3129, "feature_dim": 2048}
"""Of VQA v2 and bottom-up features, where a configuration leaves them to a dataset."""


def describe_other(console: Console, model: TranslatorConfig | AnswererConfig) -> None:
    """Prints the parameters of a model by part, and of the paper's models of its task."""
    if isinstance(model, TranslatorConfig):
        _translator(console, model)
    else:
        _answerer(console, model)


def _translator(console: Console, config: TranslatorConfig) -> None:
    from ngsan.models.build_translator import build_translator

    translator = build_translator(config)
    parts = {
        "word vectors, shared": translator.decoder.embed,
        "encoder layers": translator.encoder.layers,
        "decoder layers": translator.decoder.layers,
    }
    console.print(table_of_parts(translator, parts))
    built = ((name, build_translator(config.as_model(name))) for name in TRANSLATORS)
    console.print(_models(built, f"The paper's translators with L = {config.layers}"))


def _answerer(console: Console, config: AnswererConfig) -> None:
    from ngsan.models.build_answerer import build_answerer

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
    console.print(table_of_parts(answerer, parts | {"answers": answerer.output}))
    built = ((name, build_answerer(config, **keys)) for name, keys in ANSWERERS.items())
    console.print(_models(built, f"The models of this task with L = {config.layers}"))
    if assumed:
        sizes = ", ".join(f"{name} {size:,}" for name, size in assumed.items())
        console.print(f"The dataset decides on what was assumed here: {sizes}.", style="dim")


def _models(built: "Iterable[tuple[str, nn.Module]]", title: str) -> Table:
    table = Table("model", title=title)
    table.add_column("millions of parameters", justify="right")
    for name, model in built:
        table.add_row(name, f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}")
    return table
