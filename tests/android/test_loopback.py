"""Tests of the app's Java core with a real server on this machine: its text equals Python's.

`python tests/android/test_loopback.py MODEL` prints the texts of Python's local run.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import edgespec
from edgespec.chat import templates
from tests.helpers import libllama

libllama.require()
pytest.importorskip("uvicorn")

ROOT = Path(__file__).parents[2]
from tests.helpers.delaying import Proxy  # noqa: E402

CORE = ROOT / "android_demo" / "core"
JSON = Path("/usr/share/java/com.android.json.jar")
QUESTIONS = (ROOT / "tests" / "data" / "questions.txt").read_text("utf-8").splitlines()
KEY, N_TOKENS, N_CTX = "loopback-key", 24, 2048
DRAWN, N_DRAWN = {"temperature": 0.8, "seed": 7}, 5


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """Compile the core and its command line for Java 8, as the app does; return the class path."""
    if not shutil.which("javac"):
        pytest.skip("the app's core needs a JDK to be compiled: no javac on the PATH")
    if not JSON.exists():
        pytest.skip(f"the app's core needs org.json: no {JSON} (Debian's libandroid-json-java)")
    folder = tmp_path_factory.mktemp("classes")
    sources = [*CORE.glob("src/edgespec/*.java"), CORE / "test" / "edgespec" / "Main.java"]
    command = ["javac", "-encoding", "UTF-8", "-source", "8", "-target", "8", "-Xlint:-options"]
    subprocess.run([*command, "-cp", JSON, "-d", folder, *sources], check=True)
    return f"{folder}{os.pathsep}{JSON}"


def environment():
    """Return the environment of server and local run, whose idle threads do not occupy cores."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_WAIT_POLICY": "passive"}


class Server:
    """`edgespec serve` in a process of its own, which may be killed and started again."""

    def __init__(self, model, folder):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}"
        self._model, self._keys = model, folder / "keys.txt"
        self._keys.touch(0o600)
        self._keys.write_text(KEY + "\n")
        self._process = None

    def start(self):
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "edgespec_cli", "serve", "-m", str(self._model), "-md",
                "none", "--port", str(self.port), "--api-key-file", str(self._keys), "-c",
                str(N_CTX), "--batch-invariant", "-np", "2", "-q",
            ],
            stdout=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip
        assert self._process.stdout
        assert " at " in self._process.stdout.readline(), "the server did not start"
        return self

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def server(smollm2, tmp_path_factory):
    found = Server(smollm2, tmp_path_factory.mktemp("server")).start()
    yield found
    found.kill()


@pytest.fixture(scope="module")
def expected(smollm2):
    """Return the texts of a local run, in a process of its own with that environment."""
    command = [sys.executable, __file__, smollm2]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def local_texts(model):
    """Return the target's answers without drafts, each from an empty cache, in this process:
    greedy ones to all questions, and drawn ones to the first.
    """
    ways = {"greedy": (QUESTIONS, {}), "drawn": (QUESTIONS[:N_DRAWN], DRAWN)}
    greedy = {"temperature": 0}
    with edgespec.load(model, None, sampling=greedy, n_ctx=N_CTX, batch_invariant=True) as engine:
        return {
            way: [local_text(engine, question, **sampling) for question in questions]
            for way, (questions, sampling) in ways.items()
        }


def local_text(engine, question, **sampling):
    tokenizer = engine.tokenizer
    turn = [{"role": "user", "content": question}]
    rendered = templates.render(tokenizer.chat_template, turn, tokenizer.special())
    prompt = tokenizer.encode(rendered, add_special=False)
    engine.generate([prompt[-1]], max_tokens=1)
    asked = {"max_tokens": N_TOKENS, "disable_spec_decode": True, **sampling}
    return engine.generate(prompt, **asked).text


@contextlib.contextmanager
def device(classes, url, *options):
    """Start the command line of the core: `ask` it, then read the lines of its answer."""
    command = ["java", "-cp", classes, "edgespec.Main", "--server", url]
    process = subprocess.Popen(
        [*command, "--max-tokens", str(N_TOKENS), *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def ask(process, question):
    process.stdin.write(question + "\n")
    process.stdin.flush()


def heard(process):
    """Yield the lines of an answer, up to the one that says it is done."""
    for line in process.stdout:
        found = json.loads(line)
        yield found
        if "done" in found:
            return


def answer(process, question):
    """Ask a question; return the answer's text and all lines."""
    ask(process, question)
    lines = list(heard(process))
    return "".join(line.get("text", "") for line in lines), lines


@pytest.mark.long("compares a server of real weights with a local run")
def test_the_text_of_the_target(classes, server, expected):
    drafted = accepted = 0
    with device(classes, server.url, "--key", KEY) as process:
        for question, text in zip(QUESTIONS, expected["greedy"], strict=True):
            said, lines = answer(process, question)
            assert not [line for line in lines if "error" in line]
            assert said == text, question
            drafted += lines[-1]["drafted"]
            accepted += lines[-1]["accepted"]
    print(f"{len(QUESTIONS)} equal, {accepted} of {drafted} drafted tokens accepted")


@pytest.mark.long("compares a server of real weights with a local run")
def test_drawn_text(classes, server, expected):
    """Draws depend on seed and position only, so the text equals that of a local run."""
    drawn = [word for name, value in DRAWN.items() for word in (f"--{name}", str(value))]
    with device(classes, server.url, "--key", KEY, *drawn) as process:
        said = [answer(process, question)[0] for question in QUESTIONS[:N_DRAWN]]
    assert said == expected["drawn"]
    assert said != expected["greedy"][:N_DRAWN]


@pytest.mark.long("compares a server of real weights with a local run")
def test_a_conversation(classes, server):
    with device(classes, server.url, "--key", KEY, "--chat") as process:
        for question in ("My name is Ada. What is yours?", "What is my name?", "And yours?"):
            said, lines = answer(process, question)
            assert said
            assert lines[-1]["done"] in ("stop", "length")


@pytest.mark.long("compares a server of real weights with a local run")
def test_the_server_is_killed_in_the_middle_of_an_answer(classes, server, expected):
    """The text before the kill stays equal; the text after it may differ, but is whole.

    The text before is read as one piece afterwards, and its sums may round in another way.
    """
    equal = 0
    for i in (2, 4, 9, 17):
        with device(classes, server.url, "--key", KEY, "--timeout", "60000") as process:
            ask(process, QUESTIONS[i])
            text, lines, killed = "", [], ""
            for line in heard(process):
                lines.append(line)
                text += line.get("text", "")
                if not killed and sum("text" in one for one in lines) == 8:
                    killed = text
                    server.kill()
                    server.start()
        assert killed
        assert len(text) > len(killed)
        assert expected["greedy"][i].startswith(killed)
        assert not [line for line in lines if "error" in line or "note" in line]
        assert lines[-1]["done"] in ("stop", "length")
        equal += text == expected["greedy"][i]
    print(f"{equal} of 4 killed answers equal")
    assert equal >= 3


@pytest.mark.long("compares a server of real weights with a local run")
def test_a_connection_that_is_cut_again_and_again(classes, server, expected):
    """The server keeps the session, so the text is the same."""
    with Proxy(server.port) as proxy, device(classes, proxy.url, "--key", KEY) as process:
        for i in range(6):
            ask(process, QUESTIONS[i])
            lines = []
            for line in heard(process):
                lines.append(line)
                if "text" in line and len(lines) % (i + 3) == 0:
                    proxy.cut()
            assert not [line for line in lines if "error" in line or "note" in line]
            said = "".join(line.get("text", "") for line in lines)
            assert said == expected["greedy"][i], QUESTIONS[i]


@pytest.mark.long("compares a server of real weights with a local run")
def test_a_wrong_key(classes, server):
    with device(classes, server.url, "--key", "wrong") as process:
        said, lines = answer(process, QUESTIONS[0])
    assert said == ""
    (line,) = (line["error"] for line in lines if "error" in line)
    assert line == f"127.0.0.1:{server.port} refuses the key; give one that it knows."


def test_no_server(classes):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{one.getsockname()[1]}"
    with device(classes, url) as process:
        said, lines = answer(process, QUESTIONS[0])
    assert said == ""
    (line,) = (line["error"] for line in lines if "error" in line)
    assert line.startswith(f"No verification server answers at {url[5:]}: ")


if __name__ == "__main__":
    json.dump(local_texts(sys.argv[1]), sys.stdout)
