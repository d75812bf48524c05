"""Captions tokenized as by the COCO tools for a whole file."""

import shutil

import pytest
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

from ngsan.metrics.captions import TokenizedCaptions
from ngsan.text.ptb import TOKENIZER_VERSION
from tests.metrics import oracle

REFERENCES = {
    "9": ["This is plan b.", "The dog's 1 1/2 years old!", ""],
    "10": ["It is train no.", "5 people (two women) wait...", "Un café\nby the sea."],
    "7": ["She can't swim."],
}
HYPOTHESES = {"10": "a train, not a bus no.", "7": "", "9": "Seen from line a."}


@pytest.mark.skipif(shutil.which("java") is None, reason="the tokenizer of the COCO tools is Java")
def test_same_words_as_pycocoevalcap_in_the_order_of_the_references():
    captions = TokenizedCaptions.tokenize(HYPOTHESES, REFERENCES)
    assert captions.ids == ("9", "10", "7")
    tokenizer = PTBTokenizer()
    references, hypotheses = oracle.as_coco(captions)
    assert references == tokenizer.tokenize(
        {name: [{"caption": text} for text in several] for name, several in REFERENCES.items()}
    )
    assert hypotheses == tokenizer.tokenize(
        {name: [{"caption": HYPOTHESES[name]}] for name in REFERENCES}
    )


def test_words_and_their_tokenizer():
    captions = TokenizedCaptions.tokenize({"1": "A dog."}, {"1": ["The dog", ""]})
    assert captions.hypotheses == (("a", "dog"),)
    assert captions.references == ((("the", "dog"), ()),)
    assert captions.tokenizer == TOKENIZER_VERSION
    own = TokenizedCaptions(captions.ids, captions.hypotheses, captions.references)
    assert own.tokenizer == "given"
    assert own != captions


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ({}, {}, "no images to score"),
        ({"1": "a"}, {"1": ["a"], "2": ["a"]}, r"1 image\(s\) have references but no caption: '2'"),
        (dict.fromkeys("abcd", "x"), {"d": ["a"]}, r"3 image\(s\) have a caption.*'a', 'b', 'c';"),
        ({"1": "a"}, {"1": []}, "image '1' has no reference"),
        ({"1": "a"}, {"1": "a dog"}, "image '1' are one string"),
    ],
)
def test_invalid_captions_are_rejected(hypotheses, references, message):
    with pytest.raises(ValueError, match=message):
        TokenizedCaptions.tokenize(hypotheses, references)


def test_wrong_parts_are_rejected():
    with pytest.raises(ValueError, match="2 ids, 1 captions and references for 1 images"):
        TokenizedCaptions(("1", "2"), (("a",),), ((("a",),),))
    with pytest.raises(ValueError, match="image '1' occurs twice"):
        TokenizedCaptions(("1", "1"), (("a",), ()), ((("a",),), ((),)))


def test_ngrams_are_counted_once():
    captions = TokenizedCaptions.tokenize({"1": "a"}, {"1": ["a"]})
    assert captions.ngrams() is captions.ngrams()
    assert captions.ngrams(end=True) is captions.ngrams(end=True)
    assert captions.ngrams(end=True) is not captions.ngrams()


def test_untokenized_captions_are_rejected():
    with pytest.raises(ValueError, match="not tokenized"):
        TokenizedCaptions(("1",), ("a dog",), (("a dog",),))
