"""BLEU of translations against sacrebleu, by hand, and Moses' published rules."""

import math
import random

import numpy as np
import pytest
import sacrebleu
from sacremoses import MosesTokenizer

from ngsan.metrics.translation import (
    bleu_counts,
    bleu_of_counts,
    check_language,
    compound_bleu,
    sacre_bleu,
    split_compounds,
)

REFERENCES = [
    "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    "Ein Boston-Terrier läuft über saftig-grünes Gras vor einem weißen Zaun.",
    'Er sagt: "Das kostet 1.250,50 €!" & geht (um 12-14 Uhr) heim...',
    "Leute reparieren das Dach eines Hauses.",
]
TRANSLATIONS = [
    "Ein Mann mit einem orangen Hut starrt etwas an.",
    "Ein Boston Terrier läuft über grünes Gras vor einem weißen Zaun.",
    'Er sagt: "Es kostet 1.250,50 €" & geht (um 12-14 Uhr) nach Hause.',
    "",
]
WORDS = ["ein", "Mann", "läuft,", "rot-grün", "3-4", "(das)", "Haus.", "1,5", "&amp;", "der", "die"]


def noisy(seed, count=40):
    generator = random.Random(seed)

    def text():
        return " ".join(generator.choices(WORDS, k=generator.randint(0, 12)))

    return [text() for _ in range(count)], [text() for _ in range(count)]


def test_by_hand():
    found = compound_bleu(
        ["the cat sat on a mat"], ["the cat sat on the mat today"], tokenized=True
    )
    # 5 of 6 words, 3 of 5 pairs, 2 of 4 triples, 1 of 3 fours; 6 tokens against 7.
    assert found.precisions == pytest.approx((500 / 6, 60, 50, 100 / 3))
    expected = 100 * math.exp(1 - 7 / 6) * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert found.value == pytest.approx(expected)
    assert (found.length, found.reference_length) == (6, 7)
    assert found.brevity_penalty == pytest.approx(math.exp(1 - 7 / 6))


def test_counts_are_clipped_and_not_smoothed():
    found = compound_bleu(["the " * 7], ["the cat is on the mat"], tokenized=True)
    assert found.precisions[0] == pytest.approx(200 / 7)
    assert found.value == 0.0


def test_sacre_bleu_equals_the_library():
    first, second = noisy(1)
    written, _ = noisy(2)
    found = sacre_bleu(written, [first, second])
    assert found.value == sacrebleu.corpus_bleu(written, [first, second]).score
    signature = sacre_bleu(TRANSLATIONS, [REFERENCES]).signature
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_bleu_of_counts_equals_sacrebleu_for_any_choice_of_sentences():
    for seed in range(4):
        mine, its = noisy(seed)
        counts = bleu_counts(mine, its)
        generator = np.random.default_rng(seed)
        choices = [[0], [1], [2], *(generator.integers(40, size=size) for size in (2, 3, 5, 40))]
        sums = np.array([counts[choice].sum(axis=0) for choice in choices])
        expected = [
            sacrebleu.corpus_bleu([mine[i] for i in one], [[its[i] for i in one]]).score
            for one in choices
        ]
        assert bleu_of_counts(sums) == pytest.approx(expected)
        assert bleu_of_counts(sums / 3)[-1] == pytest.approx(expected[-1])
    for mine, its in [(["ein Mann", ""], ["", ""]), (["", " "], ["zwei", "Hunde"])]:
        assert bleu_of_counts(bleu_counts(mine, its).sum(axis=0)) == 0


def test_compounds_are_split():
    assert split_compounds("ein Boston-Terrier - rot") == "ein Boston ##AT##-##AT## Terrier - rot"
    assert split_compounds("ab-cd-ef") == "ab ##AT##-##AT## cd ##AT##-##AT## ef"


def test_compound_bleu_is_bleu_of_split_tokens():
    found = compound_bleu(TRANSLATIONS[:3], REFERENCES[:3])
    moses = MosesTokenizer("de")
    tokens = [
        [moses.tokenize(text, return_str=True, escape=False) for text in texts[:3]]
        for texts in (TRANSLATIONS, REFERENCES)
    ]
    split = [[split_compounds(text) for text in texts] for texts in tokens]
    theirs = sacrebleu.corpus_bleu(
        split[0], [split[1]], tokenize="none", smooth_method="none", force=True
    )
    assert found.value == pytest.approx(theirs.score)
    assert found.value > 0
    assert "|tok:moses-de-sacremoses-" in found.signature
    assert "|compounds:split|smooth:none|" in found.signature
    given = compound_bleu(*tokens, tokenized=True)
    assert given.value == pytest.approx(found.value)
    assert "|tok:given|" in given.signature


def test_compound_bleu_uses_the_rules_of_the_language():
    texts = ["It isn't the dogs' well-known bowl, No. 5.", "He says it's the sea-side today."]
    references = ["It's the dogs' well-known bowl, No. 7.", "He said that it's the seaside today."]
    # As Moses splits English: "isn 't", "it 's", and "No." before a number.
    mine = [
        "It isn 't the dogs ' well ##AT##-##AT## known bowl , No. 5 .",
        "He says it 's the sea ##AT##-##AT## side today .",
    ]
    its = [
        "It 's the dogs ' well ##AT##-##AT## known bowl , No. 7 .",
        "He said that it 's the seaside today .",
    ]
    wanted = sacrebleu.corpus_bleu(mine, [its], tokenize="none", smooth_method="none", force=True)
    english = compound_bleu(texts, references, language="en")
    assert english.value == pytest.approx(wanted.score)
    assert "tok:moses-en" in english.signature
    german = compound_bleu(texts, references, language="de")
    assert german.value != pytest.approx(wanted.score)


def test_wrong_input():
    assert check_language("de") == check_language("en") == ""
    assert "supports de or en, not 'fr'" in check_language("fr")
    assert "unknown" in check_language("")
    with pytest.raises(ValueError, match="2 translations but 1 references"):
        sacre_bleu(["a", "b"], [["a"]])
    with pytest.raises(ValueError, match="no translations"):
        sacre_bleu([], [[]])
    with pytest.raises(ValueError, match="not 'fi'"):
        compound_bleu(["a"], ["a"], language="fi")
