"""New words and their rows."""

import copy

import numpy as np
import torch

from ngsan.data.captions import ImageCaptions, write_captions
from ngsan.data.dataset import CaptionDataset
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.finetuning.encoded import Start, top_of
from ngsan.finetuning.words import add_words, report_words
from ngsan.text.vocabulary import UNKNOWN, Origin, Vocabulary

ORIGIN = Origin("plain-a", 0, 1)


def test_report_counts_captions_and_pictures():
    known = Vocabulary(["a", "dog", UNKNOWN], origin=ORIGIN)
    captions = {
        "1": ["a wug", "a wug wug", "zip zap"],
        "2": ["wug dog", "zap"],
        "3": ["rare"],
        "4": ["often often", "often", "often"],
    }
    report = report_words(captions, known)
    assert report.new == (("wug", 3),)  # "often" is of one picture
    assert report.rare == (("often", 3), ("zap", 2), ("rare", 1), ("zip", 1))
    assert report.unknown_share == 12 / 15


def test_rows_are_mixtures_of_what_the_model_would_have_written(rounded, tmp_path):
    start = Start.load(rounded)
    known = len(start.vocabulary)
    random = np.random.default_rng(0)
    with StoreWriter(tmp_path, source="test") as store:
        for image in "12":
            store.add(image, Regions(random.normal(size=(4, 32)).astype(np.float32), None, None))
    write_captions(
        tmp_path,
        [
            ImageCaptions("1", "train", ("a wug is left of a square", "a square")),
            ImageCaptions("2", "train", ("the wug", "a zip")),
        ],
    )
    words = Vocabulary(
        [*start.vocabulary.words, "wug", "zip", UNKNOWN], origin=start.vocabulary.origin
    )
    words.save(tmp_path / "vocabulary.json")
    data = CaptionDataset(tmp_path, "train")
    top = top_of(start.model, 0).eval()
    before = copy.deepcopy(top)
    add_words(start.model, top, data, known)

    def chances(image, prefix):
        """What the model writes after a prefix, one word at a time."""
        ids = torch.tensor([[0, *start.vocabulary.encode(prefix.split())]])
        features = torch.from_numpy(data.store[image].features.astype(np.float32))[None]
        with torch.no_grad():
            logits = before(features, None, None, ids)[0, -1]
        logits[0] = -torch.inf
        return logits.softmax(-1)

    wug = chances("1", "a") + chances("2", "the")
    for row, share in ((known, wug), (known + 1, chances("2", "a"))):
        least = share.sort(descending=True).values[19]
        share = torch.where(share >= least, share, 0)
        share = share / share.sum()
        for new, old in (
            (top.decoder.embed.weight, before.decoder.embed.weight),
            (top.decoder.output.weight, before.decoder.output.weight),
        ):
            assert torch.equal(new[:known], old)
            wanted = share @ old
            assert torch.cosine_similarity(new[row], wanted, dim=0) > 0.99
            assert not torch.equal(new[row], wanted)
        torch.testing.assert_close(
            top.decoder.output.bias[row], share @ before.decoder.output.bias, rtol=1e-3, atol=1e-5
        )
    assert top.decoder.output.weight.shape == (len(words), 32)
    assert start.model.decoder is top.decoder
