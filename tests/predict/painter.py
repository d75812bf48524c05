"""A fake photo captioner that names the colours of the four quarters of an image."""

from types import SimpleNamespace

import numpy as np
from PIL import Image

from ngsan.predict.backend_onnx import OnnxBackend
from ngsan.predict.captioner import Captioner
from ngsan.text.vocabulary import BOUNDARY, Vocabulary
from ngsan.vision.detector import Detections

COLOURS = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "red": (220, 30, 40),
    "green": (20, 200, 60),
    "blue": (10, 40, 210),
    "grey": (128, 128, 128),
}
NAMES = list(COLOURS)


class Steps:
    """Scores words by colour distance; the caption ends after four words."""

    device = None

    def __init__(self, features):
        self.images, self.vocab_size = len(features), len(NAMES) + 2
        self.features = features

    def start(self, rows, max_length):
        self.place = -1

    def step(self, words, parents):
        self.place += 1
        logits = np.full((*words.shape, self.vocab_size), -50, np.float32)
        if self.place == 4:
            logits[..., BOUNDARY] = 0
        else:
            known = np.array(list(COLOURS.values()), np.float32) / 255
            far = np.abs(self.features[:, self.place, None] - known).sum(-1)  # (B, colours)
            logits[..., 1 : 1 + len(NAMES)] = -4 * far[:, None]
        return logits


class Painter(OnnxBackend):
    """A backend without graphs that records the batch sizes."""

    image_size = 16
    config = SimpleNamespace(frame_grid=0)

    def __init__(self, *_, **__):
        self.vocabulary = Vocabulary([*NAMES, "of"])
        self.batches = []

    def describe(self, images):
        assert images.dtype == np.uint8
        assert images.shape[1:] == (16, 16, 3)
        self.batches.append(len(images))
        parts = images.reshape(len(images), 2, 8, 2, 8, 3).mean((2, 4)) / 255
        features = parts.reshape(len(images), 4, 3).astype(np.float32)
        return features, np.full((len(images), 4, 4), 0.5, np.float32)

    def encode(self, features, boxes, mask=None):
        return SimpleNamespace(images=len(features), features=features)

    def steps(self, encoded):
        return Steps(encoded.features)

    def attention(self, words, encoded):
        places = np.minimum(np.arange(words.shape[2]), 3)
        looked = np.eye(4, dtype=np.float32)[places]  # (T, N)
        return np.broadcast_to(looked, (*words.shape, 4))


class Spotter:
    """A detector of the colours of the quarters, without black; black is what is not there."""

    names = tuple(NAMES)
    size = 8

    def detect(self, pixels, *, max_boxes=100, min_score=0.05):
        corners = pixels[1::4, 1::4].reshape(4, 3).astype(int)
        known = np.array(list(COLOURS.values()))
        classes = np.abs(corners[:, None] - known).sum(-1).argmin(1)
        scores = np.array([0.9, 0.8, 0.7, 0.3], np.float32)
        places = np.array([[0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]])
        boxes = np.concatenate((places, np.full((4, 2), 0.5)), 1).astype(np.float32)
        kept = (classes != 0) & (scores >= min_score)
        class_scores = np.zeros(len(NAMES), np.float32)
        np.maximum.at(class_scores, classes, scores)
        return Detections(boxes[kept], scores[kept], classes[kept], class_scores)


def open_painter():
    """A captioner with a `Painter` as its backend and a `Spotter`."""
    return Captioner(Painter(), open_detector=Spotter)


def paint(names="red green blue grey", size=(64, 48)):
    """An image whose caption is `names`."""
    width, height = size
    pixels = np.empty((height, width, 3), np.uint8)
    top, left = slice(None, height // 2), slice(None, width // 2)
    bottom, right = slice(height // 2, None), slice(width // 2, None)
    places = [(top, left), (top, right), (bottom, left), (bottom, right)]
    for place, name in zip(places, names.split(), strict=True):
        pixels[place] = COLOURS[name]
    return Image.fromarray(pixels)
