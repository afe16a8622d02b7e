"""The settings that a server may be started with."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from edgespec import ConfigError
from edgespec.server.app import bind
from edgespec.server.settings import KeyLimits, ServerSettings, read_key_limits, read_keys


def settings(**more):
    return ServerSettings(**({"model": "m"} | more))


def test_this_machine_needs_neither_key_nor_tls():
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        assert settings(host=host).loopback
    assert settings().scheme == "http"


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ((), "no API key and no TLS"),
        (("api_keys",), "no TLS"),
        (("tls_cert", "tls_key"), "no API key"),
    ],
)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "robot.example"])
def test_other_machines_are_refused_without_key_and_tls(host, given, missing, tls):
    every = {"api_keys": ("k",), "tls_cert": tls / "cert.pem", "tls_key": tls / "key.pem"}
    more = {name: every[name] for name in given}
    with pytest.raises(ConfigError, match=missing) as refused:
        settings(host=host, **more)
    assert "--insecure" in str(refused.value)
    assert not settings(host=host, insecure=True, **more).loopback


@pytest.mark.parametrize("host", ["", "a\nb", "\x1b[2J"])
def test_what_is_no_host_is_refused_as_such(host):
    with pytest.raises(ConfigError, match="is not an address or a name to listen on"):
        settings(host=host, insecure=True)


def test_key_and_tls_are_enough(tls):
    cert, key = tls / "cert.pem", tls / "key.pem"
    made = settings(host="0.0.0.0", api_keys=("k",), tls_cert=cert, tls_key=key)
    assert made.scheme == "https"


def test_tls_files(tmp_path, tls):
    cert, key = tls / "cert.pem", tls / "key.pem"
    with pytest.raises(ConfigError, match="tls_cert was given without tls_key"):
        settings(tls_cert=cert)
    with pytest.raises(ConfigError, match="tls_key was given without tls_cert"):
        settings(tls_key=key)
    with pytest.raises(ConfigError, match=r"absent\.pem cannot be read"):
        settings(tls_cert=tmp_path / "absent.pem", tls_key=key)
    with pytest.raises(ConfigError, match="no certificate and its key"):
        settings(tls_cert=key, tls_key=key)
    pipe, empty = tmp_path / "pipe.pem", tmp_path / "empty.pem"
    os.mkfifo(pipe, 0o600)
    empty.touch(0o600)
    for wrong, says in (
        ({"tls_key": tls / "locked_key.pem"}, "the key without a passphrase"),
        ({"tls_key": empty}, "no certificate and its key"),
        ({"tls_cert": empty}, "no certificate and its key"),
        ({"tls_key": pipe}, "no regular file"),
        ({"tls_cert": pipe}, "no regular file"),
        ({"tls_cert": tmp_path}, "no regular file"),
        ({"tls_key": tls / "other_key.pem"}, "the key belongs to another one"),
    ):
        with pytest.raises(ConfigError, match=says):
            settings(**({"tls_cert": cert, "tls_key": key} | wrong))
    with pytest.raises(ConfigError, match="no regular file"):
        read_keys(pipe, {})


@pytest.mark.parametrize(
    "more",
    [
        {"port": -1}, {"port": 65536}, {"max_queue": -1}, {"max_body_bytes": 1}, {"grace_s": -1},
        {"model": ""}, {"model": "a\nb"}, {"api_keys": ("",)}, {"api_keys": ("a b",)},
        {"api_keys": ("schlüssel",)}, {"cors_origins": ("*",)}, {"cors_origins": ("a.example",)},
        {"cors_origins": ("https://A.example",)}, {"cors_origins": ("null",)},
        {"cors_origins": ("https://user@a.example",)}, {"cors_origins": ("https://",)},
        {"allowed_hosts": ("",)}, {"allowed_hosts": ("http://a.example",)},
        {"allowed_hosts": ("*",)},
        {"cors_origins": ("https://a.example/path",)}, {"sampling": {"temperature": -1}},
        {"sampling": {"fish": 1}}, {"max_prompts": 0}, {"arrival_s": 0},
    ],
)  # fmt: skip
def test_what_cannot_be(more):
    with pytest.raises(ConfigError):
        settings(**more)


def test_limits_follow_a_key(tmp_path):
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(
        "one requests-per-minute=60  tokens-per-day=100000\ntwo\nthree tokens-per-day=0\n",
        encoding="utf-8",
    )
    assert read_keys(file, {}) == ("one", "two", "three")
    assert read_key_limits(file) == {"one": KeyLimits(60, 100000), "three": KeyLimits(None, 0)}
    assert read_key_limits(None) == {}


@pytest.mark.parametrize("given", ["tokens=3", "tokens-per-day", "tokens-per-day=-1", "60", "a=1"])
def test_what_is_no_limit_is_refused_without_its_key(tmp_path, given):
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(f"first\nsecret-key {given}\n", encoding="utf-8")
    for read in (read_key_limits, lambda path: read_keys(path, {})):
        with pytest.raises(ConfigError, match="line 2: after the API key") as refused:
            read(file)
        assert "secret" not in str(refused.value).removeprefix(str(file))


def test_a_request_log_must_be_possible(tmp_path):
    with pytest.raises(ConfigError, match="cannot be opened: No such file"):
        settings(request_log=tmp_path / "absent" / "log")
    with pytest.raises(ConfigError, match="without request_log"):
        settings(request_log_contents=True)


def test_keys_come_from_a_file_and_the_environment(tmp_path):
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text("# of the robots\none\n\n  two  \none\n", encoding="utf-8")
    assert read_keys(file, {}) == ("one", "two")
    assert read_keys(file, {"EDGESPEC_API_KEY": "three four"}) == ("three", "four", "one", "two")
    assert read_keys(None, {}) == ()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "absent", {})
    for content in (b"", b"# nothing\n", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(ConfigError):
            read_keys(file, {})
    file.write_bytes(b"two words\n")
    with pytest.raises(ConfigError, match="blanks") as refused:
        read_keys(file, {})
    assert "words" not in str(refused.value)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_files_with_secrets_that_others_can_read_are_refused(tmp_path, tls, caplog):
    keys, key = tmp_path / "keys", tmp_path / "key.pem"
    keys.write_text("one", encoding="utf-8")
    key.write_bytes((tls / "key.pem").read_bytes())
    for path, read in (
        (keys, lambda: read_keys(keys, {})),
        (key, lambda: settings(tls_cert=tls / "cert.pem", tls_key=key)),
    ):
        path.chmod(0o644)
        with pytest.raises(ConfigError, match=r"mode 0644\); run `chmod 600 .*key") as refused:
            read()
        assert "one" not in str(refused.value).split()
        path.chmod(0o600)
        assert read()
    assert not caplog.records


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize(
    ("owner", "user", "mode", "outcome"),
    [
        (7, 7, 0o640, "refused"), (0, 0, 0o640, ""), (0, 7, 0o440, ""), (0, 0, 0o604, "refused"),
        (0, 7, 0o444, "warned"),
    ],
)  # fmt: skip
def test_whose_file_it_is_decides(tmp_path, monkeypatch, caplog, owner, user, mode, outcome):
    keys = tmp_path / "keys"
    keys.write_text("one", encoding="utf-8")
    found = os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, owner, 3, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda path: found)
    monkeypatch.setattr(os, "getuid", lambda: user)
    if outcome == "refused":
        with pytest.raises(ConfigError, match=f"mode {mode:04o}"):
            read_keys(keys, {})
    else:
        assert read_keys(keys, {}) == ("one",)
    assert ("others on this machine can read it" in caplog.text) == (outcome == "warned")


def test_keys_are_not_shown():
    assert "secret" not in repr(settings(api_keys=("secret",)))


def test_a_port_in_use_is_said_before_a_model_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} cannot be listened on"):
            bind(settings(port=port))
    with pytest.raises(ConfigError, match="no address"):
        bind(settings(host="no such host", insecure=True))
