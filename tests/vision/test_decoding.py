"""Decoding in processes of their own: equal pixels, limits, and what happens to processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ngsan.vision.decode_process import DecodingProcess, MoreMemoryError
from ngsan.vision.decoding import DecodingService, Limits, shared_service
from ngsan.vision.images import ImageError, open_picture, to_square
from tests.hostile import files

MANY = 10**9
"""Pixels that a slow file may have: its scans are limited by them."""


@pytest.fixture(scope="module")
def slow():
    """A JPEG that takes seconds to decode."""
    return files.progressive_scans(190, 5000)


@pytest.fixture
def service():
    made = DecodingService(2)
    yield made
    made.close()


def photo(width=900, height=700):
    return Image.effect_noise((width, height), 90).convert("RGB")


def processes(service):
    return {worker._process.pid for worker in service._all}


def lives(process):
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(holds, seconds=20):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_squares_equal_those_of_this_process(kind, service, tmp_path):
    content = files.saved(photo(), kind)
    path = tmp_path / "ä\udcff.file"
    path.write_bytes(content)
    wanted = open_picture(content, min_side=640)
    for source in (path, str(path), content, bytearray(content)):
        found = service.squares(source, (256, 320))
        assert found.size == wanted.size == (900, 700)
        for side, square in zip((256, 320), found.squares, strict=True):
            np.testing.assert_array_equal(square, to_square(wanted.image, side))
    whole = service.picture(path)
    assert whole.image.tobytes() == open_picture(content).image.tobytes()
    assert whole.size == (900, 700)


def test_opened_images_and_arrays_stay_in_this_process(service):
    for source in (photo(), np.asarray(photo())):
        found = service.squares(source, (32,))
        np.testing.assert_array_equal(found.squares[0], to_square(photo_of(source), 32))
        assert service.picture(source).size == (900, 700)
    assert not processes(service)


def photo_of(source):
    return source if isinstance(source, Image.Image) else Image.fromarray(source)


def test_errors_name_the_file(service, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad.png").write_bytes(b"\x89PNG bad")
    for source, words in {
        "bad.png": "^bad.png: (damaged|unsupported) image",
        "none.png": "^none.png: file not found",
        ".": "^.: is a folder",
        b"no": "^the image: unsupported image format",
        5: "not int",
    }.items():
        with pytest.raises(ImageError, match=words):
            service.squares(source, (8,))
    with pytest.raises(ImageError, match="exceeds the limit of 50 pixels"):
        service.squares(files.saved(photo(9, 9), "PNG"), (8,), max_pixels=50)


def test_a_file_that_takes_long_ends_its_process_only(slow, tmp_path):
    lost = []
    service = DecodingService(1, Limits(cpu_seconds=0.2), on_lost=lost.append)
    good = files.saved(photo(), "PNG")
    service.squares(good, (8,))
    (before,) = processes(service)
    with pytest.raises(ImageError, match="the image: decoding took more than 0.2 seconds"):
        service.squares(slow, (8,), max_pixels=MANY)
    assert lost == ["time"]
    assert not lives(before)
    for _ in range(20):  # time does not add up over files
        assert service.squares(good, (8,)).size == (900, 700)
    assert len(processes(service)) == 1
    service.close()


def test_time_of_a_file_adds_up_over_its_attempts(monkeypatch):
    """One that is tried again with more memory has what is left of its time."""
    asked = []

    def ask(_worker, head, *_):
        asked.append((head["cpu_left"], head["memory"]))
        if len(asked) == 1:
            raise MoreMemoryError(0.25)
        raise ImageError("no")

    monkeypatch.setattr(DecodingProcess, "ask", ask)
    service = DecodingService(1, Limits(cpu_seconds=1.0, memory=100, large_memory=200))
    with pytest.raises(ImageError, match="the image: no"):
        service.squares(b"", (8,))
    assert asked == [(1.0, 100), (0.25, 200)]
    service.close()


def test_the_time_that_a_file_took_is_reported():
    worker = DecodingProcess()
    wanted = {
        "sides": [8],
        "max_pixels": MANY,
        "min_side": 16,
        "memory": 150_000_000,
        "seconds": 60,
    }
    head = {**wanted, "cpu_seconds": 9.0, "cpu_left": 9.0, "has_more_memory": True}
    with pytest.raises(MoreMemoryError) as found:
        worker.ask(head, files.bmp_rle(), None, 60)  # runs out of memory near its end
    assert 0 < found.value.cpu_left < 9
    worker.stop()


def test_a_file_that_waits_ends_its_process(tmp_path, slow):
    service = DecodingService(1, Limits(seconds=0.3))
    with pytest.raises(ImageError, match="took more than 0.3 seconds"):
        service.squares(slow, (8,), max_pixels=MANY)
    service.close()


def test_large_files_take_turns_and_have_a_limit():
    lost, content = [], files.png(6000, 6000)
    service = DecodingService(2, Limits(memory=150_000_000), on_lost=lost.append)
    assert service.squares(content, (8,)).size == (6000, 6000)
    assert not lost
    small = Limits(memory=150_000_000, large_memory=160_000_000)
    service = DecodingService(2, small, on_lost=lost.append)
    with pytest.raises(ImageError, match="the image: not enough memory"):
        service.squares(content, (8,))
    assert lost == ["memory"]
    assert service.squares(files.png(60, 60), (8,)).size == (60, 60)


def test_a_crash_is_an_error_of_the_file(service, slow):
    service.squares(files.png(8, 8), (8,))
    (process,) = processes(service)
    # Idle: nothing fails.
    os.kill(process, signal.SIGKILL)
    wait_for(lambda: not any(worker.lives for worker in service._all))
    assert service.squares(files.png(8, 8), (8,)).size == (8, 8)
    (process,) = processes(service)
    killer = subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -SEGV {process}"])
    with pytest.raises(ImageError, match="damaged image: it crashed the decoder"):
        service.squares(slow, (8,), max_pixels=MANY)
    killer.wait()


SCRIPT = """
import sys
from ngsan.vision.decoding import shared_service

service = shared_service()
service.start()
print(*(worker._process.pid for worker in service._all), flush=True)
service.squares(sys.argv[1], (8,), max_pixels=10**9)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_processes_end_with_the_one_that_started_them(number, slow, tmp_path):
    path = tmp_path / "slow.jpg"
    path.write_bytes(slow)
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with parent:
        process = int(parent.stdout.readline())
        # It decodes: there is a second thread.
        wait_for(lambda: len(list(Path(f"/proc/{process}/task").iterdir())) > 1)
        parent.send_signal(number)
        parent.wait()
    wait_for(lambda: not lives(process), seconds=2)


def test_a_forked_process_starts_its_own(service):
    service.start()
    (process,) = processes(service)
    child = os.fork()
    if not child:
        found = service.squares(files.png(8, 8), (8,)).size
        os._exit(0 if found == (8, 8) and processes(service) != {process} else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert service.squares(files.png(8, 8), (8,)).size == (8, 8)
    assert processes(service) == {process}


def test_shared_service_is_one():
    assert shared_service() is shared_service()


@pytest.mark.parametrize(
    ("kind", "options"),
    [("JPEG", {"progressive": True, "subsampling": 0}), ("WEBP", {"method": 0}), ("PNG", {})],
)
def test_a_lack_of_memory_is_not_taken_for_damage(kind, options):
    side = 3000
    content = files.saved(Image.new("RGB", (side, side), "red"), kind, **options)
    service = DecodingService(1, Limits(memory=65_000_000))
    assert service.squares(content, (8,)).size == (side, side)
    service = DecodingService(1, Limits(memory=60_000_000, large_memory=65_000_000))
    with pytest.raises(ImageError):
        service.squares(content, (8,))


def test_low_priority_holds_for_one_file(service):
    service.squares(files.png(8, 8), (8,))
    (process,) = processes(service)
    tasks = Path(f"/proc/{process}/task")

    def priorities():
        return {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in tasks.iterdir()}

    usual = priorities()
    thread = threading.Thread(
        target=service.squares,
        args=(files.progressive_scans(40, 2500), (8,)),
        kwargs={"max_pixels": MANY, "low_priority": True},
    )
    thread.start()
    wait_for(lambda: priorities() == {*usual, 10 + max(usual)})
    thread.join()
    wait_for(lambda: priorities() == usual)


def test_memory_of_a_large_picture_is_released(service):
    service.squares(files.saved(photo(), "PNG"), (8,))
    (process,) = processes(service)

    def resident():
        return 4096 * int(Path(f"/proc/{process}/statm").read_text().split()[1])

    before = resident()
    service.squares(files.png(5000, 5000, colour=0), (8,))  # 25 MB
    assert resident() - before < 10_000_000


def test_large_files_one_after_the_other():
    """What the last file took may not be free yet when the next one arrives."""
    service = DecodingService(1, Limits(memory=80_000_000, large_memory=300_000_000))
    content = files.png(4500, 4500, colour=6) + bytes(25_000_000)
    for _ in range(6):
        assert service.squares(content, (8,)).size == (4500, 4500)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read")
def test_a_file_that_the_disk_cannot_read_does_not_end_the_process():
    lost = []
    with (
        closing(DecodingService(1, on_lost=lost.append)) as service,
        pytest.raises(ImageError, match="Input/output error"),
    ):
        service.picture(Path("/proc/self/mem"))
    assert not lost
