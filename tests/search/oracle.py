"""Expected search results in plain Python: exhaustive search, and beam search with lists and loops.

Probabilities come from `TableModel.log_probs`, in double precision. The boundary is 0. Evidence is
(B, V), as `Search` has it.
"""

import dataclasses
import itertools
import math

from ngsan.search import Constraints


@dataclasses.dataclass(frozen=True)
class Found:
    words: tuple
    log_prob: float
    score: float


def violates(words, rules: Constraints):
    """Whether the last word breaks a rule; words of the prefix never do."""
    place = len(words) - 1
    if place < len(rules.prefix):
        return words[place] != rules.prefix[place]
    if words[place] in rules.forbidden:
        return True
    size = rules.no_repeat_ngram
    if not size or len(words) < size:
        return False
    grams = [words[i : i + size] for i in range(len(words) - size + 1)]
    return grams[-1] in grams[:-1]


def may_end(words, rules: Constraints):
    return (
        len(words) >= max(rules.min_length, len(rules.prefix))
        and set(rules.required) <= set(words)
        and not (words and words[-1] in rules.bad_endings)
    )


def may_be_cut(words, rules: Constraints):
    """Whether a caption of max_length words is valid without an end token."""
    prescribed = len(words) <= len(rules.prefix)
    bad = words[-1] in rules.bad_endings and not prescribed
    return set(rules.required) <= set(words) and not bad


def gain(evidence, image, words):
    """The evidence of a caption: of each of its words once."""
    return 0.0 if evidence is None else sum(float(evidence[image][word]) for word in set(words))


def all_captions(
    model,
    image,
    *,
    max_length,
    length_penalty=0.0,
    rules=Constraints(),  # noqa: B008
    must_end=False,
    evidence=None,
):
    """Every caption that satisfies the constraints, best first."""
    found = []

    def add(words, total, length):
        worth = total + gain(evidence, image, words)
        found.append(Found(words, total, worth / length**length_penalty))

    def grow(words, total):
        log_probs = model.log_probs(image, words)
        if may_end(words, rules):
            add(words, total + log_probs[0], len(words) + 1)
        for word in range(1, model.vocab_size):
            longer = (*words, word)
            if violates(longer, rules):
                continue
            if len(longer) < max_length:
                grow(longer, total + log_probs[word])
            elif not must_end and may_be_cut(longer, rules):
                add(longer, total + log_probs[word], max_length)

    grow((), 0.0)
    return sorted(found, key=lambda caption: -caption.score)


@dataclasses.dataclass
class Group:
    banks: list  # lists of (words, log-probability), best first
    shelf: list = dataclasses.field(default_factory=list)
    done: bool = False


def allowed(words, word, rules, max_length):
    """Whether a search may extend `words` by `word`; 0 is the end."""
    if word == 0:
        return may_end(words, rules)
    longer = (*words, word)
    if violates(longer, rules):
        return False
    missing = set(rules.required) - set(longer)
    no_end = bool(missing) and missing <= set(rules.bad_endings)  # another word must follow
    if len(missing) + no_end > max_length - len(longer):
        return len(longer) <= len(rules.prefix)
    return len(longer) < max_length or may_be_cut(longer, rules)


def beam_search(
    model,
    image,
    *,
    beam,
    max_length,
    num_return=1,
    length_penalty=0.0,
    early_stopping=False,
    groups=1,
    diversity=0.5,
    rules=Constraints(),  # noqa: B008
    must_end=False,
    evidence=None,
):
    """Beam search without tensors."""

    def worth(words, total):
        return total + gain(evidence, image, words)

    width, required = beam // groups, set(rules.required)
    state = [Group([[((), 0.0)]] + [[] for _ in required]) for _ in range(groups)]
    for length in range(1, max_length + 1):  # of this step's captions, including the end token
        chosen_words = []
        for group in state:
            ranked = [[] for _ in group.banks]
            for words, total in itertools.chain(*group.banks):
                log_probs = model.log_probs(image, words)
                for word in range(model.vocab_size):
                    if not allowed(words, word, rules, max_length):
                        continue
                    if must_end and word and length == max_length:
                        continue
                    value = total + log_probs[word]
                    new = (*words, word) if word else words
                    rank = worth(new, value) - diversity * chosen_words.count(word)
                    bank = len(required & {*words, word})
                    ranked[bank].append((rank, words, word, value))
            banks = []
            for bank, candidates in enumerate(ranked):
                candidates.sort(key=lambda candidate: -candidate[0])
                del candidates[2 * width :]
                if bank == len(required) and not group.done:
                    for _, words, word, value in candidates[:width]:
                        if word == 0:
                            score = worth(words, value) / length**length_penalty
                            group.shelf.append(Found(words, value, score))
                banks.append([(*c[1:3], c[3]) for c in candidates if c[2] != 0][:width])
            chosen_words += [word for bank in banks for _, word, _ in bank]
            group.banks = [[((*words, word), value) for words, word, value in b] for b in banks]
            group.shelf = sorted(group.shelf, key=lambda found: -found.score)[:width]
            group.done = group.done or _is_done(
                group, width, max_length, length, length_penalty, early_stopping, worth
            )
    return _collect(state, width, max_length, length_penalty, worth)[:num_return]


def _is_done(group, width, max_length, length, length_penalty, early_stopping, worth):
    open_totals = [worth(*caption) for bank in group.banks for caption in bank]
    if not open_totals:
        return True
    if len(group.shelf) < width:
        return False
    # Dividing a negative number by more raises it: the bound uses the maximum length.
    bound = max(total / length**length_penalty for total in open_totals)
    if length_penalty > 0:
        bound = max(open_totals) / max_length**length_penalty
    # At the last step captions are cut off and compete with those that have ended.
    return (early_stopping and length < max_length) or group.shelf[-1].score >= bound


def _collect(state, width, max_length, length_penalty, worth):
    shelves = []
    for group in state:
        if not group.done:
            divisor = max_length**length_penalty
            cut = [Found(w, t, worth(w, t) / divisor) for w, t in group.banks[-1]]
            group.shelf += cut
        shelves += sorted(group.shelf, key=lambda found: -found.score)[:width]
    distinct = {found.words: found for found in reversed(shelves)}
    return sorted(distinct.values(), key=lambda found: -found.score)


def assert_same(written, image, expected, *, atol=1e-4):
    """Compares the captions that a search returned for an image with a list of `Found`."""
    scores = [score for score in written.scores[image].tolist() if score != -math.inf]
    words = [
        tuple(row[:length])
        for row, length in zip(
            written.words[image].tolist(), written.lengths[image].tolist(), strict=True
        )
    ][: len(scores)]
    assert words == [found.words for found in expected]
    for rank, found in enumerate(expected):
        assert abs(scores[rank] - found.score) < atol
        assert abs(written.log_probs[image, rank].item() - found.log_prob) < atol
