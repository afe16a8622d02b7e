"""What the measurements share: models, prompts, and results as small JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from importlib.metadata import version
from pathlib import Path

from edgespec import Engine, templates

MODELS = Path(os.environ.get("EDGESPEC_TEST_MODELS", Path.home() / ".cache/edgespec-test-models"))


def model(name: str) -> Path:
    path = MODELS / f"{name}.gguf"
    if not path.exists():
        sys.exit(f"{path} is not there: put the GGUF files into $EDGESPEC_TEST_MODELS")
    return path


def questions(file: str) -> list[dict]:
    with open(file) as lines:
        return [json.loads(line) for line in lines]


def chat_prompt(engine: Engine, text: str) -> list[int]:
    """Token ids of one user message under the model's own template."""
    template = engine.tokenizer.chat_template
    assert template is not None
    rendered = templates.render(
        template, [{"role": "user", "content": text}], engine.tokenizer.special()
    )
    return engine.tokenizer.encode(rendered, add_special=False)


def cpu() -> str:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = next((x.split(":")[1].strip() for x in flags.splitlines() if "model name" in x), "?")
    return f"{name}, {os.cpu_count()} cores, " + (
        "AVX512" if "avx512f" in flags else "AVX2" if "avx2" in flags else platform.machine()
    )


def save(name: str, result: dict) -> None:
    """Write docs/results/NAME.json and print it."""
    result = {
        "command": " ".join(["python", *(Path(a).name if "/" in a else a for a in sys.argv)]),
        "versions": {p: version(p) for p in ("llama-cpp-python", "numpy")},
        "python": platform.python_version(),
        "cpu": cpu(),
    } | result
    text = json.dumps(result, indent=1)
    Path(__file__).parents[2].joinpath("docs/results", f"{name}.json").write_text(text + "\n")
    print(text)


def median(values: list[float]) -> float:
    return statistics.median(values)
