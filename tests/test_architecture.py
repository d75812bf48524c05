"""Imports between parts of the package follow one direction."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "ngsan"

ALLOWED = {
    "__init__": {"config", "finetuning", "metrics", "models", "predict"},
    "__main__": {"", "cli"},
    "config": set(),
    "text": {"atomic_io"},
    "nn": set(),
    "cuda_graph": set(),
    "search": {"cuda_graph", "config", "text"},
    "models": {"nn", "cuda_graph", "config", "atomic_io", "text", "vision"},
    "vision": {"nn", "data", "atomic_io", "threads"},
    "data": {"atomic_io", "html", "text"},
    "metrics": {"", "atomic_io", "text"},
    "atomic_io": set(),
    "threads": set(),
    "train": {
        "cuda_graph",
        "config",
        "data",
        "search",
        "atomic_io",
        "metrics",
        "models",
        "nn",
        "predict",
        "text",
        "vision",
        "threads",
    },
    "predict": {
        "atomic_io",
        "models",
        "nn",
        "search",
        "config",
        "text",
        "vision",
        "data",
        "metrics",
        "export",
        "threads",
    },
    "export": {"", "predict", "models", "nn", "config", "atomic_io", "text", "vision"},
    "finetuning": {
        "atomic_io",
        "config",
        "data",
        "export",
        "html",
        "metrics",
        "models",
        "nn",
        "predict",
        "text",
        "train",
        "vision",
    },
    "fit": {"atomic_io", "data", "metrics", "predict", "search", "text", "vision"},
    "examples": set(),
    "html": set(),
    "plots": {"atomic_io"},
    "app": {
        "",
        "search",
        "atomic_io",
        "config",
        "data",
        "examples",
        "export",
        "html",
        "models",
        "nn",
        "predict",
        "text",
        "vision",
        "threads",
    },
    "reproduce": {
        "",
        "config",
        "data",
        "atomic_io",
        "html",
        "metrics",
        "models",
        "plots",
        "predict",
        "text",
        "train",
        "threads",
    },
    "cli": {
        "",
        "search",
        "config",
        "data",
        "atomic_io",
        "examples",
        "export",
        "finetuning",
        "fit",
        "predict",
        "metrics",
        "models",
        "plots",
        "reproduce",
        "app",
        "text",
        "train",
        "vision",
        "threads",
    },
}
"""What each part of the package may import of the others; "" is `ngsan` itself."""


def imports_of(path):
    """The modules that a file imports, including lazy imports, without those for type checkers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


FILES = sorted(SOURCE.rglob("*.py"))


def roots_of(path):
    return {name.split(".")[0] for name in imports_of(path)}


def part_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_imports_follow_one_direction():
    wrong = []
    for path in FILES:
        part = part_of(path)
        assert part in ALLOWED, f"{part} is missing from the map in this file"
        ours = [name for name in imports_of(path) if name.split(".")[0] == "ngsan"]
        used = {name.split(".")[1] if "." in name else "" for name in ours}
        if bad := used - {part} - ALLOWED[part]:
            wrong.append(f"{path.relative_to(SOURCE)} imports {', '.join(sorted(bad))}")
    assert not wrong


def test_no_modules_import_each_other_in_a_circle():
    modules = {
        ".".join(("ngsan", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in FILES
    }
    graph = {name: set(imports_of(path)) & modules.keys() for name, path in modules.items()}
    TopologicalSorter(graph).prepare()  # raises a CycleError that names the circle


def test_config_and_text_need_no_torch():
    wrong = [
        path for path in FILES if part_of(path) in ("config", "text") and "torch" in roots_of(path)
    ]
    assert not wrong


def test_no_module_is_called_utils_or_helpers():
    names = ("utils", "util", "helpers", "misc", "common")
    assert not [path for path in FILES if path.stem in names]


def test_only_commands_print_to_a_terminal():
    outside = [path for path in FILES if part_of(path) != "cli"]
    assert not [path for path in outside if roots_of(path) & {"rich", "argparse"}]
