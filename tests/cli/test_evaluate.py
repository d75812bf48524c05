"""`ngsan evaluate` from a model folder and a dataset folder to a scored file of captions."""

import dataclasses
import json
import shutil

import pytest
import torch

from ngsan.__main__ import main
from ngsan.config import DecodingConfig, read_recipe
from ngsan.data.store import FeatureStore
from ngsan.data.synthetic.folders import scene_vocabulary, scenes_to_batch, write_scene_folder
from ngsan.data.synthetic.scenes import sample_scenes
from ngsan.models import build_captioner
from ngsan.models.checkpoint import save_model
from ngsan.predict.backend_torch import best_device
from ngsan.predict.captioner import Captioner
from ngsan.predict.evaluate import caption_dataset, score_results

VOCABULARY = scene_vocabulary()
CONFIG = read_recipe("toy-scenes").model


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two random models and a dataset of scenes with two to five objects."""
    folder = tmp_path_factory.mktemp("evaluate")
    for seed in (0, 1):
        torch.manual_seed(seed)
        captioner = build_captioner(CONFIG)
        save_model(folder / f"model{seed}", captioner, CONFIG, {"vocabulary": VOCABULARY})
    write_scene_folder(folder / "scenes", {"test": scenes()}, VOCABULARY)
    return folder


def scenes():
    return scenes_to_batch(
        list(sample_scenes(23, min_objects=2, max_objects=5, seed=9)), VOCABULARY, seed=1
    )


def run(home, *arguments, models="model0"):
    models = ",".join(str(home / name) for name in models.split(","))
    return main(["evaluate", models, *map(str, arguments)])


def written(path):
    return {str(entry["image_id"]): entry["caption"] for entry in json.loads(path.read_text())}


def test_captions_equal_direct_decoding_and_scores_are_written(home, tmp_path, capsys):
    target = tmp_path / "results.json"
    scored = tmp_path / "scores.json"
    status = run(
        home,
        "--data", home / "scenes", "--output", target, "--batch-size", 5,
        "--metrics", "BLEU,ROUGE-L,CIDEr", "--scores", scored,
    )  # fmt: skip
    assert status == 0
    torch.manual_seed(0)
    batch = scenes()
    whole = Captioner.from_model(build_captioner(CONFIG).eval(), VOCABULARY).caption_regions(
        batch.features.half().float(), batch.boxes, batch.mask
    )
    assert written(target) == dict(zip(batch.ids, whole, strict=True))
    references = {
        image: [" ".join(VOCABULARY.decode(row)) for row in batch.targets[place].tolist()]
        for place, image in enumerate(batch.ids)
    }
    expected = score_results(written(target), references).values
    assert json.loads(scored.read_text()) == pytest.approx(dict(expected))
    assert "wrote 23 captions to" in capsys.readouterr().out


def test_subset_of_a_split_is_scored_separately(home, tmp_path, capsys):
    words = ["--data", home / "scenes", "--output", tmp_path / "r.json", "--metrics", "CIDEr"]
    few = tmp_path / "few.txt"
    few.write_text("\n".join([*scenes().ids[:7], "elsewhere"]))
    assert run(home, *words, "--subset", few, "--report", tmp_path / "report.json") == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["counts"]["images"] == 23
    assert report["subset"]["counts"]["images"] == 7
    few.write_text("elsewhere")
    (tmp_path / "r.json").unlink()
    assert run(home, *words, "--subset", few) == 2
    assert "--subset: no image of the split is in" in capsys.readouterr().err
    assert not (tmp_path / "r.json").exists()


def test_clip_model_uses_the_features_of_the_dataset(tmp_path):
    width = 704  # the width of frame features of the shipped photo model
    of_clips = {"frame_grid": 1, "positions": "sinusoidal", "geometry": "absolute"}
    config = dataclasses.replace(CONFIG, feature_dim=width, **of_clips)
    captioner = build_captioner(config).eval()
    save_model(tmp_path / "clips", captioner, config, {"vocabulary": VOCABULARY})
    found = scenes()
    padded = torch.nn.functional.pad(found.features, (0, width - found.features.shape[-1]))
    batch = dataclasses.replace(found, features=padded.half().float())
    write_scene_folder(tmp_path / "data", {"test": batch}, VOCABULARY)
    target = tmp_path / "results.json"
    options = ["--data", tmp_path / "data", "--output", target, "--metrics", "BLEU"]
    assert run(tmp_path, *options, models="clips") == 0
    whole = Captioner.from_model(captioner, VOCABULARY).caption_regions(
        batch.features, batch.boxes, batch.mask
    )
    assert written(target) == dict(zip(batch.ids, whole, strict=True))


def test_several_models_form_an_ensemble(home, tmp_path):
    first, both = tmp_path / "one.json", tmp_path / "two.json"
    options = ["--data", home / "scenes", "--metrics", "BLEU"]
    assert run(home, *options, "--output", first, models="model0,model0") == 0
    assert run(home, *options, "--output", both, models="model0,model1") == 0
    alone = tmp_path / "alone.json"
    assert run(home, *options, "--output", alone) == 0
    assert written(first) == written(alone)
    assert written(both) != written(alone)


def test_decoding_options_reach_the_search(home, tmp_path):
    target = tmp_path / "results.json"
    options = ["--data", home / "scenes", "--output", target, "--metrics", "BLEU"]
    assert run(home, *options, "--prefix", "the red", "--max-length", 5) == 0
    assert all(text.startswith("the red") for text in written(target).values())
    assert max(len(text.split()) for text in written(target).values()) <= 5


def test_ids_option_captions_without_scoring(home, tmp_path, capsys):
    ids = scenes().ids[3:6]
    listed = tmp_path / "ids.txt"
    listed.write_text("\n".join(ids))
    target = tmp_path / "captions_test2014_ours_results.json"
    assert run(home, "--data", home / "scenes", "--output", target, "--ids", listed) == 2
    assert list(written(target)) == ids
    out, error = (" ".join(text.split()) for text in capsys.readouterr())
    assert "the test server" in out
    assert "40,775" in out
    assert "BLEU" not in out
    assert "not ready for the test server" in error
    target = tmp_path / "results.json"
    assert run(home, "--data", home / "scenes", "--output", target, "--ids", listed) == 0
    assert list(written(target)) == ids


def test_sampled_captions_do_not_depend_on_the_batch_size(home):
    torch.manual_seed(0)
    predictor = Captioner.from_model(build_captioner(CONFIG).double().eval(), VOCABULARY)
    store = FeatureStore(home / "scenes")
    decoding = DecodingConfig(method="sample", num_return=2, seed=5)
    ids = scenes().ids
    found = [
        caption_dataset(predictor, store, ids, decoding=decoding, batch_size=size)
        for size in (1, 7, 23, 100)
    ]
    texts = [[[part[image], *part[image].others] for image in ids] for part in found]
    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert len({tuple(captions) for captions in texts[0]}) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--data, -o/--output is missing"),
        (["--data", "scenes", "--output", "results.txt"], "must be the name of a .json file"),
        (["--data", "scenes", "--output", "r.json", "--split", "val"], "no split 'val'"),
        (["--data", "nowhere", "--output", "r.json"], "does not exist"),
        (
            ["--data", "scenes", "--output", "r.json", "--batch-size", "0"],
            "--batch-size: '0' is not",
        ),
        (
            ["--data", "scenes", "--output", "r.json", "--require", "dog"],
            "'dog' is not a word",
        ),
        (["--data", "scenes", "--output", "r.json", "--device", "abacus"], "device: 'abacus'"),
        (["--data", "scenes", "--output", "r.json", "--ids", "missing.txt"], "missing.txt"),
    ],
)
def test_invalid_command_lines_raise(home, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(home)
    assert main(["evaluate", "model0", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_images_without_features_raise(home, tmp_path, capsys):
    listed = tmp_path / "ids.txt"
    listed.write_text("elsewhere\n")
    status = run(home, "--data", home / "scenes", "--output", tmp_path / "r.json", "--ids", listed)
    assert status == 2
    assert "elsewhere" in capsys.readouterr().err


def test_damaged_features_are_not_scored(home, tmp_path, capsys):
    shutil.copytree(home / "scenes", tmp_path / "scenes")
    shard = tmp_path / "scenes" / "features" / "shard-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    target = tmp_path / "results.json"
    assert run(home, "--data", tmp_path / "scenes", "-o", target) == 2
    assert "shard-00000.safetensors is damaged" in capsys.readouterr().err
    assert not target.exists()


def test_best_device():
    assert best_device("cpu").type == "cpu"
    assert best_device().type in ("cpu", "cuda")


def test_results_without_references_raise():
    with pytest.raises(ValueError, match="1 images have no references, such as 7"):
        score_results({"7": "a dog"}, {"8": ["a dog"]})


def test_evaluate_shipped_model_on_photographs(tmp_path, capsys):
    """Captions equal those of the model for each picture, and are scored against references."""
    import shutil

    import ngsan
    from ngsan.data.captions import ImageCaptions, write_captions
    from ngsan.examples import EXAMPLES
    from ngsan.predict.captioner import PHOTO_MODEL

    (tmp_path / "pictures").mkdir()
    records = []
    for number, example in enumerate(EXAMPLES[:3]):
        shutil.copy(example.path, tmp_path / "pictures" / f"{number}.jpg")
        records.append(ImageCaptions(str(number), "test", ("a cat on a table", "a bird flies")))
    write_captions(tmp_path, records)
    target = tmp_path / "results.json"
    options = ["--data", str(tmp_path), "--output", str(target), "--metrics", "CIDEr"]
    assert main(["evaluate", str(PHOTO_MODEL), *options]) == 2
    assert "--images DIR" in capsys.readouterr().err
    shown = ["--images", str(tmp_path / "pictures")]
    assert main(["evaluate", str(PHOTO_MODEL), *options, *shown]) == 0
    paths = [example.path for example in EXAMPLES[:3]]
    wanted = ngsan.load().caption(paths, **vars(DecodingConfig()))
    assert list(written(target).values()) == [str(caption) for caption in wanted]
    assert main(["evaluate", f"{PHOTO_MODEL},{PHOTO_MODEL}", *options, *shown]) == 2
    (tmp_path / "pictures" / "1.jpg").unlink()
    assert main(["evaluate", str(PHOTO_MODEL), *options, *shown]) == 2
    assert "1 of 3 images have no picture, such as 1" in capsys.readouterr().err


def test_region_model_with_images_raises(home, tmp_path, capsys):
    target = tmp_path / "results.json"
    assert run(home, "--data", home / "scenes", "--output", target, "--images", tmp_path) == 2
    assert "model of regions" in capsys.readouterr().err


def claims_file(folder, lines):
    path = folder / "claims.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def claim(image, text="the red ball is left of the blue box", **more):
    return {"id": image, "text": text, "true": 1, "rel": "left of", **more}


def test_relations_are_scored(home, tmp_path, capsys):
    ids = list(FeatureStore(home / "scenes").ids())
    lines = [claim(image, true=place % 2) for place, image in enumerate(ids[:8])]
    lines += [claim("elsewhere"), claim(ids[0], "the zorb is left of the ball")]
    path, target = claims_file(tmp_path, lines), tmp_path / "scores.json"
    words = ["--data", home / "scenes", "--relations", path, "--others", 3, "-o", target]
    assert run(home, *words) == 0
    found = json.loads(target.read_text())
    assert (found["sentences"], found["true"], found["pairs"], found["images"]) == (8, 4, 4, 8)
    assert found["not_scored"]["without image"] == found["not_scored"]["with unknown words"] == 1
    assert found["unknown_words"] == {"zorb": 1}
    assert [(one["image_id"], one["true"]) for one in found["scores"]] == [
        (line["id"], line["true"]) for line in lines[:8]
    ]
    low, high = found["auc"]["interval"]
    assert 0 <= low <= found["auc"]["value"] <= high <= 100
    assert found["by_relation"] == {"left of": {"auc": found["auc"]["value"], "sentences": 8}}
    assert "AUC, true against false" in capsys.readouterr().out
    again = tmp_path / "again.json"
    assert run(home, *words[:-1], again, "--split", "test") == 0
    assert json.loads(again.read_text())["scores"] == found["scores"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metrics", "CIDEr"], "--metrics does not apply to --relations"),
        (["--others", "0"], "--others: 0 must be at least 1"),
        (["--split", "val"], "has no sentence to score: 1 of other splits"),
        (["--images", "."], "--images: a model of regions reads features"),
        ([], "others: 20 other images are too many; 1 images have sentences"),
    ],
)
def test_errors_of_relations(home, tmp_path, capsys, words, message):
    path = claims_file(tmp_path, [claim(next(iter(FeatureStore(home / "scenes").ids())))])
    target = tmp_path / "scores.json"
    status = run(home, "--data", home / "scenes", "--relations", path, "-o", target, *words)
    assert status == 2
    assert message in capsys.readouterr().err
    assert not target.exists()


def test_others_without_relations_raises(home, tmp_path, capsys):
    assert run(home, "--data", home / "scenes", "-o", tmp_path / "a.json", "--others", 3) == 2
    assert "--others applies only to --relations" in capsys.readouterr().err
