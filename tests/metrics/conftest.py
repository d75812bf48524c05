"""A published system's captions with their references, to score as a whole."""

import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def meteor_index(request, tmp_path_factory):
    """Keeps METEOR's index of paraphrases between test runs, away from the user's cache."""
    cache = getattr(request.config, "cache", None)
    folder = cache.mkdir("ngsan") if cache else tmp_path_factory.mktemp("ngsan")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NGSAN_CACHE", str(folder))
        yield


PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "coco"


@pytest.fixture(scope="session")
def published():
    """Captions of 5,000 COCO images and their references, in the annotation file's image order.

    Returns:
        Image id -> caption, and image id -> list of references.
    """
    results = PUBLISHED / "published_captions.json"
    if not results.is_file():
        pytest.skip(f"needs {results.name}, captions of a published system, in {PUBLISHED}")
    captions = {
        str(entry["image_id"]): entry["caption"]
        for entry in json.loads(results.read_text(encoding="utf-8"))
    }
    package = find_spec("pycocoevalcap")
    jar = Path(package.submodule_search_locations[0]) / "spice" / "spice-1.0.jar"
    with (
        zipfile.ZipFile(jar) as archive,
        archive.open("coco/annotations/captions_val2014.json") as file,
    ):
        annotations = json.load(file)
    ids = [str(image["id"]) for image in annotations["images"]]
    references = {image_id: [] for image_id in ids if image_id in captions}
    for entry in annotations["annotations"]:
        if (image_id := str(entry["image_id"])) in references:
            references[image_id].append(entry["caption"])
    return {image_id: captions[image_id] for image_id in references}, references


@pytest.fixture(scope="session")
def published_scores():
    """The scores of pycocoevalcap 1.2 for these captions, name -> score in percent."""
    return json.loads((PUBLISHED / "published_scores.json").read_text(encoding="utf-8"))
