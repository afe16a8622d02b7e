"""The files in deploy/ that can be checked without containers and systemd."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.server.settings import KEY_VARIABLE
from edgespec_cli.main import cli
from tests.helpers.serving import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"


def health(**environment: str) -> int:
    """Return the exit status of the container's health check."""
    command = [sys.executable, str(DEPLOY / "healthy.py")]
    given = {**os.environ, **environment}
    return subprocess.run(command, env=given, stderr=subprocess.DEVNULL, timeout=30).returncode


def test_the_health_check_knows_a_server_that_answers(running, engine):
    with running(engine) as server:
        port = server.url.rpartition(":")[2]
        assert health(EDGESPEC_PORT=port) == 0


def test_the_health_check_fails_without_a_server():
    assert health(EDGESPEC_PORT=str(free_port())) != 0


def test_the_health_check_speaks_tls(running, engine, tls):
    files = {"tls_cert": tls / "cert.pem", "tls_key": tls / "key.pem"}
    with running(engine, **files) as server:
        port = server.url.rpartition(":")[2]
        assert health(EDGESPEC_PORT=port, EDGESPEC_TLS_CERT=str(files["tls_cert"])) == 0


@pytest.mark.parametrize("name", ["Dockerfile", "edgespec.service", "healthy.py"])
def test_variables_are_those_of_options(name):
    options = {option.envvar for option in cli.commands["serve"].params}
    used = set(re.findall(r"EDGESPEC_[A-Z_]+", (DEPLOY / name).read_text("utf-8")))
    assert used
    assert used <= options | {KEY_VARIABLE}
