"""SPICE with its real parser, against scores of the official program.

The parser is in NGSAN_SPICE_LIB, or in the folder `shared` beside the repository, which has the
captions and their scores.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from ngsan.metrics.spice import STANFORD_JARS

SHARED = Path(__file__).parents[3] / "shared" / "data"
JARS = Path(os.environ.get("NGSAN_SPICE_LIB", SHARED / "spice"))
CAPTIONS = SHARED / "coco" / "published_captions.json"
GOLDEN = SHARED / "spice" / "golden_xe_200.json"
NEEDED = (CAPTIONS, GOLDEN, *(JARS / name for name in STANFORD_JARS))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("javac") is None, reason="there is no Java development kit"),
    pytest.mark.skipif(
        not all(path.is_file() for path in NEEDED),
        reason=f"SPICE's parser or its golden scores are not in {JARS} and {SHARED}",
    ),
]

SCRIPT = """
import json, sys
from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.spice import Spice
texts, references = json.load(sys.stdin)
found = Spice(heap="2G", jars=sys.argv[1]).statistics(TokenizedCaptions.tokenize(texts, references))
print(json.dumps(found[:, 0].tolist()))
"""


@pytest.fixture(scope="module")
def cases():
    """Golden images with their caption, references and score."""
    golden = json.loads(GOLDEN.read_text())
    jar = Path(find_spec("pycocoevalcap").submodule_search_locations[0], "spice", "spice-1.0.jar")
    with zipfile.ZipFile(jar) as archive:
        annotations = json.loads(archive.read("coco/annotations/captions_val2014.json"))
    references = {}
    for one in annotations["annotations"]:
        references.setdefault(str(one["image_id"]), []).append(one["caption"])
    captions = {str(one["image_id"]): one["caption"] for one in json.loads(CAPTIONS.read_text())}
    return [(image, captions[image], references[image], golden[image]) for image in golden]


def start(cases, cache):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(JARS)],
        env={**os.environ, "NGSAN_CACHE": str(cache)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    texts = {image: caption for image, caption, _, _ in cases}
    json.dump([texts, {image: refs for image, _, refs, _ in cases}], process.stdin)
    process.stdin.close()
    return process


def check(process, cases):
    found = json.loads(process.stdout.read())
    process.stdout.close()
    assert process.wait() == 0
    close = [abs(one - case[3]) <= 1e-6 for one, case in zip(found, cases, strict=True)]
    assert sum(close) >= len(cases) - 1  # ties are broken by object identity


def test_two_runs_at_once_and_a_killed_one_give_the_official_scores(cases, tmp_path):
    first = cases[:8]
    for process in [start(first, tmp_path) for _ in range(2)]:
        check(process, first)
    more = cases[8:16]
    killed = start(more, tmp_path)
    time.sleep(8)  # in the parser, or before
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    check(start([*first, *more], tmp_path), [*first, *more])


@pytest.mark.skipif("NGSAN_SPICE_ALL" not in os.environ, reason="takes minutes: NGSAN_SPICE_ALL=1")
def test_all_golden_scores(cases, tmp_path):
    check(start(cases, tmp_path), cases)
