"""Which of COCO's 80 kinds of objects a caption names.

A phrase is one to three words. The longest phrase counts, from the left: a "hot dog" is not a dog,
and a "stuffed bear" is a teddy bear. Plurals of the last word are phrases, too.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

PHRASES: dict[str, str] = {
    "person": """
        man, woman, boy, girl, child, kid, baby, toddler, infant, adult, lady, gentleman, guy,
        dude, human, teenager, teen, youth, youngster, person, folk, crowd, couple, pedestrian,
        passenger, driver, rider, cyclist, bicyclist, biker, motorcyclist, bicycle rider, bike
        rider, player, baseball player, tennis player, soccer player, frisbee player, ball player,
        batter, pitcher, catcher, umpire, referee, athlete, skier, snowboarder, snow boarder,
        skateboarder, skate boarder, skater, surfer, swimmer, sailor, fisherman, cowboy, jockey,
        farmer, chef, baker, waiter, waitress, worker, officer, policeman, police officer, cop,
        soldier, fireman, firefighter, student, teacher, businessman, doctor, nurse, bride, groom,
        mother, father, mom, dad, son, daughter, brother, sister, grandmother, grandfather,
        husband, wife, friend, family, visitor, tourist, spectator, onlooker, customer, shopper,
        clown, performer, musician, vendor, skiier, traveler, male, female, hitter, photographer""",
    "bicycle": "bicycle, bike, bycicle, tricycle, unicycle, mountain bike",
    "car": """
        car, automobile, sedan, suv, minivan, van, jeep, taxi, taxi cab, cab, convertible,
        limousine, limo, hatchback, police car, sports car, race car, station wagon, hummer""",
    "motorcycle": """
        motorcycle, motorbike, motor bike, motor cycle, scooter, motor scooter, moped, dirt bike,
        vespa, dirtbike""",
    "airplane": """
        airplane, aeroplane, plane, jet, jetliner, airliner, aircraft, biplane, seaplane, air
        plane, jet plane, jumbo jet, fighter jet, passenger jet, passenger plane""",
    "bus": "bus, minibus, school bus, double decker, double decker bus, tour bus, city bus",
    "train": """
        train, locomotive, tram, trolley, trolley car, streetcar, street car, subway, subway
        train, subway car, train car, train engine, steam engine, railcar, rail car, passenger
        train, freight train""",
    "truck": """
        truck, pickup, pickup truck, pick up truck, firetruck, fire truck, fire engine, semi, semi
        truck, tow truck, dump truck, lorry, tractor trailer, truck bed, bed of a truck, bed of
        the truck, food truck""",
    "boat": """
        boat, ship, sailboat, sail boat, canoe, kayak, yacht, ferry, ferryboat, gondola, rowboat,
        row boat, motorboat, motor boat, speedboat, speed boat, raft, dinghy, tugboat, tug boat,
        barge, catamaran, cruise ship, fishing boat""",
    "traffic light": """
        traffic light, traffic signal, stoplight, stop light, traffic lamp, street signal""",
    "fire hydrant": "fire hydrant, hydrant, firehydrant",
    "stop sign": "stop sign, stopsign",
    "parking meter": "parking meter, meter",
    "bench": "bench, pew, park bench",
    "bird": """
        bird, seagull, sea gull, gull, pigeon, duck, duckling, goose, gosling, swan, owl, eagle,
        hawk, falcon, parrot, parakeet, macaw, cockatoo, ostrich, peacock, penguin, pelican,
        flamingo, heron, stork, sparrow, robin, crow, raven, finch, hummingbird, rooster, hen,
        dove, woodpecker, cardinal, blue jay, vulture, emu""",
    "cat": "cat, kitten, kitty, feline, tabby, kitty cat, house cat, tomcat",
    "dog": """
        dog, puppy, pup, doggy, doggie, hound, canine, poodle, terrier, beagle, bulldog, bull dog,
        dachshund, labrador, retriever, golden retriever, collie, pug, corgi, spaniel, dalmatian,
        chihuahua, husky, rottweiler, german shepherd, puppy dog, pit bull, pitbull, sheep dog,
        sheepdog, greyhound""",
    "horse": "horse, pony, foal, colt, mare, stallion, race horse, racehorse",
    "sheep": "sheep, lamb, ewe",
    "cow": "cow, cattle, calf, bull, ox, heifer, longhorn, holstein",
    "elephant": "elephant",
    "bear": """
        bear, polar bear, grizzly, grizzly bear, black bear, brown bear, panda, panda bear, cub""",
    "zebra": "zebra",
    "giraffe": "giraffe",
    "backpack": "backpack, back pack, knapsack, rucksack, book bag",
    "umbrella": "umbrella, parasol",
    "handbag": "handbag, hand bag, purse, pocketbook, shoulder bag",
    "tie": "tie, necktie, neck tie, bow tie, bowtie",
    "suitcase": """
        suitcase, suit case, luggage, baggage, luggage bag, piece of luggage, travel bag""",
    "frisbee": "frisbee, frisbe, frisby, freesbee, flying disc, flying disk",
    "skis": "!skis, !skies, !snow skis, !pair of skis",
    "snowboard": "snowboard, snow board",
    "sports ball": """
        ball, baseball ball, tennis ball, soccer ball, sports ball, beach ball, rugby ball,
        bowling ball""",
    "kite": "kite, parasail, para sail",
    "baseball bat": "baseball bat, bat",
    "baseball glove": "baseball glove, baseball mitt, mitt, catchers mitt, catcher 's mitt",
    "skateboard": "skateboard, skate board",
    "surfboard": "surfboard, surf board, boogie board, body board, paddle board, paddleboard",
    "tennis racket": """
        tennis racket, tennis racquet, tennis raquet, racket, racquet, raquet""",
    "bottle": "bottle, wine bottle, water bottle, beer bottle",
    "wine glass": "wine glass, wineglass, glass of wine, glass of red wine, glass of white wine",
    "cup": "cup, mug, coffee cup, coffee mug, tea cup, teacup, cup of coffee, cup of tea",
    "fork": "fork",
    "knife": "knife, pocket knife",
    "spoon": "spoon, teaspoon, tablespoon",
    "bowl": "bowl",
    "banana": "banana",
    "apple": "apple",
    "sandwich": """
        sandwich, hamburger, burger, cheeseburger, cheese burger, sub sandwich, club sandwich,
        panini, hoagie, sandwhich""",
    "orange": "orange, tangerine, clementine, mandarin orange",
    "broccoli": "broccoli, brocolli, broccolli, broccoli floret",
    "carrot": "carrot",
    "hot dog": "hot dog, hotdog, chili dog, corn dog",
    "pizza": "pizza, pizza pie, slice of pizza, pepperoni pizza",
    "donut": "donut, doughnut, dough nut",
    "cake": """
        cake, cupcake, cup cake, birthday cake, wedding cake, cheesecake, cheese cake, shortcake""",
    "chair": """
        chair, armchair, arm chair, stool, bar stool, barstool, rocking chair, lawn chair, office
        chair, desk chair, folding chair, beach chair, high chair, highchair, recliner""",
    "couch": "couch, sofa, loveseat, love seat, settee, futon, couch bed, sofa bed",
    "potted plant": """
        potted plant, houseplant, house plant, plant in a pot, plant in a vase, pot plant, potted
        flower, potted tree""",
    "bed": "bed, bunk bed, bunkbed, double bed, hospital bed",
    "dining table": """
        table, dining table, dinner table, coffee table, kitchen table, picnic table, end table,
        side table, desk, dining room table, computer desk, tabletop, table top""",
    "toilet": "toilet, urinal, commode, toilet seat, toilet bowl, toilet stall",
    "tv": """
        tv, television, tv set, television set, flat screen tv, flat screen, flatscreen, monitor,
        computer monitor, computer screen, tv screen, television screen, t.v., hdtv""",
    "laptop": "laptop, laptop computer, lap top, lap top computer, notebook computer, macbook",
    "mouse": "mouse, computer mouse",
    "remote": """
        remote, remote control, wii remote, wii controller, game controller, video game
        controller, controller, wiimote, nintendo wii controller, nintendo wii remote""",
    "keyboard": "keyboard, key board, computer keyboard",
    "cell phone": """
        cell phone, cellphone, cellular phone, phone, telephone, smartphone, smart phone, mobile
        phone, iphone, flip phone, cell""",
    "microwave": "microwave, microwave oven",
    "oven": "oven, stove, stove top, stovetop, toaster oven, pizza oven, stove top oven",
    "toaster": "toaster",
    "sink": "sink, kitchen sink, bathroom sink, wash basin, washbasin, sink bowl",
    "refrigerator": "refrigerator, fridge, refridgerator, refrigerater, freezer, mini fridge",
    "book": "book, novel, textbook, cookbook, text book, cook book",
    "clock": "clock, alarm clock, clock tower, wall clock, grandfather clock, clock face",
    "vase": "vase",
    "scissors": "!scissors, scissor, pair of scissors",
    "teddy bear": """
        teddy bear, teddybear, teddy, stuffed bear, toy bear, plush bear, stuffed teddy bear,
        stuffed animal, stuffed toy, plush toy, plush animal""",
    "hair drier": "hair drier, hair dryer, hairdryer, hairdrier, blow dryer, blow drier, blowdryer",
    "toothbrush": "toothbrush, tooth brush, electric toothbrush",
}
"""The kinds, by COCO's names and in its order, and the phrases that name them, separated by commas.
A phrase after "!" has no other plural."""

CLASSES = tuple(PHRASES)
"""COCO's names of the kinds, in its order."""

_NOT_OBJECTS = """
    couple of, family of, crowd of, pitcher of, record player, dvd player, cd player, music
    player, mp3 player, video player, cowboy hat, cowboy boot, chef hat, baseball field, baseball
    game, cable car, car park, car seat, car door, car mirror, bus stop, bus station, bus shelter,
    bus lane, bus terminal, train station, train track, train yard, train platform, subway
    station, trolley track, truck stop, boat dock, boat house, bird house, bird bath, bird feeder,
    bird cage, dog house, dog bed, dog bowl, dog food, dog tag, cat food, horse shoe, horse
    racing, cow bell, toilet paper, toilet brush, toilet tissue, toilet roll, flower bed, bed
    room, bed spread, bed sheet, table cloth, table lamp, table tennis, tennis table, ping pong
    table, book shelf, book case, book store, bottle opener, bottle cap, pizza box, pizza cutter,
    pizza pan, cake pan, cake stand, phone booth, telephone booth, phone pole, telephone pole,
    knife block, chair lift, jet bridge, jet ski, jet way, kite board, bike rack, bike lane, bike
    path, bicycle rack, bike helmet, motorcycle helmet, orange juice, orange cone, orange tree,
    apple juice, apple pie, apple tree, banana split, banana bread, oven mitt, cup board, semi
    circle, tie dye, mickey mouse, minnie mouse, bull horn, notebook paper, stuffed pepper
"""
"""Phrases with a word of a kind in them that name nothing of that kind: they hide the word."""

_IRREGULAR = {
    "man": "men",
    "woman": "women",
    "child": "children",
    "person": "people",
    "gentleman": "gentlemen",
    "fisherman": "fishermen",
    "policeman": "policemen",
    "fireman": "firemen",
    "businessman": "businessmen",
    "goose": "geese",
    "mouse": "mice",
    "knife": "knives",
    "wife": "wives",
    "ox": "oxen",
    "calf": "calves",
    "sheep": "sheep",
}

_YOUNG = frozenset(
    (
        "baby",
        "adult",
        "male",
        "female",
        "mother",
        "father",
        "mom",
        "mama",
        "momma",
        "mommy",
        "newborn",
        "infant",
    )
)
"""Nouns for people that describe the noun they precede: "a baby elephant", "baby carrots"."""

_FAKE = frozenset(("stuffed", "toy", "plush", "teddy", "plushie"))
"""An animal after one of these is a toy, which COCO's annotators call a teddy bear."""

_ANIMALS = frozenset(
    ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe")
)

_COLOURS = frozenset(
    (
        "white",
        "black",
        "blue",
        "red",
        "green",
        "yellow",
        "brown",
        "gray",
        "grey",
        "pink",
        "purple",
        "orange",
        "silver",
        "tan",
        "gold",
    )
)
_AFTER_A_FRUIT = frozenset(
    (
        "and",
        "or",
        "on",
        "in",
        "with",
        "of",
        "at",
        "by",
        "next",
        "near",
        "sitting",
        "is",
        "are",
        "that",
        "from",
        "to",
        "cut",
        "beside",
        "behind",
        "for",
        "under",
        "inside",
        "between",
        "it",
        "'s",
        "has",
        "hanging",
        "sliced",
        "peeled",
        "lying",
        "laying",
        "sits",
    )
)


class Mention(NamedTuple):
    """A phrase of a caption that names a kind of object."""

    name: str
    """The kind: one of `CLASSES`."""

    start: int
    """Its first word."""

    end: int
    """The place after its last word."""


def find_objects(words: Iterable[str]) -> list[Mention]:
    """The objects that a caption names, in its order; a hyphen counts as a space.

    Args:
        words: Of the caption, in lower case and without punctuation, as the metrics count them.
    """
    whole = [str(word) for word in words]
    pieces = [(part, place) for place, word in enumerate(whole) for part in _parts(word)]
    plain = [part for part, _ in pieces]
    table, longest = _table()
    found = []
    place = 0
    while place < len(plain):
        for size in range(min(longest, len(plain) - place), 0, -1):
            name = table.get(" ".join(plain[place : place + size]))
            if name is None:
                continue
            if name and not _is_adjective(plain, place, size, name, table):
                start, end = pieces[place][1], pieces[place + size - 1][1] + 1
                toy = name in _ANIMALS and place > 0 and plain[place - 1] in _FAKE
                found.append(Mention("teddy bear" if toy else name, start, end))
            place += size
            break
        else:
            place += 1
    return found


def plural(phrase: str) -> str:
    """The plural of a phrase's last word, or of the noun before "of"."""
    head, of, rest = phrase.partition(" of ")
    before, _, word = head.rpartition(" ")
    if word in _IRREGULAR:
        word = _IRREGULAR[word]
    elif re.search("(s|x|z|ch|sh)$", word):
        word += "es"
    elif re.search("[^aeiou]y$", word):
        word = f"{word[:-1]}ies"
    else:
        word += "s"
    return f"{before} {word}".strip() + of + rest


@cache
def words_for_objects() -> Mapping[str, frozenset[str]]:
    """The kinds that each single word may name: "dog" also ends "hot dog"."""
    found: dict[str, set[str]] = {}
    table, _ = _table()
    for phrase, name in table.items():
        if name and " " not in phrase:
            found[phrase] = {name}
    for phrase, name in table.items():
        if name and (last := phrase.rpartition(" ")[2]) in found:
            found[last].add(name)
    return {word: frozenset(names) for word, names in found.items()}


@cache
def plural_forms(name: str) -> tuple[Sequence[str], Sequence[str]]:
    """The single words for a kind, in singular and in plural, that differ."""
    words = [" ".join(item.split()) for item in PHRASES.get(name, "").split(",")]
    pairs = [(word, plural(word)) for word in words if word and word[0] != "!" and " " not in word]
    differ = [pair for pair in pairs if pair[0] != pair[1]]
    return [one for one, _ in differ], [many for _, many in differ]


@cache
def _table() -> tuple[dict[str, str], int]:
    """The kind of every phrase, singular and plural, "" for no object; and its most words."""
    table: dict[str, str] = {}
    for name, text in [("", _NOT_OBJECTS), *PHRASES.items()]:
        for phrase in (" ".join(item.split()) for item in text.split(",")):
            for form in [phrase[1:]] if phrase[0] == "!" else [phrase, plural(phrase)]:
                table.setdefault(form, name)
    return table, max(len(phrase.split()) for phrase in table)


def _parts(word: str) -> list[str]:
    return [part for part in word.split("-") if part] or [word]


def _is_adjective(
    words: Sequence[str], place: int, size: int, name: str, table: Mapping[str, str]
) -> bool:
    """Whether a phrase only describes: "a baby elephant", "an orange cat", "orange and white"."""
    after = words[place + size : place + size + 2]
    if words[place] == "orange" and size == 1:
        if not after or (after[0] == "and" and (len(after) < 2 or after[1] in _COLOURS)):
            return bool(after)
        before = words[place - 1] if place else ""
        return after[0] not in _AFTER_A_FRUIT or before in _COLOURS
    if name == "person" and size == 1 and words[place] in _YOUNG and after:
        kinds = {table.get(after[0], ""), table.get(" ".join(after), "")}
        return bool(kinds - {"", "person"})
    return False
