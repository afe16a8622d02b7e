"""Heads on llama.cpp under test: what those of all kinds need."""

import contextlib
import itertools
import signal
import subprocess
import sys
import textwrap

import numpy as np

from edgespec import EngineConfig, ToyModel
from edgespec.backends.features import Features
from tests.helpers import libllama, tiny_models
from tests.helpers.gguf_files import TOKENS

llama_cpp = libllama.require()

from edgespec.backends.llama_cpp.library import lib  # noqa: E402

N_CTX = 256
TEXT = [3, 200, 17, 5, 5, 90, 250, 41, 8, 77]
LONG = [3 + (7 * i) % 250 for i in range(150)]
SETTINGS = {"n_ctx": N_CTX, "n_batch": 64, "n_threads": 1}
CONFIG = EngineConfig(**SETTINGS, flash_attn="on")
EXACT = EngineConfig(**SETTINGS, flash_attn="off", type_k="f32", type_v="f32")


class OtherEngine(ToyModel):
    """What a head needs to know of a target that another engine evaluates."""

    hidden_size, n_layer = tiny_models.WIDTH, tiny_models.N_LAYER

    def __init__(self, **changed):
        super().__init__(lambda _: (), vocab_size=len(TOKENS))
        vars(self).update(changed)


@contextlib.contextmanager
def tapped(folder, layers, config):
    """Open a target that gives the hidden states of these layers."""
    model = llama_cpp.LlamaCppModel(tiny_models.write(folder, "llama"), config)
    model.tap(layers)
    try:
        yield model
    finally:
        model.close()


@contextlib.contextmanager
def opening(folder, write, states):
    """Give a function that writes and opens heads, which know these states and are closed at the
    end.
    """
    made = []

    def opened(target=None, weights=None, config=EXACT, **changed):
        path = write(folder / f"head-{len(made)}.gguf", weights, **changed)
        made.append(llama_cpp.open_head(path, config, target or OtherEngine()))
        made[-1].features = features_of(states)
        return made[-1]

    try:
        yield opened
    finally:
        for head in made:
            head.close()


class Pair:
    """A target and a head for it, which knows the states of what the target has evaluated."""

    def __init__(self, target_path, head_path, config=EXACT):
        self.target = llama_cpp.LlamaCppModel(target_path, config)
        self.head = llama_cpp.open_head(head_path, config, self.target)
        self.target.tap(self.head.layers)

    def begin(self, text):
        """Let the target evaluate a text but for its last token; return the head, which has read
        nothing.
        """
        self.target.truncate(0)
        self.head.truncate(0)
        self.head.features.truncate(0)
        self.evaluate(text[:-1])
        return self.head

    def evaluate(self, tokens):
        """Let the target evaluate more tokens."""
        n_past = self.target.n_past
        self.head.features.append(n_past, self.target.decode(tokens).hidden)

    def renew(self):
        """Open the head anew."""
        self.head.close()
        self.head = llama_cpp.open_head(self.head.path, self.head.config, self.target)

    def close(self):
        self.head.close()
        self.target.close()


def states_of(target, tokens):
    """Return the hidden states of a text."""
    target.truncate(0)
    return target.decode(tokens).hidden.copy()


def features_of(states, start=0):
    """Return the features of a head with these states from a position on."""
    found = Features()
    found.append(start, states)
    return found


def near(found, expected, most=1e-4):
    """Return True where rows differ by rounding, and are -inf in the same places."""
    finite = np.isfinite(expected)
    assert found.shape == expected.shape
    assert np.array_equal(np.isfinite(found), finite)
    off = np.abs(found[finite] - expected[finite]).max()
    assert off < most * np.abs(expected[finite]).max()
    return True


def stop(monkeypatch, code=None, name="llama_decode", n=1):
    """Let the n-th call of a native function fail with a code, or Ctrl-C be pressed within it."""
    call, numbers = getattr(lib, name), itertools.count(1)

    def stopped(*args):
        is_the_one = next(numbers) == n
        if is_the_one and code:
            return code
        result = call(*args)
        if is_the_one:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(lib, name, stopped)


def cut(path, part):
    """Keep so much of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])
    return path


def lives(program):
    """Assert that a program of its own comes to its end, and prints nothing but "lives"."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "lives\n"


def refuses_all(folder, module, heads):
    """Assert that no head opens with what a test module calls REFUSED, and none ends the process.

    heads: the helper that writes them.
    """
    lives(f"""
        from pathlib import Path
        from edgespec import ConfigError, ModelError
        from tests.helpers import {heads}
        from tests.helpers.llama_heads import EXACT, TEXT, OtherEngine, llama_cpp
        from tests.unit.backends.{module} import REFUSED
        for case, (metadata, weights, _) in REFUSED.items():
            path = {heads}.write(Path({str(folder)!r}) / "head.gguf", weights, **metadata)
            try:
                llama_cpp.open_head(path, EXACT, OtherEngine()).decode(TEXT)
                print("opened", case)
            except (ConfigError, ModelError):
                pass
        print("lives")
    """)
