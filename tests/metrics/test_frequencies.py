"""Document frequencies against counting sets in plain Python, and their file."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngsan.metrics.cider import DocumentFrequencies
from tests.metrics.test_cider import frequencies_of

few_words = st.lists(st.sampled_from(["a", "b", "c", "é", "犬"]), max_size=8)
image_sets = st.lists(st.lists(few_words, max_size=4), min_size=1, max_size=6)


@given(image_sets, st.booleans())
def test_counts_images_and_not_captions(references, end):
    found = DocumentFrequencies.count(references, end=end)
    ended = [[[*words, ""] if end else words for words in several] for several in references]
    expected = frequencies_of(ended)
    assert found.images == len(references)
    for ngram, images in expected.items():
        assert found(ngram) == (images if images > 1 else 0)
    assert sum(map(len, found.keys)) == sum(images > 1 for images in expected.values())
    assert found(("a", "nothing")) == found(("nothing",)) == 0


@given(references=image_sets, end=st.booleans())
def test_file_holds_everything(references, end, tmp_path_factory):
    path = tmp_path_factory.mktemp("df") / "train.npz"
    made = DocumentFrequencies.count(references, end=end)
    made.save(path)
    read = DocumentFrequencies.load(path)
    assert (read.images, read.end, read.words) == (made.images, made.end, made.words)
    for a, b in zip(read.keys + read.counts, made.keys + made.counts, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    assert read.signature == made.signature
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_signature_is_that_of_the_scores():
    references = [[["a", "b"]], [["a", "b"], ["c"]], [["c"]]]
    made = DocumentFrequencies.count(references)
    # The order of images and captions, and words of one image, change no score.
    assert DocumentFrequencies.count(references[::-1]).signature == made.signature
    changed = [
        DocumentFrequencies.count(references, end=True),
        DocumentFrequencies.count([*references, [["d"]]]),
        DocumentFrequencies.count([*references[:2], [["a"]]]),
        DocumentFrequencies.count([*references[:2], [["b", "a"]]]),
    ]
    assert made.signature not in {each.signature for each in changed}
    assert made.signature.startswith("3-")


def test_wrong_files_are_rejected(tmp_path):
    text = tmp_path / "text.npz"
    text.write_text("no archive")
    with pytest.raises(ValueError, match="text.npz has no document frequencies"):
        DocumentFrequencies.load(text)
    other = tmp_path / "other.npz"
    np.savez(other, a=np.zeros(3))
    with pytest.raises(ValueError, match="other.npz has no document frequencies .no counts_1."):
        DocumentFrequencies.load(other)
    array = tmp_path / "array.npy"
    np.save(array, np.zeros(3))
    with pytest.raises(ValueError, match="array.npy has no document frequencies"):
        DocumentFrequencies.load(array)
    good = tmp_path / "good.npz"
    DocumentFrequencies.count([[["a"]]]).save(good)
    with np.load(good) as file:
        arrays = dict(file)
    np.savez(good, **{**arrays, "format": 99})
    with pytest.raises(ValueError, match="format 99 and this version reads 1"):
        DocumentFrequencies.load(good)
    broken = tmp_path / "broken.npz"
    broken.write_bytes(good.read_bytes()[:500])
    with pytest.raises(ValueError, match="broken.npz has no document frequencies"):
        DocumentFrequencies.load(broken)


def test_no_images_and_long_ngrams_are_rejected():
    with pytest.raises(ValueError, match="no references to count"):
        DocumentFrequencies.count([])
    with pytest.raises(ValueError, match="5 words; pass 1 to 4"):
        DocumentFrequencies.count([[["a"]]])("abcde")
