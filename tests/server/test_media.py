"""Pictures that requests name by addresses: what is read, and what never is."""

import asyncio
import http.server
import os
import socket
import threading

import httpcore
import pytest

from edgespec import ConfigError, pictures
from edgespec.server import media
from edgespec.server.errors import ApiError
from edgespec.server.media import Media
from edgespec.server.settings import ServerSettings

PNG = b"\x89PNG and more"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the path."""

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
        elif self.path == "/slow":
            self.server.released.wait(10)
        elif self.path == "/drip":
            self.send_response(200)
            self.end_headers()
            while not self.server.released.wait(0.05):
                self.wfile.write(b"x")
        elif self.path == "/large":
            self.send_response(200)
            self.end_headers()
            for _ in range(1 + (pictures.MOST_BYTES >> 20)):
                self.wfile.write(bytes(1 << 20))
        else:
            self.send_response(200 if self.path.startswith("/a") else 404)
            self.end_headers()
            self.wfile.write(PNG)

    def log_message(self, *args):
        pass


@pytest.fixture
def site():
    """Return a web server on this machine. asked: the paths that were asked for."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.released, server.daemon_threads = [], threading.Event(), True
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def read(url, *domains, folder=None):
    settings = ServerSettings("m", allowed_media_domains=domains, allowed_local_media_path=folder)
    return asyncio.run(Media(settings).read(url))


def test_a_named_host_may_be_anywhere(site):
    assert read(f"{site.url}/a.png", "127.0.0.1") == PNG
    assert read(f"{site.url}/a b.png?x=1#y", "127.0.0.1", "*") == PNG
    assert read(f"{site.url}/to//to//a", "127.0.0.1") == PNG
    assert site.asked[:2] == ["/a.png", "/a%20b.png?x=1"]


@pytest.mark.parametrize(
    ("path", "domains", "why"),
    [
        ("/a", (), "--allowed-media-domains HOST"),
        ("/a", ("example.org",), "not among the hosts"),
        ("/a", ("*",), "is in a private network"),
        ("/b", ("127.0.0.1",), "status 404"),
        ("/to/", ("127.0.0.1",), "status 302"),
        ("/to/http://localhost/a", ("127.0.0.1",), "'localhost' is not among the hosts"),
        ("/to/http://localhost/a", ("127.0.0.1", "*"), "localhost is in a private network"),
        ("/to/file:///etc/passwd", ("127.0.0.1", "*"), "not among the hosts"),
        ("/to//to//to//to//to//a", ("127.0.0.1",), "more than 3 times"),
        ("/large", ("127.0.0.1",), "has more than 16 MiB"),
    ],
)
def test_what_is_not_fetched(site, path, domains, why):
    with pytest.raises(ConfigError, match=why):
        read(site.url + path, *domains)


@pytest.mark.parametrize("path", ["/slow", "/drip"])
def test_a_picture_has_to_arrive_in_time(site, path, monkeypatch):
    monkeypatch.setattr(media, "SECONDS", 0.2)
    with pytest.raises(ConfigError, match=r"sent no picture within 0\.2 s"):
        read(site.url + path, "127.0.0.1")


def test_the_address_that_was_checked_is_the_one_that_is_used(site, monkeypatch):
    real, answers = socket.getaddrinfo, ["127.0.0.1", "8.8.8.8"]

    def changing(host, port, *args, **more):
        return real(answers.pop() if host == "turning.example" else host, port, *args, **more)

    reached = []

    async def connect(self, host, *args, **more):
        reached.append(host)
        raise httpcore.ConnectError("no network here")

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect)
    with pytest.raises(ConfigError, match="no network here"):
        read("http://turning.example/a", "*")
    assert reached == ["8.8.8.8"]


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "::1",
     "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "2002:7f00:1::", "224.0.0.1", "::",
     "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::c0a8:101", "64:ff9b:1:808:8:800::",
     "::7f00:1", "::ffff:0:127.0.0.1"],
)  # fmt: skip
def test_private_addresses(address):
    assert not media._is_public(address)
    assert media._is_public("8.8.8.8")
    assert media._is_public("2606:4700::1111")
    assert media._is_public("64:ff9b::808:808")
    assert media._is_public("64:ff9b:1::808:808")


@pytest.mark.parametrize("url", ["http://[", "http:///a", "http://x:port/", "http://\ud800/"])
def test_addresses_that_are_not_valid(url):
    with pytest.raises(ConfigError):
        read(url, "*")


@pytest.mark.parametrize("url", ["ftp://example.org/a", "gopher:x", "", "//a", "javascript:1"])
def test_other_schemes_are_refused(url):
    with pytest.raises(ConfigError, match="is not a data:, http:, https: or file: URL"):
        read(url, "*")


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a picture, next to a file that may not be read."""
    (inside := tmp_path / "media").mkdir()
    (inside / "a b.png").write_bytes(PNG)
    (inside / "empty").touch()
    (tmp_path / "media-secret").write_bytes(b"secret")
    (inside / "link").symlink_to(tmp_path / "media-secret")
    os.mkfifo(inside / "pipe")
    return inside


@pytest.mark.parametrize(
    "form", ["file://{}/a%20b.png", "file://localhost{}/a%20b.png", "file:{}/a%20b.png",
             "file:a%20b.png", "file://a%20b.png", "FILE://{}/a%20b.png"],
)  # fmt: skip
def test_files_of_the_folder(folder, form):
    assert read(form.format(folder), folder=folder) == PNG


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("../media-secret", "not in the folder"),
        ("%2e%2e/media-secret", "not in the folder"),
        ("link", "not in the folder"),
        ("/etc/passwd", "not in the folder"),
        ("pipe", "no regular file"),
        ("", "no regular file"),
        ("no", "No such file"),
        ("a%00b", "null|character"),
    ],
)
def test_other_files_are_not_read(folder, path, why):
    with pytest.raises(ConfigError, match=why):
        read(f"file:{path}", folder=folder)


def test_no_file_is_read_by_default(folder):
    with pytest.raises(ConfigError, match="--allowed-local-media-path FOLDER"):
        read(f"file://{folder}/a%20b.png", "*")


def test_a_picture_of_a_user_is_required_and_one_of_a_result_is_not(folder):
    settings = ServerSettings("m", allowed_local_media_path=folder)

    def messages(role, name):
        url = {"type": "image_url", "image_url": {"url": f"file:{name}"}}
        return [{"role": role, "content": [{"type": "text", "text": "See:"}, url]}, {"role": "x"}]

    def filled(*args):
        return asyncio.run(Media(settings).read_all(messages(*args), ["input[3]", "input[4]"]))

    assert filled("user", "a%20b.png")[0]["content"][1]["image_url"]["url"] == PNG
    assert "No such file" in filled("tool", "no")[0]["content"][1]["text"]
    with pytest.raises(ApiError, match=r"input\[3\]: 'no' cannot be read"):
        filled("user", "no")


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("allowed_local_media_path", "no", "is not a folder"),
        ("allowed_media_domains", ("http://example.org/",), "is not a host"),
    ],
)
def test_settings(field, value, why, tmp_path):
    from pathlib import Path

    value = tmp_path / Path(value) if isinstance(value, str) else value
    with pytest.raises(ConfigError, match=why):
        ServerSettings("m", **{field: value})


def test_the_size_of_requests():
    def sizes(most):
        return [
            ServerSettings("m", max_body_bytes=most).for_model(sees=sees).max_body_bytes
            for sees in (False, True)
        ]

    assert sizes(0) == [2 << 20, 24 << 20]
    assert sizes(5000) == [5000, 5000]
    photo = 4 * pictures.MOST_BYTES // 3
    assert photo < sizes(0)[1]
