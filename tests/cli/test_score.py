"""End-to-end tests of `ngsan score`, against pycocotools and pycocoevalcap."""

import contextlib
import csv
import io
import json
import random
import re
import shutil
import zipfile
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from ngsan.__main__ import main
from ngsan.data.captions import ImageCaptions, write_captions
from ngsan.data.results import IMAGES
from ngsan.metrics.cider import DocumentFrequencies
from ngsan.text.ptb import tokenize_lines

ROOT = Path(__file__).parents[2]

NAMES = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "CIDEr-D"]
QUICK = ["--metrics", "BLEU,ROUGE-L,CIDEr,CIDEr-D", "--resamples", "0"]
WORDS = ["a", "the", "dog", "cat", "man's", "isn't", "runs,", "red", "Ball", "on", "(grass)"]
WORDS += ["3.5", "plan", "B.", "cannot"]


def run(*words):
    return main(["score", *map(str, words)])


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def widest(text):
    """The length of the longest line of a table."""
    return max(len(line) for line in text.split("\n") if line[:1] in "┏┃┡│└")


def sentence(rng, max_length=12):
    return " ".join(rng.choices(WORDS, k=rng.randint(1, max_length)))


def coco(references):
    """COCO annotations with captions in another order than the images."""
    annotations = [
        {"image_id": int(name), "caption": text, "id": 100 * int(name) + number}
        for name, texts in references.items()
        for number, text in enumerate(texts)
    ]
    annotations.sort(key=lambda entry: (entry["id"] % 100, entry["id"]))
    return {
        "info": {},
        "licenses": [],
        "images": [{"id": int(name), "file_name": f"{name}.jpg"} for name in references],
        "annotations": annotations,
    }


def entries(captions):
    return [{"image_id": int(name), "caption": text} for name, text in captions.items()]


@pytest.fixture
def files(tmp_path):
    """Thirty images with references, captions for twenty of them, and those of another system."""
    rng = random.Random(0)
    ids = rng.sample(range(1, 1000), 30)
    references = {str(name): [sentence(rng) for _ in range(rng.randint(1, 6))] for name in ids}
    chosen = [str(name) for name in rng.sample(ids, 20)]
    first = {name: rng.choice([references[name][0], sentence(rng)]) for name in chosen}
    second = {name: sentence(rng) for name in chosen}
    odd = chosen[:4]
    first[odd[0]] = ""
    first[odd[1]] = "a dog\non the  grass\u00a0(red)"
    references[odd[2]] += ["", "the ball \n of plan B."]
    references[odd[3]] = ["a DOG\u2019s 1 1/2 balls", "caf\u00e9 \u6771\u4eac dog"]
    write(tmp_path / "references.json", coco(references))
    write(tmp_path / "first.json", entries(first))
    write(tmp_path / "second.json", entries(second))
    return tmp_path


@pytest.fixture
def scored(files, capsys):
    """Runs the command on the captions of the first system."""

    def score(*words):
        status = run(files / "first.json", "--references", files / "references.json", *words)
        return status, capsys.readouterr()

    return score


def of_images(ids, values):
    return dict(zip(map(str, ids), 100 * np.array(values), strict=True))


def by_peer(references, results):
    """Scores in percent by the original tools, of the set and by image."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
    from pycocotools.coco import COCO

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(references))
        found = truth.loadRes(str(results))
        ids = found.getImgIds()
        tokenizer = PTBTokenizer()
        gts = tokenizer.tokenize({name: truth.imgToAnns[name] for name in ids})
        res = tokenizer.tokenize({name: found.imgToAnns[name] for name in ids})
        bleu, bleus = Bleu(4).compute_score(gts, res, verbose=0)
        rouge, rouges = Rouge().compute_score(gts, res)
        cider, ciders = Cider().compute_score(gts, res)
    whole = dict(zip(NAMES[:4], bleu, strict=True)) | {"ROUGE-L": rouge, "CIDEr": cider}
    single = dict(zip(NAMES[:4], bleus, strict=True)) | {"ROUGE-L": rouges, "CIDEr": ciders}
    return (
        {name: 100 * value for name, value in whole.items()},
        {name: of_images(ids, one) for name, one in single.items()},
    )


@pytest.mark.skipif(shutil.which("java") is None, reason="the original tokenizer needs Java")
def test_scores_equal_the_original_tools(scored, files):
    whole, single = by_peer(files / "references.json", files / "first.json")
    status, _ = scored(*QUICK, "--output", files / "s.json", "--per-image", files / "p.json")
    assert status == 0
    scores, images = read(files / "s.json"), read(files / "p.json")
    assert scores.keys() == whole.keys() | {"CIDEr-D"}
    assert scores["CIDEr-D"] == scores["CIDEr"]
    for name, value in whole.items():
        assert scores[name] == pytest.approx(value, abs=1e-7)
        ours = {identity: values[name] for identity, values in images.items()}
        assert list(ours) == list(single[name])  # also in the order of the annotations
        assert ours == pytest.approx(single[name], abs=1e-7)


def test_all_outputs_together(scored, files):
    status, printed = scored(
        "--output", files / "s.json", "--report", files / "r.json", "--level", 90
    )
    assert status == 0
    scores, report = read(files / "s.json"), read(files / "r.json")
    assert list(scores)[: len(NAMES)] == NAMES
    assert report["scores"] == scores
    for name, value in scores.items():
        low, high = report["intervals"][name]
        assert low <= value <= high
        assert report["signatures"][name].startswith(f"{name}|images:20|refs:1-")
        assert name in printed.out
    assert report["settings"] == {"resamples": 1000, "level": 90.0, "seed": 0}
    assert report["counts"]["images"] == 20
    assert report["counts"]["images_with_references"] == 30
    assert report["statistics"]["captions"] == 20
    assert report["statistics"]["novel"] is None
    assert "comparison" not in report
    assert "90% interval" in printed.out
    assert "20 of 30 images" in printed.out
    assert "SPICE" not in {*scores, *report["not_computed"]}  # only on request
    assert widest(printed.out) <= 80
    assert printed.err == ""


def test_per_image_output_in_three_formats(scored, files):
    for suffix in ("json", "jsonl", "csv"):
        assert scored(*QUICK, "--per-image", files / f"p.{suffix}")[0] == 0
    whole = read(files / "p.json")
    lines = [json.loads(line) for line in (files / "p.jsonl").read_text().splitlines()]
    assert {line.pop("image_id"): line for line in lines} == whole
    with (files / "p.csv").open(newline="") as file:
        rows = {row.pop("image_id"): row for row in csv.DictReader(file)}
    assert {
        identity: {name: float(value) for name, value in row.items()}
        for identity, row in rows.items()
    } == whole


def test_mean_over_images_is_the_score_of_the_set(scored, files):
    scored(*QUICK, "--output", files / "s.json", "--per-image", files / "p.json")
    for name in ("ROUGE-L", "CIDEr"):
        mean = np.mean([values[name] for values in read(files / "p.json").values()])
        assert read(files / "s.json")[name] == pytest.approx(mean)


def test_all_formats_give_the_same_scores(scored, files):
    results = {str(entry["image_id"]): entry["caption"] for entry in read(files / "first.json")}
    annotations = read(files / "references.json")
    ids = [str(image["id"]) for image in annotations["images"]]
    truth = {name: [] for name in ids if name in results}
    for entry in annotations["annotations"]:
        truth.get(str(entry["image_id"]), []).append(entry["caption"])
    scored(*QUICK, "--output", files / "s.json")
    lines = [
        json.dumps({"image": f"{name}.jpg", "caption": text}) for name, text in results.items()
    ]
    write(files / "first.jsonl", "\n".join(lines))
    with (files / "first.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "caption"), *results.items()])
    lines = [json.dumps({"id": name, "captions": texts}) for name, texts in truth.items()]
    write(files / "references.jsonl", "\n".join(lines))
    rows = [(name, text) for name, texts in truth.items() for text in texts]
    with (files / "references.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("image", "caption"), *rows])
    for kind in ("jsonl", "csv"):
        status = run(
            files / f"first.{kind}", "--references", files / f"references.{kind}", *QUICK,
            "--output", files / f"{kind}.json",
        )  # fmt: skip
        assert status == 0
        assert read(files / f"{kind}.json") == read(files / "s.json")


@pytest.fixture
def dataset(tmp_path):
    """A dataset folder with two training and three test images, and results for the test images."""
    folder = tmp_path / "dataset"
    write_captions(
        folder,
        [
            ImageCaptions("1", "train", ("a red dog", "a dog runs", "two dogs")),
            ImageCaptions("2", "train", ("a red dog", "a cat")),
            ImageCaptions("3", "test", ("a dog runs on grass", "a red dog")),
            ImageCaptions("4", "test", ("a cat on a mat",)),
            ImageCaptions("5", "test", ("two cats sleep",)),
        ],
    )
    write(
        tmp_path / "r.json",
        entries({"3": "A red dog.", "4": "a cat on the", "5": "two cats sleep"}),
    )
    return folder


def test_dataset_folder_and_training_captions(tmp_path, dataset, capsys):
    common = [tmp_path / "r.json", "--references", dataset, *QUICK]
    assert run(*common, "--report", tmp_path / "plain.json") == 0
    capsys.readouterr()
    assert run(*common, "--train", dataset, "--document-frequencies", dataset,
               "--report", tmp_path / "trained.json") == 0  # fmt: skip
    plain, trained = read(tmp_path / "plain.json"), read(tmp_path / "trained.json")
    assert plain["counts"]["images"] == 3
    assert trained["statistics"]["novel"] == pytest.approx(2 / 3)
    assert trained["statistics"]["bad_endings"] == pytest.approx(1 / 3)
    assert "66.7%" in capsys.readouterr().out
    assert trained["scores"]["CIDEr"] == plain["scores"]["CIDEr"]
    assert trained["scores"]["CIDEr-D"] != plain["scores"]["CIDEr-D"]
    assert "df:references" in plain["signatures"]["CIDEr-D"]
    assert "df:2-" in trained["signatures"]["CIDEr-D"]
    texts = [["a red dog", "a dog runs", "two dogs"], ["a red dog", "a cat"]]
    DocumentFrequencies.count([tokenize_lines(captions) for captions in texts]).save(
        tmp_path / "df.npz"
    )
    assert run(*common, "--document-frequencies", tmp_path / "df.npz",
               "--report", tmp_path / "saved.json") == 0  # fmt: skip
    saved = read(tmp_path / "saved.json")
    assert saved["scores"] == trained["scores"]
    assert saved["signatures"] == trained["signatures"]


def test_signature_shows_frequencies_with_end_token(tmp_path, dataset):
    words = [tokenize_lines(["a red dog", "a dog runs"]), tokenize_lines(["a cat"])]
    DocumentFrequencies.count(words, end=True).save(tmp_path / "df.npz")
    assert run(tmp_path / "r.json", "--references", dataset, *QUICK, "--document-frequencies",
               tmp_path / "df.npz", "--report", tmp_path / "report.json") == 0  # fmt: skip
    signatures = read(tmp_path / "report.json")["signatures"]
    assert "end:yes" in signatures["CIDEr-D"]
    assert "end:no" in signatures["CIDEr"]


def test_split_option_selects_a_split(tmp_path, dataset, capsys):
    write(tmp_path / "t.json", entries({"1": "a dog", "2": "a cat"}))
    assert run(tmp_path / "t.json", "--references", dataset, "--split", "train", *QUICK) == 0
    assert run(tmp_path / "t.json", "--references", dataset, *QUICK) == 2
    assert "no image of" in capsys.readouterr().err


def test_ids_option_selects_images(scored, files):
    ids = [entry["image_id"] for entry in read(files / "first.json")]
    few = write(files / "few.txt", "\n".join(map(str, ids[:5])))
    status, printed = scored(*QUICK, "--ids", few, "--per-image", files / "p.json")
    assert status == 0
    assert set(read(files / "p.json")) == set(map(str, ids[:5]))
    assert "5 of 20 images of" in printed.out
    write(files / "five.json", read(files / "first.json")[:5])
    scored(*QUICK, "--ids", few, "--output", files / "s.json")
    assert run(files / "five.json", "--references", files / "references.json", *QUICK,
               "--output", files / "five_scores.json") == 0  # fmt: skip
    assert read(files / "s.json") == read(files / "five_scores.json")


@pytest.mark.parametrize("kind", ["txt", "json"])
def test_subset_is_scored_as_if_alone(scored, files, capsys, kind):
    ids = [str(entry["image_id"]) for entry in read(files / "first.json")]
    few = write(files / "few.txt", "\n".join(ids[:5]))
    listed = write(files / f"listed.{kind}", "\n".join([*ids[:5], "99999999"]))
    if kind == "json":
        write(listed, {"images": [{"id": int(image)} for image in [*ids[:5], "99999999"]]})
    scored(*QUICK, "--ids", few, "--output", files / "alone.json")
    words = [*QUICK, "--subset", listed, "--report", files / "r.json"]
    status, printed = scored(*words, "--output", files / "all.json")
    assert status == 0
    assert f"only the images of {listed}:" in printed.out
    assert "images: 20" in printed.out
    assert "images: 5" in printed.out
    report = read(files / "r.json")
    assert report["subset"]["scores"] == read(files / "alone.json")
    assert report["scores"] == read(files / "all.json") != report["subset"]["scores"]
    write(files / "other.txt", "99999999")
    status, printed = scored(*QUICK, "--subset", files / "other.txt")
    assert status == 2
    assert "no scored image is in" in printed.err


def test_comparison(scored, files):
    scored(*QUICK, "--output", files / "one.json")
    run(files / "second.json", "--references", files / "references.json", *QUICK,
        "--output", files / "two.json")  # fmt: skip
    words = [*QUICK[:2], "--compare", files / "second.json", "--report", files / "r.json"]
    status, printed = scored(*words, "--resamples", 200)
    assert status == 0
    report = read(files / "r.json")
    one, two = read(files / "one.json"), read(files / "two.json")
    assert report["other"]["scores"] == two
    for name, found in report["comparison"].items():
        assert found["difference"] == pytest.approx(one[name] - two[name])
        assert found["interval"][0] <= found["difference"] <= found["interval"][1]
        assert 0 < found["p"] <= 1
    assert "difference" in printed.out
    assert widest(printed.out) <= 80
    scored(*words, "--resamples", 200)
    assert read(files / "r.json") == report  # same seed, same result
    scored(*words, "--resamples", 200, "--seed", 1)
    assert read(files / "r.json")["comparison"] != report["comparison"]
    status, printed = scored(*QUICK, "--compare", files / "second.json", "--resamples", 0)
    assert status == 0
    assert "interval" not in printed.out


def test_comparison_with_itself_has_no_difference(scored, files):
    scored(*QUICK[:2], "--compare", files / "first.json", "--report", files / "r.json",
           "--resamples", 50)  # fmt: skip
    for found in read(files / "r.json")["comparison"].values():
        assert found["difference"] == 0
        assert found["p"] == 1


def changed(files, change):
    captions = read(files / "first.json")
    change(captions)
    write(files / "first.json", captions)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.append(c[2]), "entry 21: image .* already, at .*entry 3"),
        (lambda c: c.append({"image_id": 5000, "caption": "a"}), "1 of 21 images .*: 5000; remove"),
        (
            lambda c: [e.update(image_id=e["image_id"] + 2000) for e in c],
            "no image of .*first.json",
        ),
        (lambda c: c[3].update(caption=None), "entry 4 .*must be a string, not None"),
        (lambda c: c[3].pop("caption"), "entry 4 .*no 'caption'"),
        (lambda c: c[3].pop("image_id"), "entry 4: missing key"),
        (lambda c: c.clear(), "no captions"),
    ],
)
def test_invalid_results_raise(scored, files, change, message):
    changed(files, change)
    status, printed = scored(*QUICK, "--output", files / "s.json")
    assert status == 2
    assert printed.err.startswith("ngsan score: ")
    assert printed.err.count("\n") == 1
    assert re.search(message, printed.err), printed.err
    assert not (files / "s.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metrics", "BLEU,BLUE"], "'BLUE' is not one of BLEU, METEOR"),
        (["--metrics", "CIDEr", "--document-frequencies", "x.npz"], "applies to CIDEr-D, which"),
        (["--document-frequencies", "none.npz"], "none.npz"),
        (["--document-frequencies", "{}/first.csv"], "first.csv"),
        (["--train", "none.json"], "none.json"),
        (["--level", "0"], "--level: 0 is not between"),
        (["--level", "100"], "--level: 100 is not between"),
        (["--resamples", "-1"], "--resamples: -1 is below 0"),
        (["--seed", "-1"], "--seed: '-1' is not a whole number"),
        (["--split", "test"], "has no split"),
        (["--ids", "none.txt"], "none.txt"),
        (["--compare", "none.json"], "none.json"),
        (["--output", "{}/first.json"], "first.json is an input"),
        (["--output", "{}/a.json", "--report", "{}/a.json"], "a.json is already another output"),
        (["--output", "{}/first.json/s.json"], "cannot write to"),
        (["--output", "{}"], "is a folder; pass a file"),
        (["--per-image", "{}/p.txt"], "must end in .json, .jsonl, .csv"),
    ],
)
def test_invalid_options_raise(scored, files, words, message):
    status, printed = scored(*(word.format(files) for word in words))
    assert status == 2
    assert message in printed.err


@pytest.mark.parametrize("words", [["--resample", "5"], ["--resamples", "many"], ["--speed", "1"]])
def test_unknown_options_raise(scored, words):
    assert scored(*words)[0] == 2


def test_missing_references_raise(files, capsys):
    assert run(files / "first.json") == 2
    assert "--references" in capsys.readouterr().err
    assert run(files / "none.json", "--references", files / "references.json") == 2
    assert "none.json" in capsys.readouterr().err
    assert run(files / "first.json", "--references", files / "first.csv") == 2
    assert "first.csv" in capsys.readouterr().err


@pytest.mark.parametrize("size", [50, 1500])
def test_truncated_references_raise(scored, files, size):
    text = (files / "references.json").read_text()
    write(files / "references.json", text[:size])
    status, printed = scored(*QUICK)
    assert status == 2
    assert "ends too early" in printed.err


def test_missing_images_raise(scored, files):
    ids = [entry["image_id"] for entry in read(files / "first.json")]
    others = [image["id"] for image in read(files / "references.json")["images"]]
    without = next(name for name in others if name not in ids)
    write(files / "ids.txt", f"{ids[0]}\n{without}\n")
    status, printed = scored(*QUICK, "--ids", files / "ids.txt")
    assert status == 2
    assert f"1 images of {files}/ids.txt are not in {files}/first.json: {without}" in printed.err
    write(files / "fewer.json", read(files / "second.json")[1:])
    status, printed = scored(*QUICK, "--compare", files / "fewer.json")
    assert status == 2
    assert f"are not in {files}/fewer.json: " in printed.err
    more = [*read(files / "second.json"), {"image_id": without, "caption": "a"}]
    write(files / "more.json", more)
    status, printed = scored(*QUICK, "--compare", files / "more.json")
    assert status == 2
    assert f"are not in {files}/first.json: {without}" in printed.err


def test_requested_spice_without_its_files_raises(scored, files, monkeypatch):
    monkeypatch.setenv("NGSAN_SPICE_LIB", str(files))
    elsewhere = files / "elsewhere"
    for words, place in (
        (["--metrics", "SPICE"], files),
        (["--spice"], files),
        (["--spice-jars", elsewhere], elsewhere),
    ):
        status, printed = scored(*words)
        assert status == 2
        assert printed.err.endswith(f" to {place}\n")


class Fragile:
    """A metric that fails for captions with a given word."""

    names = ("SPICE",)
    signature = MappingProxyType({"spice": "fake"})

    def __init__(self, word):
        self.word = word

    def statistics(self, captions):
        if any(self.word in words for words in captions.hypotheses):
            raise ChildProcessError("its program failed")
        return np.ones((len(captions.ids), 2))

    def score(self, totals):
        return totals[..., :-1] / totals[..., -1:]


def test_failing_metric_does_not_affect_other_scores(scored, files, monkeypatch):
    monkeypatch.setattr("ngsan.metrics.spice.Spice", lambda jars: Fragile("dog"))
    status, printed = scored("--metrics", "SPICE")
    assert status == 2
    assert "its program failed" in printed.err
    words = ["--resamples", 5, "--compare", files / "second.json", "--report", files / "r.json"]
    words.append("--spice")
    status, printed = scored(*words)
    assert status == 0
    assert "SPICE is not computed: its program failed" in printed.out
    assert list(read(files / "r.json")["scores"]) == NAMES
    monkeypatch.setattr("ngsan.metrics.spice.Spice", lambda jars: Fragile("hydrant"))
    second = read(files / "second.json")
    write(files / "second.json", [{**entry, "caption": "hydrant"} for entry in second])
    status, printed = scored(*words)
    assert status == 0
    assert list(read(files / "r.json")["scores"]) == [*NAMES, "SPICE"]
    assert list(read(files / "r.json")["comparison"]) == NAMES


def test_missing_word_lists_of_meteor(scored, files, monkeypatch):
    def missing():
        raise ValueError("word lists are missing; get them")

    monkeypatch.setattr("ngsan.metrics.meteor.meteor_folder", missing)
    assert scored("--metrics", "meteor")[0] == 2
    status, printed = scored("--resamples", 0, "--output", files / "s.json")
    assert status == 0
    assert "METEOR is not computed: word lists are missing; get them" in printed.out
    assert "METEOR" not in read(files / "s.json")


def test_check_submission(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(IMAGES, "val2014", 2)
    path = write(tmp_path / "captions_val2014_ours_results.json", entries({"1": "a", "2": "b"}))
    assert run(path, "--check-submission") == 0
    printed = capsys.readouterr()
    assert "2 captions" in printed.out
    assert "no problems found" in printed.out
    images = write(tmp_path / "images.json", {"images": [{"id": 1}, {"id": 3}]})
    assert run(path, "--check-submission", "--references", images) == 2
    printed = capsys.readouterr()
    assert "missing image" in printed.out
    assert "unknown image" in printed.out
    assert "not ready" in printed.err
    with zipfile.ZipFile(tmp_path / "results.zip", "w") as archive:
        archive.write(path, path.name)
    assert run(tmp_path / "results.zip", "--check-submission") == 2
    assert "captions_test2014" in capsys.readouterr().out
    assert run(tmp_path / "none.json", "--check-submission") == 2


def test_commands_of_the_metrics_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(python|sh)\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 6
    for language, source in blocks:
        if language == "python":
            exec(compile(source, "docs/metrics.md", "exec"), {})
        else:
            for line in source.splitlines():
                assert main(line.split()[1:]) == 0
    assert read(tmp_path / "report.json")["statistics"]["novel"] == 1
    assert (tmp_path / "images.csv").exists()


def test_bleu_can_be_requested_by_any_name(tmp_path):
    references = write(tmp_path / "references.json", coco({"1": ["a dog runs"], "2": ["a cat"]}))
    results = write(tmp_path / "results.json", entries({"1": "a dog", "2": "a cat"}))
    scores = tmp_path / "scores.json"
    options = ["--references", references, "--output", scores, "--resamples", "0"]
    assert run(results, *options, "--metrics", "bleu-4") == 0
    assert list(read(scores)) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"]


def test_check_submission_rejects_scoring_options(tmp_path, capsys):
    assert run(tmp_path / "results.json", "--check-submission", "--per-image", "images.csv") == 2
    assert "--per-image does not apply to --check-submission" in capsys.readouterr().err


def test_lone_surrogate_is_a_submission_problem(tmp_path, capsys):
    path = write(
        tmp_path / "captions_val2014_ours_results.json", '[{"image_id": 1, "caption": "\\ud83d"}]'
    )
    assert run(path, "--check-submission") == 2
    assert "invalid Unicode" in capsys.readouterr().out
