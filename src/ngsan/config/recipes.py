"""Recipes: whole training runs as YAML files that come with the package, by name."""

import difflib
from pathlib import Path
from typing import Any

from ngsan.config.schema import check_choice, from_dict, read_mapping
from ngsan.config.training import AnsweringConfig, TrainConfig, TranslationConfig

RECIPES = Path(__file__).parents[1] / "recipes"
"""The folder of the recipes."""

TASKS: dict[str, type[Any]] = {
    "captioning": TrainConfig,
    "translation": TranslationConfig,
    "answering": AnsweringConfig,
}
"""The classes of training runs by their key `task`."""


def config_class(task: str) -> type[Any]:
    """The class of the training runs of a task; raises a `ValueError` for an unknown task."""
    check_choice("task", task, tuple(TASKS))
    return TASKS[task]


def recipe_names() -> list[str]:
    """The names of all recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find_recipe(name: str | Path) -> Path:
    """The YAML file of a recipe.

    Args:
        name: A recipe's name, such as "toy-scenes", or the path of a YAML file.

    Raises:
        ValueError: The recipe does not exist; the message lists all of them.
        FileNotFoundError: The file does not exist.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.name != str(name):
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")
        return path
    known = recipe_names()
    if str(name) not in known:
        close = difflib.get_close_matches(str(name), known, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(
            f"no recipe {str(name)!r}; {hint}Recipes: {', '.join(known)}; or pass a YAML file"
        )
    return RECIPES / f"{name}.yaml"


def read_recipe(name: str | Path) -> Any:
    """The training run of a recipe or YAML file, of the class that its key `task` says."""
    path = find_recipe(name)
    try:
        values = read_mapping(path)
        return from_dict(config_class(values.get("task", "captioning")), values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
