"""Metrics by epoch, from logs to figures, and the geometric bias of models."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from ngsan.__main__ import main
from ngsan.plots import Curve, SurfaceRow, plot_curves, plot_surfaces, read_curve
from tests.kills import kills


def write_log(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_curve_is_read_from_both_log_formats(tmp_path):
    log = write_log(
        tmp_path / "n-san.jsonl",
        [
            {"step": 10, "loss": 3.2},
            {"epoch": 2, "CIDEr": 101.5},
            {"epoch": 1, "metrics": {"CIDEr": 95.0, "BLEU-4": 30.0}},
            {"epoch": 3, "loss": 2.0},
            {"epoch": 4, "CIDEr": float("nan")},
        ],
    )
    assert read_curve(log, "CIDEr") == Curve("n-san", (1.0, 2.0), (95.0, 101.5))
    assert read_curve(log, "BLEU-4", "ours") == Curve("ours", (1.0,), (30.0,))


def test_repeated_epochs_and_incomplete_lines_in_logs(tmp_path):
    log = write_log(tmp_path / "log.jsonl", [{"epoch": 1, "CIDEr": 1}, {"epoch": 1, "CIDEr": 2}])
    log.write_text(log.read_text() + '{"epoch": 2, "CI')
    assert read_curve(log, "CIDEr") == Curve(tmp_path.name, (1.0,), (2.0,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"epoch": 1, "BLEU-4": 3}\n', "no line has an epoch and 'CIDEr'; there are BLEU-4"),
        ("", "no line has an epoch"),
        ('nonsense\n{"epoch": 1}\n', "log:1: not a line of JSON"),
        ("[1]\n", "expected an object"),
        ('{"epoch": 1, "CIDEr": NaN, "loss": 2}\n', "there are loss$"),
    ],
)
def test_invalid_logs_raise(tmp_path, text, message):
    log = tmp_path / "log"
    log.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_curve(log, "CIDEr")


def colours(path):
    """Counts the pixels of each colour, without greys."""
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).astype(int)
    bright = pixels[np.ptp(pixels, axis=1) > 100]
    found, counts = np.unique(bright, axis=0, return_counts=True)
    return {tuple(colour): count for colour, count in zip(found, counts, strict=True)}


def test_command_draws_one_line_per_run(tmp_path):
    for name, offset in (("san", 0), ("n-san", 3)):
        entries = [{"epoch": e, "CIDEr": 90 + offset + e, "BLEU-4": 30 + e} for e in range(1, 16)]
        write_log(tmp_path / f"{name}.jsonl", entries)
    figures = []
    for runs in (["san"], ["san", "n-san"]):
        target = tmp_path / f"{len(runs)}.png"
        logs = [f"{name.upper()}={tmp_path / name}.jsonl" for name in runs]
        assert main(["plot", "metrics", *logs, "--output", str(target)]) == 0
        figures.append(colours(target))
    blue, orange = (31, 119, 180), (255, 127, 14)
    assert figures[0][blue] > 500
    assert orange not in figures[0]
    assert figures[1][blue] > 500
    assert figures[1][orange] > 500
    target = tmp_path / "two.pdf"
    log = str(tmp_path / "san.jsonl")
    assert main(["plot", "metrics", log, "--metrics", "CIDEr,BLEU-4", "--output", str(target)]) == 0
    assert target.read_bytes().startswith(b"%PDF")


def test_kill_leaves_the_old_or_the_new_figure(tmp_path):
    target, other = tmp_path / "figure.PNG", tmp_path / "other.png"
    curve = {"CIDEr": [Curve("run", (1.0, 2.0), (90.0, 95.0))]}
    plot_curves(curve, other, title="new")
    plot_curves(curve, target, title="old")
    whole = [target.read_bytes(), other.read_bytes()]
    found = [target.read_bytes() for _ in kills(lambda: plot_curves(curve, target, title="new"))]
    assert found[0] == whole[0]
    assert found[-1] == whole[1]
    assert set(found) == set(whole)


def test_invalid_command_lines_raise(tmp_path, capsys):
    log = write_log(tmp_path / "log.jsonl", [{"epoch": 1, "CIDEr": 1}])
    assert main(["plot", "metrics", str(log), "--output", str(tmp_path / "figure.doc")]) == 2
    assert ".png, .pdf, .svg" in capsys.readouterr().err
    assert main(["plot", "metrics", str(tmp_path / "none"), "--output", "f.png"]) == 2
    assert main(["plot", "metrics", str(log), "--metrics", "SPICE", "--output", "f.png"]) == 2
    assert "there are CIDEr" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no curve"):
        plot_curves({}, tmp_path / "f.png")


def test_binary_log_raises(tmp_path):
    (tmp_path / "log").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ValueError, match="log: not a log, which is text"):
        read_curve(tmp_path / "log", "CIDEr")


def steps(height):
    """A surface that is zero on the left and `height` on the right."""
    return [[0.0, height]] * 2


def test_panels_share_one_colour_scale(tmp_path):
    """The largest value is yellow; a tenth of it is nearly as dark as zero."""
    target = tmp_path / "bias.png"
    rows = [SurfaceRow(f"head {n}", {"1": steps(h)}, {"1": steps(h)}) for n, h in ((1, 1), (2, 10))]
    plot_surfaces(rows, target, title="two heads")
    pixels = np.asarray(Image.open(target).convert("RGB")).reshape(-1, 3).astype(int)
    found, counts = np.unique(pixels, axis=0, return_counts=True)
    large = {tuple(c) for c, n in zip(found.tolist(), counts, strict=True) if n > 2000}
    import matplotlib

    colours = matplotlib.colormaps["cividis"]
    wanted = {tuple(map(int, colours(at, bytes=True)[:3])) for at in (0.0, 0.1, 1.0)}
    assert wanted <= large


def test_signed_biases_have_two_hues(tmp_path):
    target = tmp_path / "bias.png"
    surface = [[-1.0, 0.0, 1.0]] * 3
    plot_surfaces([SurfaceRow("", {"1": surface}, {"1": surface})], target, offsets=(-3.0, 3.0))
    pixels = np.asarray(Image.open(target).convert("RGB")).reshape(-1, 3).astype(int)
    red, blue = pixels[:, 0], pixels[:, 2]
    assert (red - blue > 80).sum() > 5000  # orange
    assert (blue - red > 20).sum() > 5000  # purple
    with pytest.raises(ValueError, match="no bias to draw"):
        plot_surfaces([], target)


def test_size_axes_have_the_direction_of_eq_8(tmp_path, monkeypatch):
    """By Eq. 8: if the other box has half the size, the ratios double."""
    import torch

    from ngsan import plots
    from ngsan.nn.geometry import relative_geometry

    boxes = torch.tensor([[0.5, 0.5, 0.4, 0.4], [0.5, 0.5, 0.4, 0.4], [0.5, 0.5, 0.2, 0.2]])
    ratios = relative_geometry(boxes[None])[0, 0, :, 2:].exp()
    assert (ratios[2] > ratios[1]).all()  # further to the right and up
    found = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, to, **keys: found.append(figure))
    plot_surfaces([SurfaceRow("", {"1": steps(1)}, {"1": steps(1)})], tmp_path / "bias.png")
    size = found[0].subfigs[1]
    assert "other region is (smaller to the right and up)" in size.get_suptitle()
    (panel,) = size.axes
    assert (panel.get_xlabel(), panel.get_ylabel()) == (
        r"$\Delta w=w_i/w_j$",
        r"$\Delta h=h_i/h_j$",
    )
    assert panel.get_xlim()[0] < panel.get_xlim()[1]
    assert panel.get_ylim()[0] < panel.get_ylim()[1]


def test_plot_geometry_of_all_kinds_of_bias(tmp_path, monkeypatch):
    """Drawn values equal the bias of the equations, for the query in the title."""
    import torch

    from ngsan.cli import plot
    from ngsan.config import CaptionerConfig
    from ngsan.data.synthetic.folders import scene_vocabulary, scenes_to_batch, write_scene_folder
    from ngsan.data.synthetic.scenes import sample_scenes
    from ngsan.models import build_captioner
    from ngsan.models.checkpoint import save_model

    drawn = []

    def record(rows, to, **keys):
        drawn.append((rows, keys))

    monkeypatch.setattr(plot, "plot_surfaces", record)
    vocabulary = scene_vocabulary()
    scenes = list(sample_scenes(3, min_objects=2, max_objects=4))
    write_scene_folder(tmp_path / "data", {"test": scenes_to_batch(scenes, vocabulary)}, vocabulary)
    for kind in ("content-independent", "query", "none"):
        config = CaptionerConfig(
            vocab_size=35, feature_dim=32, dim=16, heads=2, hidden_dim=8, layers=2, geometry=kind
        )
        torch.manual_seed(0)
        captioner = build_captioner(config)
        with torch.no_grad():
            for parameter in captioner.parameters():
                parameter.normal_(std=0.4)
        save_model(tmp_path / kind, captioner, config, {"vocabulary": vocabulary})

    def draw(*words):
        return main(["plot", "geometry", *words, "--output", str(tmp_path / "f.png")])

    assert draw(str(tmp_path / "content-independent"), "--layer", "2") == 0
    rows, keys = drawn.pop()
    assert [row.label for row in rows] == ["head 1", "head 2"]
    assert keys["title"] == "Geometric bias (content-independent), layer 2"
    state = build_state(tmp_path / "content-independent")
    at = "encoder.layers.1.attention.score_bias."
    f = np.log([1.5, 0.5, 2, 2])
    embedded = np.maximum(state[f"{at}embedding.weight"] @ f + state[f"{at}embedding.bias"], 0)
    wanted = np.maximum(state[f"{at}content_independent.weight"] @ embedded, 0)
    found = [row.position["2"][10][30] for row in rows]  # of 61 steps from 0 to 3
    assert found == pytest.approx(wanted, abs=1e-4)

    assert draw(str(tmp_path / "query")) == 0
    assert drawn.pop()[1]["title"].endswith("layer 1; constant part of the query")
    assert draw(str(tmp_path / "query"), "--data", str(tmp_path / "data"), "--mean") == 0
    rows, keys = drawn.pop()
    assert [row.label for row in rows] == ["layer 1", "layer 2"]
    assert keys["title"].endswith("mean of the heads; mean query of 3 images")
    assert bias_by_hand(tmp_path, scenes) == pytest.approx(rows[0].size["1"][20][40], abs=2e-3)

    assert draw(str(tmp_path / "none")) == 2
    assert draw(str(tmp_path / "query"), "--layer", "3") == 2
    assert draw(str(tmp_path / "query"), "--images", str(tmp_path)) == 2
    assert not drawn


def build_state(folder):
    from ngsan.models.checkpoint import load_model

    captioner, _, _ = load_model(folder, "captioning")
    return {name: value.numpy() for name, value in captioner.state_dict().items()}


def bias_by_hand(tmp_path, scenes):
    """The first layer's mean bias of the mean query at dw = 2, dh = 1, dx = dy = 1."""
    from ngsan.data import FeatureStore

    state = build_state(tmp_path / "query")
    store = FeatureStore(tmp_path / "data")
    features = np.concatenate([store[str(i)].features for i in range(len(scenes))])
    weight, shift = state["encoder.embed.weight"], state["encoder.embed.bias"]
    x = np.maximum(
        features.astype(np.float32) @ weight.T + shift, 0
    )  # post-norm: not normalized before the attention
    at = "encoder.layers.0.attention.score_bias."
    queries = (x @ state[f"{at}query.weight"].T + state[f"{at}query.bias"]).mean(0).reshape(2, -1)
    f = np.log([1, 1, 2, 1])
    embedded = np.maximum(state[f"{at}embedding.weight"] @ f + state[f"{at}embedding.bias"], 0)
    return (queries @ embedded).mean()


def test_plot_geometry_of_the_shipped_model(tmp_path, capsys):
    from ngsan.examples import EXAMPLES
    from ngsan.predict.captioner import PHOTO_MODEL

    target, images = tmp_path / "coco.pdf", tmp_path / "images"
    images.mkdir()
    for example in EXAMPLES[:2]:
        shutil.copy(example.path, images)
    words = [str(PHOTO_MODEL), "--images", str(images), "--mean", "--output", str(target)]
    assert main(["plot", "geometry", *words]) == 0
    assert target.read_bytes().startswith(b"%PDF")
    assert main(["plot", "geometry", str(PHOTO_MODEL), "--output", str(tmp_path / "f.doc")]) == 2
    assert ".png, .pdf, .svg" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["plot", "geometry", "--help"])
    assert "appendix" in capsys.readouterr().out
