"""Honest and hostile clients of one `ngsan serve`, for ten minutes.

    python -m tests.hostile.soak 600

A fifth of the time belongs to the honest clients alone. Then an attacker with one address sends
five requests a second: the worst files and bodies of `attacks`, damaged photographs, and
connections that misbehave. It measures what honest clients wait, health checks, and, from outside,
the memory (PSS of the process tree), file descriptors and processes of the server. It prints the
figures, and exits with 1 if one is above its limit.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

from ngsan.examples import __file__ as examples
from tests.hostile import attacks

ATTACKER, HEALTH, HONEST = "127.0.0.1", "127.0.0.2", ("127.0.0.3", "127.0.0.4", "127.0.0.5")
RATE = 5
"""Hostile requests a second."""

OPEN = 60
"""Hostile connections at the same time, without those of `attacks.stay_idle`."""

MEMORY = 1.2e9
"""Limit of the summed PSS of the server's processes."""

HEALTH_SECONDS = 0.1
"""Limit of the 99th percentile of health checks."""

SLOWER = 2
"""Limit of the honest clients' 95th percentile, as a multiple of that without an attack."""

TIMED = ("honest p95 ratio", "health p99, ms")
"""Figures that say little where other programs compete for the cores."""

PHOTOS = [path.read_bytes() for path in sorted(Path(examples).parent.glob("*.jpg"))]


@contextmanager
def serving(*options):
    """Starts `ngsan serve`; yields its process and port. It must end well."""
    command = [sys.executable, "-m", "ngsan", "serve", "--port", "0", "--quiet", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found, "the server did not start"
        yield process, int(found[1])
        assert process.poll() is None, f"the server ended with {process.returncode}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            process.stdout.close()
    assert process.returncode == 0, process.returncode


def tree(root):
    """Processes below one that have not ended, itself included."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found, added = {root}, True
    while added:
        added = {child for child, parent in parents.items() if parent in found} - found
        found |= added
    return found


def usage(root):
    """Summed PSS in bytes, file descriptors, and processes of a process tree."""
    memory = files = 0
    processes = tree(root)
    for process in processes:
        with suppress(OSError):
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            memory += 1024 * int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1])
            files += sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())
    return memory, files, len(processes)


def percentile(values, part):
    """A percentile of some values."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


async def ask_honestly(port, address, until, seconds, outcomes, expected):
    """One client that sends a photograph after the other, with pauses."""
    rng = random.Random(address)
    while time.monotonic() < until():
        number = rng.randrange(len(PHOTOS))
        sent = attacks.request("/v1/caption", attacks.FORM, attacks.form(PHOTOS[number]))
        start = time.monotonic()
        status, body = await attacks.exchange(port, address, sent)
        seconds.append(time.monotonic() - start)
        outcomes[status] += 1
        if status == 200:
            caption = json.loads(body)["results"][0]["caption"]
            assert expected.setdefault(number, caption) == caption, (number, caption)
        await asyncio.sleep(rng.uniform(0.2, 0.6))


async def check_health(port, until, seconds, outcomes):
    """Asks for the server's health again and again."""
    while time.monotonic() < until():
        start = time.monotonic()
        status, _ = await attacks.exchange(port, HEALTH, attacks.request("/healthz"))
        seconds.append(time.monotonic() - start)
        outcomes[status] += 1
        await asyncio.sleep(0.1)


async def watch(root, until, found):
    """Reads memory, file descriptors and processes, in a thread."""
    while time.monotonic() < until():
        found.append(await asyncio.to_thread(usage, root))
        await asyncio.sleep(0.5)


def attack(port, seconds, outcomes):
    """Sends hostile requests at a steady rate, in a process of its own."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    whole = attacks.requests()
    rng, names, end = random.Random(0), [], time.monotonic() + seconds
    tally, tasks, sent = Counter(), set(), 0

    async def send(number):
        try:
            if number % 5 == 3:
                (damaged,) = attacks.photographs(number, 1, PHOTOS)
                status, _ = await attacks.exchange(port, ATTACKER, damaged)
                tally[f"damaged photograph: {status}"] += 1
            elif number % 5 == 4:
                manner = attacks.MANNERS[number // 5 % len(attacks.MANNERS)]
                await manner(port, ATTACKER, whole[rng.choice(list(whole))])
                tally[manner.__name__] += 1
            else:
                if not names:
                    names.extend(rng.sample(list(whole), len(whole)))
                name = names.pop()
                status, _ = await attacks.exchange(port, ATTACKER, whole[name])
                tally[f"{name}: {status}"] += 1
        except OSError as error:
            tally[type(error).__name__] += 1

    async def run():
        nonlocal sent
        begun = time.monotonic()
        while time.monotonic() < end:
            if len(tasks) < OPEN:
                task = asyncio.create_task(send(sent))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                sent += 1
            else:
                tally["waited for an answer"] += 1
            await asyncio.sleep(max(0.0, begun + (sent + 1) / RATE - time.monotonic()) or 0.02)
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    outcomes.put("ready")
    asyncio.run(run())
    outcomes.put((sent, dict(tally)))


async def soak(root, port, seconds):
    """Runs all clients; returns the figures by name."""
    calm, expected = max(5.0, seconds / 5), {}
    queue = multiprocessing.get_context("spawn").Queue()
    quiet, loud, health, quiet_health, found = [], [], [], [], []
    answers, healthy = Counter(), Counter()

    async def phase(length, waits, checks):
        end = time.monotonic() + length
        await asyncio.gather(
            *(
                ask_honestly(port, address, lambda: end, waits, answers, expected)
                for address in HONEST
            ),
            check_health(port, lambda: end, checks, healthy),
            watch(root, lambda: end, found),
        )

    await phase(3, [], [])
    before = usage(root)
    found.clear()
    answers.clear()
    await phase(calm, quiet, quiet_health)
    attacker = multiprocessing.get_context("spawn").Process(
        target=attack, args=(port, seconds - calm, queue)
    )
    attacker.start()
    try:
        await asyncio.to_thread(queue.get, True, 120)
        await phase(seconds - calm, loud, health)
        sent, tally = await asyncio.to_thread(queue.get, True, 120)
    finally:
        attacker.join(30)
        attacker.kill()
    end = time.monotonic() + 90
    while (after := usage(root))[1] > before[1] + 8 or after[2] > before[2] + 1:
        if time.monotonic() > end:
            break
        await asyncio.sleep(1)
    calm_p95 = percentile(quiet, 0.95)
    return {
        "hostile requests": sent,
        "honest requests": len(quiet) + len(loud),
        "honest answers that are not 200": sum(answers.values()) - answers[200],
        "health checks that are not 200": sum(healthy.values()) - healthy[200],
        "honest p50 before, ms": 1000 * percentile(quiet, 0.5),
        "honest p95 before, ms": 1000 * calm_p95,
        "honest p50, ms": 1000 * percentile(loud, 0.5),
        "honest p95, ms": 1000 * percentile(loud, 0.95),
        "honest longest, ms": 1000 * max(loud),
        "honest p95 ratio": percentile(loud, 0.95) / calm_p95,
        "health p99 before, ms": 1000 * percentile(quiet_health, 0.99),
        "health p99, ms": 1000 * percentile(health, 0.99),
        "health longest, ms": 1000 * max(health),
        "memory before, MB": before[0] / 1e6,
        "memory at most, MB": max(memory for memory, _, _ in found) / 1e6,
        "memory after, MB": after[0] / 1e6,
        "more file descriptors after": after[1] - before[1],
        "processes before": before[2],
        "processes at most": max(processes for _, _, processes in found),
        "more processes after": after[2] - before[2],
        "hostile answers of 500": sum(n for name, n in tally.items() if name.endswith(": 500")),
        "outcomes": tally,
    }


LIMITS = {
    "honest answers that are not 200": 0,
    "health checks that are not 200": 0,
    "honest p95 ratio": SLOWER,
    "health p99, ms": 1000 * HEALTH_SECONDS,
    "memory at most, MB": MEMORY / 1e6,
    "more file descriptors after": 8,
    "more processes after": 1,
    "hostile answers of 500": 0,
}


def run(seconds, *options):
    """Starts a server and its clients; returns the figures."""
    with serving(*options) as (process, port):
        return asyncio.run(soak(process.pid, port, seconds))


def failures(figures, skip=()):
    """A line for each figure above its limit."""
    return [
        f"{name}: {figures[name]:,.3g} is above {limit:,.3g}"
        for name, limit in LIMITS.items()
        if name not in skip and figures[name] > limit
    ]


def main():
    """Runs the soak and prints its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", type=float)
    parser.add_argument("--server", default="", help="further options for `ngsan serve`")
    options = parser.parse_args()
    figures = run(options.seconds, *options.server.split())
    for name, value in figures.items():
        if name != "outcomes":
            print(
                f"{name:34} {value:10,.1f}"
                if isinstance(value, float)
                else f"{name:34} {value:10,}"
            )
    for name, count in sorted(figures["outcomes"].items()):
        print(f"  {count:6} {name}")
    failed = failures(figures)
    for line in failed:
        print(f"FAILED {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
