"""Which words are learned, and which forms are one keyword."""

from ngsan.fit.words import choose_words, group_forms


def test_words_are_counted_by_images_and_function_words_dropped():
    dog, cat = [["a", "dog", "dog"], ["the", "dog"]], [["a", "cat", "next", "to", "a", "dog"]]
    assert choose_words([dog, cat], min_images=1) == ["dog", "cat"]
    assert choose_words([dog, cat, cat], min_images=3) == ["dog"]


def test_forms_of_a_noun_have_the_singulars_name():
    words = ["dogs", "dog", "people", "person", "buses", "bus", "busses", "ladies", "lady"]
    groups = {"dog": "dogs dog", "bus": "buses bus busses", "lady": "ladies lady"}
    found = group_forms(words)
    assert {name: " ".join(found[name]) for name in groups} == groups
    assert len(found) == 4


def test_forms_of_a_verb_have_the_name_of_its_ing_form():
    words = ["ride", "riding", "rides", "lying", "lie", "sitting", "sits", "sit", "siting"]
    assert group_forms(words) == {
        "riding": ["ride", "riding", "rides"],
        "lying": ["lying", "lie"],
        "sitting": ["sitting", "sits", "sit", "siting"],
    }


def test_words_that_only_look_alike_stay_apart():
    words = ["park", "parking", "glass", "glasses", "floor", "flooring", "skateboard"]
    assert sorted(group_forms([*words, "skateboarding"])) == sorted([*words, "skateboarding"])


def test_vague_words_are_learned_and_no_keywords():
    assert choose_words([[["two", "dogs"]]], min_images=1) == ["dogs", "two"]
    assert group_forms(["two", "dogs"]) == {"dogs": ["dogs"]}
