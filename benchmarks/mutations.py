"""Whether the fast tests notice a mistake in a core equation, the search, a score or a resumed run.

Each mutation changes one expression in a copy of the working tree, where the fast tests of the
room then run; they must fail. It prints one line a mutation, and exits with 1 if one survives.

    python benchmarks/mutations.py
    python benchmarks/mutations.py --only search
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutation(NamedTuple):
    """One expression, what it becomes, and the tests that should notice."""

    what: str
    file: str
    old: str
    new: str
    tests: str


MUTATIONS = [
    Mutation(
        "Eq. 6: no mean is subtracted from the queries",
        "nn/normalize.py",
        "normalized = (wide - mean) * torch.rsqrt(variance + self.eps)\n        if",
        "normalized = wide * torch.rsqrt(variance + self.eps)\n        if",
        "nn",
    ),
    Mutation(
        "Eq. 6: statistics over channels instead of regions",
        "nn/normalize.py",
        "_moments(wide, mask, (1,))",
        "_moments(wide, mask, (2,))",
        "nn",
    ),
    Mutation(
        "Eq. 8: distances are divided by the size of the other box",
        "nn/geometry.py",
        "/ size.unsqueeze(2)  #",
        "/ size.unsqueeze(1)  #",
        "nn",
    ),
    Mutation(
        "Eq. 8: the ratio of sizes is inverted",
        "nn/geometry.py",
        "size.log().unsqueeze(2) - size.log().unsqueeze(1)",
        "size.log().unsqueeze(1) - size.log().unsqueeze(2)",
        "nn",
    ),
    Mutation(
        "Eq. 9: no ReLU",
        "nn/geometry.py",
        "nn.functional.linear(geometry.to(weight.dtype), weight, bias).relu()",
        "nn.functional.linear(geometry.to(weight.dtype), weight, bias)",
        "nn",
    ),
    Mutation(
        "Eq. 10: scores are not scaled",
        "nn/attend.py",
        "scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])",
        "scores = query @ key.transpose(-2, -1)",
        "nn",
    ),
    Mutation(
        "Eq. 10: the bias is subtracted",
        "nn/attend.py",
        "scores = scores + bias",
        "scores = scores - bias",
        "nn",
    ),
    Mutation(
        "Eq. 11: no ReLU",
        "nn/geometry.py",
        "self.content_independent(embedded).relu()",
        "self.content_independent(embedded)",
        "nn",
    ),
    Mutation(
        "Eq. 12: G of the transposed pair",
        "nn/geometry.py",
        '"bijg,bihg->bijh"',
        '"bjig,bihg->bijh"',
        "nn",
    ),
    Mutation(
        "Eq. 13: the query's K' instead of the key's",
        "nn/geometry.py",
        '"bjhg,bijg->bhij"',
        '"bihg,bijg->bhij"',
        "nn",
    ),
    Mutation(
        "search: candidates of one caption less",
        "search/beam.py",
        "count = min(2 * width, width * vocabulary)",
        "count = min(2 * width - 1, width * vocabulary)",
        "search",
    ),
    Mutation(
        "search: words follow their own caption instead of its parent",
        "search/beam.py",
        "self.words[...] = self.ops.rows(self.words, self.parents)",
        "pass",
        "search",
    ),
    Mutation(
        "search: stops one word early",
        "search/beam.py",
        "full = full & (worst >= self._divided(highest, self._best_divisors))",
        "full = worst > -math.inf",
        "search",
    ),
    Mutation(
        "search: repeated sequences are one word shorter",
        "search/constraints.py",
        "same = (starts + size <= position)",
        "same = (starts + size < position)",
        "search",
    ),
    Mutation(
        "scores: CIDEr without the logarithm of the number of images",
        "metrics/cider.py",
        "np.log(images) - np.log(np.maximum(1.0, frequency))",
        "np.log(images) - np.log(1.0 + frequency)",
        "metrics",
    ),
]


def main() -> int:
    """Tries the mutations; returns 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="mutations whose name contains this text")
    options = parser.parse_args()
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "ngsan"
        shutil.copytree(ROOT / "src", copy / "src")
        shutil.copytree(ROOT / "tests", copy / "tests")
        shutil.copy(ROOT / "pyproject.toml", copy)
        for one in MUTATIONS:
            if options.only not in one.what:
                continue
            path = copy / "src" / "ngsan" / one.file
            text = path.read_text()
            if text.count(one.old) != 1:
                raise SystemExit(f"{one.file}: {one.old!r} is not there once; update this list")
            path.write_text(text.replace(one.old, one.new))
            noticed = not _passes(copy, one.tests)
            path.write_text(text)
            survived += not noticed
            print("noticed " if noticed else "SURVIVED", one.what, flush=True)
    return 1 if survived else 0


def _passes(copy: Path, tests: str) -> bool:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, f"tests/{tests}"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
