"""The acceptance of a head that edgespec has trained, in edgespec and in llama.cpp's own server.

    python -m benchmarks.served_elsewhere QUESTIONS TARGET.gguf HEAD.gguf [--questions 24]
        [--tokens 96] [--out NAME]

Both answer the same questions greedily, with drafts of three tokens in every step. Only answers of
equal text are compared, because rounding can change a text. The 95% interval of the ratio of the
tokens accepted a draft is from a bootstrap over these answers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import httpx
import numpy as np

import edgespec
from benchmarks.common import GREEDY, chat_prompt, mixed, save
from benchmarks.slots import served
from edgespec.train.serving import DEPTH, FIXED, interval, resampled

N_CTX = 2048


def theirs(url: str, prompt: list[int], n_tokens: int) -> tuple[list[int], int, int]:
    """Return the tokens of an answer, the drafts, and the accepted tokens."""
    body = {
        "prompt": prompt, "n_predict": n_tokens, "temperature": 0, "cache_prompt": False,
        "return_tokens": True,
    }  # fmt: skip
    answer = httpx.post(f"{url}/completion", json=body, timeout=600).raise_for_status().json()
    accepted = answer["timings"].get("draft_n_accepted", 0)
    return answer["tokens"], answer["timings"]["predicted_n"] - accepted, accepted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("target", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--out")
    args = parser.parse_args()
    rows = []
    engine = edgespec.load(
        args.target, args.head, n_ctx=N_CTX, speculative_config=FIXED, sampling=GREEDY,
        prompt_cache="off",
    )  # fmt: skip
    server = [
        sys.executable, "-m", "benchmarks.llama_server", str(args.target), "--n-ctx", str(N_CTX),
        "--spec-type", "draft-eagle3", "--draft", str(args.head),
    ]  # fmt: skip
    with engine, served(server) as url:
        prompts = [chat_prompt(engine, text) for text in mixed(args.file, args.questions)]
        for prompt in prompts:
            if len(prompt) + args.tokens > N_CTX:
                continue
            ours = engine.generate(prompt, max_tokens=args.tokens)
            tokens, steps, accepted = theirs(url, prompt, args.tokens)
            mine = list(ours.token_ids)
            n_steps = ours.stats.num_spec_steps
            rows.append((mine == tokens, n_steps, len(mine) - n_steps, steps, accepted))
            print(rows[-1], file=sys.stderr)
    equal = np.array([row[1:] for row in rows if row[0]], float)
    sums = equal[resampled(len(equal))].sum(1)
    ratios = (sums[:, 1] / sums[:, 0]) / (sums[:, 3] / sums[:, 2])
    result = {
        "depth": DEPTH, "answers": len(rows), "answers_of_equal_text": len(equal),
        "acceptance_length": round(1 + float(sums[0, 1] / sums[0, 0]), 3),
        "acceptance_length_of_llama_server": round(1 + float(sums[0, 3] / sums[0, 2]), 3),
        "ratio_of_accepted": round(float(ratios[0]), 3),
        "interval": [round(each, 3) for each in interval(ratios)],
    }  # fmt: skip
    save(args.out, result)


if __name__ == "__main__":
    main()
