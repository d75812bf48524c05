"""A server with a fake model of known captions, in this process or in a child process."""

import asyncio
import io
import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

from ngsan.app.app import build_app
from ngsan.app.context import ServedModel
from ngsan.app.settings import ServeSettings
from ngsan.predict.captioner import Captioner
from ngsan.vision.decoding import shared_service
from tests.predict.painter import Painter, Spotter, paint

ROOT = Path(__file__).parents[2]
PLAIN = "red green blue grey"


class GatedPainter(Painter):
    """A painter that blocks while its gate is closed, and sleeps for some seconds."""

    def __init__(self, seconds=0.0):
        super().__init__()
        self.gate, self.seconds, self.entered = threading.Event(), seconds, threading.Event()
        self.gate.set()
        self.given = 0

    def describe(self, images):
        self.given += len(images)
        self.entered.set()
        self.gate.wait(30)
        time.sleep(self.seconds)
        return super().describe(images)


def card_of(painter):
    captioner = Captioner(painter, open_detector=Spotter)
    return ServedModel("painter", ROOT, captioner, (2, 2))


def make_app(painter=None, decoding=None, **settings):
    """An application with one worker, for a deterministic order; its end closes `decoding`."""
    made = ServeSettings(**{"workers": 1, "batch_size": 8} | settings)
    model = card_of(GatedPainter() if painter is None else painter)
    return build_app(made, model=model, decoding=decoding or shared_service())


def client_of(app, address="127.0.0.1", **options):
    """A client that sends requests to the application directly."""
    transport = httpx.ASGITransport(app, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", **options)


def ask(app, method, path, **options):
    """Sends one request."""

    async def go():
        async with client_of(app) as client:
            return await client.request(method, path, **options)

    return asyncio.run(go())


def file_of(names=PLAIN, kind="PNG", **options):
    """The bytes of a picture whose caption is `names`."""
    file = io.BytesIO()
    paint(names).save(file, kind, **options)
    return file.getvalue()


async def wait_until(holds):
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("timed out")


def waiting(app):
    """The number of photographs being processed."""
    return app.state.context.photos.used


@contextmanager
def server(*, seconds=0.0, **settings):
    """Starts a server in a child process; yields the process with its address."""
    command = [sys.executable, "-m", "tests.app.stand_in", str(seconds), json.dumps(settings)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        process.address = process.stdout.readline().strip()
        process.port = int(process.address.rpartition(":")[2].strip("/"))
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def main():
    """Serves on a free port and prints the address."""
    from ngsan.app.server import address_of, exit_process, listen, run

    seconds, settings = float(sys.argv[1]), json.loads(sys.argv[2])
    made = ServeSettings(port=0, **{"workers": 1, "batch_size": 8} | settings)
    listener = listen(made)
    app = build_app(made, model=card_of(GatedPainter(seconds)))
    run(app, made, listener, lambda: print(address_of(listener, made), flush=True))
    print("stopped", flush=True)
    exit_process()


if __name__ == "__main__":
    main()
