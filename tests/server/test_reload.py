"""Keys and certificates that are read again while the server runs, and what systemd is told."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import ssl
import threading

import httpx
import pytest

from edgespec.errors import ConfigError
from edgespec.server import systemd
from edgespec.server.app import Server, bind, create_app
from edgespec.server.clients import name_of
from edgespec.server.settings import ServerSettings


class Reloading:
    """A server whose settings are read again. settings: those that it finds then."""

    def __init__(self, engine, settings: ServerSettings) -> None:
        self.settings: ServerSettings | Exception = settings
        self._ready = threading.Event()
        app = create_app(engine, settings)
        self.server = Server(app, engine, settings, self._on_ready, reread=self._reread)
        self._sock = bind(settings)
        self._thread = threading.Thread(target=self.server.run, args=([self._sock],))

    def _on_ready(self, url: str) -> None:
        self.url = url
        self._ready.set()

    def _reread(self) -> ServerSettings:
        if isinstance(self.settings, Exception):
            raise self.settings
        return self.settings

    def reload(self, settings: ServerSettings | Exception) -> None:
        self.settings = settings
        asyncio.run_coroutine_threadsafe(self.server.reload(), self.server._loop).result(20)

    def status(self, key: str, path: str = "/v1/models") -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.get(self.url + path, headers=headers).status_code

    def certificate(self) -> bytes:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        address = ("127.0.0.1", self._sock.getsockname()[1])
        with (
            socket.create_connection(address) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            return secure.getpeercert(binary_form=True)

    def __enter__(self) -> Reloading:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *error: object) -> None:
        self.server.should_exit = True
        self._thread.join(30)
        self._sock.close()


def settings(**more) -> ServerSettings:
    return ServerSettings("toy", port=0, **more)


def test_new_keys_count_and_old_ones_do_not(engine):
    with Reloading(engine, settings(api_keys=("one", "two"), metrics_key="m")) as server:
        assert [server.status(key) for key in ("one", "two", "three")] == [200, 200, 401]
        server.reload(settings(api_keys=("two", "three"), metrics_key="n"))
        assert [server.status(key) for key in ("one", "two", "three")] == [401, 200, 200]
        assert [server.status(key, "/metrics") for key in ("m", "n")] == [401, 200]


def test_keys_that_cannot_be_read_leave_the_old_ones(engine, caplog):
    with Reloading(engine, settings(api_keys=("one",))) as server:
        server.reload(ConfigError("keys.txt cannot be read"))
        assert server.status("one") == 200
    assert "stay as they were: keys.txt cannot be read" in caplog.text


def test_a_client_keeps_its_name_when_other_keys_go(engine):
    """Else what one client has sent would be cached for the next one in the file."""
    assert name_of(b"two") == name_of(b"two") != name_of(b"one")
    assert "two" not in name_of(b"two")


def test_a_new_certificate_is_shown_to_new_connections(engine, tls, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(name: str) -> ServerSettings:
        shutil.copy(tls / f"{name}cert.pem", cert)
        shutil.copy(tls / f"{name}key.pem", key)
        key.chmod(0o600)
        return settings(tls_cert=cert, tls_key=key)

    with Reloading(engine, install("")) as server:
        before = server.certificate()
        server.reload(install("other_"))
        after = server.certificate()
    pem = (tls / "other_cert.pem").read_text(encoding="utf-8")
    assert before != after == ssl.PEM_cert_to_DER_cert(pem)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="systemd is on Linux")
@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(engine, monkeypatch, tmp_path, abstract):
    name = f"edgespec-{tmp_path.name}"
    address = f"\0{name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        with contextlib.suppress(OSError):
            manager.bind(address)
        if not manager.getsockname():
            pytest.skip("this system has no abstract sockets")
        manager.settimeout(20)
        named = f"@{name}" if abstract else address
        monkeypatch.setenv(systemd.SOCKET_VARIABLE, named)
        with Reloading(engine, settings(api_keys=("one",))) as server:
            assert manager.recv(200) == b"READY=1"
            server.reload(settings(api_keys=("two",)))
            first, second = manager.recv(200).split(b"\n")
            assert (first, second[:15]) == (b"RELOADING=1", b"MONOTONIC_USEC=")
            assert manager.recv(200) == b"READY=1"
        assert manager.recv(200) == b"STOPPING=1"


def test_nobody_is_told_without_systemd(monkeypatch, tmp_path):
    monkeypatch.delenv(systemd.SOCKET_VARIABLE, raising=False)
    systemd.notify("READY=1")
    monkeypatch.setenv(systemd.SOCKET_VARIABLE, str(tmp_path / "absent"))
    systemd.notify("READY=1")


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
@pytest.mark.parametrize("closed", [False, True])
def test_a_closed_terminal_ends_the_server(engine, monkeypatch, closed):
    monkeypatch.setattr("edgespec.server.app._is_terminal", lambda fd: True)
    first = settings()
    server = Server(create_app(engine, first), engine, first, reread=lambda: first)
    monkeypatch.setattr("edgespec.server.app._is_terminal", lambda fd: not closed)
    server._hang_up(signal.SIGHUP, None)
    assert server.should_exit is closed
