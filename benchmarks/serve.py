"""Load test of `ngsan serve`: latency, errors by kind, and memory.

    python benchmarks/serve.py [--clients 50] [--seconds 60] [--requests 10000] [--images FOLDER]

It starts a server with default settings in its own process. First one client sends one photograph
after the other; then many clients do so concurrently for a while; then they send `--requests`
requests while the server's memory is read from its metrics. Clients run on the same machine and
keep their connections alive. A 429 is counted and retried after a pause.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ngsan.app.settings import ServeSettings

BATCH = ServeSettings.batch_size
PAUSE = 0.2
"""Seconds before a retry."""


@dataclass
class Tally:
    """Latencies and outcomes of requests."""

    seconds: list[float] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, float | dict[str, int]]:
        """Latency statistics of answered requests, and counts of all outcomes."""
        times = sorted(self.seconds)
        return {
            "answered": len(times),
            "ms, median": 1000 * statistics.median(times),
            "ms, 95th percentile": 1000 * times[int(0.95 * (len(times) - 1))],
            "ms, longest": 1000 * times[-1],
            "kinds": dict(self.kinds),
        }


class Client:
    """A client with a keep-alive connection."""

    def __init__(self, port: int) -> None:
        """Stores the port; the connection is opened on demand."""
        self.port = port
        self.reader: asyncio.StreamReader | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Sends a request; returns status and body."""
        if self.reader is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writer.write(request)
        await self.writer.drain()
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        body = await self.reader.readexactly(int(length[1]))
        if b"connection: close" in head:
            self.writer.close()
            self.reader = None
        return int(head.split(b" ", 2)[1]), body


def request(path: str, kind: str = "", body: bytes = b"") -> bytes:
    """The bytes of a request."""
    method = "POST" if body else "GET"
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def photograph(path: Path, quality: str) -> bytes:
    """The request for a photograph's caption, in a quality or that of the server."""
    part = b"--edge\r\nContent-Disposition: form-data; name="
    image = part + b'"image"; filename="a.jpg"\r\n\r\n' + path.read_bytes() + b"\r\n"
    named = part + b'"quality"\r\n\r\n' + quality.encode() + b"\r\n" if quality else b""
    body = named + image + b"--edge--\r\n"
    return request("/v1/caption", "multipart/form-data; boundary=edge", body)


async def work(client: Client, requests: list[bytes], tally: Tally, keep_going) -> None:
    """Sends requests while `keep_going()` is true."""
    place = id(client) % len(requests)
    while keep_going():
        start = time.perf_counter()
        try:
            status, _ = await client.ask(requests[place % len(requests)])
        except (OSError, EOFError) as error:
            tally.kinds[type(error).__name__] += 1
            client.reader = None
            continue
        tally.kinds[str(status)] += 1
        if status == 200:
            tally.seconds.append(time.perf_counter() - start)
            place += 1
        else:
            await asyncio.sleep(PAUSE)


async def memory(port: int) -> float:
    """The server's resident memory, in MB."""
    _, page = await Client(port).ask(request("/metrics"))
    found = re.search(rb"^process_resident_memory_bytes (\S+)", page, re.M)
    assert found is not None
    return float(found[1]) / 1e6


async def alone(port: int, requests: list[bytes], count: int) -> dict:
    """Runs one client."""
    tally, left = Tally(), iter(range(count))
    await work(Client(port), requests, Tally(), iter([True] * 5 + [False]).__next__)
    await work(Client(port), requests, tally, lambda: next(left, None) is not None)
    return tally.figures()


async def together(port: int, requests: list[bytes], clients: int, seconds: float) -> dict:
    """Runs many clients for some seconds."""
    tally, end = Tally(), time.perf_counter() + seconds
    await asyncio.gather(
        *(
            work(Client(port), requests, tally, lambda: time.perf_counter() < end)
            for _ in range(clients)
        )
    )
    found = tally.figures()
    return {"requests per second": len(tally.seconds) / seconds, **found}


async def long(port: int, requests: list[bytes], clients: int, count: int) -> dict:
    """Sends `count` requests and samples the memory."""
    tally, seen = Tally(), [await memory(port)]

    async def watch() -> None:
        step = max(1, count // 10)
        while len(tally.seconds) < count:
            if len(tally.seconds) >= step * len(seen):
                seen.append(await memory(port))
            await asyncio.sleep(0.2)
        seen.append(await memory(port))

    def keep_going() -> bool:
        return len(tally.seconds) < count

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for _ in range(clients):
            group.create_task(work(Client(port), requests, tally, keep_going))
    settled = seen[1:]
    return {
        "MB": [round(each, 1) for each in seen],
        "growth after the first tenth, %": 100 * (settled[-1] / settled[0] - 1),
        **tally.figures(),
    }


async def scenes(port: int, count: int) -> dict:
    """Simulates dragging an object, one request after the other."""
    requests = []
    for step in range(50):
        objects = [
            {"shape": "ball", "colour": "red", "x": 0.1 + step / 70, "y": 0.5},
            {"shape": "box", "colour": "blue", "x": 0.5, "y": 0.3},
        ]
        asked = {
            "model": "ng-san",
            "signed": True,
            "objects": [{**each, "width": 0.2, "height": 0.2} for each in objects],
            "maps": True,
        }
        requests.append(request("/v1/scene", "application/json", json.dumps(asked).encode()))
    status, _ = await Client(port).ask(requests[0])
    return await alone(port, requests, count) if status == 200 else {"status": status}


async def run(port: int, options: argparse.Namespace) -> dict[str, dict]:
    """Runs all measurements."""
    paths = sorted(path for path in options.images.iterdir() if path.suffix == ".jpg")
    requests = [photograph(path, options.quality) for path in paths]
    found = {"a scene's drag": await scenes(port, 200)}
    found["one client"] = await alone(port, requests, options.single)
    found["clients at once"] = await together(port, requests, options.clients, options.seconds)
    single = found["one client"]["ms, median"]
    bound = 4 * single * options.clients / BATCH
    found["clients at once"]["bound of the 95th percentile, ms"] = bound
    if options.requests:
        found["many requests"] = await long(port, requests, options.clients, options.requests)
    return found


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    examples = Path(__file__).parents[1] / "src" / "ngsan" / "examples"
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--single", type=int, default=100, help="requests of the single client")
    parser.add_argument(
        "--requests", type=int, default=10_000, help="requests of the memory test; 0 skips it"
    )
    parser.add_argument("--images", type=Path, default=examples, help="a folder of .jpg files")
    parser.add_argument("--quality", default="", help="fast, good or best")
    parser.add_argument("--server", default="", help="further options for `ngsan serve`")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    command = [sys.executable, "-m", "ngsan", "serve", "--port", "0", "--quiet"]
    process = subprocess.Popen(
        [*command, *options.server.split()], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = re.search(r":(\d+)/", process.stdout.readline())
        assert address is not None, "the server did not start"
        found = asyncio.run(run(int(address[1]), options))
    finally:
        process.terminate()
        process.wait()
    found["server"] = {"exit status": process.returncode}
    for what, figures in found.items():
        print(what)
        for name, value in figures.items():
            print(
                f"  {name:40} {value:10,.1f}" if isinstance(value, float) else f"  {name}: {value}"
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
