"""Small training jobs of edgespec/train/worker.py, with states that are made up."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgespec import hub
from edgespec.backends.heads import TargetSizes
from edgespec.convert import tools
from edgespec.train.features import bfloat16
from edgespec.train.kinds import base, eagle3, heads
from edgespec.train.shape import Shape
from tests.helpers import gguf_files, tiny_models

WIDTH, VOCABULARY = tiny_models.WIDTH, tiny_models.VOCABULARY
N_CONVERSATIONS, N_PROMPT = 50, 4


@functools.cache
def python() -> Path:
    """Return a Python that has torch: the one of the converter's tools, or that of
    $EDGESPEC_TEST_TOOLS. Skips the test if there is none.
    """
    named = os.environ.get("EDGESPEC_TEST_TOOLS")
    name = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    path = Path(named) if named else hub.models_dir() / ".convert" / name
    if not path.exists():
        pytest.skip("the tools of `edgespec convert` are not installed")
    return path


def shape(n_drafted: int = VOCABULARY) -> Shape:
    """Return the shape of a head for a tiny target."""
    return Shape(
        TargetSizes(WIDTH, VOCABULARY, tiny_models.N_LAYER), (1, 3, 5), 4, 2, 16, 96, n_drafted,
        1e-5, 10000.0, 512, "unknown", False, 3,
    )  # fmt: skip


def job(folder: Path, **changed: object) -> Path:
    """Write conversations of random tokens with random states, a target with random matrices, and a
    job for them; return the path of the job.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng, conversations, states, begin = np.random.default_rng(1), [], [], 0
    for _ in range(N_CONVERSATIONS):
        n = int(rng.integers(12, 20))
        ids = rng.integers(VOCABULARY, size=n).tolist()
        conversations.append({"begin": begin, "ids": ids, "n_prompt": N_PROMPT})
        states.append(rng.normal(size=(n, 4, WIDTH)).astype(np.float32))
        begin += n
    output = 4 * rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    for own, each in zip(conversations, states, strict=True):
        after = np.roll(np.array(own["ids"]), -1)
        each[:, 3] = output[after] / 4  # the target is sure of what comes
    (folder / "features.bin").write_bytes(bfloat16(np.concatenate(states)).tobytes())
    (folder / "features.json").write_text(json.dumps({"conversations": conversations}))
    weights = {"token_embd.weight": rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)}
    target = folder / "target.gguf"
    metadata = tiny_models.metadata("llama")
    layer = {"blk.0.attn_norm.weight": np.ones(WIDTH, np.float32)}
    content = gguf_files.gguf_bytes(metadata, weights | {"output.weight": output} | layer)
    target.write_bytes(content)
    known = {
        "task": "head_task", "network": "eagle3", "evaluate_start": False,
        "target": str(target), "target_weights": str(heads.TARGET_WEIGHTS), "rope": "pairs",
        "sizes": shape().sizes(), "features": str(folder), "folder": str(folder),
        "drafted": list(range(VOCABULARY)),
        "start": "", "held_out": [], "checked": list(range(N_CONVERSATIONS)), "depth": 3,
        "n_steps": 100, "passes": 0, "seconds": 0, "batch_tokens": 256, "rate": 3e-3, "seed": 0,
    }  # fmt: skip
    path = folder / "job.json"
    path.write_text(json.dumps(known | changed))
    return path


def run(path: Path) -> dict[str, object]:
    """Run a job to its end; return its result."""
    job = {"job": str(path), "parent": os.getpid()}
    tools.run_worker(python(), job, path.parent, lambda _: None, {}, base.WORKER)
    return json.loads((path.parent / "result.json").read_text())


def write_gguf(checkpoint: Path, target: Path, shape: Shape, kind: str, path: Path) -> None:
    """Write a trained head as a GGUF of a type of numbers."""
    job = {
        "checkpoint": str(checkpoint / "model.safetensors"), "target": str(target),
        "sizes": shape.sizes(), "rope_base": shape.rope_base, "layers": shape.layers,
        "n_ctx": 512, "type": kind, "name": "tiny", "license": "unknown", "out": str(path),
    }  # fmt: skip
    tools.run_worker(python(), job, path.parent, lambda _: None, {}, eagle3.GGUF_FILE)


def start(path: Path, *, is_orphan: bool = False) -> subprocess.Popen[str]:
    """Start a job and return its process, or that of its parent, which ends at once."""
    job = json.dumps({"job": str(path), "parent": os.getpid()})
    command = [str(python()), "-I", str(base.WORKER), job]
    if is_orphan:
        program = "import subprocess, sys; subprocess.Popen(sys.argv[1:])"
        command = [sys.executable, "-c", program, *command]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=sys.stderr, text=True)
