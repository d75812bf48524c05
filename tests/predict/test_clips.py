"""Captions of clips, with a small random model on the photo model's features."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

import ngsan
from ngsan.config import CaptionerConfig
from ngsan.data.synthetic.folders import moving_vocabulary
from ngsan.data.synthetic.moving import sample_moving_scenes
from ngsan.data.synthetic.render import render_moving
from ngsan.models import build_captioner
from ngsan.models.checkpoint import save_model
from ngsan.predict.backend_onnx import OnnxBackend
from ngsan.predict.captioner import CLIP_MODEL, PHOTO_MODEL, Caption
from ngsan.predict.clips import FrameDescriber
from ngsan.vision.images import ImageError

CONFIG = CaptionerConfig(
    vocab_size=47,
    feature_dim=704,
    positions="sinusoidal",
    frame_grid=2,
    dim=32,
    heads=4,
    hidden_dim=48,
    layers=1,
    geometry="absolute",
)


def save(folder, config):
    torch.manual_seed(1)
    save_model(folder, build_captioner(config), config, {"vocabulary": moving_vocabulary()})
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(tmp_path_factory.mktemp("clips") / "model", CONFIG)


@pytest.fixture(scope="module")
def captioner():
    return ngsan.load("clips", threads=1)


@pytest.fixture(scope="module")
def clips():
    scenes = sample_moving_scenes(3, frames=4, seed=9)
    return [render_moving(scene, 64) for scene in scenes]


def test_frame_features_are_cell_means_and_changes(clips):
    photos = OnnxBackend(PHOTO_MODEL, threads=1)
    squares = np.stack([np.array(Image.fromarray(f).resize((256, 256))) for f in clips[0][:2]])
    cells, _ = photos.describe(squares)
    whole, places = FrameDescriber(photos, 8).describe(squares)
    shown, change = whole.reshape(2, 64, 2, 352).transpose(2, 0, 1, 3)
    np.testing.assert_array_equal(shown, cells / 4)
    np.testing.assert_allclose(change[0], (cells[0] - cells[1]) / 2, atol=1e-4)
    np.testing.assert_allclose(change[1], -change[0], atol=1e-4)
    np.testing.assert_array_equal(places, np.concatenate([photos.describe(squares)[1][0]] * 2))
    quarters, places = FrameDescriber(photos, 2).describe(squares)
    grid, quarters = cells.reshape(2, 8, 8, 352), quarters.reshape(2, 2, 2, 704)
    for row in range(2):
        for column in range(2):
            part = grid[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] / 4
            found = quarters[:, row, column, :352]
            np.testing.assert_allclose(found, part.mean((1, 2)), atol=1e-4)
            wanted = (column / 2 + 0.25, row / 2 + 0.25, 0.5, 0.5)
            np.testing.assert_allclose(places[4 + 2 * row + column], wanted)
    alone, _ = FrameDescriber(photos, 2).describe(squares[:1])
    assert not alone[:, 352:].any()
    for bad in (0, 3, 16):
        with pytest.raises(ValueError, match=f"grid: {bad} does not divide the 8 x 8 cells"):
            FrameDescriber(photos, bad)


def test_clips_folders_and_animations_give_equal_captions(captioner, clips, tmp_path):
    found = captioner.caption(clips)
    assert all(isinstance(caption, Caption) for caption in found)
    one = captioner.caption(clips[0])
    assert (one.text, one.score) == (found[0].text, found[0].score)
    # A list within a list is one clip.
    pictures = [Image.fromarray(frame) for frame in clips[0]]
    assert captioner.caption([pictures]) == [one]
    folder = tmp_path / "frames"
    folder.mkdir()
    for number, picture in enumerate(pictures):
        picture.save(folder / f"{number}.png")
    pictures[0].save(tmp_path / "a.png", save_all=True, append_images=pictures[1:])
    assert captioner.caption([folder, str(tmp_path / "a.png")]) == [one, one]


def test_torch_and_onnx_runtime_agree(model, captioner, clips):
    """PyTorch and ONNX Runtime agree on the packed weights up to rounding."""
    features, boxes = captioner.describer.describe(
        np.stack([np.array(Image.fromarray(f).resize((256, 256))) for f in clips[0]])
    )
    features, boxes = features[None], boxes[None]
    on_torch = ngsan.models.load_model(CLIP_MODEL)[0]
    words = torch.zeros(1, 1, dtype=torch.long)
    with torch.inference_mode():
        wanted = on_torch(*map(torch.from_numpy, (features, boxes)), None, words)[0, 0]
    model_here = captioner.backend
    steps = model_here.steps(model_here.encode(features, boxes))
    steps.start(1, 1)
    found = steps.step(np.zeros((1, 1), np.int64), None)[0, 0]
    np.testing.assert_allclose(found, wanted.numpy(), atol=0.03 * np.abs(found).max())
    assert ngsan.load(model).kind == "clips"
    assert ngsan.load("clips", device="cpu").caption_regions(features, boxes)[0].words


def test_attention_covers_the_cells_of_all_frames(captioner, clips):
    caption = captioner.caption(clips[0], attention=True)
    assert caption.attention.shape == (len(caption.words), 4 * 16)
    np.testing.assert_allclose(caption.attention.sum(1), 1, atol=1e-3)


def test_decoding_and_frames(captioner, clips):
    several = captioner.caption(clips[0], beam=4, num_return=3)
    assert len(several.others) == 2
    assert captioner.caption(clips[0], frames=2, attention=True).attention.shape[1] == 2 * 16
    with pytest.raises(ValueError, match="frames: 0 is not from 1"):
        captioner.caption(clips[0], frames=0)


def test_invalid_clip_is_named_and_stream_continues(captioner, clips):
    with pytest.raises(ImageError, match=r"clips\[1\]: nowhere\.gif: file not found"):
        captioner.caption([clips[0], "nowhere.gif"])
    results = list(captioner.stream([clips[0], "nowhere.gif", clips[1]]))
    assert [result.caption is None for result in results] == [False, True, False]
    assert [result.index for result in results] == [0, 1, 2]


def test_models_of_another_kind_raise(tmp_path, model):
    elsewhere = dataclasses.replace(CONFIG, frame_grid=0)
    save(tmp_path / "i3d", elsewhere)
    with pytest.raises(ValueError, match="a model of regions and not of photographs"):
        ngsan.load(tmp_path / "i3d").caption("clip.gif")
    odd = dataclasses.replace(CONFIG, feature_dim=400)
    save(tmp_path / "odd", odd)
    with pytest.raises(ValueError, match="feature_dim: 400 of the model is not the 704 of a cell"):
        ngsan.load(tmp_path / "odd")
