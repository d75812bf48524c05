"""Fixtures for browser tests of the studio: `pytest -m browser`.

The tests start `ngsan serve`, or use the running server at STUDIO_URL. STUDIO_IMAGES names a folder
in which to keep the pictures for the documentation, which otherwise go to a temporary folder.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.browser.visitor import Visitor

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS_TO_START = 60


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def answers(url):
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="session")
def studio():
    """The address of a running server."""
    if "STUDIO_URL" in os.environ:
        yield os.environ["STUDIO_URL"].rstrip("/")
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "ngsan", "serve", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            end = time.monotonic() + SECONDS_TO_START
            while not answers(url):
                assert server.poll() is None, f"the server ended with {server.returncode}"
                assert time.monotonic() < end, "the server does not answer"
                time.sleep(0.1)
            yield url
        finally:
            server.terminate()


# Playwright keeps an event loop running in this thread as long as it is open. A later test that
# starts its own would fail, so a browser lives for one file.
@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert program, f"none of {', '.join(BROWSERS)} is installed; make chromium installs one"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, studio):
    """Opens the page for a visitor; fails at the end if their browser reported problems."""
    visitors = []

    def open_page(view="photo", *, width=1280, height=900, **options):
        visitor = Visitor(chromium, studio, {"width": width, "height": height}, options)
        visitors.append(visitor)
        visitor.go(view)
        return visitor

    yield open_page
    for visitor in visitors:
        visitor.leave()
    for visitor in visitors:
        assert not visitor.problems


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """The folder for the documentation's pictures."""
    given = os.environ.get("STUDIO_IMAGES")
    folder = Path(given) if given else tmp_path_factory.mktemp("images")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
