"""The CLI over the real engine with a scripted toy model; also a program of its own.

`python tests/cli/conftest.py chat …` is `edgespec chat …` with that model, for tests that
need a process (signals, pipes, terminals).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import edgespec
from edgespec.hub import hub_client
from edgespec.loading.prefixes import prefix_store
from edgespec_cli.main import cli

END = 256
TURN = b"<|im_start|>assistant\n"
TOOLS = (  # ChatML with tools and reasoning
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}"
    "{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
    "{{ m.content }}"
    "{% for call in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

NOT_THOUGHT = "<think>\n\n</think>\n\n"
THINKS = TOOLS.replace(  # and a switch for reasoning, as Qwen3 has it
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    + NOT_THOUGHT
    + "{% endif %}{% endif %}",
)

TEMPLATES = {"tools.gguf": TOOLS, "thinks.gguf": THINKS}


def call(name: str, **arguments: Any) -> str:
    """Return a call as the scripted model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


ANSWERS = {
    "drive": "I drive.\n" + call("drive", centimetres=5),
    "both": call("drive", centimetres=1) + "\n" + call("drive", centimetres=2),
    **{name: call(name) for name in ("breaks", "forever", "leaves", "much", "odd", "more")},
    "think": "<think>one, two</think>three",
    "hello": "Hi, what can I do?",
    "again": "one two three, one two three, one two three, one two three.",
    "for ever": "one two three, " * 60,
    "escape": "red \x1b[31m bell \x07 csi \x9b2J end\n\ttab",
    "slow": "tick " * 400,
    "system?": "{system}",
    "first line\nsecond line": "two lines",
    "count": "{turns}",
}


ROBOT = '''
import sys
import time
from os import getcwd


def drive(centimetres: int) -> str:
    """Drive forward."""
    print("brrm \\x1b[31m", end="")
    return f"drove {centimetres} cm"


def breaks() -> None:
    raise ValueError("no battery")


def forever() -> None:
    print("for ever")
    while True:
        time.sleep(0.01)


def leaves() -> None:
    sys.exit(3)


def much() -> str:
    return "x" * (1 << 20)


def odd() -> object:
    return {1, 2j}


def more() -> str:
    return "more"


def _hidden(x: int) -> None:
    pass


class Thing:
    pass


ANSWER = 42
'''


def next_probs(tokens: Sequence[int]) -> np.ndarray:
    """Return the scripted answer to the last user message, byte by byte."""
    text = bytes(t for t in tokens if t < END)
    in_turn = TURN in text
    head, _, said = text.rpartition(TURN) if in_turn else (b"", b"", text[len("raw:") :])
    before = head.decode()
    role, _, user = before.rpartition("<|im_start|>")[2].partition("\n")
    user = user.removesuffix("<|im_end|>\n")
    system = before.rpartition("system\n")[2].partition("<|im_end|>")[0]
    if role == "tool" and user != "more":
        answer = "result: " + user[:80]
    else:
        answer = ANSWERS.get(user, "echo: " + user) if in_turn else " and on"
    if said.startswith(NOT_THOUGHT.encode()):
        said, answer = said[len(NOT_THOUGHT) :], "at once"
    answer = answer.replace("{system}", system or "none")
    answer = answer.replace("{turns}", str(before.count("user\n")))
    if user == "slow" and said:
        time.sleep(0.02)
    if user == "boom":
        raise RuntimeError("boom")
    script, n = answer.encode(), len(said)
    probs = np.full(257, 1e-6)
    probs[script[n] if n < len(script) else END] = 1
    return probs / probs.sum()


def load(model: str, draft: str | None = "auto", **arguments: Any) -> edgespec.Engine:
    """Stands for `edgespec.load`; what it was given is in `load.calls`."""
    calls.append({"model": model, "draft": draft} | arguments)
    if model == "broken.gguf":
        raise edgespec.OutOfMemory("the weights need 9 GB, 4 GB are free; take a smaller model")
    if model == "interrupted.gguf":
        raise KeyboardInterrupt
    options = {
        k: v for k, v in arguments.items() if k not in ("speculative_config", "draft_options")
    }
    config = edgespec.EngineConfig(**options)
    vocab = [bytes([i]) for i in range(256)] + ["<end>"]
    n_ctx = config.n_ctx or 4096
    return edgespec.assemble(
        edgespec.ToyModel(next_probs, vocab_size=257, n_ctx=n_ctx),
        edgespec.ToyTokenizer(vocab, eog=[END], chat_template=TEMPLATES.get(Path(model).name)),
        speculative_config=arguments["speculative_config"],
        prefixes=prefix_store(config),
        description={
            "model": {"file": model, "n_threads": 1},
            "draft": None,
            "processor": "toy",
        },
    )


calls: list[dict[str, Any]] = []


class Cli:
    """Runs the CLI in this process, in a folder with an empty file for a model.

    always: options with which everything is drafted; without them the clock says what pays.
    """

    always = ("--spec-draft-n-max", "4", "--spec-draft-p-min", "0")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "toy.gguf"

    def __call__(
        self, *args: str, input: str | bytes = "", env: dict[str, str] | None = None
    ) -> Result:
        return CliRunner().invoke(cli, args, input=input, env=env, prog_name="edgespec")

    def run(self, *args: str, **more: Any) -> Result:
        return self("run", "-m", str(self.model), *args, **more)

    def chat(self, *lines: str, args: Sequence[str] = (), **more: Any) -> Result:
        text = "".join(line + "\n" for line in lines)
        return self("chat", "-m", str(self.model), *args, input=text, **more)

    def tools(self, *lines: str, args: Sequence[str] = (), **more: Any) -> Result:
        """Chat with a model that calls tools."""
        text = "".join(line + "\n" for line in lines)
        return self("chat", "-m", str(self.folder / "tools.gguf"), *args, input=text, **more)

    @property
    def loaded(self) -> dict[str, Any]:
        """Return the arguments of the last `load`."""
        return calls[-1]


@pytest.fixture
def edgespec_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Return the CLI with the scripted model and nothing of this machine."""
    for name in [n for n in os.environ if n.startswith(("EDGESPEC_", "NO_COLOR"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("EDGESPEC_CORPUS", str(tmp_path / "corpus"))
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setenv("EDGESPEC_PREFIXES", str(tmp_path / "prefixes"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub_client, "answers", lambda repo: False)
    monkeypatch.setattr(hub_client, "search", lambda name: [])
    monkeypatch.setattr(edgespec, "load", load)
    monkeypatch.chdir(tmp_path)
    for name in ("toy.gguf", "broken.gguf", "interrupted.gguf", "draft.gguf", *TEMPLATES):
        (tmp_path / name).touch()
    return Cli(tmp_path)


@pytest.fixture
def robot_cli(edgespec_cli: Cli) -> Cli:
    """Return the CLI beside a file of functions, robot.py."""
    (edgespec_cli.folder / "robot.py").write_text(ROBOT, encoding="utf-8")
    return edgespec_cli


@pytest.fixture
def program() -> list[str]:
    """Return the command line of the same thing as a process."""
    return [sys.executable, __file__]


if __name__ == "__main__":
    edgespec.load = load
    cli.main(prog_name="edgespec")
