"""What a hostile client sends to the server: whole requests, and connections that misbehave."""

import asyncio
import base64
import random
import struct
from contextlib import suppress

from PIL import Image

from tests.hostile import files
from tests.hostile.damage import damaged_bytes

JSON = "application/json"
FORM = "multipart/form-data; boundary=edge"
MB = 1 << 20


def request(path, kind="", body=b"", *, method=None, close=True):
    """The bytes of a request."""
    head = f"{method or ('POST' if body else 'GET')} {path} HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: {kind}\r\n" if kind else ""
    head += "Connection: close\r\n" if close else ""
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def form(*images, **options):
    """The body of a form with pictures."""
    part = '--edge\r\nContent-Disposition: form-data; name="{}"\r\n\r\n'
    fields = [(part.format(name) + f"{value}\r\n").encode() for name, value in options.items()]
    sent = [part.format("image").encode() + image + b"\r\n" for image in images]
    return b"".join([*fields, *sent, b"--edge--\r\n"])


def lossless_jpeg(scans, side=3000):
    """A lossless JPEG (SOF3) of several scans."""
    return files.jpeg_scans(scans, side, frame=0xC3)


def noisy_png(side):
    """A PNG whose pixels do not pack."""
    return files.saved(Image.effect_noise((side, side), 90), "PNG", compress_level=1)


def large_files():
    """The worst files by name: small to send and expensive to read, or as large as allowed."""
    photo = files.saved(Image.effect_noise((1200, 900), 60).convert("RGB"), "JPEG", quality=85)
    return {
        "scans": files.jpeg_scans(2000, 4000),
        "extended scans": files.jpeg_scans(1500, 5000, frame=0xC1),
        "arithmetic scans": files.jpeg_scans(190, 6000, frame=0xC9),
        "lossless scans": lossless_jpeg(1500),
        "few scans": files.jpeg_scans(20, 7000),
        "progressive scans": files.progressive_scans(190, 1500),
        "whole jpeg": files.saved(Image.new("RGB", (7000, 7000), "red"), "JPEG", progressive=True),
        "empty segments": files.jpeg_segments(MB),
        "full segments": files.jpeg_segments(450, 65533, 0xE1),
        "png": files.png(7000, 7000),
        "wide png": files.png(8000, 6000, colour=6, depth=16),
        "interlaced png": files.png(7000, 7000, interlace=1),
        "palette png": files.png(7000, 7000, colour=3),
        "one column": files.png(1, 50_000_000, colour=0),
        "100,000 rows": files.png(400, 100_000),
        "noise": noisy_png(4000),
        "texts": files.png_texts(900, 60_000),
        "chunks": files.png_chunks(900_000),
        "offsets": files.tiff_strips(7_000_000),
        "tags": files.tiff_tags(3000, MB),
        "tile": files.tiff_tile(30_000),
        "grey tile": files.tiff_tile(20_000, colour=1),
        "comments": files.gif_comments(90_000),
        "empty comments": files.gif_comments(2_000_000, 0),
        "rle": files.bmp_rle(),
        "long rle": files.bmp_rle(100_000, 480),
        "webp": files.webp(4900),
        "cut off": photo[: len(photo) // 2],
        "zeros": bytes(30 * MB),
    }


def large_bodies(photo):
    """JSON bodies of every content type that are large to hold, deep or wide."""
    coded = base64.b64encode(photo).decode()
    wide, deep = b"{}," * (10 * MB), b"[" * (30 * MB)
    return {
        "empty objects": b'{"image": [' + wide[:-1] + b"]}",
        "empty lists": b'{"images": [' + (b"[]," * (10 * MB))[:-1] + b"]}",
        "small numbers": b'{"image": [' + (b"1," * (15 * MB))[:-1] + b"]}",
        "keys": b"{" + b",".join(b'"%d":0' % n for n in range(2 * MB)) + b"}",
        "deep": b'{"image": ' + deep,
        "deep objects": b'{"a":' * (5 * MB),
        "digits": b'{"image": ' + b"9" * (30 * MB) + b"}",
        "escapes": b'{"image": "' + rb"\u0041" * (5 * MB) + b'"}',
        "not text": b'{"image": "' + b"\xff" * (30 * MB),
        "blank": b" " * (30 * MB),
        "many": ('{"images": [' + ", ".join([f'"{coded}"'] * 16) + "]}").encode(),
        "too many": ('{"images": [' + ", ".join(['""'] * (5 * MB)) + "]}").encode(),
    }


def requests():
    """Whole requests by name; the worst ones of every class."""
    made = large_files()
    photo = made["cut off"]
    found = {name: request("/v1/caption", FORM, form(content)) for name, content in made.items()}
    for name in ("png", "rle", "wide png", "webp", "palette png", "few scans"):
        images = [made[name]] * 16
        while sum(map(len, images)) > 30 * MB:
            images.pop()
        found[f"16 {name}"] = request("/v1/caption", FORM, form(*images))
    for name in ("scans", "png", "rle", "few scans"):
        found[f"explain {name}"] = request("/v1/explain", FORM, form(made[name]))
    for name, body in large_bodies(photo).items():
        found[f"json {name}"] = request("/v1/caption", JSON, body)
        found[f"explain json {name}"] = request("/v1/explain", JSON, body)
        if len(body) > MB:
            cut = body[: 64 * 1024]
            found[f"scene json {name}"] = request("/v1/scene", JSON, cut)
    many = b"--edge\r\nContent-Disposition: form-data; name=x\r\n\r\n\r\n" * 100_000
    found["parts"] = request("/v1/caption", FORM, many)
    found["long boundary"] = request("/v1/caption", FORM + "e" * 9000, form(photo))
    found["long part header"] = request("/v1/caption", FORM, b"--edge\r\nX: " + b"y" * 20 * MB)
    found["slowest search"] = request("/v1/caption", FORM, form(*[photo] * 16, beam=16))
    found["long head"] = b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    found["many heads"] = (
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * 9000 + b"\r\n"
    )
    found["chunks of one byte"] = (
        b"POST /v1/caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + b"1\r\n[\r\n" * 300_000
    )
    found["pipelined"] = request("/healthz", close=False) * 2000
    return found


def photographs(seed, count, good):
    """Requests with damaged copies of good files."""
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        yield request("/v1/caption", FORM, form(damaged_bytes(rng.choice(good), rng)))


async def connect(port, address, *, small=False):
    """A connection from an address of this machine."""
    return await asyncio.open_connection(
        "127.0.0.1", port, local_addr=(address, 0), limit=1024 if small else 1 << 16
    )


async def exchange(port, address, sent):
    """Sends a request; returns the status of its answer, or None without one, and its body."""
    reader, writer = await connect(port, address)
    try:
        with suppress(ConnectionError):
            writer.write(sent)
            await writer.drain()
        answer = b""
        with suppress(ConnectionError):
            answer = await reader.read(-1)
        head, _, body = answer.partition(b"\r\n\r\n")
        return (int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.") else None), body
    finally:
        writer.transport.abort()


async def leave_early(port, address, sent):
    """Sends half a request and is gone."""
    _, writer = await connect(port, address)
    writer.write(sent[: len(sent) // 2])
    await asyncio.sleep(0.05)
    writer.transport.abort()


async def leave_unanswered(port, address, sent):
    """Sends a request and does not wait for its answer."""
    _, writer = await connect(port, address)
    with suppress(ConnectionError):
        writer.write(sent)
        await writer.drain()
    writer.transport.abort()


async def drip(port, address, sent, seconds=5.0):
    """Sends a byte from time to time."""
    _, writer = await connect(port, address)
    with suppress(ConnectionError):
        for place in range(int(seconds / 0.1)):
            writer.write(sent[place : place + 1])
            await writer.drain()
            await asyncio.sleep(0.1)
    writer.transport.abort()


async def stay_idle(port, address, _sent, seconds=5.0):
    """Opens connections and says nothing."""
    writers = []
    with suppress(OSError):
        for _ in range(40):
            writers.append((await connect(port, address))[1])
    await asyncio.sleep(seconds)
    for writer in writers:
        writer.transport.abort()


async def read_nothing(port, address, _sent, seconds=5.0):
    """Asks for much and reads nothing of the answers."""
    _, writer = await connect(port, address, small=True)
    writer.transport.pause_reading()
    with suppress(ConnectionError):
        writer.write(request("/examples/railway.jpg", close=False) * 200)
    await asyncio.sleep(seconds)
    writer.transport.abort()


async def talk_nonsense(port, address, sent):
    """Sends what is not HTTP."""
    rng = random.Random(len(sent))
    _, writer = await connect(port, address)
    with suppress(ConnectionError):
        writer.write(rng.randbytes(5000) + struct.pack(">I", 2**32 - 1) + b"\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.1)
    writer.transport.abort()


MANNERS = (leave_early, leave_unanswered, drip, stay_idle, read_nothing, talk_nonsense)
"""Connections that misbehave."""
