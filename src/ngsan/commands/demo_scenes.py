"""`ngsan demo scenes`: trains models on the built-in scenes and shows what each can tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ngsan.commands.command_line import run
from ngsan.config import (
    MODELS,
    CaptionerConfig,
    CrossEntropyConfig,
    SceneConfig,
    check_choice,
    scene_run,
)
from ngsan.data.batch import CaptionBatch
from ngsan.data.synthetic import (
    FAMILIES,
    FEATURE_DIM,
    Scene,
    read_claim,
    relation,
    sample_scenes,
    scene_vocabulary,
    scenes_to_batch,
)
from ngsan.data.synthetic.folder import UNSEEN_SEEDS, write_scene_folder
from ngsan.models import Captioner, build_captioner
from ngsan.models.saved_captioner import save_captioner
from ngsan.predict import caption_regions
from ngsan.probe import balanced_accuracy, choose_relations
from ngsan.text.vocabulary import Vocabulary
from ngsan.train.in_memory import steps_of, train_in_memory

_DEFAULT = scene_run()
_SCENES = SceneConfig()


@dataclass(frozen=True)
class _Test:
    """Unseen scenes, as objects and as tensors."""

    scenes: Sequence[Scene]
    batch: CaptionBatch
    vocabulary: Vocabulary


def demo_scenes(
    compare: str = "san,ng-san",
    model: CaptionerConfig = _DEFAULT.model,
    scenes: SceneConfig = _SCENES,
    training: CrossEntropyConfig = _DEFAULT.cross_entropy,
    seed: int = 0,
    show: int = 6,
    to: str | None = None,
) -> None:
    """Trains models on the built-in scenes and compares what they say of unseen ones.

    Args:
        compare: The models to train, joined by commas: san, n-san, g-san, ng-san.
        model: Shape of the models; norm and geometry are set by each model's name.
        scenes: The scenes.
        training: The training; it neither validates, nor stops early, nor averages.
        seed: Seed of the weights, of the order of the scenes and of dropout.
        show: How many unseen scenes to caption on the screen.
        to: A folder to keep the trained models and the unseen scenes in, as a dataset, to try the
            other commands on.
    """
    import torch

    names = _names(compare, model)
    if show < 0:
        raise ValueError(f"show: {show} must be at least 0")
    vocabulary = scene_vocabulary()
    for key, wanted in (("vocab_size", len(vocabulary)), ("feature_dim", FEATURE_DIM)):
        if getattr(model, key) != wanted:
            raise ValueError(f"model.{key}: {getattr(model, key)}, but the scenes have {wanted}")
    console = Console()
    test = _test_set(scenes, vocabulary)
    train_scenes = _sample(scenes, scenes.train, scenes.seed)
    learned = scenes_to_batch(train_scenes, vocabulary, seed=scenes.seed)
    captioners = {}
    for name in names:
        torch.manual_seed(seed)
        captioners[name] = build_captioner(model.as_model(name))
        _train(console, name, captioners[name], learned, training, seed)
    if to is not None:
        _keep(Path(to), captioners, model, test)
        console.print(f"the models and the unseen scenes are in {to}", highlight=False)
    captions = {name: _captions(captioner, test) for name, captioner in captioners.items()}
    console.print(_examples(test, captions, show))
    console.print(_scores(test, captioners, captions))
    console.print(
        "Appearance names the objects; only geometry tells how they stand to each other. Eq. 8 of "
        "the paper is blind to direction: it knows the axis, not the side, hence about 50. "
        "Signed geometry can tell the side; a captioner learns it late: "
        "ngsan demo scenes --model.signed_geometry true --training.epochs 8",
        style="dim",
    )


def _names(compare: str, model: CaptionerConfig) -> list[str]:
    names = [name.strip() for name in compare.split(",")]
    for name in names:
        check_choice("compare", name, tuple(MODELS))
    if len(set(names)) < len(names):
        raise ValueError(f"compare: {compare!r} names a model twice")
    if (model.norm, model.geometry) != (_DEFAULT.model.norm, _DEFAULT.model.geometry):
        raise ValueError("model.norm and model.geometry follow from the models that you compare")
    return names


def _sample(config: SceneConfig, count: int, seed: int) -> Sequence[Scene]:
    return list(sample_scenes(count, fewest=config.fewest, most=config.most, seed=seed))


def _test_set(config: SceneConfig, vocabulary: Vocabulary) -> _Test:
    # A seed of its own: the series of another seed shares no scene with that of training.
    scenes = _sample(config, config.test, config.seed + UNSEEN_SEEDS)
    return _Test(scenes, scenes_to_batch(scenes, vocabulary, seed=config.seed + 1), vocabulary)


def _train(
    console: Console,
    name: str,
    captioner: Captioner,
    data: CaptionBatch,
    config: CrossEntropyConfig,
    seed: int,
) -> None:
    columns = (
        TextColumn("training {task.fields[name]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console) as progress:
        steps = steps_of(len(data), config)
        task = progress.add_task("", total=steps, name=f"{name.upper():6}", loss=float("nan"))
        train_in_memory(
            captioner,
            data,
            config,
            seed=seed,
            on_step=lambda loss: progress.update(task, advance=1, loss=loss.item()),
        )


def _keep(
    folder: Path, captioners: dict[str, Captioner], model: CaptionerConfig, test: _Test
) -> None:
    """Writes the models, and the unseen scenes as a dataset."""
    for name, captioner in captioners.items():
        save_captioner(folder / name, captioner, model.as_model(name), test.vocabulary)
    write_scene_folder(folder / "scenes", {"test": test.batch}, test.vocabulary)


def _captions(captioner: Captioner, test: _Test) -> list[str]:
    batch = test.batch
    return caption_regions(captioner, test.vocabulary, batch.features, batch.boxes, batch.mask)


def _examples(test: _Test, captions: dict[str, list[str]], show: int) -> Table:
    table = Table(title="Captions of unseen scenes", show_lines=True)
    for title in ("what is true", *(name.upper() for name in captions)):
        table.add_column(title, ratio=1)
    for index, scene in enumerate(test.scenes[:show]):
        row = [_truth(scene)]
        for said in captions.values():
            claim = read_claim(said[index])
            right = claim is not None and claim.holds_in(scene)
            row.append(f"{'[green]✓' if right else '[red]✗'}[/] {said[index]}")
        table.add_row(*row)
    return table


def _truth(scene: Scene) -> str:
    """What is true of the pair of objects, in the order, of which most can be told."""
    told = []
    for a, b in permutations(scene.things, 2):
        words = [word for family in FAMILIES if (word := relation(a.box, b.box, family))]
        told.append((len(words), f"the {a.name} is {', '.join(words)} the {b.name}"))
    return max(told)[1]


def _scores(test: _Test, captioners: dict[str, Captioner], captions: dict[str, list[str]]) -> Table:
    table = Table(title=f"Scores on {len(test.scenes)} unseen scenes, of 100", title_justify="left")
    table.add_column("")
    for name in captioners:
        table.add_column(name.upper(), justify="right")
    table.add_column("by chance", justify="right")
    claims = {name: [read_claim(caption) for caption in said] for name, said in captions.items()}
    pairs = {name: list(zip(said, test.scenes, strict=True)) for name, said in claims.items()}
    named = [
        _percent([c is not None and c.names_of(s) for c, s in rows]) for rows in pairs.values()
    ]
    held = [_percent([c is not None and c.holds_in(s) for c, s in rows]) for rows in pairs.values()]
    table.add_row("caption names objects that are there", *named, "")
    table.add_row("caption is true", *held, "")
    for family, words in FAMILIES.items():
        row = [
            f"{100 * balanced_accuracy(_answers(captioner, test, family)):.0f}"
            for captioner in captioners.values()
        ]
        table.add_row(f"chooses among {', '.join(words)}", *row, f"{100 / len(words):.0f}")
    return table


def _answers(captioner: Captioner, test: _Test, family: str) -> list[tuple[str, str]]:
    return choose_relations(captioner, test.scenes, test.batch, test.vocabulary, family)


def _percent(rights: list[bool]) -> str:
    return f"{100 * sum(rights) / len(rights):.0f}"


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    run(demo_scenes, arguments, "demo scenes")
