"""Clients: their names, their shares, and the order in which they are served."""

import asyncio
import threading
import time

import pytest

from ngsan.app import clients
from ngsan.app.clients import CLIENT, Capacity, Ledger, client_name
from ngsan.app.errors import ApiError
from ngsan.app.workers import FairThreads
from tests.app.stand_in import GatedPainter, ask, client_of, file_of, make_app, wait_until


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    now = [1000.0]
    monkeypatch.setattr(clients.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("address", "token", "name"),
    [
        ("127.0.0.2", None, "127.0.0.2"),
        ("127.0.0.2", "abcdefgh", "token abcdefgh"),
        ("2001:db8:1:2:3:4:5:6", None, "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", None, "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", None, "10.0.0.1"),
        ("", None, ""),
    ],
)
def test_name_of_a_client(address, token, name):
    assert client_name(address, token) == name


def of(client, call, *arguments):
    """The result of a call on behalf of a client."""
    token = CLIENT.set(client)
    try:
        return call(*arguments)
    finally:
        CLIENT.reset(token)


def test_capacity_has_shares():
    capacity = Capacity(10, 6)
    assert of("a", capacity.take, 6)
    assert not of("a", capacity.take)
    assert not of("b", capacity.take, 5)
    assert of("b", capacity.take, 4)
    assert not of("c", capacity.take)
    of("a", capacity.free, 6)
    assert of("c", capacity.take, 6)
    assert capacity.used == 10
    with pytest.raises(ApiError):
        of("b", lambda: capacity.reserved(2).__enter__())


def used(ledger, client, seconds):
    ledger.begin(client)
    ledger.end(client, seconds)


def test_what_was_used_is_forgotten_by_and_by(clock):
    ledger = Ledger()
    with ledger.changed:
        used(ledger, "a", 8.0)
        clock[0] += 10
        assert ledger.spent("a") == pytest.approx(4)
        used(ledger, "a", 1.0)
        clock[0] += 20
        assert ledger.spent("a") == pytest.approx(1.25)
        used(ledger, "b", 1.0)
        assert ledger.spent("b") == pytest.approx(1)
        clock[0] += 500  # and it is scaled anew
        used(ledger, "c", 2.0)
        assert ledger.spent("c") == pytest.approx(2)
        assert ledger.spent("a") == pytest.approx(0, abs=1e-9)
        assert not ledger.spent("nobody")


def test_heavy_client_waits_for_others(clock):
    ledger = Ledger()
    with ledger.changed:
        used(ledger, "a", 20.0)
        assert ledger.is_alone("a")
        assert not ledger.is_heavy("a")
        ledger.begin("b")
        assert not ledger.is_alone("a")
        assert ledger.is_heavy("a")
        assert not ledger.is_heavy("b")
        ledger.begin("a")
        clock[0] += 0.5
        assert not ledger.may_begin("a")
        assert ledger.may_begin("b")
        assert ledger.may_begin("c")
        clock[0] += 0.6  # it is not kept waiting for ever
        assert ledger.may_begin("a")
        ledger.begin("a")
        ledger.end("b", 0.1)
        assert ledger.may_begin("a")
        used(ledger, "b", 30.0)
        assert not ledger.is_heavy("a")


def test_one_client_does_not_hold_all_threads():
    """The other client's call runs although the first has many that take for ever."""

    async def go():
        threads, gate = FairThreads(3, "test", Ledger(), share=2), threading.Event()
        CLIENT.set("greedy")
        held = [asyncio.create_task(threads.run(gate.wait, 30)) for _ in range(20)]
        await asyncio.sleep(0.05)
        CLIENT.set("modest")
        found = await asyncio.wait_for(threads.run(lambda: "done"), 10)
        gate.set()
        await asyncio.gather(*held)
        return found

    assert asyncio.run(go()) == "done"


def test_calls_of_clients_take_turns():
    order = []

    async def go():
        threads, gate = FairThreads(1, "test", Ledger()), threading.Event()
        first = asyncio.create_task(threads.run(gate.wait, 30))
        await asyncio.sleep(0.05)
        tasks = []
        for name in ("a", "a", "a", "a", "b", "b"):
            CLIENT.set(name)

            def call(name=name):
                order.append(name)
                time.sleep(0.01)

            tasks.append(asyncio.create_task(threads.run(call)))
        await asyncio.sleep(0.05)
        tasks[0].cancel()  # it has not begun
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.gather(first, *tasks, return_exceptions=True)

    asyncio.run(go())
    assert set(order[:2]) == {"a", "b"}
    assert sorted(order) == ["a", "a", "a", "b", "b"]


def test_errors_of_calls_are_raised_where_they_are_awaited():
    async def go():
        threads = FairThreads(1, "test", Ledger())
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
        assert await threads.run(lambda: 5) == 5

    asyncio.run(go())


def post(app, address, *files):
    async def go():
        async with client_of(app, address=address) as client:
            answer = await client.post("/v1/caption", files=[("image", file) for file in files])
            return answer.status_code

    return go()


def test_a_full_queue_of_one_client_is_not_that_of_others():
    painter = GatedPainter()
    app = make_app(painter, queue_size=2)

    async def go():
        painter.gate.clear()
        first = asyncio.create_task(post(app, "127.0.0.2", file_of(), file_of()))
        await wait_until(painter.entered.is_set)
        refused = await post(app, "127.0.0.2", file_of())
        other = asyncio.create_task(post(app, "127.0.0.3", file_of()))
        await asyncio.sleep(0.1)
        painter.gate.set()
        return await first, refused, await other

    assert asyncio.run(go()) == (200, 429, 200)


def test_captions_of_others_come_before_those_of_a_queue():
    """A photograph is captioned before those that another client sent earlier."""
    painter = GatedPainter()
    app = make_app(painter, batch_size=1)
    done = []

    async def send(address, count):
        await post(app, address, *[file_of()] * count)
        done.append(address)

    async def go():
        painter.gate.clear()
        many = [asyncio.create_task(send("127.0.0.2", 5)) for _ in range(4)]
        await wait_until(painter.entered.is_set)
        await wait_until(lambda: len(app.state.context.batcher) == 19)
        one = asyncio.create_task(send("127.0.0.3", 1))
        await wait_until(lambda: len(app.state.context.batcher) == 20)
        painter.gate.set()
        await asyncio.gather(*many, one)

    asyncio.run(go())
    assert done[0] == "127.0.0.3"


def test_photographs_of_one_client_keep_their_order():
    """Also those of a heavy client, which come one by one."""
    painter = GatedPainter()
    app = make_app(painter)
    ledger, done = app.state.context.ledger, []
    with ledger.changed:
        used(ledger, "127.0.0.2", 9.0)
        used(ledger, "127.0.0.3", 1.0)
        assert ledger.is_heavy("127.0.0.2")

    async def send(number):
        await post(app, "127.0.0.2", file_of())
        done.append(number)

    async def go():
        painter.gate.clear()
        tasks = []
        for number in range(8):
            tasks.append(asyncio.create_task(send(number)))
            await wait_until(
                lambda number=number: painter.given + len(app.state.context.batcher) > number
            )
        painter.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(go())
    assert done == [*range(8)]


def test_each_of_several_tokens_is_a_client():
    app = make_app(token="first-token second-token", queue_size=1)
    for token, status in (("first-token", 200), ("second-token", 200), ("third-token", 401)):
        headers = {"authorization": f"Bearer {token}"}
        assert ask(app, "GET", "/v1/models", headers=headers).status_code == status
