"""`ngsan describe`: what a configuration builds."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ngsan.commands.command_line import config_parser, take_config, task_of
from ngsan.config import MODELS, CaptionerConfig, TrainConfig, run_class, to_yaml

if TYPE_CHECKING:
    from torch import nn

PAPER_MILLIONS = {
    "san": {1: 18.1, 2: 25.5, 4: 40.2, 6: 54.9},
    "n-san": {1: 18.1, 2: 25.5, 4: 40.2, 6: 54.9},
    "g-san": {4: 41.5},
}
"""Parameter counts that the paper prints, in millions, by model and number of layers."""


DESCRIPTION = """Prints what a configuration builds: parameters by part, and of the paper's models
of that task; the paper's NG-SAN unless told otherwise. The config.yaml of a model's folder is a
configuration, too."""


def describe(config: Any, *, yaml: bool = False) -> None:
    """Prints what a configuration builds.

    Args:
        config: A run's configuration, of any task.
        yaml: Print the configuration instead, as YAML with every key explained.
    """
    console, model = Console(), config.model
    if yaml:
        console.print(to_yaml(config), end="", highlight=False, markup=False, soft_wrap=True)
        return
    if not isinstance(config, TrainConfig):
        from ngsan.commands.describe_others import describe_other

        describe_other(console, model)
        return
    console.print(_parts(model))
    console.print(_models(model))
    if _is_paper_s(model):
        console.print(
            "The paper's 41.5 M for query- and key-dependent bias does not follow from its text: "
            "one more projection of 512 x 512 a layer makes 41.3 M.",
            style="dim",
        )


def _is_paper_s(config: CaptionerConfig) -> bool:
    """Whether all sizes but the number of layers are the paper's."""
    paper = CaptionerConfig()
    sizes = ("vocab_size", "feature_dim", "dim", "hidden_dim")
    return all(getattr(config, name) == getattr(paper, name) for name in sizes)


def _parts(config: CaptionerConfig) -> Table:
    from torch import nn

    from ngsan.models import build_captioner
    from ngsan.models.captioner import RegionEncoder, WordDecoder
    from ngsan.models.photo import PhotoEncoder
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
        "decoder layers": decoder.layers if isinstance(decoder, WordDecoder) else decoder.cell,
        "output": decoder.output or nn.Identity(),
    }
    return table_of_parts(captioner, parts)


def table_of_parts(model: "nn.Module", parts: "Mapping[str, nn.Module]") -> Table:
    """The parameters of a model by part; those of no part are its final norms'."""
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


def _models(config: CaptionerConfig) -> Table:
    from ngsan.models import build_captioner

    table = Table("model", "norm", "geometry", title=f"The paper's models with L = {config.layers}")
    table.add_column("millions of parameters", justify="right")
    table.add_column("paper", justify="right")
    for name, keys in MODELS.items():
        captioner = build_captioner(config.as_model(name))
        millions = sum(p.numel() for p in captioner.parameters()) / 1e6
        paper = PAPER_MILLIONS.get(name, {}).get(config.layers) if _is_paper_s(config) else None
        table.add_row(
            name.upper(),
            keys["norm"],
            keys["geometry"],
            f"{millions:.1f}",
            "-" if paper is None else f"{paper:.1f}",
        )
    return table


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    run = run_class(task_of(arguments))
    parser = config_parser(run, "describe", DESCRIPTION)
    parser.add_argument(
        "--yaml",
        action="store_true",
        help="print the configuration instead, as YAML with every key explained",
    )
    options = parser.parse_args(arguments)
    describe(take_config(parser, options, run), yaml=options.yaml)
