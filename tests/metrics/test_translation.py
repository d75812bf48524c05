"""BLEU of translations against sacrebleu, by hand, and published ways of cutting."""

import math
import random

import numpy as np
import pytest

from ngsan.metrics.translation import (
    bleu,
    bleu_of_counts,
    compound_bleu,
    compound_bleu_lacks,
    cut_13a,
    plain_bleu,
    plain_counts,
    sacre_bleu,
    split_compounds,
)
from ngsan.text.moses import tokenize

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


def noisy(seed, count=40):
    generator = random.Random(seed)
    words = [
        "ein",
        "Mann",
        "läuft,",
        "rot-grün",
        "3-4",
        "(das)",
        "Haus.",
        "1,5",
        "&amp;",
        "der",
        "die",
    ]

    def text():
        return " ".join(generator.choices(words, k=generator.randint(0, 12)))

    return [text() for _ in range(count)], [text() for _ in range(count)]


def test_by_hand():
    found = bleu(
        [["the", "cat", "sat", "on", "a", "mat"]],
        [["the", "cat", "sat", "on", "the", "mat", "today"]],
    )
    # 5 of 6 words, 3 of 5 pairs, 2 of 4 triples, 1 of 3 fours; 6 tokens against 7.
    assert found.precisions == pytest.approx((500 / 6, 60, 50, 100 / 3))
    expected = 100 * math.exp(1 - 7 / 6) * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert found.value == pytest.approx(expected)


def test_a_word_counts_as_often_as_the_reference_has_it():
    found = bleu([["the"] * 7], [["the", "cat", "is", "on", "the", "mat"]])
    assert found.precisions[0] == pytest.approx(200 / 7)
    assert found.value == 0.0


@pytest.mark.parametrize("seed", range(6))
def test_equals_sacrebleu(seed):
    sacrebleu = pytest.importorskip("sacrebleu")
    for mine, its in (noisy(seed), noisy(seed, 2), (TRANSLATIONS, REFERENCES)):
        theirs = sacrebleu.corpus_bleu(mine, [its])
        found = plain_bleu(mine, its)
        assert found.value == pytest.approx(theirs.score, abs=1e-9)
        assert found.precisions == pytest.approx(theirs.precisions)
        assert (found.length, found.reference_length) == (theirs.sys_len, theirs.ref_len)
        through = sacre_bleu(mine, [its])
        assert through.value == theirs.score
    assert through.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


@pytest.mark.parametrize(
    ("mine", "its"),
    [
        (["ein Mann", ""], ["", ""]),
        (["ein Mann läuft weit weg"], ["zwei Hunde"]),
        (["", " "], ["zwei", "Hunde"]),
        (["\u3000der\u00a0 .\t", "\x1c<skipped>"], ["\u3000", "- , &quot; 2.5 &amp; "]),
    ],
)
def test_equals_sacrebleu_where_nothing_matches(mine, its):
    sacrebleu = pytest.importorskip("sacrebleu")
    theirs, found = sacrebleu.corpus_bleu(mine, [its]), plain_bleu(mine, its)
    assert (
        (found.value, list(found.precisions)) == (theirs.score, theirs.precisions) == (0, [0] * 4)
    )
    assert (found.length, found.reference_length) == (theirs.sys_len, theirs.ref_len)
    assert found.brevity_penalty == pytest.approx(theirs.bp)


@pytest.mark.parametrize("seed", range(4))
def test_bleu_of_counts_is_that_of_any_choice_of_sentences(seed):
    mine, its = noisy(seed)
    counts = plain_counts(mine, its)
    random = np.random.default_rng(seed)
    choices = [[0], [1], [2], *(random.integers(len(mine), size=size) for size in (2, 3, 5, 40))]
    sums = np.array([counts[choice].sum(axis=0) for choice in choices])
    expected = [
        plain_bleu([mine[i] for i in choice], [its[i] for i in choice]).value for choice in choices
    ]
    assert bleu_of_counts(sums) == pytest.approx(expected)
    assert bleu_of_counts(sums / 3)[-1] == pytest.approx(expected[-1])


def test_several_references_go_to_sacrebleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    first, second = noisy(1)
    mine, _ = noisy(2)
    assert sacre_bleu(mine, [first, second]).value == (
        sacrebleu.corpus_bleu(mine, [first, second]).score
    )


@pytest.mark.parametrize("text", [*REFERENCES, "", "a-\nb", "x &lt;b&gt; 5%, 3.5-4 <skipped>."])
def test_cuts_like_13a(text):
    tokenizer = pytest.importorskip("sacrebleu.tokenizers.tokenizer_13a").Tokenizer13a()
    assert cut_13a(text) == tokenizer(text).split()


def test_compounds_are_split():
    assert split_compounds("ein Boston-Terrier - rot") == "ein Boston ##AT##-##AT## Terrier - rot"
    assert split_compounds("ab-cd-ef") == "ab ##AT##-##AT## cd ##AT##-##AT## ef"


def test_compound_bleu_is_bleu_of_split_tokens():
    sacrebleu = pytest.importorskip("sacrebleu")
    found = compound_bleu(TRANSLATIONS[:3], REFERENCES[:3])
    tokens = [
        [" ".join(tokenize(text, "de")) for text in texts[:3]]
        for texts in (TRANSLATIONS, REFERENCES)
    ]
    cut = [[split_compounds(text) for text in texts] for texts in tokens]
    theirs = sacrebleu.corpus_bleu(
        cut[0], [cut[1]], tokenize="none", smooth_method="none", force=True
    )
    assert found.value == pytest.approx(theirs.score)
    assert found.value > 0
    assert "compounds:split" in found.signature
    given = compound_bleu(*tokens, tokenized=True)
    assert given.value == pytest.approx(found.value)
    assert "tok:given" in given.signature


def test_compound_bleu_knows_languages_apart():
    sacrebleu = pytest.importorskip("sacrebleu")
    texts = ["It isn't the dogs' well-known bowl, No. 5.", "He says it's the sea-side today."]
    references = ["It's the dogs' well-known bowl, No. 7.", "He said that it's the seaside today."]
    # As Moses cuts English, "isn 't" and "it 's", and "No." before a number.
    cut = [
        "It isn 't the dogs ' well ##AT##-##AT## known bowl , No. 5 .",
        "He says it 's the sea ##AT##-##AT## side today .",
    ]
    its = [
        "It 's the dogs ' well ##AT##-##AT## known bowl , No. 7 .",
        "He said that it 's the seaside today .",
    ]
    wanted = sacrebleu.corpus_bleu(cut, [its], tokenize="none", smooth_method="none", force=True)
    english = compound_bleu(texts, references, language="en")
    assert english.value == pytest.approx(wanted.score)
    assert "-en|" in english.signature
    german = compound_bleu(texts, references, language="de")
    assert german.value != pytest.approx(wanted.score)
    assert german == compound_bleu(texts, references)


def test_languages_without_rules_are_told():
    assert compound_bleu_lacks("de") == compound_bleu_lacks("en") == ""
    assert "no rules for 'fr', only for de or en" in compound_bleu_lacks("fr")
    assert "not known" in compound_bleu_lacks("")


# What Moses' own rules, in the port sacremoses 0.2.0, make of these lines.
MOSES = [
    ("de", "Er sagt: »Ja«, z.B. um 3. Mai...", "Er sagt : » Ja « , z.B. um 3. Mai ..."),
    ("de", "Das kostet 1.250,50 €, Dr. Weiß!", "Das kostet 1.250,50 € , Dr. Weiß !"),
    ("de", "Hans' rot-grüner Hut (alt).", "Hans ' rot-grüner Hut ( alt ) ."),
    ("en", "It's the dogs' bowl, isn't it?", "It 's the dogs ' bowl , isn 't it ?"),
    ("en", "Mr. No. 5 paid $3,000.50 in 1990.", "Mr. No. 5 paid $ 3,000.50 in 1990 ."),
]


@pytest.mark.parametrize(("language", "text", "tokens"), MOSES)
def test_cuts_like_moses(language, text, tokens):
    assert tokenize(text, language) == tokens.split()


def test_moses_rules_against_their_port():
    port = pytest.importorskip("sacremoses")
    for language, text, _ in MOSES:
        theirs = port.MosesTokenizer(language).tokenize(text, escape=False)
        assert tokenize(text, language) == theirs


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="2 translations do not fit 1 references"):
        plain_bleu(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="no translations"):
        plain_bleu([], [])
    with pytest.raises(ValueError, match="language: 'fi' has no rules"):
        compound_bleu(["a"], ["a"], language="fi")
