"""`ngsan evaluate` from a model folder and a dataset folder to a scored file of captions."""

import dataclasses
import json

import pytest
import torch

from ngsan.__main__ import main
from ngsan.config import DecodingConfig, scene_run
from ngsan.data.store import FeatureStore
from ngsan.data.synthetic import sample_scenes, scene_vocabulary, scenes_to_batch
from ngsan.data.synthetic.folder import write_scene_folder
from ngsan.evaluate import caption_images, score_results
from ngsan.models import build_captioner
from ngsan.models.saved_captioner import save_captioner
from ngsan.predict import Predictor, best_device, caption_regions

VOCABULARY = scene_vocabulary()
CONFIG = scene_run().model


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two random models and a dataset of scenes with two to five objects."""
    folder = tmp_path_factory.mktemp("evaluate")
    for seed in (0, 1):
        torch.manual_seed(seed)
        captioner = build_captioner(CONFIG)
        save_captioner(folder / f"model{seed}", captioner, CONFIG, VOCABULARY)
    write_scene_folder(folder / "scenes", {"test": scenes()}, VOCABULARY)
    return folder


def scenes():
    return scenes_to_batch(list(sample_scenes(23, fewest=2, most=5, seed=9)), VOCABULARY, seed=1)


def run(home, *arguments, models="model0"):
    models = ",".join(str(home / name) for name in models.split(","))
    return main(["evaluate", models, *map(str, arguments)])


def written(path):
    return {str(entry["image_id"]): entry["caption"] for entry in json.loads(path.read_text())}


def test_captions_are_those_of_the_whole_batch_and_scores_are_written(home, tmp_path, capsys):
    target = tmp_path / "results.json"
    scored = tmp_path / "scores.json"
    status = run(
        home,
        "--data", home / "scenes", "--to", target, "--batch_size", 5,
        "--metrics", "BLEU,ROUGE-L,CIDEr", "--json", scored,
    )  # fmt: skip
    assert status == 0
    torch.manual_seed(0)
    batch = scenes()
    whole = caption_regions(
        build_captioner(CONFIG).eval(), VOCABULARY, batch.features.half().float(), batch.boxes,
        batch.mask,
    )  # fmt: skip
    assert written(target) == dict(zip(batch.ids, whole, strict=True))
    references = {
        image: [" ".join(VOCABULARY.decode(row)) for row in batch.targets[place].tolist()]
        for place, image in enumerate(batch.ids)
    }
    expected = score_results(written(target), references).values
    assert json.loads(scored.read_text()) == pytest.approx(dict(expected))
    assert "23 captions are in" in capsys.readouterr().out


def test_a_model_of_clips_takes_the_features_of_the_dataset(tmp_path):
    width = 704  # of a cell that the photo model that ships has seen
    of_clips = {"frame_grid": 1, "positions": "sinusoidal", "geometry": "absolute"}
    config = dataclasses.replace(CONFIG, feature_dim=width, **of_clips)
    captioner = build_captioner(config).eval()
    save_captioner(tmp_path / "clips", captioner, config, VOCABULARY)
    found = scenes()
    padded = torch.nn.functional.pad(found.features, (0, width - found.features.shape[-1]))
    batch = dataclasses.replace(found, features=padded.half().float())
    write_scene_folder(tmp_path / "data", {"test": batch}, VOCABULARY)
    target = tmp_path / "results.json"
    options = ["--data", tmp_path / "data", "--to", target, "--metrics", "BLEU"]
    assert run(tmp_path, *options, models="clips") == 0
    whole = caption_regions(captioner, VOCABULARY, batch.features, batch.boxes, batch.mask)
    assert written(target) == dict(zip(batch.ids, whole, strict=True))


def test_several_models_vote(home, tmp_path):
    first, both = tmp_path / "one.json", tmp_path / "two.json"
    options = ["--data", home / "scenes", "--metrics", "BLEU"]
    assert run(home, *options, "--to", first, models="model0,model0") == 0
    assert run(home, *options, "--to", both, models="model0,model1") == 0
    alone = tmp_path / "alone.json"
    assert run(home, *options, "--to", alone) == 0
    assert written(first) == written(alone)
    assert written(both) != written(alone)


def test_decoding_options_reach_the_search(home, tmp_path):
    target = tmp_path / "results.json"
    options = ["--data", home / "scenes", "--to", target, "--metrics", "BLEU"]
    assert run(home, *options, "--decoding.prefix", "the red", "--decoding.longest", 5) == 0
    assert all(text.startswith("the red") for text in written(target).values())
    assert max(len(text.split()) for text in written(target).values()) <= 5


def test_chosen_images_are_captioned_and_not_scored(home, tmp_path, capsys):
    ids = scenes().ids[3:6]
    listed = tmp_path / "ids.txt"
    listed.write_text("\n".join(ids))
    target = tmp_path / "captions_test2014_ours_results.json"
    assert run(home, "--data", home / "scenes", "--to", target, "--images", listed) == 2
    assert list(written(target)) == ids
    out, error = (" ".join(text.split()) for text in capsys.readouterr())
    assert "the test server" in out
    assert "40,775" in out
    assert "BLEU" not in out
    assert "not ready for the test server" in error
    target = tmp_path / "results.json"
    assert run(home, "--data", home / "scenes", "--to", target, "--images", listed) == 0
    assert list(written(target)) == ids


def test_sampled_captions_do_not_depend_on_the_batch_size(home):
    torch.manual_seed(0)
    predictor = Predictor(build_captioner(CONFIG).double().eval(), VOCABULARY)
    store = FeatureStore(home / "scenes")
    decoding = DecodingConfig(method="sample", samples=2, seed=5)
    ids = scenes().ids
    found = [
        caption_images(predictor, store, ids, decoding=decoding, batch_size=size)
        for size in (1, 7, 23, 100)
    ]
    texts = [[[caption.text for caption in part[image]] for image in ids] for part in found]
    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert len({tuple(captions) for captions in texts[0]}) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--data DIR --to FILE.json"),
        (["--data", "scenes", "--to", "results.txt"], "must be the name of a .json file"),
        (["--data", "scenes", "--to", "r.json", "--split", "val"], "no split 'val'"),
        (["--data", "nowhere", "--to", "r.json"], "does not exist"),
        (["--data", "scenes", "--to", "r.json", "--batch_size", "0"], "batch_size: 0"),
        (
            ["--data", "scenes", "--to", "r.json", "--decoding.require", "dog"],
            "'dog' is not a word",
        ),
        (["--data", "scenes", "--to", "r.json", "--device", "abacus"], "device: 'abacus'"),
        (["--data", "scenes", "--to", "r.json", "--images", "missing.txt"], "missing.txt"),
    ],
)
def test_wrong_command_lines_say_what_is_wrong(home, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(home)
    assert main(["evaluate", "model0", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_images_without_features_are_named(home, tmp_path, capsys):
    listed = tmp_path / "ids.txt"
    listed.write_text("elsewhere\n")
    status = run(home, "--data", home / "scenes", "--to", tmp_path / "r.json", "--images", listed)
    assert status == 2
    assert "elsewhere" in capsys.readouterr().err


def test_devices():
    assert best_device("cpu").type == "cpu"
    assert best_device().type in ("cpu", "cuda")


def test_results_without_references_are_refused():
    with pytest.raises(ValueError, match="1 images have no references, such as 7"):
        score_results({"7": "a dog"}, {"8": ["a dog"]})


def test_photographs_of_the_shipped_model(tmp_path, capsys):
    """Captions are those that the model writes of each picture, scored against people's."""
    import shutil

    import ngsan
    from ngsan.data.captions import ImageCaptions, write_captions
    from ngsan.examples import EXAMPLES
    from ngsan.export.loading import SHIPPED

    (tmp_path / "pictures").mkdir()
    records = []
    for number, example in enumerate(EXAMPLES[:3]):
        shutil.copy(example.path, tmp_path / "pictures" / f"{number}.jpg")
        records.append(ImageCaptions(str(number), "test", ("a cat on a table", "a bird flies")))
    write_captions(tmp_path, records)
    target = tmp_path / "results.json"
    options = ["--data", str(tmp_path), "--to", str(target), "--metrics", "CIDEr"]
    assert main(["evaluate", str(SHIPPED), *options]) == 2
    assert "--pictures DIR" in capsys.readouterr().err
    shown = ["--pictures", str(tmp_path / "pictures")]
    assert main(["evaluate", str(SHIPPED), *options, *shown]) == 0
    paths = [example.path for example in EXAMPLES[:3]]
    wanted = ngsan.load().caption(paths, decoding=DecodingConfig())
    assert list(written(target).values()) == [str(caption) for caption in wanted]
    assert main(["evaluate", f"{SHIPPED},{SHIPPED}", *options, *shown]) == 2
    (tmp_path / "pictures" / "1.jpg").unlink()
    assert main(["evaluate", str(SHIPPED), *options, *shown]) == 2
    assert "1 of 3 images have no picture, such as 1" in capsys.readouterr().err


def test_regions_are_not_in_pictures(home, tmp_path, capsys):
    target = tmp_path / "results.json"
    assert run(home, "--data", home / "scenes", "--to", target, "--pictures", tmp_path) == 2
    assert "model of regions" in capsys.readouterr().err
