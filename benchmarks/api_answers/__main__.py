"""Answers of all APIs to recorded requests: byte for byte as before, but for ids and times.

    python -m benchmarks.api_answers record
    python -m benchmarks.api_answers compare

`record` wrote before.json.gz once, with the code before every request became one form
(edgespec/chat); `compare` sends the same requests to today's code and shows what differs.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from starlette.testclient import TestClient

import edgespec
from benchmarks.api_answers.requests import SCRIPTS, Asked, every
from edgespec.server.app import create_app
from edgespec.server.settings import ServerSettings
from tests.helpers.scripted_chats import ScriptedChat

BEFORE = Path(__file__).with_name("before.json.gz")
FIXED = {"method": "suffix,forced", "num_speculative_tokens": 4, "draft_p_min": 0.1,
         "draft_memory": "off", "draft_corpus": ()}  # fmt: skip
TIMES = re.compile(
    r'("(?:created|created_at|completed_at|[a-z_]*_ms|[a-z_]*per_second|[a-z_]*_s)":)[-0-9.e]+'
)
SPEED = re.compile(r'("(?:speedup|plain_s|estimated_speedup)":)(?:[-0-9.e]+|null)')
IDS = re.compile(
    r'(chatcmpl-|cmpl-|resp_|msg_|fc_|rs_|"(?:id|call_id|request_id)":")[0-9a-zA-Z]{9,32}(?=")'
)


def next_byte(tokens: Any) -> Any:
    """Each byte is followed by the next one."""
    probs = np.full(257, 1e-6)
    probs[(tokens[-1] + 1) % 256] = 1
    return probs / probs.sum()


def engines() -> dict[str, Any]:
    vocab = [*(bytes([i]) for i in range(256)), "<end>"]
    model = edgespec.ToyModel(next_byte, vocab_size=257, n_ctx=4096)
    return {
        "tools": ScriptedChat(SCRIPTS).engine(speculative_config=FIXED),
        "bytes": ScriptedChat(SCRIPTS, ()).engine(speculative_config=FIXED),
        "plain": edgespec.assemble(
            model, edgespec.ToyTokenizer(vocab, [256]), speculative_config=FIXED
        ),
    }


def masked(text: str) -> str:
    """Return an answer without times, and with ids by their order."""
    known: dict[str, str] = {}
    text = IDS.sub(lambda m: known.setdefault(m[0], f"{m[1]}{len(known)}"), text)
    return SPEED.sub(r"\g<1>0", TIMES.sub(r"\g<1>0", text))


def answers() -> list[dict[str, Any]]:
    found = []
    apps = {}
    for name, engine in engines().items():
        settings = ServerSettings(model="toy", host="localhost")
        app = create_app(engine, settings)
        apps[name] = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
        apps[name].__enter__()
    for asked in every():
        found.append(answer(apps[asked.model], asked))
    for client in apps.values():
        client.__exit__(None, None, None)
    return found


def answer(client: TestClient, asked: Asked) -> dict[str, Any]:
    headers = {"content-type": "application/json"}
    content = None if asked.body is None else json.dumps(asked.body)
    got = client.request(asked.method, asked.path, content=content, headers=headers)
    kind = got.headers.get("content-type", "")
    return {**asked._asdict(), "status": got.status_code, "type": kind, "answer": masked(got.text)}


def main() -> None:
    if sys.argv[1:] == ["record"]:
        if BEFORE.exists():
            sys.exit(f"{BEFORE} is there: it is what later code is compared with")
        found, again = answers(), answers()
        for one, other in zip(found, again, strict=True):
            if one != other:
                sys.exit(f"not the same twice: {one}\n{other}")
        BEFORE.write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))
        print(f"{len(found)} answers, {sum('event-stream' in f['type'] for f in found)} streams")
        return
    before = json.loads(gzip.decompress(BEFORE.read_bytes()))
    found = [json.loads(json.dumps(each)) for each in answers()]
    differ = [(old, new) for old, new in zip(before, found, strict=True) if old != new]
    for old, new in differ[: int(sys.argv[2]) if len(sys.argv) > 2 else 20]:
        print(f"{old['method']} {old['path']} {json.dumps(old['body'])[:600]}")
        for each in (old, new):
            print(f"    {each['status']} {each['type']} {difference(each, old, new)}")
    print(f"{len(found)} answers, {len(differ)} differ")
    sys.exit(bool(differ))


def difference(each: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return where answers begin to differ."""
    a, b = old["answer"], new["answer"]
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    return str(each["answer"][max(0, at - 80) : at + 240])


main()
