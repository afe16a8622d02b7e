"""Small jobs of edgespec/train/distill_task.py: a language in which the next token depends on the
last one alone, and a student with random weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from edgespec.train import features
from edgespec.train.recordings import Recording, Recordings
from tests.helpers import tiny_models

N_CONVERSATIONS, N_PROMPT, N_ANSWER = 60, 3, 20
HELD_OUT = list(range(8))
WORDS = np.arange(30, 70)  # the tokens of the language


def probabilities() -> np.ndarray:
    """Return the language: after each word a likely one, and another one, [vocab, vocab]."""
    rng, n = np.random.default_rng(5), tiny_models.VOCABULARY
    rows = np.full((n, n), 0.1 / n)
    rows[:, WORDS[0]] += 0.9
    for token, likely, other in zip(WORDS, np.roll(WORDS, 1), rng.permutation(WORDS), strict=True):
        rows[token] = 0.1 / n
        rows[token, likely] += 0.7
        rows[token, other] += 0.2
    return rows


def recordings() -> list[Recording]:
    """Return conversations in the language; those that are held out are greedy."""
    rng, rows, made = np.random.default_rng(6), probabilities(), []
    for number in range(N_CONVERSATIONS):
        ids = rng.choice(WORDS, N_PROMPT).tolist()
        while len(ids) < N_PROMPT + N_ANSWER - number % 5:
            row = rows[ids[-1]]
            greedy = number in HELD_OUT
            ids.append(int(row.argmax() if greedy else rng.choice(len(row), p=row)))
        made.append(Recording(number, 0, "done", ids=ids, n_prompt=N_PROMPT))
    return made


def job(folder: Path, architecture: str = "llama", **changed: object) -> Path:
    """Write conversations, the target's probabilities, a student, and a job; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    known, rows = recordings(), probabilities()
    answers = [np.array(each.ids[each.n_prompt - 1 : -1]) for each in known]
    kept = features.likeliest_of(np.log(rows)[np.concatenate(answers)])
    (folder / "likeliest.bin").write_bytes(kept.tobytes())
    for each in known:
        Recordings(folder).add(each)
    given = {
        "task": "distill_task", "folder": str(folder),
        "recorded": str(folder),
        "start": str(tiny_models.write(folder, architecture, 2)), "n_layers": 1,
        "out": str(folder / "new.gguf"), "name": "new",
        "held_out": HELD_OUT, "checked": HELD_OUT, "n_steps": 150, "passes": 0, "seconds": 0,
        "batch_tokens": 256, "rate": 5e-3, "seed": 0,
    }  # fmt: skip
    path = folder / "job.json"
    path.write_text(json.dumps(given | changed))
    return path
