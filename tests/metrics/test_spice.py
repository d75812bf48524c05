"""SPICE through its own program, with a fake for the part that needs Stanford's models.

The fake treats every word of a caption as an object. Everything else (reading the input,
matching, F1, writing the output) is done by the published jar, so F1 of two sets of words is what
must come out.
"""

import os
import shutil
import subprocess
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.spice import STANFORD_JARS, Java, Spice, find_java, run_java

PARSER = """
package edu.anu.spice;

import edu.cmu.meteor.aligner.SynonymDictionary;
import edu.cmu.meteor.util.Constants;
import java.net.URL;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

public class SpiceParser {
    private final SynonymDictionary synonyms;

    public SpiceParser(String cache, int threads, Boolean merge) throws java.io.IOException {
        String start = Constants.DEFAULT_SYN_DIR_URL + "/english.";
        synonyms = new SynonymDictionary(
            new URL(start + "exceptions"),
            new URL(start + "synsets"),
            new URL(start + "relations"));
    }

    public List<SceneGraph> parseCaptions(List<String> captions, List<Integer> counts) {
        List<SceneGraph> graphs = new ArrayList<>();
        int at = 0;
        for (int count : counts) {
            SceneGraph graph = new SceneGraph(synonyms, false);
            for (int end = at + count; at < end; at++)
                for (String word : captions.get(at).split(" ")) {
                    if (word.equals("crash")) throw new OutOfMemoryError("Java heap space");
                    if (word.equals("leave")) System.exit(0);
                    if (word.equals("fail")) System.exit(7);
                    if (word.equals("shout"))
                        for (int i = 0; i < 100000; i++) System.err.println("a line of noise");
                    if (word.equals("die"))
                        try {
                            java.io.File self = new java.io.File("/proc/self").getCanonicalFile();
                            new ProcessBuilder("kill", "-9", self.getName()).start().waitFor();
                        } catch (Exception error) {
                            throw new RuntimeException(error);
                        }
                    graph.addObject(word);
                }
            graphs.add(graph);
        }
        return graphs;
    }

    public List<SceneGraph> parseCaptions(List<String> captions) {
        return parseCaptions(captions, Collections.nCopies(captions.size(), 1));
    }
}
"""

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java")
needs_javac = pytest.mark.skipif(shutil.which("javac") is None, reason="there is no javac")


def package(*parts):
    return Path(find_spec("pycocoevalcap").submodule_search_locations[0], *parts)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """A folder of Stanford's two jars whose classes come before those of the program."""
    folder = tmp_path_factory.mktemp("standin")
    tokenizer = package("tokenizer", "stanford-corenlp-3.4.1.jar")
    source = folder / "SpiceParser.java"
    source.write_text(PARSER)
    classes = os.pathsep.join(map(str, (tokenizer, package("spice", "spice-1.0.jar"))))
    subprocess.run(
        ["javac", "-nowarn", "-Xlint:none", "-cp", classes, "-d", folder / "out", source],
        check=True,
    )
    library = folder / "lib"
    library.mkdir()
    # The program also uses graphs of CoreNLP itself, which the tokenizer's jar has as well.
    shutil.copy(tokenizer, library / STANFORD_JARS[1])
    with zipfile.ZipFile(library / STANFORD_JARS[0], "w") as jar:
        for path in (folder / "out").rglob("*.class"):
            jar.write(path, path.relative_to(folder / "out"))
    return library


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """A folder for parsed captions."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("NGSAN_CACHE", str(folder))
    return folder / "spice" / "parsed-3.6.0"


@pytest.fixture
def empty_jars(tmp_path, monkeypatch):
    """Empty files, so that `Spice` can be created but not run."""
    library = tmp_path / "jars"
    library.mkdir()
    for name in STANFORD_JARS:
        (library / name).touch()
    monkeypatch.setenv("NGSAN_SPICE_LIB", str(library))


@pytest.fixture
def spice(stand_in, monkeypatch):
    monkeypatch.setenv("NGSAN_SPICE_LIB", str(stand_in))
    return Spice(heap="500m")


def words(caption):
    return tuple(caption.split())


def captions(*pairs):
    """Pairs of a caption and its references."""
    return TokenizedCaptions(
        ids=tuple(f"image {number}" for number in range(len(pairs))),
        hypotheses=tuple(words(caption) for caption, _ in pairs),
        references=tuple(tuple(map(words, references)) for _, references in pairs),
    )


def f1(caption, references):
    test, truth = set(caption.split()), set(" ".join(references).split())
    hits = len(test & truth)
    return 2 * hits / (len(test) + len(truth)) if hits else 0.0


@needs_javac
def test_f1_of_every_image_in_its_place(spice, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = sorted(package("spice").rglob("*"))
    pairs = [
        ("zorb quux", ["zorb quux", "zorb"]),
        ("zorb", ["blarg", "mump"]),
        ("", ["zorb"]),
        ("zorb blarg", ["", "zorb mump frob", ""]),
        ("zorb", ["", ""]),
        ("größe 東京 zorb", ["größe 東京", "snör"]),
        ("zorb shout", ["shout"]),  # prints more than a pipe buffers
    ]
    rows = spice.statistics(captions(*pairs))
    np.testing.assert_allclose(rows[:, 0], [f1(*pair) for pair in pairs], atol=1e-12)
    assert (rows[:, 1] == 1).all()
    np.testing.assert_allclose(
        spice.score(rows.sum(axis=0)), [np.mean([f1(*pair) for pair in pairs])]
    )
    assert spice.score(rows).shape == (len(pairs), 1)
    assert list(tmp_path.iterdir()) == []
    assert sorted(package("spice").rglob("*")) == before
    assert spice.names == ("SPICE",)
    assert "3.6.0" in spice.signature["parser"]


@needs_javac
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("crash", "OutOfMemoryError.*500m.*NGSAN_SPICE_HEAP"),
        ("fail", "exit status 7"),
        ("leave", "no output"),
        pytest.param(
            "die",
            "killed by SIGKILL",
            marks=pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc"),
        ),
    ],
)
def test_failures_of_spice_are_reported(spice, word, message):
    with pytest.raises(ChildProcessError, match=message):
        spice.statistics(captions((word, ["zorb"])))


ALL_BUT_F = '{"image_id": 0, "scores": {"All": {"pr": 1}}}'
GOOD = '{"image_id": 0, "scores": {"All": {"f": 1}}}'


@needs_java
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("", "malformed"),
        ('[{"image_id": 0', "malformed"),
        ('{"image_id": 0}', "malformed"),
        (f"[{ALL_BUT_F}]", "malformed"),
        ("[]", "0 of 1 captions"),
        (f"[{GOOD}, {GOOD}]", "invalid result"),
        (f"[{GOOD.replace('0', '5', 1)}]", "invalid result"),
        (f"[{GOOD.replace('1', 'NaN')}]", "invalid result"),
        (f"[{GOOD.replace('1', 'null')}]", "malformed"),
    ],
)
def test_invalid_output_of_spice(empty_jars, monkeypatch, answer, message):
    def run(java, arguments, *, what):
        Path(arguments[arguments.index("-out") + 1]).write_text(answer)

    monkeypatch.setattr("ngsan.metrics.spice.run_java", run)
    with pytest.raises(ChildProcessError, match=message):
        Spice().statistics(captions(("zorb", ["zorb"])))


@pytest.fixture
def arguments(empty_jars, monkeypatch):
    """Scores a caption with some Java and returns its arguments."""
    seen = []

    def run(java, arguments, *, what):
        seen.extend(arguments)
        Path(arguments[arguments.index("-out") + 1]).write_text(f"[{GOOD}]")

    def score(version, **options):
        monkeypatch.setattr("ngsan.metrics.spice.find_java", lambda: Java("java", version))
        monkeypatch.setattr("ngsan.metrics.spice.run_java", run)
        assert Spice(**options).statistics(captions(("zorb", ["zorb"])))[0, 0] == 1
        return seen

    return score


@needs_java
@pytest.mark.parametrize(
    ("version", "launched"), [("1.8.0_392", False), ("14", False), ("15", True)]
)
def test_java_without_javascript_gets_a_launcher(arguments, version, launched):
    seen = arguments(version, heap="3G")
    assert seen[0] == "-Xmx3G"
    main = seen[seen.index("-cp") + 2]
    assert main.endswith("spice_launcher.java" if launched else "edu.anu.spice.SpiceScorer")


@needs_java
@pytest.mark.parametrize(("version", "opened"), [("1.8.0_392", 0), ("11.0.2", 6), ("17.0.15", 6)])
def test_parsed_captions_are_kept(arguments, cache, monkeypatch, version, opened):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    seen = arguments(version)
    assert seen[seen.index("-cache") + 1] == str(cache)
    assert cache.is_dir()
    flags = [word for word in seen if word.startswith("--add-opens=java.base/java.")]
    assert len(set(flags)) == opened
    assert all(seen.index(flag) < seen.index("-cp") for flag in flags)


@needs_java
def test_other_processors_have_no_cache(arguments, cache, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    seen = arguments("17.0.15")
    assert "-cache" not in seen
    assert not cache.exists()


@needs_java
def test_cache_that_cannot_be_written_is_reported(empty_jars, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NGSAN_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(ValueError, match=r"cannot be kept in .*; set NGSAN_CACHE to a folder"):
        Spice().statistics(captions(("zorb", ["zorb"])))


@needs_java
def test_folder_of_jars_can_be_passed(tmp_path, empty_jars, monkeypatch):
    monkeypatch.delenv("NGSAN_SPICE_LIB")
    assert Spice(jars=tmp_path / "jars")
    with pytest.raises(ValueError, match=f"to {tmp_path / 'nowhere'}$"):
        Spice(jars=tmp_path / "nowhere")


@needs_java
def test_empty_captions_start_no_process(empty_jars):
    rows = Spice().statistics(captions(("", ["zorb"]), ("zorb", [""])))
    np.testing.assert_array_equal(rows, [[0, 1], [0, 1]])


@needs_java
def test_missing_models_error_has_instructions(tmp_path, monkeypatch):
    if all(package("spice", "lib", name).exists() for name in STANFORD_JARS):
        pytest.skip("the models are there")
    for name in ("NGSAN_SPICE_LIB", "NGSAN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(
        ValueError, match="edu.stanford.nlp:stanford-corenlp:3.6.0:models"
    ) as caught:
        Spice()
    assert f"to {tmp_path / '.cache' / 'ngsan' / 'spice'} " in str(caught.value)
    assert all(name in str(caught.value) for name in STANFORD_JARS)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with pytest.raises(ValueError, match=str(tmp_path / "xdg" / "ngsan" / "spice")):
        Spice()
    monkeypatch.setenv("NGSAN_CACHE", str(tmp_path / "own"))
    with pytest.raises(ValueError, match=str(tmp_path / "own" / "spice")):
        Spice()
    (tmp_path / "own" / "spice").mkdir(parents=True)
    (tmp_path / "own" / "spice" / STANFORD_JARS[0]).touch()
    with pytest.raises(ValueError, match=f"download [^ ]*/{STANFORD_JARS[1]} ") as caught:
        Spice()
    assert STANFORD_JARS[0] not in str(caught.value)
    (tmp_path / "own" / "spice" / STANFORD_JARS[1]).touch()
    assert Spice()


def test_missing_java_is_reported(empty_jars, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ValueError, match="no java on the search path; install Java"):
        Spice()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=f"no java in JAVA_HOME .{tmp_path}"):
        Spice()


def test_missing_package_is_reported(monkeypatch):
    monkeypatch.setattr("ngsan.metrics.spice.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"ngsan\[metrics\]"):
        Spice()


@pytest.mark.parametrize("heap", ["8", "lots", "-8G", "0G", "8G -version"])
def test_wrong_heap(heap):
    with pytest.raises(ValueError, match="heap"):
        Spice(heap=heap)


@pytest.mark.parametrize(
    ("version", "release"),
    [("1.8.0_392", 8), ("11.0.2", 11), ("17.0.15", 17), ("21", 21), ("22-ea", 22), ("9", 9)],
)
def test_releases(version, release):
    assert Java("java", version).release == release


def test_invalid_java_version():
    with pytest.raises(ValueError, match="'new'"):
        _ = Java("java", "new").release


def fake_java(folder, text, status=0):
    program = folder / "java"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\nexit {status}\n")
    program.chmod(0o755)
    return program


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ('java version "1.7.0_80"', 0, "is Java 1.7.0_80"),
        ("No Java runtime present", 1, "No Java runtime present"),
        ("", 0, "nothing"),
    ],
)
def test_invalid_java_is_rejected(tmp_path, monkeypatch, text, status, message):
    fake_java(tmp_path, text, status)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ValueError, match=message):
        find_java()


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_java_version_after_other_output(tmp_path, monkeypatch):
    text = 'Picked up JAVA_TOOL_OPTIONS: -Xmx1G\nopenjdk version "1.8.0_392"'
    program = fake_java(tmp_path, text)
    (tmp_path / "bin").mkdir()
    program.rename(tmp_path / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == Java(str(tmp_path / "bin" / "java"), "1.8.0_392")


@needs_java
def test_errors_of_java_have_no_stack_trace():
    java = find_java()
    with pytest.raises(ChildProcessError, match="the thing .Java .*exit status 1: .*Nope"):
        run_java(java, ["Nope"], what="the thing")


@needs_java
def test_java_without_compiler_is_reported(empty_jars, monkeypatch):
    def without_compiler(java, arguments, *, what):
        raise ChildProcessError("SPICE failed: FindException: Module jdk.compiler not found")

    monkeypatch.setattr("ngsan.metrics.spice.run_java", without_compiler)
    with pytest.raises(ChildProcessError, match="Java 8 to 14, and set JAVA_HOME"):
        Spice().statistics(captions(("zorb", ["zorb"])))
