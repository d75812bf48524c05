"""Middleware for all routes: limits, errors, host names, token, headers, and privacy."""

import asyncio
import logging
import os
import sys

import pytest
from starlette.responses import Response

from ngsan.app.context import ServerState
from ngsan.app.metrics import Metrics
from ngsan.app.middleware import CONTENT_POLICY, RequestLimits
from ngsan.app.settings import ServeSettings
from tests.app.stand_in import GatedPainter, ask, client_of, file_of, make_app
from tests.kills import end_of, fork

TOKEN = "a-long-secret"


@pytest.fixture(scope="module")
def app():
    return make_app()


def test_every_answer_has_the_headers(app):
    for method, path in (
        ("GET", "/healthz"),
        ("GET", "/v1/models"),
        ("GET", "/nothing"),
        ("PUT", "/v1/caption"),
        ("POST", "/v1/caption"),
        ("GET", "/docs"),
        ("GET", "/examples/cat.jpg"),
        ("GET", "/openapi.json"),
    ):
        headers = ask(app, method, path).headers
        assert headers["content-security-policy"] == CONTENT_POLICY
        assert "'unsafe-inline'" not in CONTENT_POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "cache-control" in headers
        assert not [name for name in headers if name.startswith("access-control")]


def test_errors_are_sentences(app):
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", "/static/../../settings.py", 404),
        ("GET", "/v1/caption", 405),
        ("DELETE", "/healthz", 405),
        ("POST", "/v1/scene", 422),
        ("GET", "/v1/bias", 422),
    ):
        answer = ask(app, method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/json"
        (sentence,) = answer.json().values()
        assert sentence.endswith(".")
    assert ask(app, "GET", "/v1/caption").headers["allow"] == "POST"
    assert ask(app, "PUT", "/v1/bias").headers["allow"] == "GET, POST"


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({}, 401),
        ({"authorization": TOKEN}, 401),
        ({"authorization": f"Basic {TOKEN}"}, 401),
        ({"authorization": f"Bearer {TOKEN}x"}, 401),
        ({"authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Bearer é".encode("latin-1")}, 401),
        ({"authorization": f"Bearer {TOKEN}"}, 200),
        ({"authorization": f"bearer {TOKEN}"}, 200),
    ],
)
def test_token_is_required(given, status):
    app = make_app(token=TOKEN)
    for path in ("/v1/models", "/v1/examples", "/metrics"):
        answer = ask(app, "GET", path, headers=given)
        assert answer.status_code == status
        assert ("www-authenticate" in answer.headers) == (status == 401)
    for path in ("/healthz", "/docs", "/openapi.json", "/examples/cat.jpg"):
        assert ask(app, "GET", path, headers=given).status_code == 200
    sent = ask(app, "POST", "/v1/caption", files={"image": file_of()}, headers=given)
    assert sent.status_code == status


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({}, "localhost:8080", 200),
        ({}, "LOCALHOST", 200),
        ({}, "127.0.0.1:1", 200),
        ({}, "[::1]:8080", 200),
        ({}, "evil.example", 400),
        ({}, "localhost.evil.example", 400),
        ({}, "evil.example:localhost", 400),
        ({"allowed_hosts": "studio.example"}, "studio.example", 200),
        ({"allowed_hosts": "studio.example"}, "localhost", 200),
        ({"allowed_hosts": "studio.example"}, "other.example", 400),
        ({"allowed_hosts": "*"}, "other.example", 200),
        ({"host": "0.0.0.0", "token": TOKEN}, "any.example", 200),
        ({"host": "0.0.0.0", "token": TOKEN, "allowed_hosts": "a.example"}, "b.example", 400),
        ({"host": "0.0.0.0", "token": TOKEN, "allowed_hosts": "a.example"}, "A.example:80", 200),
    ],
)
def test_allowed_host_names(settings, host, status):
    app = make_app(**settings)
    assert ask(app, "GET", "/healthz", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://localhost"}, 200),
        ({"origin": "http://localhost", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "http://evil.example"}, 400),
        ({"origin": "http://localhost:9999"}, 400),
        ({"origin": "null"}, 400),
        ({"origin": "http://[::1"}, 400),
        ({"sec-fetch-site": "cross-site"}, 400),
        ({"sec-fetch-site": "same-site"}, 400),
        ({"sec-fetch-site": "none"}, 200),
    ],
)
def test_pages_of_other_sites_are_rejected(app, headers, status):
    answer = ask(app, "POST", "/v1/caption", files={"image": file_of()}, headers=headers)
    assert answer.status_code == status
    assert ask(app, "GET", "/healthz", headers=headers).status_code == 200


def test_other_addresses_need_a_token():
    for host in ("0.0.0.0", "192.168.1.2", "::", "example.org"):
        with pytest.raises(ValueError, match="a token is needed"):
            ServeSettings(host=host)
        ServeSettings(host=host, token=TOKEN)
        ServeSettings(host=host, insecure=True)
    for host in ("127.0.0.1", "127.0.0.2", "localhost", "::1"):
        ServeSettings(host=host)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"port": -1}, "port: -1"),
        ({"port": 70_000}, "port: 70000"),
        ({"queue_size": 0}, "queue_size: 0"),
        ({"threads": 0}, "threads: 0"),
        ({"upload_timeout": 0.0}, "upload_timeout"),
        ({"token": "short"}, "token: "),
        ({"token": "has a space in it"}, "token: "),
        ({"host": ""}, "host: "),
        ({"queue_size": "many"}, "queue_size: 'many'"),
    ],
)
def test_invalid_settings_raise(wrong, message):
    with pytest.raises(ValueError, match=message):
        ServeSettings(**wrong)


def test_too_large_body_is_not_read():
    app, chunks = make_app(max_upload_bytes=100_000), []

    async def endless():
        for _ in range(10_000):
            chunks.append(1)
            yield bytes(10_000)

    headers = {"content-type": "multipart/form-data; boundary=a"}
    answer = ask(app, "POST", "/v1/caption", content=endless(), headers=headers)
    assert answer.status_code in (400, 413)
    assert answer.headers["connection"] == "close"
    assert len(chunks) < 30

    headers = {"content-type": "application/json"}
    answer = ask(app, "POST", "/v1/scene", content=bytes(70_000), headers=headers)
    assert answer.status_code == 413


def test_total_bytes_of_requests_are_limited():
    painter = GatedPainter()
    app = make_app(painter, max_total_bytes=150_000)

    async def go():
        async with client_of(app) as client:
            painter.gate.clear()
            large = file_of(kind="BMP") + bytes(90_000)
            first = asyncio.create_task(client.post("/v1/caption", files={"image": large}))
            await asyncio.to_thread(painter.entered.wait, 10)
            second = await client.post("/v1/caption", files={"image": large})
            painter.gate.set()
            return second, await first, await client.post("/v1/caption", files={"image": large})

    assert [answer.status_code for answer in asyncio.run(go())] == [429, 200, 200]


def test_slow_body_times_out():
    app = make_app(upload_timeout=0.2)

    async def slow():
        while True:
            yield b"--a"
            await asyncio.sleep(0.15)

    headers = {"content-type": "multipart/form-data; boundary=a"}
    for path in ("/v1/caption", "/v1/scene"):
        answer = ask(app, "POST", path, content=slow(), headers=headers)
        assert answer.status_code == 408 or (path == "/v1/caption" and answer.status_code == 400)


def test_internal_errors_reveal_nothing(caplog):
    async def broken(scope, receive, send):
        raise KeyError("what the client sent")

    wrapped = RequestLimits(broken, ServeSettings(), Metrics(), ServerState())
    with caplog.at_level(logging.DEBUG):
        answer = ask(wrapped, "GET", "/what-the-client-sent?and=this")
    assert answer.status_code == 500
    assert "KeyError" not in answer.text
    assert "client sent" not in answer.text + caplog.text
    lines = " ".join(r.getMessage() for r in caplog.records if r.name == "ngsan.app")
    assert "client-sent" not in lines
    assert "and=this" not in lines
    assert "KeyError" in lines  # for the operator


def test_requests_are_not_logged(app, caplog, monkeypatch):
    # Servers started by other tests in this process change both.
    monkeypatch.setattr(logging.getLogger("ngsan.app"), "propagate", True)
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, logger="ngsan.app"):
        ask(app, "GET", "/secret-path?secret=query")
        ask(app, "GET", "/v1/models?secret=query")
        ask(app, "POST", "/v1/caption", files={"image": b"x"}, data={"prefix": "secret"})
        headers = {"content-type": "multipart/form-data; boundary=secret"}
        ask(app, "POST", "/v1/caption", content=b"secret", headers=headers)
    own = [record for record in caplog.records if not record.name.startswith(("httpx", "asyncio"))]
    assert [record for record in own if record.name == "ngsan.app"]
    assert not [record for record in own if "secret" in record.getMessage()]


def test_requests_are_not_written_to_disk():
    app, large = make_app(), file_of(kind="BMP") + bytes(20_000_000)

    def without_disk():
        ask(app, "POST", "/v1/caption", files={"image": file_of()})  # imports everything

        def watch(event, arguments):
            if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                os._exit(3)
            if event in ("os.mkdir", "os.rename", "tempfile.mkstemp", "tempfile.mkdtemp"):
                os._exit(4)

        sys.addaudithook(watch)
        answer = ask(app, "POST", "/v1/caption", files={"image": large})
        assert answer.status_code == 200

    assert end_of(fork(without_disk)) == 0


def test_metrics_count_requests(app):
    before = ask(app, "GET", "/metrics")
    assert before.headers["content-type"].startswith("text/plain; version=0.0.4")
    ask(app, "POST", "/v1/caption", files={"image": file_of()})
    ask(app, "GET", "/" + "x" * 50)
    text = ask(app, "GET", "/metrics").text
    assert 'ngsan_requests_total{route="/v1/caption",status="200"}' in text
    assert "process_resident_memory_bytes" in text
    assert "xxxxx" not in text
    value = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in text.splitlines()}
    old = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in before.text.splitlines()}
    assert float(value["ngsan_photographs_total"]) == float(old["ngsan_photographs_total"]) + 1


def test_answers_during_shutdown():
    app = make_app()
    app.state.context.state.draining = True
    health = ask(app, "GET", "/healthz")
    assert (health.status_code, health.json()) == (503, {"status": "draining"})
    assert ask(app, "GET", "/metrics").status_code == 200
    answer = ask(app, "POST", "/v1/caption", files={"image": file_of()})
    assert (answer.status_code, answer.headers["connection"]) == (503, "close")
    assert "retry-after" in answer.headers


def test_large_answers_count_until_they_are_received():
    """Clients that do not read their answers cannot fill the memory."""
    sent = []

    async def large(scope, receive, send):
        await Response(bytes(90_000))(scope, receive, send)

    app = RequestLimits(large, ServeSettings(max_total_bytes=200_000), Metrics(), ServerState())
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("10.0.0.1", 1)}

    async def go():
        gate = asyncio.Event()

        async def send(message):
            sent.append(message)
            await gate.wait()

        async def receive():
            return {"type": "http.request"}

        first = asyncio.create_task(app(dict(scope), receive, send))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(app(dict(scope), receive, send))
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(first, second)
        await app(dict(scope), receive, send)

    asyncio.run(go())
    assert [one["status"] for one in sent if "status" in one] == [200, 429, 200]
    pieces = [len(one["body"]) for one in sent if "body" in one]
    assert sorted(pieces)[-4:] == [24_464, 24_464, 65_536, 65_536]
