"""Whatever becomes of files that edgespec keeps, the next start goes on and says so in a line."""

import json
import logging
import os
import random

import numpy as np
import pytest

from edgespec import ToyTokenizer, kept_files
from edgespec.cache import requantization
from edgespec.config import EngineConfig
from edgespec.corpus import collection
from edgespec.corpus.answers import Answers
from edgespec.corpus.folder import vocabulary_folder
from edgespec.costs import learning
from edgespec.costs.curves import Curve
from edgespec.costs.profiles import keep, kept, store, stored
from edgespec.loading import tuned
from edgespec_cli import prompt
from tests.helpers.selection import share
from tests.unit.cache import test_prefixes
from tests.unit.decoding import test_kept

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and links of POSIX")

FINGERPRINT = {"kind": "test", "file": ["toy.gguf", 7]}
TOKENIZER = ToyTokenizer([chr(i) for i in range(32, 127)] + ["\n"])


class Entry:
    """A file of the folder of profiles."""

    is_users = False

    def __init__(self, folder):
        self.path = self.make()

    def make(self):
        return keep(FINGERPRINT, self.values)


class CurveEntry(Entry):
    def make(self):
        return store(FINGERPRINT, Curve((8, 520), (1, 2, 8), ((0.1, 0.2, 0.3), (0.1, 0.2, 0.4))))

    def start(self):
        if curve := stored(FINGERPRINT):
            assert 0 < curve(5, 100) < 1e9


class Tuned(Entry):
    values = {"options": {"n_threads": 2, "flash_attn": "on"}}  # noqa: RUF012

    def start(self):
        options = tuned.tuned_options(self.path, EngineConfig())
        EngineConfig(**options)


class Decided(Entry):
    values = {"faster": True, "copy": [7, 123456789]}  # noqa: RUF012

    def start(self):
        kept(FINGERPRINT, requantization._Decided)


class HeadTimes(Entry):
    values = {"tapping": 0.001, "growing": 0.5}  # noqa: RUF012

    def start(self):
        kept(FINGERPRINT, learning._HeadEntry)


class Learned:
    """What drafters and the policy have learned, or the tokens of it."""

    is_users = False

    def __init__(self, folder, pattern="*.json"):
        self._model = folder / "toy.gguf"
        self._model.write_bytes(b"weights")
        self.start()
        (self.path,) = (folder / "profiles").glob(pattern)

    def start(self):
        test_kept.use(self._model, method="recycling")


class Tokens(Learned):
    def __init__(self, folder):
        super().__init__(folder, "tokens/*")


class Journal:
    """Earlier answers."""

    is_users = True

    def __init__(self, folder):
        self.path = folder / "corpus" / "answers.i32"
        answers = Answers(journal=self.path)
        for i in range(5):
            answers.write([i, 2, 3])

    def start(self):
        answers = Answers(journal=self.path)
        answers.add([[1, 2, 3]])
        assert answers.n_tokens >= 3


class Manifest:
    """Documents that were added: what is known of them."""

    is_users = True

    def __init__(self, folder):
        text = folder / "text.txt"
        text.write_text("one two three\n" * 20)
        collection.add(TOKENIZER, [text])
        (self.path,) = vocabulary_folder(TOKENIZER).glob(self.pattern)

    pattern = "added.json"

    def start(self):
        if array := collection.added(TOKENIZER):
            array.find(np.array([1, 2, 3]))


class Documents(Manifest):
    """Their tokens, which `edgespec corpus add` makes again."""

    is_users = False
    pattern = "added-*.i32"


class History:
    """What the user has typed."""

    is_users = True

    def __init__(self, folder):
        self.path = folder / "history"
        self.start()

    def start(self):
        history = prompt._history(self.path)
        list(history.load_history_strings())
        history.store_string("hello")


class Prefix:
    """The state of a prompt that a model has read."""

    is_users = False

    def __init__(self, folder):
        self._folder = folder
        (folder / "toy.gguf").write_bytes(b"weights")
        store, cache = test_prefixes.on_disk(folder)
        test_prefixes.read(cache, [1, 2, 3] * 30)
        cache.save()
        store.close()
        (self.path,) = (folder / "prefixes").glob("*.prefix")

    def start(self):
        _, cache = test_prefixes.on_disk(self._folder)
        assert test_prefixes.read(cache, [*[1, 2, 3] * 30, 4]) in (0, 90)


class Salt(Prefix):
    """What the names of owners are hashed with."""

    def __init__(self, folder):
        super().__init__(folder)
        self.path = folder / "prefixes" / "salt"


KINDS = [
    CurveEntry,
    Tuned,
    Decided,
    HeadTimes,
    Learned,
    Tokens,
    Journal,
    Manifest,
    History,
    Prefix,
    Salt,
]
EXTREMES = [
    None, True, -1, 0, 1 << 62, 10**30, 1e308, -1e308, 0.5, "", "x" * 5000, "\u202e\n\x1b[2J", [],
    [[]], {}, {"a": {}}, [0] * 500,
]  # fmt: skip


def flipped(data, rng):
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def cut(data, rng):
    return data[: rng.randrange(len(data))]


def with_a_wrong_value(data, rng):
    try:
        content = json.loads(data)
    except ValueError:  # a binary file: four bytes of it
        at = rng.randrange(max(1, len(data) - 4))
        return (
            data[:at] + rng.choice([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"]) + data[at + 4 :]
        )
    holder = content
    while True:
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.3:
            break
        holder = inner
    holder[key] = rng.choice(EXTREMES)
    return json.dumps(content).encode()


def spoil(path, data, rng):
    """Put something else in the place of a file; return its bytes, None for no regular file."""
    path.unlink()
    if rng.random() < 0.4:
        rng.choice([os.mkfifo, os.mkdir, dangling, endless, outside, *STRANGERS])(path)
        return None
    spoiled = rng.choice([flipped, cut, with_a_wrong_value])(data, rng)
    path.write_bytes(spoiled)
    return spoiled


def dangling(path):
    path.symlink_to(path.with_name("nowhere"))


def endless(path):
    path.symlink_to("/dev/zero")


def outside(path):
    """Put a link to a file of the user's in a place."""
    users_file(path).write_text("the user's")
    path.symlink_to(users_file(path))


def users_file(path):
    """Return a file beside the folder of a seed, in which all of edgespec's files are."""
    return [folder for folder in path.parents if folder.name.isdecimal()][-1].with_name("users.txt")


def users_text(path):
    """Return what is in the file of the user's that `outside` wrote, "" if there is none."""
    users = users_file(path)
    return users.read_text() if users.exists() else ""


def strangers(path):
    """Put a file of another user in a place."""
    path.write_bytes(b"theirs")
    os.chown(path, 65534, 65534)


STRANGERS = [strangers] if os.name == "posix" and os.getuid() == 0 else []


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_goes_on(kind, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tuned, "tuning_key", lambda *_: FINGERPRINT)
    monkeypatch.setattr(test_kept.idle_work, "PAUSE_S", 0.0)
    for seed in range(share(200)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        monkeypatch.setenv("EDGESPEC_PROFILES", str(folder / "profiles"))
        monkeypatch.setenv("EDGESPEC_CORPUS", str(folder / "corpus"))
        monkeypatch.setenv("EDGESPEC_PREFIXES", str(folder / "prefixes"))
        keeper = kind(folder)
        spoiled = spoil(keeper.path, keeper.path.read_bytes(), random.Random(seed))
        theirs = users_text(keeper.path)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "edgespec"):
            keeper.start()
        told = [record.getMessage() for record in caplog.records]
        assert len(told) <= 1, told
        assert all(line.isprintable() for line in told), told
        if spoiled is None:
            assert os.path.lexists(keeper.path)
            assert not kept_files._is_ours(keeper.path)
            assert users_text(keeper.path).startswith(theirs)  # a history may be a link
        elif keeper.is_users:
            there = [path.read_bytes() for path in keeper.path.parent.glob(f"{keeper.path.name}*")]
            assert any(content.startswith(spoiled[:64]) for content in there)
