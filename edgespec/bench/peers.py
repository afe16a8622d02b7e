"""Answers of other runtimes to the same prompts, with the same weights. Each mode runs in its own
process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import backends
from ..backends import telemetry
from ..errors import EngineMissing
from ..types import Stats
from .answers import Answer

WORKER = Path(__file__).with_name("peer_worker.py")


@dataclass(frozen=True, slots=True)
class Mode:
    """A runtime with settings, which have the names that the runtime gives them."""

    name: str
    runtime: str
    settings: Mapping[str, Any] = field(default_factory=dict)


LOOKUP = (
    Mode("llama-server", "llama-server"),
    Mode("llama-server ngram-simple", "llama-server", {"type": "ngram_simple"}),
    Mode("llama-server ngram-simple 4/8", "llama-server",
         {"type": "ngram_simple", "size_n": 4, "size_m": 8}),
    Mode("llama-server ngram-map-k", "llama-server", {"type": "ngram_map_k"}),
    Mode("llama-server ngram-mod", "llama-server", {"type": "ngram_mod"}),
    Mode("llama-cpp-python lookup", "llama-cpp-python", {"num_pred_tokens": 10}),
    Mode("llama-cpp-python lookup 2", "llama-cpp-python", {"num_pred_tokens": 2}),
)  # fmt: skip
DRAFT = (
    Mode("llama-server draft", "llama-server", {"type": "draft_simple"}),
    Mode("llama-server draft p_min 0.75", "llama-server", {"type": "draft_simple", "p_min": 0.75}),
    Mode("llama-server draft 8 p_min 0.9", "llama-server",
         {"type": "draft_simple", "n_max": 8, "p_min": 0.9}),
)  # fmt: skip

GENAI = (
    Mode("onnxruntime-genai", "onnxruntime-genai"),
    Mode("onnxruntime-genai ngram 3/4", "onnxruntime-genai",
         {"ngram_size": 3, "max_draft_tokens": 4}),
    Mode("onnxruntime-genai ngram 3/8 cooldown", "onnxruntime-genai",
         {"ngram_size": 3, "max_draft_tokens": 8, "min_adaptive_k": 1, "cooldown": True}),
)  # fmt: skip
GENAI_DRAFT = (
    Mode("onnxruntime-genai draft 4", "onnxruntime-genai",
         {"draft": True, "max_draft_tokens": 4}),
    Mode("onnxruntime-genai draft 4 cooldown", "onnxruntime-genai",
         {"draft": True, "max_draft_tokens": 4, "min_adaptive_k": 1, "cooldown": True}),
)  # fmt: skip
_BY_ENGINE = {"llama_cpp": (LOOKUP, DRAFT), "onnx": (GENAI, GENAI_DRAFT)}


def modes(model: Path, draft: Path | None) -> tuple[Mode, ...]:
    """Return all modes of the runtimes that can run these files, () if no runtime can.

    If the target and the draft model have different formats, no mode uses the draft model.
    """
    engine = backends.name_of(model)
    lookup, drafting = _BY_ENGINE.get(engine, ((), ()))
    paired = draft is not None and backends.name_of(draft) == engine
    return (*lookup, *(drafting if paired else ()))


@dataclass(frozen=True, slots=True)
class Weights:
    """The files that every peer loads, and the numbers of context tokens and threads."""

    model: Path
    draft: Path | None
    n_ctx: int
    threads: int


class Peer:
    """Another runtime, in a worker process that the constructor starts. Raises EngineMissing if it
    does not start.

    python: the Python interpreter that has the runtime installed, by default this one.
    """

    def __init__(self, mode: Mode, weights: Weights, python: str = sys.executable) -> None:
        self.mode = mode
        config = {
            "runtime": mode.runtime, "settings": dict(mode.settings),
            "model": os.fspath(weights.model), "draft": weights.draft and os.fspath(weights.draft),
            "n_ctx": weights.n_ctx, "threads": weights.threads,
        }  # fmt: skip
        telemetry.switch_off()  # for the worker, which may import onnxruntime-genai
        self._said = tempfile.TemporaryFile(  # noqa: SIM115 – closed in close()
            "w+", encoding="utf-8", errors="replace"
        )
        try:
            self._process = subprocess.Popen(
                [python, os.fspath(WORKER)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
                encoding="utf-8", errors="replace",
            )  # fmt: skip
        except OSError as error:
            self._said.close()
            raise EngineMissing(f"{python} cannot be started: {error.strerror}") from error
        try:
            self.version: str = self._ask(config)["ready"]
            self._ask({"prompt": [1, 2, 3], "n": 8})  # warm up: some things are built at first use
        except BaseException:
            self.close()
            raise

    def answer(self, prompt: Sequence[int], category: str, id: str, n: int, **more: Any) -> Answer:
        """Return a greedy answer of at most n tokens.

        The prompt is read before the answer is timed, as in edgespec's own modes. more: fields of
        the request that only this runtime knows.
        """
        began = time.perf_counter()
        self._ask({"prompt": list(prompt), "n": 1})
        start = time.perf_counter()
        reply = self._ask({"prompt": list(prompt), "n": n, **more})
        seconds = time.perf_counter() - start
        stats = Stats(
            num_emitted_tokens=reply["n"],
            num_draft_tokens=reply["drafted"],
            num_accepted_draft_tokens=reply["accepted"],
            num_spec_steps=max(1, reply["n"] - reply["accepted"]),
        )
        return Answer(
            id, category, 0.0, self.mode.name, reply["n"], seconds, start - began, stats, gaps=[]
        )

    def close(self) -> None:
        """End the worker process."""
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message to the worker and return its reply. Raises EngineMissing if the worker has
        ended.
        """
        process = self._process
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            process.wait()
            self._said.seek(0)
            said = self._said.read().strip().splitlines() or ["nothing"]
            raise EngineMissing(
                f"{self.mode.name} does not run here; the last it said: {said[-1][:300]}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer
