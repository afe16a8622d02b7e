"""What the log looks like: plain for people, JSON in a server's pipe."""

from __future__ import annotations

import io
import json
import logging

import pytest

from edgespec_cli import log_lines, render
from edgespec_cli.render import say


def _record(**fields: object) -> logging.LogRecord:
    named = {"name": "edgespec.loading", "levelno": 30, "levelname": "WARNING", "msg": "no draft"}
    return logging.makeLogRecord(named | ({"fields": fields} if fields else {}))


def test_the_module_is_named_on_request_alone():
    plain = log_lines.PlainFormatter(with_module=False)
    assert plain.format(_record()) == "edgespec: warning: no draft"
    assert plain.format(_record(status=200, n=None)) == "edgespec: warning: no draft: status 200"
    verbose = log_lines.PlainFormatter(with_module=True)
    assert verbose.format(_record()) == "edgespec: warning: edgespec.loading: no draft"


@pytest.mark.parametrize("in_terminal", [False, True])
def test_the_log_of_a_server_has_one_format(capsys, monkeypatch, in_terminal):
    monkeypatch.setattr(log_lines, "is_terminal", lambda stream: in_terminal)
    with log_lines.of_a_server(quiet=False, with_module=False):
        say("fetching toy", err=True)
        logging.getLogger("edgespec.server").info("request", extra={"fields": {"status": 200}})
        logging.getLogger("edgespec").warning("no draft")
    say("after it", err=True)
    *lines, last = capsys.readouterr().err.splitlines()
    assert last == "after it"
    if in_terminal:
        request, warning = "edgespec: info: request: status 200", "edgespec: warning: no draft"
        assert lines == ["fetching toy", request, warning]
    else:
        told = [json.loads(line)["message"] for line in lines]
        assert told == ["fetching toy", "request", "no draft"]


def test_a_line_of_the_log_takes_the_status_line_away(monkeypatch):
    """A warning while a model is loaded was written after the spinner, on the same line."""
    seen = io.StringIO()
    monkeypatch.setattr(render, "is_terminal", lambda stream: True)
    monkeypatch.setattr("sys.stderr", seen)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with render.status("loading m.gguf"):
        handler = log_lines.AboveStatus(seen)
        handler.emit(logging.makeLogRecord({"msg": "n_gpu_layers has no effect"}))
    before, _, _ = seen.getvalue().partition("n_gpu_layers")
    assert "loading m.gguf" in before
    assert before.endswith("\x1b[2K")  # the line was erased
