"""Helpers that the measurements share: models, prompts, and results as small JSON."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from edgespec import Engine, EngineMissing, backends, load
from edgespec.chat import templates

MODELS = Path(os.environ.get("EDGESPEC_TEST_MODELS", Path.home() / ".cache/edgespec-test-models"))
RESULTS = Path(__file__).parents[1] / "docs/results"


def model(name: str) -> Path:
    """NAME.gguf, or the graph in a folder NAME-onnx-PRECISION that `edgespec convert` made."""
    path = MODELS / (f"{name}/model.onnx" if "-onnx-" in name else f"{name}.gguf")
    if not path.exists():
        sys.exit(f"{path} is not there: put the models into $EDGESPEC_TEST_MODELS")
    return path


N_TOKENS, DEPTH = 128, 4
GREEDY = {"temperature": 0}
"""Sampling of engines whose texts are compared, whatever the makers of a model recommend."""
SHARES = {"translation": 5, "summarization": 5, "qa": 4, "math_reasoning": 4, "rag": 4}


def spread(file: str) -> Iterator[tuple[int, str, str]]:
    """30 questions (id, Spec-Bench category, first turn): the first of every MT-Bench category
    and 22 of the other five.
    """
    taken: dict[str, int] = defaultdict(int)
    with open(file) as lines:
        for question in map(json.loads, lines):
            category = question["category"]
            if taken[category] < SHARES.get(category, 1):
                taken[category] += 1
                name = category if category in SHARES else "mt_bench"
                yield question["question_id"], name, question["turns"][0]


def mixed(file: str, n: int) -> list[str]:
    """Return the first turns of `n` questions, one of each category after the other."""
    texts: dict[str, list[str]] = defaultdict(list)
    with open(file) as lines:
        for question in map(json.loads, lines):
            texts[question["category"]].append(question["turns"][0])
    rounds = itertools.zip_longest(*texts.values())
    chosen = [text for each in rounds for text in each if text is not None]
    if len(chosen) < n:
        sys.exit(f"{file} has {len(chosen)} questions, not {n}")
    return chosen[:n]


def load_fixed(
    target: str, draft: str | None = None, spec_type: str = "", depth: int = DEPTH, **options
) -> Engine:
    """Drafts of `depth` tokens whenever there is anything to draft; with draft "auto" what
    `edgespec.load` does by default. spec_type: by default the draft model or else "suffix".
    options: fields of EngineConfig.
    """
    if draft == "auto":
        auto = {"draft_memory": "off", "draft_corpus": ()}  # questions are asked more than once
        return known(
            lambda: load(
                model(target), n_ctx=4096, speculative_config=auto, **options, sampling=GREEDY
            )
        )
    config = {
        "method": spec_type or ("draft_model" if draft else "suffix"),
        "num_speculative_tokens": depth,
        "draft_p_min": 0.0,
    }
    draft_path = model(draft) if draft else None
    return known(
        lambda: load(
            model(target),
            draft_path,
            n_ctx=4096,
            speculative_config=config,
            **options,
            sampling=GREEDY,
        )
    )


def known(opened: Callable[[], Engine]) -> Engine:
    """Open an engine as it is at every load but the first: costs are known, and so is the file
    that drafts best; nothing is measured between its requests.
    """
    engine = opened()
    if not engine.idle_work.left:
        return engine
    engine.measure()
    engine.close()
    engine = opened()
    engine.measure()  # what could not be kept
    return engine


def chat_prompt(engine: Engine, text: str) -> list[int]:
    """Token ids of one user message under the model's own template; of the text without one."""
    template = engine.tokenizer.chat_template
    if template is None:
        return engine.encode(text)
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


def versions() -> dict[str, str]:
    """Return the versions of the engines that run here."""
    found = {}
    for name in backends.names():
        with contextlib.suppress(EngineMissing):
            found |= backends.get(name).versions()
    return found


def save(name: str | None, result: dict) -> None:
    """Print a result; with a name, also write it as docs/results/NAME.json."""
    words = map(_without_folder, sys.argv[1:])
    result = {
        "command": " ".join(["python -m", f"benchmarks.{Path(sys.argv[0]).stem}", *words]),
        "versions": versions(),
        "python": platform.python_version(),
        "cpu": cpu(),
    } | result
    text = json.dumps(result, indent=1)
    if name:
        (RESULTS / f"{name}.json").write_text(text + "\n")
    print(text)


def _without_folder(word: str) -> str:
    """Return a word of a command line with the last name of its path: "x=/a/b" -> "x=b"."""
    name, equals, value = word.rpartition("=")
    return f"{name}{equals}{Path(value).name}" if "/" in value else word


def median(values: list[float]) -> float:
    return statistics.median(values)
