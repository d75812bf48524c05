"""`/v1/caption` with a model whose right answers are known."""

import asyncio
import base64
import json

import pytest

from ngsan.commands import caption as command
from ngsan.config import DecodingConfig
from ngsan.light.photos import PHOTO_DECODING
from ngsan.serve.options import options, read_options
from ngsan.serve.settings import ServeSettings
from tests.light.painter import open_painter
from tests.light.test_photos import pictures
from tests.serve.stand_in import (
    PLAIN,
    GatedPainter,
    ask,
    client_of,
    file_of,
    make_app,
    wait_until,
    waiting,
)


@pytest.fixture(scope="module")
def app():
    return make_app()


def form(*files, **fields):
    return {"files": [("image", ("a.png", file)) for file in files], "data": fields}


def coded(content):
    return base64.b64encode(content).decode()


def test_a_form_and_json_say_the_same(app):
    file = file_of(kind="JPEG", quality=95)
    wanted = open_painter().caption(file)
    for request in (form(file), {"json": {"image": coded(file)}}):
        answer = ask(app, "POST", "/v1/caption", **request)
        assert answer.status_code == 200
        content = answer.json()
        assert content["model"] == "painter"
        (result,) = content["results"]
        assert result["caption"] == wanted.text == PLAIN
        assert result["words"] == PLAIN.split()
        assert result["score"] == pytest.approx(wanted.score, abs=1e-5)
        assert (result["width"], result["height"]) == (64, 48)
        assert result["others"] == []
        assert "attention" not in result


def test_several_photographs_keep_their_order(app):
    _, names = pictures(16)
    files = [file_of(text) for text in names]
    answer = ask(app, "POST", "/v1/caption", **form(*files))
    assert [result["caption"] for result in answer.json()["results"]] == names
    answer = ask(app, "POST", "/v1/caption", json={"images": [coded(file) for file in files]})
    assert [result["caption"] for result in answer.json()["results"]] == names


@pytest.mark.parametrize(
    ("fields", "decoding"),
    [
        ({"n_best": "3"}, {"best": 3}),
        ({"n_best": "5"}, {"best": 5, "beam": 5}),
        ({"beam": "2", "longest": "3"}, {"beam": 2, "longest": 3}),
        (
            {"sample": "3", "seed": "7", "temperature": "2.5", "top_k": "4"},
            dict(method="sample", samples=3, seed=7, temperature=2.5, top_k=4),
        ),
        ({"prefix": "White", "forbid": "red blue"}, {"prefix": "white", "forbid": "red blue"}),
        ({"bad_ending": "true", "length_penalty": "0.5"}, dict(length_penalty=0.5)),
    ],
)
def test_options_do_what_they_do_elsewhere(app, fields, decoding):
    images, names = pictures(3)
    how = DecodingConfig(**{"no_repeat": 3, "no_bad_ending": "bad_ending" not in fields} | decoding)
    wanted = open_painter().caption(images, decoding=how)
    answer = ask(app, "POST", "/v1/caption", **form(*map(file_of, names), **fields))
    for result, caption in zip(answer.json()["results"], wanted, strict=True):
        assert result["caption"] == caption.text
        found = [(other["caption"], other["score"]) for other in result["others"]]
        expected = [(other.text, pytest.approx(other.score, abs=1e-5)) for other in caption.others]
        assert found == expected


def test_attention_has_a_row_a_word(app):
    answer = ask(app, "POST", "/v1/caption", **form(file_of(), attention="true"))
    rows = answer.json()["results"][0]["attention"]
    assert rows == [[float(cell == word) for cell in range(4)] for word in range(4)]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--beam 7",
        "--n-best 4",
        "--n-best 2 --beam 3 --length-penalty 0.7",
        "--sample 4 --temperature 0.5 --top-k 9 --top-p 0.8 --seed 12",
        "--longest 12 --fewest 4 --no-repeat 2 --bad-ending",
        "--prefix A --forbid Dog",
    ],
)
def test_options_and_defaults_are_those_of_the_command_line(line):
    wanted = command._decoding(command._parser().parse_args(["a.jpg", *line.split()]))
    words = line.replace("--bad-ending", "--bad-ending true").split()
    names = [word.removeprefix("--").replace("-", "_") for word in words[::2]]
    given = dict(zip(names, words[1::2], strict=True))
    assert read_options(given, ServeSettings(), texts=True).decoding == wanted
    values = {
        name: text if name in ("prefix", "forbid") else json.loads(text)
        for name, text in given.items()
    }
    assert read_options(values, ServeSettings(), texts=False).decoding == wanted
    assert read_options({}, ServeSettings(), texts=True).decoding == PHOTO_DECODING


def test_every_option_of_the_command_line_is_there():
    # Of files, machines and clips; the server captions photographs.
    own = {"json", "csv", "explain", "device", "threads", "batch_size", "frames"}
    names = {name.replace("-", "_") for name, *_ in command._OPTIONS} - own
    assert set(options(ServeSettings())) == {*names, "bad_ending", "attention"}


WRONG_FORMS = [
    ({"beam": "0"}, "beam: 0 is below 1"),
    ({"beam": "17"}, "beam: 17 is above 16"),
    ({"beam": "three"}, "beam: 'three' is not a whole number"),
    ({"beam": "1_0"}, "beam: '1_0' is not a whole number"),
    ({"beam": "3.5"}, "not a whole number"),
    ({"n_best": "4", "beam": "2"}, "n_best: 4 captions cannot come from beam: 2"),
    ({"sample": "2", "beam": "2"}, "beam has no use with sample"),
    ({"seed": "2"}, "seed has a use with sample only"),
    ({"temperature": "nan", "sample": "1"}, "temperature: 'nan' is not a number"),
    ({"temperature": "0", "sample": "1"}, "temperature: 0 is below 0.01"),
    ({"top_p": "0", "sample": "1"}, "top_p: 0 is not above 0"),
    ({"attention": "maybe"}, "attention: 'maybe' is not true or false"),
    ({"fewest": "9", "longest": "3"}, "fewest: 9 is above longest: 3"),
    ({"prefix": "unicorn"}, "prefix: 'unicorn' is not a word of the model"),
    ({"prefix": "red " * 51}, "more than 50 words"),
    ({"forbid": "red" * 1000}, "3,000 letters are more than 1,000"),
    ({"model": "other"}, "only 'painter'"),
    ({"colour": "red"}, "there is no option 'colour'"),
    ({"beam": ["2", "3"]}, "'beam' more than once"),
    ({"forbid": "black white red green blue grey of", "fewest": "1"}, "forbid"),
]


@pytest.mark.parametrize(("fields", "said"), WRONG_FORMS)
def test_wrong_options(app, fields, said):
    answer = ask(app, "POST", "/v1/caption", **form(file_of(), **fields))
    assert answer.status_code == 422
    assert list(answer.json()) == ["error"]
    assert said.lower() in answer.json()["error"].lower()


WRONG_JSON = [
    ("{", 400, "no JSON"),
    ("[" * 100_000, 400, "no JSON"),
    ("\xff", 400, "no JSON"),
    ("[]", 422, "must be an object"),
    ("{}", 422, "no photograph"),
    ('{"images": []}', 422, "no photograph"),
    ('{"images": "abcd"}', 422, "must be a list"),
    ('{"image": 3}', 422, "image must be a file in base64"),
    ('{"images": ["abcd", null]}', 422, "images[1] must be a file in base64"),
    ('{"image": "ab", "images": []}', 422, "not both"),
    ('{"image": "not base64!"}', 422, "no base64"),
    ('{"image": "YWJj"}', 422, "no image"),
    ('{"image": "YWJj", "beam": "3"}', 422, "beam: '3' is not a whole number"),
    ('{"image": "YWJj", "beam": true}', 422, "beam: True is not a whole number"),
    ('{"image": "YWJj", "length_penalty": 1e999}', 422, "not a number"),
    (f'{{"image": "YWJj", "beam": 1{"0" * 400}}}', 422, "is above 16"),
    (f'{{"image": "YWJj", "seed": -1{"0" * 400}, "sample": 1}}', 422, "is below -9"),
    ('{"image": "YWJj", "prefix": "\\ud800"}', 422, "is not a word"),
    ('{"image": "YWJj", "\\ud800": 1}', 422, "no option"),
    (json.dumps({"images": ["YWJj"] * 17}), 422, "17 photographs are more than 16"),
]


@pytest.mark.parametrize(("body", "status", "said"), WRONG_JSON)
def test_wrong_json(app, body, status, said):
    headers = {"content-type": "application/json"}
    content = body.encode("latin-1")
    answer = ask(app, "POST", "/v1/caption", content=content, headers=headers)
    assert answer.status_code == status
    assert said.lower() in answer.json()["error"].lower()


@pytest.mark.parametrize(
    ("kind", "body", "status", "said"),
    [
        ("", b"", 415, "send multipart/form-data"),
        ("image/png", b"\x89PNG", 415, "send multipart/form-data"),
        ("application/x-www-form-urlencoded", b"image=a", 415, "send multipart/form-data"),
        ("multipart/form-data", b"--a--", 400, "no boundary"),
        (f"multipart/form-data; boundary={'x' * 300}", b"", 400, "cannot be read"),
        ("multipart/form-data; boundary=a", b"", 400, "breaks off"),
        ("multipart/form-data; boundary=a", b"nonsense", 400, "cannot be read"),
        ("multipart/form-data; boundary=a", b"--a\r\nA: b\r\n\r\nc\r\n--a--", 400, "no name"),
        (
            "multipart/form-data; boundary=a",
            b'--a\r\nContent-Disposition: form-data; name="image"\r\n\r\nhalf of',
            400,
            "breaks off",
        ),
        (
            "multipart/form-data; boundary=a",
            b'--a\r\nContent-Disposition: form-data; name="image"\r\n'
            b"Content-Transfer-Encoding: base64\r\n\r\nYWJj\r\n--a--",
            415,
            "without an encoding",
        ),
        (
            "multipart/form-data; boundary=a",
            b'--a\r\nContent-Disposition: form-data; name="image"\r\n\r\nb\r\n' * 40 + b"--a--",
            422,
            "more than 33 parts",
        ),
    ],
)
def test_wrong_bodies(app, kind, body, status, said):
    answer = ask(app, "POST", "/v1/caption", content=body, headers={"content-type": kind})
    assert answer.status_code == status
    assert said.lower() in answer.json()["error"].lower()


def test_a_bad_photograph_is_named(app):
    answer = ask(app, "POST", "/v1/caption", **form(file_of(), b"no image", file_of()))
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("Photograph 2 of 3: this is no image")


def test_limits_of_a_server():
    app = make_app(most_bytes=3000, most_images=2, most_pixels=64 * 48 - 1, most_beam=2)
    assert ask(app, "POST", "/v1/caption", **form(bytes(4000))).status_code == 413
    assert ask(app, "POST", "/v1/caption", **form(b"", b"", b"")).status_code == 422
    answer = ask(app, "POST", "/v1/caption", **form(file_of()))
    assert (answer.status_code, "64 x 48" in answer.text) == (422, True)
    assert ask(app, "POST", "/v1/caption", **form(file_of(), beam="3")).status_code == 422


def test_what_arrives_together_is_captioned_together():
    painter = GatedPainter()
    app = make_app(painter)
    _, names = pictures(21)

    async def go():
        async with client_of(app) as client:
            painter.gate.clear()
            tasks = [
                asyncio.create_task(client.post("/v1/caption", **form(file_of(text))))
                for text in names
            ]
            # All of them are decoded, and wait for the model or are before its gate.
            await wait_until(lambda: painter.given + len(app.state.desk.batcher) == 21)
            painter.gate.set()
            return await asyncio.gather(*tasks)

    found = [answer.json()["results"][0]["caption"] for answer in asyncio.run(go())]
    assert found == names
    assert sum(painter.batches) == 21
    assert len(painter.batches) <= 4  # what came first, and 8 at a time of all that came then
    assert max(painter.batches) == 8


def test_two_batches_at_a_time():
    painter = GatedPainter()
    app = make_app(painter, workers=2, batch_size=4)
    _, names = pictures(16)

    async def go():
        async with client_of(app) as client:
            painter.gate.clear()
            tasks = [
                asyncio.create_task(client.post("/v1/caption", **form(file_of(text))))
                for text in names
            ]
            await wait_until(lambda: painter.given + len(app.state.desk.batcher) == 16)
            painter.gate.set()
            return await asyncio.gather(*tasks)

    found = [answer.json()["results"][0]["caption"] for answer in asyncio.run(go())]
    assert found == names
    assert sum(painter.batches) == 16
    assert max(painter.batches) == 4


def test_different_options_are_not_mixed_and_samples_depend_on_nobody():
    painter = GatedPainter()
    app = make_app(painter)
    _, names = pictures(6)
    ways = [{}, {"beam": "2"}, {"sample": "2", "seed": "3", "temperature": "9"}] * 2
    alone = [
        ask(app, "POST", "/v1/caption", **form(file_of(n), **w))
        for n, w in zip(names, ways, strict=True)
    ]

    async def go():
        async with client_of(app) as client:
            painter.gate.clear()
            tasks = [
                asyncio.create_task(client.post("/v1/caption", **form(file_of(n), **w)))
                for n, w in zip(names, ways, strict=True)
            ]
            await wait_until(lambda: waiting(app) == 6)
            painter.gate.set()
            return await asyncio.gather(*tasks)

    assert [one.json() for one in asyncio.run(go())] == [one.json() for one in alone]


def test_a_full_queue_says_try_again():
    painter = GatedPainter()
    app = make_app(painter, queue=3)

    async def go():
        async with client_of(app) as client:
            painter.gate.clear()
            first = asyncio.create_task(client.post("/v1/caption", **form(file_of(), file_of())))
            await wait_until(lambda: waiting(app) == 2)
            second = await client.post("/v1/caption", **form(file_of(), file_of()))
            third = asyncio.create_task(client.post("/v1/caption", **form(file_of())))
            await wait_until(lambda: waiting(app) == 3)
            fourth = await client.post("/v1/caption", content=b"not even read")
            painter.gate.set()
            return second, fourth, await first, await third, await client.get("/healthz")

    second, fourth, *others = asyncio.run(go())
    for refused in (second, fourth):
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert "try again" in refused.json()["error"]
    assert [answer.status_code for answer in others] == [200, 200, 200]
    assert waiting(app) == 0


def test_what_takes_too_long_is_given_up():
    painter = GatedPainter()
    app = make_app(painter, answer_seconds=0.3)
    painter.gate.clear()
    answer = ask(app, "POST", "/v1/caption", **form(file_of()))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert waiting(app) == 0
    painter.gate.set()
    assert ask(app, "POST", "/v1/caption", **form(file_of())).status_code == 200


def test_who_hangs_up_leaves_the_queue():
    painter = GatedPainter()
    app = make_app(painter)

    async def go():
        async with client_of(app) as client:
            painter.gate.clear()
            first = asyncio.create_task(client.post("/v1/caption", **form(file_of())))
            await asyncio.to_thread(painter.begun.wait, 10)
            gone = [
                asyncio.create_task(client.post("/v1/caption", **form(file_of()))) for _ in range(5)
            ]
            await wait_until(lambda: waiting(app) == 6)
            for task in gone:
                task.cancel()
            await asyncio.gather(*gone, return_exceptions=True)
            assert waiting(app) == 1
            painter.gate.set()
            return await first

    assert asyncio.run(go()).status_code == 200
    assert painter.batches == [1]


def test_one_that_fails_strikes_nobody_else():
    class Choosy(GatedPainter):
        def describe(self, images):
            features = super().describe(images)
            if (images.reshape(len(images), -1).mean(1) < 1).any():
                raise RuntimeError("secret")
            return features

    painter = Choosy()
    app = make_app(painter)

    async def go():
        async with client_of(app) as client:
            painter.gate.clear()
            names = [PLAIN, "black black black black", PLAIN, PLAIN]
            tasks = [
                asyncio.create_task(client.post("/v1/caption", **form(file_of(text))))
                for text in names
            ]
            await wait_until(lambda: waiting(app) == 4)
            painter.gate.set()
            return await asyncio.gather(*tasks)

    answers = asyncio.run(go())
    assert [answer.status_code for answer in answers] == [200, 500, 200, 200]
    assert "secret" not in answers[1].text


def test_the_model_that_ships():
    from ngsan.examples import EXAMPLES
    from ngsan.serve.app import build_app

    app = build_app(ServeSettings(threads=1))
    files = [example.path.read_bytes() for example in EXAMPLES[:2]]
    answer = ask(app, "POST", "/v1/caption", **form(*files, attention="true")).json()
    assert answer["model"] == "coco"
    for result, example in zip(answer["results"], EXAMPLES, strict=False):
        from PIL import Image

        with Image.open(example.path) as image:
            assert (result["width"], result["height"]) == image.size
        assert result["grid"] == [8, 8]
        assert len(result["attention"]) == len(result["words"])
        assert all(len(row) == 64 and abs(sum(row) - 1) < 0.01 for row in result["attention"])
    model = ask(app, "GET", "/v1/models").json()["models"][0]
    assert (model["name"], model["kind"], model["default"]) == ("coco", "photo", True)
    assert (model["image_size"], model["grid"], model["vocabulary"]) == (256, [8, 8], 9488)
    assert model["metrics"]["CIDEr"] > 100
