"""The rule of "a" and "an", against words that people chose an article for by ear."""

import pytest

from ngsan.text.articles import takes_an, with_articles

AN = """
    animal apple elephant igloo orange umbrella urn uncle ugly upright unusual unidentified
    unmade unopened unoccupied urban usher hour hourglass honest honorary heir 8 8th 11 11th 18
    80s SUV rv x-ray xbox mp3 lcd eye ear
"""
A = """
    dog banana yellow unicorn uniform unique unit united university use used user usual utensil
    utility urinal european euro ewe one one-way once ukulele uk ufo horse house hotel history
    hero herb hot 1 7 10 110 188 wii zebra
"""


@pytest.mark.parametrize("word", AN.split())
def test_words_that_begin_with_the_sound_of_a_vowel(word):
    assert takes_an(word)


@pytest.mark.parametrize("word", A.split())
def test_words_that_do_not(word):
    assert not takes_an(word)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("a animal next to an dog", "an animal next to a dog"),
        ("a man in an unique uniform", "a man in a unique uniform"),
        ("an old man waits a hour", "an old man waits an hour"),
        ("a cat", "a cat"),
        ("a", "a"),
        ("", ""),
    ],
)
def test_each_article_takes_the_form_of_the_word_after_it(given, wanted):
    assert with_articles(given.split()) == wanted.split()
