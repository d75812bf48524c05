"""Imports point one way."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ngsan"

ALLOWED = {
    "__init__": {"config", "export", "models", "predict"},
    "__main__": {"", "commands"},
    "config": set(),
    "text": {"durable"},
    "nn": set(),
    "capture": set(),
    "decoding": {"capture"},
    "models": {"nn", "capture", "config", "durable", "text", "vision"},
    "vision": {"nn", "data", "durable"},
    "light": {"config", "text", "vision"},
    "data": {"durable", "text"},
    "metrics": {"", "durable", "text"},
    "durable": set(),
    "train": {
        "capture",
        "config",
        "data",
        "decoding",
        "durable",
        "evaluate",
        "metrics",
        "models",
        "nn",
        "predict",
        "text",
        "vision",
    },
    "predict": {"light", "models", "nn", "decoding", "config", "text", "vision"},
    "evaluate": {"light", "models", "predict", "data", "metrics", "config", "text"},
    "export": {"", "light", "models", "nn", "predict", "config", "durable", "text", "vision"},
    "examples": set(),
    "explain": {"", "config", "durable", "models", "nn", "predict", "text", "vision"},
    "plots": {"durable"},
    "serve": {"", "config", "data", "examples", "explain", "export", "light", "studio", "vision"},
    "probe": {"models", "data", "text"},
    "studio": {"config", "data", "light"},
    "reproduce": {
        "",
        "config",
        "data",
        "durable",
        "evaluate",
        "metrics",
        "models",
        "plots",
        "predict",
        "text",
        "train",
    },
    "commands": {
        "",
        "config",
        "data",
        "durable",
        "evaluate",
        "examples",
        "explain",
        "export",
        "light",
        "metrics",
        "models",
        "plots",
        "predict",
        "probe",
        "reproduce",
        "serve",
        "studio",
        "text",
        "train",
        "vision",
    },
}
"""What each part of the package may import of the others; "" is `ngsan` itself."""


def part_of(name):
    return name.split(".")[1] if "." in name else ""


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SOURCE)) for path in FILES])
def test_imports_point_one_way(path):
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert part in ALLOWED, f"{part} is not on the map of tests/test_architecture.py"
    ours = {part_of(name) for name in imports_of(path) if name.split(".")[0] == "ngsan"}
    assert ours - {part} <= ALLOWED[part]


@pytest.mark.parametrize("name", ["config", "text"])
def test_config_and_text_need_no_torch(name):
    for path in (SOURCE / name).rglob("*.py"):
        assert not any(module.split(".")[0] == "torch" for module in imports_of(path))


def test_captions_of_photographs_need_no_torch():
    files = [*(SOURCE / "light").rglob("*.py"), SOURCE / "vision/images.py"]
    seeing = ("images", "pixels", "clips", "videos")
    files += [SOURCE / f"vision/{name}.py" for name in seeing[1:]]
    files += [SOURCE / "commands/caption.py"]
    for path in files:
        names = set(imports_of(path))
        assert not any(name.split(".")[0] == "torch" for name in names), path
        seen = {name for name in names if name.startswith("ngsan.vision")}
        assert seen <= {f"ngsan.vision.{name}" for name in seeing}, path


def test_the_studio_needs_no_torch():
    """Nor does what it takes of the built-in scenes."""
    scenes = [
        SOURCE / "data/synthetic" / f"{name}.py" for name in ("scene", "wording", "relations")
    ]
    for path in [*(SOURCE / "studio").rglob("*.py"), *scenes]:
        names = set(imports_of(path))
        assert not any(name.split(".")[0] == "torch" for name in names), path
        assert "ngsan.data.synthetic.tensors" not in names, path


def test_there_is_no_junk_drawer():
    assert not [
        path for path in FILES if path.stem in ("utils", "util", "helpers", "misc", "common")
    ]


def test_the_view_is_left_to_the_commands():
    outside = [path for path in FILES if path.relative_to(SOURCE).parts[0] != "commands"]
    for path in outside:
        roots = {name.split(".")[0] for name in imports_of(path)}
        assert not roots & {"rich", "jsonargparse"}, path
