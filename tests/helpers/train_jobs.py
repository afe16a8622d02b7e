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
from edgespec.train.kinds.heads import HeadKind
from edgespec.train.kinds.medusa import Medusa
from edgespec.train.shape import Shape
from edgespec.train.sizes import SHAPES, Sizes
from tests.helpers import gguf_files, head_files, tiny_models

WIDTH, VOCABULARY = tiny_models.WIDTH, tiny_models.VOCABULARY
N_CONVERSATIONS, N_PROMPT = 50, 4
WORKER = "edgespec.train.worker"


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
    sizes = Sizes(WIDTH, n_drafted, 3, 4, 2, 16, 96, 1e-5, 10000.0)
    target = TargetSizes(WIDTH, VOCABULARY, tiny_models.N_LAYER)
    return Shape(target, sizes, 512, "unknown", paired=False)


def config(kind: type[HeadKind]) -> dict[str, object]:
    """Return the config.json of a head of this kind for a tiny target."""
    head = object.__new__(kind)
    head.shape = shape()
    return head.config()


def write_head(folder: Path, kind: type[HeadKind], **changed: object) -> None:
    """Write the checkpoint of a head for a tiny target, of zeros. changed: values of its config."""
    shapes = SHAPES[kind.name](shape().sizes)
    if kind is Medusa:
        matrix = shapes.pop("lm_head.weight")
        shapes = {name.replace(".", ".0.", 1): each for name, each in shapes.items()}
        shapes |= {f"{i}.1.weight": matrix for i in range(3)}
    weights = {name: np.zeros(each, np.float32) for name, each in shapes.items()}
    weights["d2t"] = np.zeros(VOCABULARY, np.int64)
    (folder / "model.safetensors").write_bytes(head_files.safetensors(weights))
    (folder / "config.json").write_text(json.dumps(config(kind) | changed))


def job(folder: Path, **changed: object) -> Path:
    """Write conversations of random tokens with random states, a target with random matrices, and a
    job for them; return the path of the job.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng, conversations, states = np.random.default_rng(1), [], []
    for _ in range(N_CONVERSATIONS):
        n = int(rng.integers(12, 20))
        ids = rng.integers(VOCABULARY, size=n).tolist()
        conversations.append({"status": "done", "ids": ids, "n_prompt": N_PROMPT})
        states.append(rng.normal(size=(n, 4, WIDTH)).astype(np.float32))
    output = 4 * rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    for own, each in zip(conversations, states, strict=True):
        after = np.roll(np.array(own["ids"]), -1)
        each[:, 3] = output[after] / 4  # the target is sure of what comes
    (folder / "features.bin").write_bytes(bfloat16(np.concatenate(states)).tobytes())
    (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, conversations)))
    weights = {"token_embd.weight": rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)}
    target = folder / "target.gguf"
    metadata = tiny_models.metadata("llama")
    layer = {"blk.0.attn_norm.weight": np.ones(WIDTH, np.float32)}
    content = gguf_files.gguf_bytes(metadata, weights | {"output.weight": output} | layer)
    target.write_bytes(content)
    known = {
        "task": "head_task", "network": "eagle3",
        "target": str(target), "paired": True, "sizes": shape().sizes._asdict(),
        "recorded": str(folder), "folder": str(folder), "drafted": list(range(VOCABULARY)),
        "start": "", "held_out": [], "checked": list(range(N_CONVERSATIONS)),
        "n_steps": 100, "passes": 0, "seconds": 0, "batch_tokens": 256, "rate": 3e-3, "seed": 0,
    }  # fmt: skip
    path = folder / "job.json"
    path.write_text(json.dumps(known | changed))
    return path


def run(path: Path) -> dict[str, object]:
    """Run a job to its end; return its result."""
    job = {"job": str(path), "parent": os.getpid()}
    tools.run_worker(python(), job, path.parent, lambda _: None, {}, WORKER)
    return json.loads((path.parent / "result.json").read_text())


def write_gguf(checkpoint: Path, target: Path, shape: Shape, kind: str, path: Path) -> None:
    """Write a trained head as a GGUF of a type of numbers."""
    job = {
        "checkpoint": str(checkpoint / "model.safetensors"), "target": str(target),
        "sizes": shape.sizes._asdict(), "layers": shape.layers, "n_ctx": 512,
        "type": kind, "name": "tiny", "license": "unknown", "out": str(path),
    }  # fmt: skip
    tools.run_worker(python(), job, path.parent, lambda _: None, {}, "edgespec.train.gguf_file")


def start(path: Path, *, is_orphan: bool = False) -> subprocess.Popen[str]:
    """Start a job and return its process, or that of its parent, which ends at once."""
    job = json.dumps({"job": str(path), "parent": os.getpid()})
    command = [str(python()), "-I", str(tools.PROGRAM), WORKER, job]
    if is_orphan:
        program = "import subprocess, sys; subprocess.Popen(sys.argv[1:])"
        command = [sys.executable, "-c", program, *command]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=sys.stderr, text=True)
