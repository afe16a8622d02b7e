"""Memory over sessions, and a corpus of documents.

    python -m benchmarks.corpus questions NAME question.dev.jsonl
    python -m benchmarks.corpus editing NAME
    python -m benchmarks.corpus documents NAME FOLDER [MEGABYTES]

questions: ten questions, asked by an engine that remembers nothing, by one that keeps answers on
disk, and again by one that begins with these. editing: the same with twenty edits of one file, each
a request of its own that gives the whole file back. Plain decoding takes turns with all of them.
documents: Python sources in FOLDER up to 50 MB: the time to add them, memory, and the time of a
step's lookups with a tree of 16 nodes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import edgespec
from benchmarks.common import GREEDY, chat_prompt, known, model, save, spread
from edgespec import backends
from edgespec.config import SamplingParams
from edgespec.corpus import collection
from edgespec.corpus.folder import vocabulary_folder
from edgespec.drafters.base import LEAST, Role
from edgespec.drafters.memory import MemoryDrafter
from edgespec.policies.guesses import Guesses
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Verified

N_QUESTIONS, N_TOKENS, N_STEPS, N_NODES, N_LEAVES = 10, 128, 2000, 16, 15
FILE = Path(__file__).parents[1] / "edgespec/policies/fixed.py"
EDITS = (
    "rename the class FixedDepth to ConstantDepth", "rename at_least to minimum everywhere",
    "add a docstring to __init__", "make depth a read-only property",
    "replace min by an if statement in limits", "add type hints to local variables in make",
    "remove all docstrings", "add a method __repr__", "rename the parameter budget to left",
    "raise ValueError in __init__ for a negative depth", "add a comment above each return",
    "name all arguments of Limits in __init__", "rename the parameter context to parts",
    "add a class attribute named name with the value 'fixed'", "sort the methods by name",
    "add a counter of calls of limits", "inline the variables depth and p_min",
    "log the limits of each step with logging",
    "add a method reset that does nothing", "make the default of at_least a constant",
)  # fmt: skip


def prompts(how: str, file: str | None) -> list[str]:
    if how == "editing":
        text = FILE.read_text("utf-8")
        return [
            f"Here is fixed.py:\n\n```python\n{text}```\n\nPlease {edit}. Return the whole file."
            for edit in EDITS
        ]
    assert file is not None
    return [text for _, _, text in spread(file)][:N_QUESTIONS]


def opened(name: str, memory: str) -> edgespec.Engine:
    """Return an engine that has learned nothing from others."""
    config = {"draft_memory": memory, "draft_corpus": (), "remember": "nothing"}
    return known(
        lambda: edgespec.load(model(name), n_ctx=4096, speculative_config=config, sampling=GREEDY)
    )


def seconds_per_token(done: edgespec.Completion) -> float:
    """Return the seconds per token from the first step on: memory may give all tokens in it."""
    return done.stats.total_s / len(done.token_ids)


def answers(name: str, how: str, texts: list[str], memory: str) -> Iterator[dict[str, float]]:
    """Ask everything, drafting and plainly in turns; yield the seconds and tokens of each."""
    n = 1024 if how == "editing" else N_TOKENS
    with opened(name, memory) as engine:
        for i, text in enumerate(texts):
            prompt, done = chat_prompt(engine, text), {}
            engine.generate(prompt, max_tokens=1, disable_spec_decode=True)  # reads the prompt
            for mode in ("plain", "drafted") if i % 2 else ("drafted", "plain"):
                done[mode] = engine.generate(
                    prompt, max_tokens=n, disable_spec_decode=mode == "plain"
                )
            stats = done["drafted"].stats
            yield {
                "tokens": len(done["drafted"].token_ids),
                "equal": done["plain"].token_ids == done["drafted"].token_ids,
                "speedup": seconds_per_token(done["plain"]) / seconds_per_token(done["drafted"]),
                "mean_acceptance_length": stats.mean_acceptance_length,
                "accepted": {source: n["accepted"] for source, n in stats.drafts_by_source.items()},
            }
            print(name, memory, i, file=sys.stderr)


def sessions(name: str, how: str, file: str | None) -> None:
    """Measure a session without memory, the first one that keeps answers, and the one after it."""
    texts = prompts(how, file)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGESPEC_CORPUS"] = folder
        modes = {"conversation only": "off", "first time": "disk", "second time": "disk"}
        results = {}
        for mode, memory in modes.items():
            found = list(answers(name, how, texts, memory))
            gains = [one["speedup"] for one in found]
            results[mode] = {"geometric_mean": round(statistics.geometric_mean(gains), 3)}
            results[mode]["answers"] = [rounded(one) for one in found]
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.i32"))
    save(f"memory_{how}_{name}", {"model": name, "bytes_on_disk": size, "results": results})


def rounded(values: dict) -> dict:
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}


def resident_mib() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    wanted = ("VmHWM", "RssAnon", "RssFile")
    return {
        line.split(":")[0]: int(line.split()[1]) >> 10 for line in lines if line.startswith(wanted)
    }


def chosen(folder: Path, most: int) -> tuple[list[Path], int]:
    """Return Python sources below a folder up to so many bytes, and their size."""
    found, total = [], 0
    for path in sorted(folder.rglob("*.py")):
        if path.is_file() and total < most:
            found.append(path)
            total += path.stat().st_size
    return found, total


def documents(name: str, folder: str, megabytes: float) -> None:
    """Measure adding documents, opening them, and looking up in them."""
    path = model(name)
    paths, n_bytes = chosen(Path(folder), int(megabytes * 1e6))
    with tempfile.TemporaryDirectory() as kept, backends.of(path).vocabulary(path) as tokenizer:
        os.environ["EDGESPEC_CORPUS"] = kept
        before, began = resident_mib(), time.perf_counter()
        made = collection.add(tokenizer, paths)
        add_s = time.perf_counter() - began
        after, began = resident_mib(), time.perf_counter()
        collection.add(tokenizer, paths)
        again_s, began = time.perf_counter() - began, time.perf_counter()
        array = collection.added(tokenizer)
        open_s = time.perf_counter() - began
        assert array is not None
        tokens = made.collection.tokens(vocabulary_folder(tokenizer))[0]
        texts = {
            "from the corpus": tokens[len(tokens) // 3 :][:N_STEPS].tolist(),
            "other text": tokens[:N_STEPS][::-1].tolist(),
        }
        steps = {
            how: steps_ms(MemoryDrafter(tokenizer.vocab_size, [array]), text)
            for how, text in texts.items()
        }
        size = sum(file.stat().st_size for file in Path(kept).rglob("*.i32"))
    save("memory_documents", {
        "model": name, "files": len(paths), "bytes": n_bytes, "tokens": len(tokens),
        "add_s": round(add_s, 1), "add_again_s": round(again_s, 1),
        "open_ms": round(1e3 * open_s, 1),
        "bytes_on_disk": size, "mib_before": before, "mib_after_adding": after,
        "mib_after_lookups": resident_mib(), "step_ms": steps,
    })  # fmt: skip


def steps_ms(drafter: MemoryDrafter, text: list[int]) -> dict[str, float]:
    """Return the times of reading a token, and of that and growing a tree, for each token."""
    text = [max(token, 0) for token in text]
    drafter.begin(Request(text[:16], SamplingParams(), SeededRandomness(0)), Role.MATCHED)
    found: dict[str, list[float]] = {"accept": [], "accept and tree": []}
    nodes = 0
    for token in text[16:]:
        began = time.perf_counter()
        drafter.accept(Verified((token,)))
        found["accept"].append(time.perf_counter() - began)
        nodes += len(Guesses([drafter], N_LEAVES).nodes(N_NODES, [LEAST]))
        found["accept and tree"].append(time.perf_counter() - began)
    times = {
        f"{what}, {how}": round(1e3 * function(values), 4)
        for what, values in found.items()
        for how, function in (
            ("median", statistics.median), ("99%", lambda v: statistics.quantiles(v, n=100)[98]),
        )
    }  # fmt: skip
    return times | {"nodes a step": round(nodes / len(text[16:]), 2)}


def main() -> None:
    how, name, *rest = sys.argv[1:]
    if how == "documents":
        documents(name, rest[0], float(rest[1]) if rest[1:] else 50.0)
    else:
        sessions(name, how, rest[0] if rest else None)


if __name__ == "__main__":
    main()
