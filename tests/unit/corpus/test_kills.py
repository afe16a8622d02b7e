"""Whenever `corpus add` is killed, the corpus is the old one or the new one."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from edgespec import ToyTokenizer, kept_files
from edgespec.corpus import collection
from edgespec.corpus.folder import vocabulary_folder
from tests.helpers.selection import sample, share

pytestmark = pytest.mark.skipif(os.name != "posix", reason="no SIGKILL here")

VOCABULARY = ToyTokenizer([bytes([i]) for i in range(256)] + ["<end>"], eog=[256])
ADD = """
import os, signal, sys
from edgespec.corpus import collection
from tests.unit.corpus.test_kills import VOCABULARY

left = int(sys.argv[2])  # calls after which this process is killed, 0 for none
def counted(call):
    def counting(*args, **more):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **more)
    return counting

for name in ("open", "write", "fsync", "replace", "unlink", "mkdir"):
    setattr(os, name, counted(getattr(os, name)))
print("ready", flush=True)
collection.add(VOCABULARY, [sys.argv[1]])
"""


class Texts:
    """A folder of texts, which changes, and the corpus that is made of it."""

    def __init__(self, folder):
        self.folder = folder
        self.folder.mkdir()
        self.write(0)
        collection.add(VOCABULARY, [self.folder])

    def write(self, version):
        for i in range(20):
            text = f"{version} {i} the moon is made of green cheese\n"
            (self.folder / str(i)).write_text(text * 40)

    def tokens(self):
        """Return the corpus as another program finds it."""
        array = collection.added(VOCABULARY)
        assert array is not None
        opened = collection._opened(vocabulary_folder(VOCABULARY), collection.ADDED)
        assert opened
        return opened.tokens(vocabulary_folder(VOCABULARY)).tobytes()

    def add(self, calls=0, after_s=None):
        """Add the texts in a process, which is killed."""
        path = os.pathsep.join(filter(None, sys.path))
        with subprocess.Popen(
            [sys.executable, "-c", ADD, str(self.folder), str(calls)],
            stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path},
        ) as process:  # fmt: skip
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            if after_s is not None:
                time.sleep(after_s)
                process.kill()
        return process.returncode

    def left(self):
        return {path.name for path in vocabulary_folder(VOCABULARY).iterdir()}


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_CORPUS", str(tmp_path / "kept"))
    return Texts(tmp_path / "texts")


def check(texts, version, kill):
    """Kill a process that adds a new version; return whether it was killed."""
    before = texts.tokens()
    texts.write(version)
    code = kill()
    assert code in (0, -signal.SIGKILL)
    after = texts.tokens()
    kept_files._swept.clear()
    collection.add(VOCABULARY, [texts.folder])  # the next start
    assert after in (before, texts.tokens())
    assert len(texts.left()) == 2  # tokens, and what they are of
    return code != 0


def test_kills_at_each_call_that_changes_the_disk(texts):
    for n in sample(range(1, 400), 13):
        if not check(texts, n, lambda n=n: texts.add(calls=n)):
            return
    raise AssertionError("it never ended by itself")


def test_kills_at_random_moments(texts):
    rng = random.Random(43)
    begun = time.monotonic()
    collection.add(VOCABULARY, [texts.folder])
    longest = 2 * (time.monotonic() - begun) + 0.1
    for version in range(share(30)):
        check(texts, version, lambda: texts.add(after_s=rng.uniform(0, longest)))


def test_a_start_sweeps_what_a_killed_process_left(texts):
    name = f"{kept_files.NEW}{os.getpid()}.abc"  # this number had another process before
    left = vocabulary_folder(VOCABULARY) / name
    left.write_bytes(b"half")
    os.utime(left, (time.time() - 3600,) * 2)
    kept_files._swept.clear()
    assert collection.added(VOCABULARY)
    assert name not in texts.left()
