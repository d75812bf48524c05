"""`/v1/caption` with a fake model of known captions."""

import asyncio
import base64
import json

import pytest

from ngsan.app.options import option_fields, read_options
from ngsan.app.settings import ServeSettings
from ngsan.cli.caption import CAPTION
from ngsan.cli.parser import DECODING, decoding_of
from ngsan.config import DecodingConfig
from ngsan.predict.captioner import PHOTO_DECODING
from tests.app.stand_in import (
    PLAIN,
    GatedPainter,
    ask,
    client_of,
    file_of,
    make_app,
    wait_until,
    waiting,
)
from tests.predict.painter import open_painter
from tests.predict.test_photos import pictures


@pytest.fixture(scope="module")
def app():
    return make_app()


def form(*files, **fields):
    return {"files": [("image", ("a.png", file)) for file in files], "data": fields}


def base64_of(content):
    return base64.b64encode(content).decode()


def test_form_and_json_give_equal_answers(app):
    file = file_of(kind="JPEG", quality=95)
    wanted = open_painter().caption(file)
    for request in (form(file), {"json": {"image": base64_of(file)}}):
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
    answer = ask(app, "POST", "/v1/caption", json={"images": [base64_of(file) for file in files]})
    assert [result["caption"] for result in answer.json()["results"]] == names


@pytest.mark.parametrize(
    ("fields", "decoding"),
    [
        ({"num_return": "3"}, {"num_return": 3}),
        ({"num_return": "5"}, {"num_return": 5, "beam": 5}),
        ({"beam": "2", "max_length": "3"}, {"beam": 2, "max_length": 3}),
        (
            {
                "method": "sample",
                "num_return": "3",
                "seed": "7",
                "temperature": "2.5",
                "top_k": "4",
            },
            dict(method="sample", num_return=3, seed=7, temperature=2.5, top_k=4),
        ),
        ({"prefix": "White", "forbid": "red blue"}, {"prefix": "white", "forbid": "red blue"}),
        (
            {"no_bad_ending": "false", "length_penalty": "0.5"},
            dict(length_penalty=0.5, no_bad_ending=False),
        ),
    ],
)
def test_options_equal_those_of_the_captioner(app, fields, decoding):
    images, names = pictures(3)
    decoding_config = DecodingConfig(**{"no_repeat_ngram": 3, "no_bad_ending": True} | decoding)
    wanted = open_painter().caption(images, **vars(decoding_config))
    answer = ask(app, "POST", "/v1/caption", **form(*map(file_of, names), **fields))
    for result, caption in zip(answer.json()["results"], wanted, strict=True):
        assert result["caption"] == caption.text
        found = [(other["caption"], other["score"]) for other in result["others"]]
        expected = [(other.text, pytest.approx(other.score, abs=1e-5)) for other in caption.others]
        assert found == expected


def test_attention_has_one_row_per_word(app):
    answer = ask(app, "POST", "/v1/caption", **form(file_of(), attention="true"))
    rows = answer.json()["results"][0]["attention"]
    assert rows == [[float(cell == word) for cell in range(4)] for word in range(4)]


def test_objects_are_found_if_asked_for(app):
    files = [file_of(), file_of("black white black red"), file_of("black black black black")]
    answer = ask(app, "POST", "/v1/caption", **form(*files, objects="true"))
    wanted = [[one.as_record() for one in open_painter().objects(file)] for file in files]
    assert [result["objects"] for result in answer.json()["results"]] == wanted
    assert [one["label"] for one in wanted[0]] == ["red", "green", "blue"]
    assert wanted[2] == []
    plain = ask(app, "POST", "/v1/caption", **form(*files)).json()
    assert all("objects" not in result for result in plain["results"])


def test_options_and_defaults_equal_the_command_line():
    for line in [
        "",
        "--beam 7",
        "--num-return 4",
        "--num-return 2 --beam 3 --length-penalty 0.7",
        "--beam 4 --groups 2 --diversity 0.3",
        "--method sample --num-return 4 --temperature 0.5 --top-k 9 --top-p 0.8 --seed 12",
        "--max-length 12 --min-length 4 --no-repeat-ngram 2 --bad-ending",
        "--prefix A --forbid Dog --require Cat",
    ]:
        parsed = CAPTION.parser("caption").parse_args(["a.jpg", *line.split()])
        wanted = decoding_of(parsed, PHOTO_DECODING)
        words = line.replace("--bad-ending", "--no_bad_ending false").split()
        names = [word.removeprefix("--").replace("-", "_") for word in words[::2]]
        given = dict(zip(names, words[1::2], strict=True))
        assert read_options(given, ServeSettings(), from_form=True).decoding == wanted
        texts = ("prefix", "forbid", "require", "method")
        values = {name: text if name in texts else json.loads(text) for name, text in given.items()}
        assert read_options(values, ServeSettings(), from_form=False).decoding == wanted


def test_all_command_line_options_are_supported():
    names = {name.replace("-", "_") for name in DECODING if name != "bad-ending"}
    own = {"no_bad_ending", "attention", "quality", "objects", "keywords", "model"}
    assert set(option_fields(ServeSettings()).model_fields) == names | own


WRONG_FORMS = [
    ({"beam": "0"}, "beam: Input should be greater than or equal to 1"),
    ({"beam": "17"}, "beam: Input should be less than or equal to 16"),
    ({"beam": "three"}, "beam: Input should be a valid integer"),
    ({"beam": "3.5"}, "beam: Input should be a valid integer"),
    ({"num_return": "4", "beam": "2"}, "num_return 4: beam 2 finds fewer"),
    ({"method": "sample", "beam": "2"}, "beam does not apply to method sample"),
    ({"seed": "2"}, "seed applies only to method sample"),
    ({"temperature": "nan", "method": "sample"}, "temperature: Input should be a finite number"),
    (
        {"temperature": "0", "method": "sample"},
        "temperature: Input should be greater than or equal to 0.01",
    ),
    ({"top_p": "0", "method": "sample"}, "top_p: Input should be greater than"),
    ({"attention": "maybe"}, "attention: Input should be a valid boolean"),
    ({"min_length": "9", "max_length": "3"}, "min_length: 9 is above max_length: 3"),
    ({"prefix": "unicorn"}, "prefix: 'unicorn' is not a word of the model"),
    ({"prefix": "red " * 51}, "more than 50 words"),
    ({"forbid": "red" * 1000}, "forbid: String should have at most 1000 characters"),
    ({"model": "other"}, "only 'painter'"),
    ({"colour": "red"}, "colour: Extra inputs are not permitted"),
    ({"beam": ["2", "3"]}, "'beam' more than once"),
    ({"forbid": "black white red green blue grey of", "min_length": "1"}, "forbid"),
]


def test_required_words_times_beam_are_limited(app):
    words = {count: ["red", "green", "blue"][:count] for count in (1, 3)}
    for beam, count, status in ((16, 1, 200), (16, 3, 422), (8, 3, 200)):
        fields = {"beam": beam, "require": " ".join(words[count])}
        answer = ask(app, "POST", "/v1/caption", **form(file_of(), **fields))
        assert answer.status_code == status, answer.json()
    answer = ask(app, "POST", "/v1/caption", **form(file_of(), beam=16, require="a b c d e f"))
    assert "require: with a beam of 16, 6 words make a search follow 112" in answer.json()["error"]


@pytest.mark.parametrize(("fields", "message"), WRONG_FORMS)
def test_invalid_options_raise(app, fields, message):
    answer = ask(app, "POST", "/v1/caption", **form(file_of(), **fields))
    assert answer.status_code == 422
    assert list(answer.json()) == ["error"]
    assert message.lower() in answer.json()["error"].lower()


WRONG_JSON = [
    ("{", 400, "not JSON"),
    ("[" * 50_000, 400, "nested too deeply"),
    ("[" * 100_000, 413, "besides the photographs"),
    ("\xff", 400, "not JSON"),
    ("[]", 422, "must be an object"),
    ("{}", 422, "no photograph"),
    ('{"images": []}', 422, "no photograph"),
    ('{"images": "abcd"}', 422, "must be a list"),
    ('{"image": 3}', 422, "image must be a file in base64"),
    ('{"images": ["abcd", null]}', 422, "images[1] must be a file in base64"),
    ('{"image": "ab", "images": []}', 422, "not both"),
    ('{"image": "not base64!"}', 422, "not base64"),
    ('{"image": "YWJj"}', 422, "unsupported image format"),
    ('{"image": "YWJj", "beam": "3"}', 422, "beam: Input should be a valid integer"),
    ('{"image": "YWJj", "beam": true}', 422, "beam: Input should be a valid integer"),
    ('{"image": "YWJj", "length_penalty": 1e999}', 422, "finite number"),
    (f'{{"image": "YWJj", "beam": 1{"0" * 400}}}', 422, "less than or equal to 16"),
    (
        f'{{"image": "YWJj", "seed": -1{"0" * 400}, "method": "sample"}}',
        422,
        "greater than or equal to -9",
    ),
    ('{"image": "YWJj", "prefix": "\\ud800"}', 422, "valid string"),
    ('{"image": "YWJj", "\\ud800": 1}', 422, "valid string"),
    (json.dumps({"images": ["YWJj"] * 17}), 422, "17 photographs are more than the limit 16"),
]


@pytest.mark.parametrize(("body", "status", "message"), WRONG_JSON)
def test_invalid_json_raises(app, body, status, message):
    headers = {"content-type": "application/json"}
    content = body.encode("latin-1")
    answer = ask(app, "POST", "/v1/caption", content=content, headers=headers)
    assert answer.status_code == status
    assert message.lower() in answer.json()["error"].lower()


@pytest.mark.parametrize(
    ("kind", "body", "status", "message"),
    [
        ("", b"", 415, "send multipart/form-data"),
        ("image/png", b"\x89PNG", 415, "send multipart/form-data"),
        ("application/x-www-form-urlencoded", b"image=a", 415, "send multipart/form-data"),
        ("multipart/form-data", b"--a--", 400, "no boundary"),
        (f"multipart/form-data; boundary={'x' * 300}", b"", 400, "malformed form"),
        ("multipart/form-data; boundary=a", b"", 400, "ends too early"),
        ("multipart/form-data; boundary=a", b"nonsense", 400, "malformed form"),
        ("multipart/form-data; boundary=a", b"--a\r\nA: b\r\n\r\nc\r\n--a--", 400, "no name"),
        (
            "multipart/form-data; boundary=a",
            b'--a\r\nContent-Disposition: form-data; name="image"\r\n\r\nhalf of',
            400,
            "ends too early",
        ),
        (
            "multipart/form-data; boundary=a",
            b'--a\r\nContent-Disposition: form-data; name="image"\r\n'
            b"Content-Transfer-Encoding: base64\r\n\r\nYWJj\r\n--a--",
            415,
            "without a transfer encoding",
        ),
        (
            "multipart/form-data; boundary=a",
            b'--a\r\nContent-Disposition: form-data; name="image"\r\n\r\nb\r\n' * 60 + b"--a--",
            422,
            "parts",
        ),
    ],
)
def test_invalid_bodies_raise(app, kind, body, status, message):
    answer = ask(app, "POST", "/v1/caption", content=body, headers={"content-type": kind})
    assert answer.status_code == status
    assert message.lower() in answer.json()["error"].lower()


def test_invalid_photograph_error_names_it(app):
    answer = ask(app, "POST", "/v1/caption", **form(file_of(), b"unsupported image", file_of()))
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("Photograph 2 of 3: unsupported image")


def test_server_limits_are_enforced():
    app = make_app(max_upload_bytes=3000, max_images=2, max_pixels=64 * 48 - 1, max_beam=2)
    assert ask(app, "POST", "/v1/caption", **form(bytes(4000))).status_code == 413
    assert ask(app, "POST", "/v1/caption", **form(b"", b"", b"")).status_code == 422
    answer = ask(app, "POST", "/v1/caption", **form(file_of()))
    assert (answer.status_code, "64 x 48" in answer.text) == (422, True)
    assert ask(app, "POST", "/v1/caption", **form(file_of(), beam="3")).status_code == 422


def test_requests_are_batched():
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
            # All are decoded, and in the queue or in the blocked model.
            await wait_until(lambda: painter.given + len(app.state.context.batcher) == 21)
            painter.gate.set()
            return await asyncio.gather(*tasks)

    found = [answer.json()["results"][0]["caption"] for answer in asyncio.run(go())]
    assert found == names
    assert sum(painter.batches) == 21
    assert len(painter.batches) <= 4  # the first alone, then batches of up to 8
    assert max(painter.batches) == 8


def test_two_workers_process_two_batches():
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
            await wait_until(lambda: painter.given + len(app.state.context.batcher) == 16)
            painter.gate.set()
            return await asyncio.gather(*tasks)

    found = [answer.json()["results"][0]["caption"] for answer in asyncio.run(go())]
    assert found == names
    assert sum(painter.batches) == 16
    assert max(painter.batches) == 4


def test_different_options_are_not_mixed_and_samples_do_not_depend_on_others():
    painter = GatedPainter()
    app = make_app(painter)
    _, names = pictures(6)
    decodings = [
        {},
        {"beam": "2"},
        {"method": "sample", "num_return": "2", "seed": "3", "temperature": "9"},
    ] * 2
    alone = [
        ask(app, "POST", "/v1/caption", **form(file_of(n), **w))
        for n, w in zip(names, decodings, strict=True)
    ]

    async def go():
        async with client_of(app) as client:
            painter.gate.clear()
            tasks = [
                asyncio.create_task(client.post("/v1/caption", **form(file_of(n), **w)))
                for n, w in zip(names, decodings, strict=True)
            ]
            await wait_until(lambda: waiting(app) == 6)
            painter.gate.set()
            return await asyncio.gather(*tasks)

    assert [one.json() for one in asyncio.run(go())] == [one.json() for one in alone]


def test_full_queue_answers_429():
    painter = GatedPainter()
    app = make_app(painter, queue_size=3)

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


def test_requests_time_out():
    painter = GatedPainter()
    app = make_app(painter, request_timeout=0.3)
    painter.gate.clear()
    answer = ask(app, "POST", "/v1/caption", **form(file_of()))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert waiting(app) == 0
    painter.gate.set()
    assert ask(app, "POST", "/v1/caption", **form(file_of())).status_code == 200


def test_disconnected_client_leaves_the_queue():
    painter = GatedPainter()
    app = make_app(painter)

    async def go():
        async with client_of(app) as client:
            painter.gate.clear()
            first = asyncio.create_task(client.post("/v1/caption", **form(file_of())))
            await asyncio.to_thread(painter.entered.wait, 10)
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


def test_one_failure_does_not_affect_the_batch():
    class FailingPainter(GatedPainter):
        def describe(self, images):
            features = super().describe(images)
            if (images.reshape(len(images), -1).mean(1) < 1).any():
                raise RuntimeError("secret")
            return features

    painter = FailingPainter()
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


def test_shipped_model():
    from ngsan.app.app import build_app
    from ngsan.examples import EXAMPLES

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
