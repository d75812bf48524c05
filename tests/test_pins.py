"""The pinned versions, and the hashes of their files."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def test_every_pin_but_torch_has_hashes():
    pins = dict(PIN.findall((ROOT / "constraints.txt").read_text()))
    text = (ROOT / "constraints-hashed.txt").read_text()
    hashed = dict(PIN.findall(text))
    assert hashed == pins, "run `make lock` after a change of constraints.txt"
    for block in re.split(r"\n(?=\S)", text):
        if (match := PIN.match(block)) and match[1] != "torch":
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), match[1]
