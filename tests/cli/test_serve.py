"""`edgespec serve`: options, the line it prints, how it ends."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

import edgespec
from edgespec.decoding.idle_work import IdleWork
from edgespec.server import app
from edgespec.server.settings import KeyLimits

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def loggers():
    """Handlers of a command that ran in this process go with it."""
    yield
    for name in ("edgespec", "edgespec_cli", "edgespec.server", "uvicorn", "asyncio"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture
def started(monkeypatch):
    """Return the arguments that `serve` was given, instead of serving."""
    given = []

    def serve(engine, settings, *, sock, on_ready, on_finishing, sessions, reread):
        assert sessions is None  # the toy keeps one sequence
        on_ready(f"http://127.0.0.1:{sock.getsockname()[1]}")
        given.append((engine, settings, sock))

    monkeypatch.setattr(app, "serve", serve)
    return given


def test_the_first_line_says_that_costs_are_measured_first(edgespec_cli, started, monkeypatch):
    monkeypatch.setattr(IdleWork, "is_urgent", True)
    result = edgespec_cli("serve", "-m", "toy.gguf", "--port", "0", "--spec-type", "suffix")
    assert "prompt lookup (the model's speed is measured first)\n" in result.stdout


def test_one_line_says_where_and_what(edgespec_cli, started):
    result = edgespec_cli("serve", "-m", "toy.gguf", "--port", "0", "--spec-type", "suffix")
    assert result.exit_code == 0
    assert re.fullmatch(
        r"serving toy at (http://127\.0\.0\.1:\d+) · OpenAI's API under \1/v1 · "
        r"context \d+ · 1 slot · speculation: prompt lookup\nsampling: greedy\n"
        r"verifying for no devices: this target keeps one .*\n",
        result.stdout,
    )
    engine, settings, sock = started[0]
    assert settings.model == "toy"
    assert edgespec_cli.loaded["n_slots"] == 0  # as many as fit
    with pytest.raises(edgespec.EdgeSpecError, match="closed"):
        engine.generate("x")
    assert sock.fileno() == -1


def test_the_first_line_says_how_long_a_context_may_be(edgespec_cli, started, monkeypatch):
    monkeypatch.setattr(edgespec.ToyModel, "n_ctx_train", 131072, raising=False)
    result = edgespec_cli("serve", "-m", "toy.gguf", "--port", "0")
    n_ctx = started[0][0].n_ctx
    told = f"· context {n_ctx} of the 131072 tokens it was trained for (-c N takes more) ·"
    assert told in result.stdout


@pytest.mark.parametrize(
    ("file", "given"),
    [
        ("v1.5-q4.gguf", "v1.5-q4.gguf"), ("v1.5-q4/model.onnx", "v1.5-q4/model.onnx"),
        ("v1.5-q4/onnx/model_q4.onnx", "v1.5-q4/onnx/model_q4.onnx"),
        ("v1.5-q4/model.onnx", "v1.5-q4"),
    ],
)  # fmt: skip
def test_the_name_of_a_path_is_its_stem(edgespec_cli, started, file, given):
    path = edgespec_cli.folder / "models" / file
    path.parent.mkdir(parents=True)
    path.touch()
    edgespec_cli("serve", "-m", f"./models/{given}", "--port", "0")
    assert started[0][1].model == "v1.5-q4"


@pytest.mark.parametrize("asked", [("-np", "4"), ("--ctx-size-sessions", "4096")])
def test_devices_that_were_asked_for_must_be_possible(edgespec_cli, started, asked):
    result = edgespec_cli("serve", "-m", "toy.gguf", "--port", "0", *asked)
    assert result.exit_code == 2
    assert "keeps one sequence only" in result.stderr
    result = edgespec_cli("serve", "-m", "toy.gguf", "--port", "0", "-np", "0")
    assert result.exit_code == 0
    assert "devices" not in result.stdout


@pytest.mark.parametrize(("given", "kept"), [((), "rates"), (("nothing",), "nothing")])
def test_no_tokens_of_clients_are_kept(edgespec_cli, started, given, kept):
    options = ("--spec-remember", *given) if given else ()
    edgespec_cli("serve", "-m", "toy.gguf", "--port", "0", *options)
    assert edgespec_cli.loaded["speculative_config"]["remember"] == kept


def test_options_reach_engine_and_server(edgespec_cli, started, tls):
    keys = edgespec_cli.folder / "keys"
    keys.write_text("from-file tokens-per-day=7\n", encoding="utf-8")
    keys.chmod(0o600)
    result = edgespec_cli(
        "serve", "-m", "toy.gguf", "-c", "1024", "--port", "0", "--alias", "robot",
        "--alias", "gpt-4o", "--any-model",
        "--temp", "0.5", "-n", "99", "--api-key-file", "keys", "--max-queue", "3",
        "--cors-origin", "https://a.example", "--max-prompt-tokens", "500", "--grace", "2",
        "--tls-cert", str(tls / "cert.pem"), "--tls-key", str(tls / "key.pem"),
        "--max-body-bytes", "5000", "--requests-per-minute", "9", "--tokens-per-day", "99",
        "--request-log", "log.jsonl", "--request-log-contents", "--slots", "3",
        env={"EDGESPEC_API_KEY": "from-environment"},
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    _, settings, _ = started[0]
    assert (edgespec_cli.loaded["n_ctx"], edgespec_cli.loaded["n_slots"]) == (1024, 3)
    assert settings.api_keys == ("from-environment", "from-file")
    assert settings.sampling == {"temperature": 0.5, "max_tokens": 99}
    assert (settings.model, settings.max_queue, settings.grace_s) == ("robot", 3, 2)
    assert (settings.aliases, settings.any_model) == (("gpt-4o",), True)
    assert (settings.max_body_bytes, settings.max_prompt_tokens) == (5000, 500)
    assert settings.cors_origins == ("https://a.example",)
    assert settings.scheme == "https"
    assert (settings.requests_per_minute, settings.tokens_per_day) == (9, 99)
    assert settings.key_limits == {"from-file": KeyLimits(tokens_per_day=7)}
    assert (settings.request_log.name, settings.request_log_contents) == ("log.jsonl", True)
    assert "from-" not in result.output


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--host", "0.0.0.0"), "no API key and no TLS"),
        (("--tls-cert", "toy.gguf"), "without tls_key"),
        (("--api-key-file", "absent"), "absent cannot be read"),
        (("--port", "70000"), "port must be between"),
        (("--top-p", "3"), "top_p"),
        (("--ctx-size-sessions", "-5"), "-5 is not in the range 1<=x<="),
        (("--ctx-size-sessions", "0"), "0 is not in the range 1<=x<="),
        (("--spec-remember", "all"), "choose rates or nothing"),
    ],
)
def test_what_cannot_be_is_said_before_a_model_is_loaded(edgespec_cli, started, args, says):
    result = edgespec_cli("serve", "-m", "broken.gguf", *args)
    assert result.exit_code == 2
    assert says in result.stderr
    assert not started


def test_a_port_in_use(edgespec_cli):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = edgespec_cli("serve", "-m", "broken.gguf", "--port", port)
    assert result.exit_code == 2
    assert f"127.0.0.1:{port} cannot be listened on" in result.stderr


def test_without_the_extra_it_says_what_to_install(edgespec_cli, monkeypatch):
    monkeypatch.delitem(sys.modules, "edgespec.server.app")
    monkeypatch.delattr("edgespec.server.app")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = edgespec_cli("serve", "-m", "toy.gguf", "--port", "0")
    assert result.exit_code == 1
    assert "pip install '.[server]'" in result.stderr


FINISHING = "finishing 1 answer, at most 10 s; Ctrl-C again ends now\n"


def address(process: subprocess.Popen[str]) -> str:
    """Return the URL of a server that has told of itself."""
    line = process.stdout.readline()
    assert process.stdout.readline() == "sampling: greedy\n"
    return re.search(r"http://127\.0\.0\.1:\d+", line)[0]


@contextlib.contextmanager
def slow_answer(url: str, max_tokens: int) -> Iterator[Iterator[str]]:
    """Give the lines of a streamed answer, the first of which has come."""
    asked = [{"role": "user", "content": "slow"}]
    body = {"messages": asked, "max_tokens": max_tokens, "stream": True}
    headers = {"Authorization": "Bearer key"}
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
    ) as response:
        lines = response.iter_lines()
        next(lines)
        yield lines


@pytest.fixture
def process(program, edgespec_cli) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONWARNINGS": "error", "EDGESPEC_API_KEY": "key"}
    made = subprocess.Popen(
        [*program, "serve", "-m", "toy.gguf", "--port", "0", "-np", "0"],
        env=environment, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            made.kill()
        made.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_0(process, number):
    url = address(process)
    body = {"messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(
        f"{url}/v1/chat/completions",
        json=body,
        headers={"Authorization": "Bearer key"},
        timeout=PATIENCE_S,
    )
    assert answer.json()["choices"][0]["message"]["content"] == "Hi, what can I do?"
    process.send_signal(number)
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "")
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [line["endpoint"] for line in lines] == ["/v1/chat/completions"]
    assert "Hi, what" not in errors


def test_a_signal_ends_a_running_answer_within_its_grace(process):
    url = address(process)
    with slow_answer(url, 40) as lines:
        process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert process.wait(PATIENCE_S) == 0
    assert process.stdout.read() == FINISHING


def test_a_second_ctrl_c_ends_it_at_once(process):
    url = address(process)
    with slow_answer(url, 2000) as lines:
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == FINISHING
        process.send_signal(signal.SIGINT)
        rest = [line for line in lines if line]
    assert any("shutting_down" in line for line in rest)
    assert len(rest) < 2000
    assert process.wait(PATIENCE_S) == 0
    assert process.stdout.read() == ""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_sighup_reads_the_keys_again(program, edgespec_cli):
    keys = edgespec_cli.folder / "keys"
    keys.write_text("old\n", encoding="utf-8")
    keys.chmod(0o600)
    process = subprocess.Popen(
        [*program, "serve", "-m", "toy.gguf", "--port", "0", "-np", "0", "--api-key-file", "keys"],
        env=os.environ | {"PYTHONWARNINGS": "error"}, text=True, cwd=edgespec_cli.folder,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

    def status(key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.get(f"{url}/v1/models", headers=headers, timeout=PATIENCE_S).status_code

    def reloaded() -> str:
        process.send_signal(signal.SIGHUP)
        return next(line for line in process.stderr if "keys and certificate" in line)

    try:
        url = address(process)
        assert (status("old"), status("new")) == (200, 401)
        keys.write_text("new\n", encoding="utf-8")
        assert "API keys: 1" in reloaded()
        assert (status("old"), status("new")) == (401, 200)
        keys.write_text("", encoding="utf-8")
        assert "stay as they were" in reloaded()
        assert status("new") == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
