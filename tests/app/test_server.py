"""A server in its own process: slow, disconnecting and many clients, and shutdown."""

import concurrent.futures
import json
import re
import signal
import socket
import time
from contextlib import ExitStack, closing, suppress

import httpx
import pytest

from ngsan.app.server import listen
from ngsan.app.settings import ServeSettings
from tests.app.stand_in import PLAIN, file_of, server

HEAD = b"POST /v1/caption HTTP/1.1\r\nHost: localhost\r\n"
FORM = {"image": ("a.png", file_of())}


def metrics(process):
    text = httpx.get(f"{process.address}metrics").text
    rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


def connect(process):
    connection = socket.create_connection(("127.0.0.1", process.port))
    connection.settimeout(10)
    return connection


def read_all(connection):
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionError:
        pass
    return found


def request_of(file):
    """The bytes of a complete request."""
    body = b'--a\r\nContent-Disposition: form-data; name="image"\r\n\r\n' + file + b"\r\n--a--\r\n"
    kind = b"Content-Type: multipart/form-data; boundary=a\r\n"
    return HEAD + kind + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.fixture(scope="module")
def impatient():
    """A server with short timeouts."""
    with server(
        header_timeout=0.8,
        upload_timeout=0.8,
        send_timeout=1.0,
        keep_alive_timeout=1.0,
        seconds=0.02,
    ) as process:
        yield process


def test_slow_header_times_out(impatient):
    with connect(impatient) as silent, connect(impatient) as slow:
        start = time.monotonic()
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert b"408" in read_all(slow).splitlines()[0]
        read_all(silent)
        assert 0.5 < time.monotonic() - start < 5


@pytest.mark.slow
def test_dripping_header_times_out(impatient):
    with connect(impatient) as slow:
        start = time.monotonic()
        try:
            for letter in b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 1000:
                slow.sendall(bytes([letter]))
                time.sleep(0.05)
        except ConnectionError:
            pass
        assert time.monotonic() - start < 5


@pytest.mark.slow
def test_slow_body_times_out(impatient):
    with connect(impatient) as slow:
        slow.sendall(request_of(file_of())[:-50])
        status, _, rest = read_all(slow).partition(b"\r\n")
        assert b"408" in status
        assert b"too slowly" in rest


@pytest.mark.slow
def test_client_that_does_not_read_times_out(impatient):
    before = metrics(impatient)["ngsan_open_requests"]
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", impatient.port))
    slow.settimeout(10)
    with slow:
        ask = b"GET /examples/bed.jpg HTTP/1.1\r\nHost: localhost\r\n\r\n"
        slow.sendall(ask * 100)  # far more than network buffers hold
        time.sleep(3.5)
        try:
            while slow.recv(1 << 20):
                pass
            ended = True
        except ConnectionError:
            ended = True
        assert ended
    assert metrics(impatient)["ngsan_open_requests"] == before


@pytest.mark.slow
def test_idle_connections_are_closed(impatient):
    with httpx.Client(base_url=impatient.address) as client:
        for _ in range(5):
            assert client.get("healthz").status_code == 200
            time.sleep(0.3)
    with connect(impatient) as idle:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b'{"status":"ok"}' in read_all(idle)


def test_malformed_http_gets_an_answer(impatient):
    for nonsense in (b"\x16\x03\x01\x02\x00\x01\x00", b"nonsense\r\n\r\n", b"\0" * 100):
        with connect(impatient) as connection:
            connection.sendall(nonsense + b"\r\n\r\n")
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
            assert b"400" in head.splitlines()[0]
            assert b"nosniff" in head
            assert list(json.loads(body)) == ["error"]
    with connect(impatient) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"y" * 40_000 + b"\r\n\r\n")
        assert b"400" in read_all(connection).splitlines()[0]


def test_body_in_tiny_pieces_is_rejected(impatient):
    """One byte at a time costs the server thousands of times what it costs to send."""
    with connect(impatient) as connection:
        kind = (
            b"Content-Type: multipart/form-data; boundary=a\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(HEAD + kind)
        with suppress(ConnectionError):
            connection.sendall(b"1\r\nX\r\n" * 200_000)
        assert b" 200 " not in read_all(connection)
    assert metrics(impatient)["ngsan_received_bytes_total"] < 10_000
    body = request_of(file_of()).partition(b"\r\n\r\n")[2]
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    assert len(body) < 1000
    with connect(impatient) as connection:
        connection.sendall(HEAD + kind + pieces)
        assert b"200" in connection.recv(100)


@pytest.mark.parametrize(("sent", "answered"), [(30, 30), (500, 33)])
def test_few_requests_are_answered_that_come_ahead_of_answers(impatient, sent, answered):
    """Otherwise a packet could hold thousands of them, which all others would wait for."""
    with connect(impatient) as connection:
        connection.sendall((HEAD.replace(b"POST /v1/caption", b"GET /healthz") + b"\r\n") * sent)
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection).count(b"HTTP/1.1 200 ") == answered


def test_one_client_does_not_take_all_connections():
    with server(max_connections=8) as process, ExitStack() as stack:
        mine = [stack.enter_context(connect(process)) for _ in range(8)]
        wait_until_closed = [connection for connection in mine[4:] if not read_all(connection)]
        assert len(wait_until_closed) == 4
        other = stack.enter_context(socket.socket())
        other.settimeout(10)
        other.bind(("127.0.0.2", 0))
        other.connect(("127.0.0.1", process.port))
        other.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in other.recv(1000)


def test_rejected_upload_gets_an_answer(impatient):
    answer = httpx.post(f"{impatient.address}v1/scene", content=bytes(3_000_000))
    assert answer.status_code == 413
    # With "Expect: 100-continue", the rejection comes before the body is sent.
    with connect(impatient) as careful:
        careful.sendall(HEAD + b"Content-Length: 999999999\r\nExpect: 100-continue\r\n")
        careful.sendall(b"Content-Type: application/json\r\n\r\n")
        assert b"413" in read_all(careful).splitlines()[0]


@pytest.mark.slow
def test_disconnected_clients_leave_the_queue():
    with server(seconds=2.0, queue_size=4) as process:
        gone = [connect(process) for _ in range(4)]
        gone[0].sendall(request_of(file_of()))
        until(lambda: metrics(process)["ngsan_waiting_photographs"] == 1)
        time.sleep(0.5)  # until it is alone in the model
        for connection in gone[1:]:
            connection.sendall(request_of(file_of()))
        until(lambda: metrics(process)["ngsan_waiting_photographs"] == 4)
        assert httpx.post(f"{process.address}v1/caption", files=FORM).status_code == 429
        for connection in gone:
            connection.close()
        until(lambda: metrics(process)["ngsan_waiting_photographs"] == 0, seconds=1.5)
        answer = httpx.post(f"{process.address}v1/caption", files=FORM, timeout=30)
        assert answer.json()["results"][0]["caption"] == PLAIN
        found = metrics(process)
        assert found["ngsan_client_disconnects_total"] == 4
        # One was already in the model; the others were never captioned.
        assert found["ngsan_photographs_total"] <= 2


def test_a_client_that_ended_its_own_side_gets_its_answer(impatient):
    with closing(connect(impatient)) as connection:
        connection.sendall(request_of(file_of()))
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200")
    assert PLAIN.encode() in answer


@pytest.mark.slow
def test_fifty_clients_at_once(impatient):
    def one(number):
        with httpx.Client(base_url=impatient.address, timeout=30) as client:
            return [client.post("v1/caption", files=FORM) for _ in range(4)]

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        answers = [answer for found in pool.map(one, range(50)) for answer in found]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["results"][0]["caption"] for answer in answers} == {PLAIN}
    found = metrics(impatient)
    assert found["ngsan_batch_photographs_sum"] > 2 * found["ngsan_batch_photographs_count"]


def test_shutdown_finishes_accepted_requests():
    with server(seconds=0.8) as process, concurrent.futures.ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(httpx.post, f"{process.address}v1/caption", files=FORM, timeout=30)
        until(lambda: metrics(process)["ngsan_waiting_photographs"] == 1)
        process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{process.address}healthz").status_code == 503)
        late = httpx.post(f"{process.address}v1/caption", files=FORM)
        assert (late.status_code, late.headers["connection"]) == (503, "close")
        assert accepted.result().json()["results"][0]["caption"] == PLAIN
        output, errors = process.communicate(timeout=10)
        assert (process.returncode, output) == (0, "stopped\n")
        assert "Traceback" not in errors
        assert PLAIN not in errors


def test_ctrl_c_stops_an_idle_server_at_once():
    with server() as process, connect(process):  # with an idle connection
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=10)
        assert (process.returncode, output, errors) == (0, "stopped\n", "")
        assert time.monotonic() - start < 3


def test_log_has_one_line_per_request():
    """Also for files with decoder warnings."""
    original = bytearray(file_of(kind="TIFF", compression="tiff_lzw"))
    with server() as process:
        for place in range(8, len(original), 40):
            damaged = bytes(original[:place] + b"\xff" * 30 + original[place + 30 :])
            httpx.post(f"{process.address}v1/caption", files={"image": damaged})
        process.terminate()
        _, errors = process.communicate(timeout=20)
    lines = errors.splitlines()
    assert len(lines) > 3
    assert all(re.fullmatch(r"\S+ \S+ POST /v1/caption \d+ \d+ ms", line) for line in lines)


@pytest.mark.slow
def test_shutdown_has_a_timeout():
    with server(seconds=20, drain_timeout=0.5) as process:
        with connect(process) as waiting:
            waiting.sendall(request_of(file_of()))
            until(lambda: metrics(process)["ngsan_waiting_photographs"] == 1)
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            answer = read_all(waiting)
            output, _ = process.communicate(timeout=15)
        assert time.monotonic() - start < 8
        assert (process.returncode, output) == (0, "stopped\n")
        assert answer == b"" or b"503" in answer.splitlines()[0]


@pytest.mark.slow
def test_number_of_connections_is_limited():
    with server(max_connections=5) as process:
        held = [connect(process) for _ in range(5)]
        time.sleep(0.2)
        with connect(process) as sixth:
            assert read_all(sixth) == b""
        for connection in held:
            connection.close()
        until(lambda: httpx.get(f"{process.address}healthz").status_code == 200)


def test_small_packets_are_sent_immediately():
    """TCP_NODELAY: otherwise every answer is delayed by 40 ms."""
    with closing(listen(ServeSettings(port=0))) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_port_in_use_raises():
    with closing(listen(ServeSettings(port=0))) as listener:
        listener.listen()
        with pytest.raises(ValueError, match="choose another with --port"):
            listen(ServeSettings(port=listener.getsockname()[1]))


def until(holds, seconds=10.0):
    """Waits until `holds()`; a failed connection counts as false."""
    end = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)
