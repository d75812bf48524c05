"""Malicious files and request bodies."""

import asyncio
import base64
import io
import json
import random
import struct
import time
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ngsan.app.app import build_app
from ngsan.app.options import option_fields
from ngsan.app.settings import ServeSettings
from tests.app.stand_in import (
    PLAIN,
    GatedPainter,
    ask,
    card_of,
    client_of,
    file_of,
    make_app,
)
from tests.hostile import files

KINDS = {"JPEG": {}, "PNG": {}, "GIF": {}, "BMP": {}, "TIFF": {}, "WEBP": {}}
PROGRESSIVE = {"progressive": True, "quality": 90}


def originals():
    files = [file_of(kind=kind, **save_options) for kind, save_options in KINDS.items()]
    return [*files, file_of(kind="JPEG", **PROGRESSIVE)]


def mutated(file, rng):
    """A file with a few bytes changed, removed, duplicated or inserted, or truncated."""
    content = bytearray(file)
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(content) or 1)
        length = rng.choice((1, 1, 2, 4, 32))
        what = rng.randrange(6)
        if what < 3:
            content[place : place + length] = rng.randbytes(length)
        elif what == 3:
            del content[place : place + length]
        elif what == 4:
            content[place:place] = content[place : place + length]
        elif rng.random() < 0.3:
            del content[place:]
        else:
            content[place : place + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0"))
    return bytes(content)


def test_mutated_files_give_captions_or_errors():
    app, rng, good = make_app(), random.Random(0), originals()

    async def go():
        async with client_of(app) as client:
            limit = asyncio.Semaphore(20)

            async def send(number):
                content = mutated(good[number % len(good)], rng)
                async with limit:
                    return await client.post("/v1/caption", files={"image": content})

            answers = await asyncio.gather(*(send(number) for number in range(300)))
            last = await client.post("/v1/caption", files={"image": file_of()})
            return answers, last

    answers, last = asyncio.run(go())
    statuses = {answer.status_code for answer in answers}
    assert statuses == {200, 422}
    for answer in answers:
        if answer.status_code == 422:
            (sentence,) = answer.json().values()
            assert sentence.endswith(".")
            assert "Traceback" not in sentence
    assert last.json()["results"][0]["caption"] == PLAIN


def chunk(name, content):
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


def png(width, height, *chunks):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IEND", b"")


def test_decompression_bombs_and_other_formats_are_rejected():
    app = make_app()
    zeros = zlib.compress(bytes(50_000_000))
    bombs = {
        "pixels": png(60_000, 60_000, chunk(b"IDAT", zeros)),
        "more pixels": png(2**31 - 1, 2**31 - 1, chunk(b"IDAT", zeros)),
        "text": png(8, 8, chunk(b"zTXt", b"a\0\0" + zeros), chunk(b"IDAT", zeros[:99])),
        "profile": png(8, 8, chunk(b"iCCP", b"a\0\0" + zeros), chunk(b"IDAT", zeros[:99])),
        "nothing": b"",
        "web page": b"<!DOCTYPE html><script>alert(1)</script>",
        "drawing": b'<svg xmlns="http://www.w3.org/2000/svg"></svg>',
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "archive": b"PK\x03\x04" + bytes(500),
        "signature only": b"\x89PNG\r\n\x1a\n",
    }
    for name, content in bombs.items():
        answer = ask(app, "POST", "/v1/caption", files={"image": content})
        assert answer.status_code == 422, name
    assert ask(app, "POST", "/v1/caption", files={"image": file_of()}).status_code == 200


def test_many_frames_are_not_decoded():
    frames = [Image.new("RGB", (64, 48), (shade, 0, 0)) for shade in range(100)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    assert ask(make_app(), "POST", "/v1/caption", files={"image": file.getvalue()}).is_success


def counter(app, name):
    """The value of a counter in the metrics."""
    text = ask(app, "GET", "/metrics").text
    (value,) = (line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} "))
    return float(value)


def test_photograph_that_takes_long_is_an_error_and_is_counted():
    made = ServeSettings(workers=1, decode_timeout=0.2, decoders=2)
    app = build_app(made, model=card_of(GatedPainter()))
    slow = files.progressive_scans(190, 2000)

    async def go():
        async with client_of(app) as client, client_of(app, "127.0.0.2") as other:
            sent = [("image", slow)] * 2
            bad = asyncio.create_task(client.post("/v1/caption", files=sent, timeout=60))
            await asyncio.sleep(0.2)
            good = await other.post("/v1/caption", files={"image": file_of()}, timeout=60)
            return bad.done(), good.status_code, (await bad)

    early, good, bad = asyncio.run(go())
    assert (early, good, bad.status_code) == (False, 200, 422)
    assert "decoding took more than 0.2 seconds" in bad.json()["error"]
    reasons = {
        reason: counter(app, f'ngsan_decoders_stopped_total{{reason="{reason}"}}')
        for reason in ("time", "memory", "crash")
    }
    assert reasons == {"time": 2, "memory": 0, "crash": 0}
    assert counter(app, "ngsan_decoding_seconds_count") == 3
    assert ask(app, "POST", "/v1/caption", files={"image": file_of()}).is_success
    app.state.context.decoding.close()


def test_rejected_at_once():
    """Files whose parts are counted before a decoder sees them."""
    app = make_app()
    for content in (
        files.jpeg_scans(1500, 900),
        files.jpeg_scans(2000, 900, frame=0xC9),
        files.jpeg_segments(300_000),
        files.tiff_strips(1_000_000),
        files.tiff_tile(9000),
        files.gif_comments(100_000),
        png(1, 10_000_000, chunk(b"IDAT", zlib.compress(bytes(20_000_000)))),
    ):
        start = time.process_time()
        answer = ask(app, "POST", "/v1/caption", files={"image": content})
        assert answer.status_code == 422
        assert time.process_time() - start < 2


def test_a_boundary_within_a_form_ends_it():
    """The parser would look at each for as long as at thousands of bytes."""
    head = b'--e\r\nContent-Disposition: form-data; name="image"\r\n\r\n'
    kind = {"content-type": "multipart/form-data; boundary=e"}
    body = head + b"\r\n--eX" * 1_000_000
    answer = ask(make_app(), "POST", "/v1/caption", content=body, headers=kind)
    assert (answer.status_code, "boundary" in answer.json()["error"]) == (422, True)
    options = {name: ("", value) for name, value in {"beam": "2", "max_length": "9"}.items()}
    many = [*options.items(), *[("image", file_of())] * 16]
    assert ask(make_app(), "POST", "/v1/caption", files=many).is_success


def test_names_of_a_query_are_counted_once():
    app = make_app()
    names = "&".join(f"{number:x}" for number in (*range(12_000), 11_999))
    start = time.process_time()
    answer = ask(app, "GET", f"/v1/bias?model=g-san&{names}")
    seconds = time.process_time() - start
    assert "2edf: it is given 2 times" in answer.json()["error"]
    assert seconds < 0.4


APP = make_app()
NAMES = [*option_fields(ServeSettings()).model_fields, "image", "images", "caption", "else"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
PIECES = [
    b"--a\r\n",
    b"--a--",
    b"\r\n",
    b"--a",
    b"\r\n--a\r\n",
    b"\r\n--a--\r\n",
    b"\r",
    b": x",
    b'Content-Disposition: form-data; name="image"\r\n\r\n',
    b'Content-Disposition: form-data; name="beam"\r\n\r\n3',
    file_of()[:80],
    b"\0",
]
KNOWN = {200, 400, 413, 415, 422}


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5), st.booleans())
def test_any_json_gets_an_answer(content, with_image):
    if with_image:
        content.pop("images", None)
        content["image"] = base64.b64encode(file_of()).decode()
    headers = {"content-type": "application/json"}
    answer = ask(APP, "POST", "/v1/caption", content=json.dumps(content), headers=headers)
    assert answer.status_code in KNOWN
    assert ("error" in answer.json()) != answer.is_success


@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from(PIECES) | st.binary(max_size=9),
        max_size=12,
    )
)
def test_any_form_gets_an_answer(pieces):
    headers = {"content-type": "multipart/form-data; boundary=a"}
    answer = ask(APP, "POST", "/v1/caption", content=b"".join(pieces), headers=headers)
    assert answer.status_code in KNOWN - {200}
    assert list(answer.json()) == ["error"]


def test_form_parsing_does_not_depend_on_chunk_size():
    file = file_of(kind="JPEG")
    form = b'--a\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
    form += file + b"\r\n--a--\r\n"

    for size in (1, 2, 3, 7, 64, 1000):

        async def pieces(size=size):
            for start in range(0, len(form), size):
                yield form[start : start + size]

        headers = {"content-type": "multipart/form-data; boundary=a"}
        answer = ask(APP, "POST", "/v1/caption", content=pieces(), headers=headers)
        assert answer.json()["results"][0]["caption"] == PLAIN
