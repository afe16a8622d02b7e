"""A program that is killed while it writes prefixes: the next start is right."""

import os
import random
import subprocess
import sys
import time

import pytest

from edgespec import kept_files
from edgespec.cache import prefix_files
from tests.helpers.selection import share
from tests.unit.cache import test_prefixes

folder = test_prefixes.folder

PROGRAM = """
import sys
from pathlib import Path
from tests.unit.cache import test_prefixes as tests

store, cache = tests.on_disk(Path(sys.argv[1]), 300_000)
print("ready", flush=True)
for i in range(int(sys.argv[2]), 10**6):
    tests.read(cache, [*tests.text(i // 3, 700), *tests.text(i, 40)])
    cache.save()
"""


@pytest.mark.skipif(os.name != "posix", reason="kills with SIGKILL")
def test_the_next_start_is_right(folder, caplog):
    rng = random.Random(0)
    for turn in range(max(3, share(20))):
        command = [sys.executable, "-c", PROGRAM, str(folder), str(100 * turn)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        time.sleep(rng.random() * 0.5)
        process.kill()
        process.wait()
        process.stdout.close()
    kept_files._swept.clear()  # as in a new process
    store, cache = test_prefixes.on_disk(folder, 300_000)
    assert caplog.messages == []  # no file is damaged
    names = [path.name for path in prefix_files.folder().iterdir()]
    assert [name for name in names if not name.endswith((".prefix", "salt"))] == []
    assert 0 < store.files.n_bytes() <= 300_000
    texts = [list(part.tokens) for parts in cache._prefixes.parts.values() for part in parts]
    assert texts
    for text in texts:
        prompt = [int(token) for token in text]
        assert test_prefixes.read(cache, [*prompt, 1]) >= len(prompt)  # with the right tokens
