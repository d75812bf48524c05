"""Damaged models, exports, feature stores, training states and configurations.

Manifests are sealed again after the damage, as somebody does who means harm.
"""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import ngsan
from ngsan.atomic_io import read_sealed, seal
from ngsan.config import config_class, from_dict, read_recipe, recipe_names
from ngsan.config.recipes import RECIPES
from ngsan.data import FeatureStore
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.models.checkpoint import load_model
from ngsan.predict.manifest import MANIFEST, _seal
from ngsan.train.state import read_state, write_state
from tests.export.helpers import REGIONS, make_model
from tests.hostile.damage import damaged_bytes, damaged_json
from tests.hostile.limits import bounded, seeds
from tests.train.test_state import content as state_content

PACKED = Path(ngsan.__file__).parent / "shipped" / "scenes" / "g-san"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model", **REGIONS)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    with StoreWriter(folder, source="test", shard_bytes=300) as writer:
        for image in range(9):
            features = np.full((1 + image % 3, 5), image, np.float32)
            boxes = np.full((len(features), 4), 0.5, np.float32)
            writer.add(f"image {image}", Regions(features, boxes, (64, 48)))
    return folder


def damage(path, rng):
    """Damages a file: its bytes, its JSON, or the header of its tensors."""
    content = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.7:
        path.write_text(damaged_json(json.loads(content), rng))
    elif path.suffix == ".safetensors" and rng.random() < 0.6:
        end = 8 + int.from_bytes(content[:8], "little")
        header = damaged_json(json.loads(content[8:end]), rng).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])
    else:
        path.write_bytes(damaged_bytes(content, rng))


def copies(folder, path, kind, full, tally):
    """Copies of a folder with one damaged file each: a number, the name of the input, the copy."""
    files = sorted(one.relative_to(folder) for one in folder.rglob("*") if one.is_file())
    for number, rng in seeds(kind, full):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(folder, path)
        file = path / files[number % len(files)]
        damage(file, rng)
        yield number, f"{kind} {number} {file.name}", path
    tally(number + 1)


def test_models(model, tmp_path, tally):
    for _, name, folder in copies(model, tmp_path / "m", "model", 900, tally):
        with bounded(name, ValueError, OSError):
            load_model(folder)


def reseal_export(folder):
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        for name in manifest["sha256"]:
            if not name.endswith(".onnx"):  # ONNX Runtime itself is not what is tried here
                content = (folder / name).read_bytes()
                manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
        path.write_text(json.dumps({**manifest, "seal": _seal(manifest)}))
    except (ValueError, TypeError, LookupError, AttributeError, OSError):
        return  # it stays damaged


def test_packed_models(tmp_path, tally):
    features = np.zeros((1, 2, 43), np.float32)
    boxes = np.full((1, 2, 4), 0.5, np.float32)
    for _, name, folder in copies(PACKED, tmp_path / "p", "packed", 900, tally):
        reseal_export(folder)
        with bounded(name, ValueError, OSError):
            ngsan.load(folder, threads=1).caption_regions(features, boxes)


def reseal_store(folder):
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
        manifest.pop("digest", None)
        for entry in (manifest["index"], *manifest["shards"]):
            content = (folder / entry["name"]).read_bytes()
            entry["bytes"], entry["sha256"] = len(content), hashlib.sha256(content).hexdigest()
        path.write_text(seal(manifest))
        read_sealed(path)
    except (ValueError, TypeError, LookupError, AttributeError, OSError):
        return


def test_stores(store, tmp_path, tally):
    for number, name, folder in copies(store, tmp_path / "s", "store", 1500, tally):
        if number % 3:
            reseal_store(folder / "features")
        with bounded(name, ValueError, OSError, KeyError):
            opened = FeatureStore(folder)
            opened.verify()
            ids = list(opened.ids())
            for image in (*ids[:100], "image 3", "absent"):
                if image in opened:
                    _ = opened[image].features.sum()
            opened.counts().sum()


def test_training_states(tmp_path, tally):
    whole = tmp_path / "whole"
    progress, tensors = state_content(3)
    write_state(whole, 3, progress, tensors)
    for _, name, folder in copies(whole, tmp_path / "t", "state", 900, tally):
        with bounded(name, ValueError, OSError):
            read_state(folder, lambda text: None)


def test_configurations(tmp_path, tally):
    recipes = recipe_names()
    for number, rng in seeds("yaml", 700):
        name = recipes[number % len(recipes)]
        path = tmp_path / "bad.yaml"
        path.write_bytes(damaged_bytes((RECIPES / f"{name}.yaml").read_bytes(), rng))
        with bounded(f"{name} {number}", ValueError, OSError):
            read_recipe(path)
    tally(number + 1)


def test_values_of_configurations(tally):
    configs = {name: read_recipe(name) for name in recipe_names()}
    for number, rng in seeds("keys", 1500):
        name = recipe_names()[number % len(configs)]
        config = configs[name]
        values = json.loads(damaged_json(dataclasses.asdict(config), rng))
        with bounded(f"{name} {number}", ValueError):
            from_dict(config_class(config.task), values)
    tally(number + 1)
