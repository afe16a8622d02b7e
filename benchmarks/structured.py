"""Answers under JSON schemas: the speed without a schema, with one, and with forced tokens drafted.

    python -m benchmarks.structured TARGET [--draft DRAFT] [--rounds 3] [--prompts 30]
        [--peer] [--name NAME]

Fifteen commands to a robot and fifteen extractions from a text, each under its schema. All modes
take turns on one engine; "free" has no schema and as many tokens as the answer under the schema.
Ratios are of seconds a token, to the constrained plain decoding of the same answer: the median over
rounds, then the mean over answers with its 95% interval. --peer: llama.cpp's server takes its turn
with the same prompts and schemas; its texts may have other spaces, so tokens are compared.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import edgespec
from benchmarks.common import GREEDY, save
from edgespec.bench.peers import Mode, Peer, Weights
from edgespec.chat.encoder import ConversationEncoder
from edgespec.constraints.matcher import GrammarMatcher
from edgespec.device import physical_cores

COMMAND = {
    "type": "object",
    "properties": {
        "action": {"enum": ["move_forward", "move_backward", "turn_left", "turn_right", "stop"]},
        "distance_in_centimetres": {"type": "integer", "minimum": 0, "maximum": 500},
        "speed": {"enum": ["slow", "normal", "fast"]},
        "reason": {"type": "string", "maxLength": 60},
    },
    "required": ["action", "distance_in_centimetres", "speed", "reason"],
    "additionalProperties": False,
}
PERSON = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 40},
        "year_of_birth": {"anyOf": [{"type": "integer", "minimum": 1000, "maximum": 2030},
                                    {"type": "null"}]},
        "occupation": {"type": "string", "maxLength": 30},
        "places": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
        "is_alive": {"type": "boolean"},
    },
    "required": ["full_name", "year_of_birth", "occupation", "places", "is_alive"],
    "additionalProperties": False,
}  # fmt: skip
SEEN = (
    "a chair 80 cm ahead", "an open door to the left", "a child that runs towards you",
    "stairs that go down, 30 cm ahead", "nothing for five metres", "a wall to the right",
    "a cat under the table", "a red light", "a person who waves you closer", "water on the floor",
    "a charging station two metres behind you", "a box that blocks the way", "a narrow corridor",
    "a closed lift", "your owner, who says: come here, slowly",
)  # fmt: skip
TEXTS = (
    "Ada Lovelace, born in London in 1815, wrote the first program.",
    "Karl Benz built a car in Mannheim. He was born in Mühlburg in 1844.",
    "Wangari Maathai from Nyeri planted trees all over Kenya; she was born in 1940.",
    "The baker Jean Petit sells bread in Lyon and Grenoble.",
    "Grace Hopper (1906-1992), an admiral from New York, wrote compilers.",
    "Our neighbour Maria Rossi, born 1980, teaches music in Turin.",
    "Hokusai was born in Edo in 1760 and painted Mount Fuji.",
    "Dr. Lena Fischer, a surgeon in Hamburg, moved there from Bremen.",
    "Isaac Newton, who was born in Woolsthorpe in 1643, lived in Cambridge and London.",
    "The pilot Amelia Earhart was born in Atchison, Kansas, in 1897.",
    "Srinivasa Ramanujan, a mathematician from Erode, was born in 1887.",
    "The farmer Tom Brown has lived near Bristol all his life.",
    "Marie Curie, born in Warsaw in 1867, worked in Paris.",
    "Konrad Zuse built the Z3 in Berlin in 1941. He was born there in 1910.",
    "Rosalind Franklin (born 1920 in London) took photograph 51.",
)
MOST = 200  # tokens of an answer
MODES = {
    "free": {"disable_spec_decode": True},
    "plain": {"disable_spec_decode": True},
    "auto": {},
}


def prompts(n: int) -> list[tuple[str, dict[str, Any]]]:
    """Return n prompts with their schemas, of both kinds in turn."""
    robot = [(f"You steer a robot. You see {seen}. Answer with a command as JSON.", COMMAND)
             for seen in SEEN]  # fmt: skip
    people = [(f"Extract the person from this text as JSON: {text}", PERSON) for text in TEXTS]
    return [each for pair in zip(robot, people, strict=True) for each in pair][:n]


class Bench:
    """Asks the prompts, in every mode."""

    def __init__(self, engine: edgespec.Engine, peer: Peer | None, rounds: int) -> None:
        self._engine, self._peer, self._rounds = engine, peer, rounds
        self._encoder = ConversationEncoder(engine.tokenizer)

    def measured(self, text: str, schema: dict[str, Any]) -> dict[str, Any]:
        """Return what an answer took in each mode, and its counts."""
        seconds = defaultdict[str, list[float]](list)
        found: dict[str, edgespec.Completion] = {}
        n_tokens = 0
        for _ in range(self._rounds):
            for mode in ("plain", *random.sample(["auto", "free"], 2)):
                form = {"max_tokens": n_tokens, "ignore_eos": True} if mode == "free" else {
                    "schema": schema, "max_tokens": MOST
                }  # fmt: skip
                done = self._engine.chat().send(text, **MODES[mode], **form)
                seconds[mode].append(done.stats.decode_s / (len(done.token_ids) - 1))
                found[mode] = done
                n_tokens = len(found["plain"].token_ids)
            if self._peer:
                seconds["peer"].append(self._of_peer(text, schema))
        forced = found["auto"].stats.drafts_by_source
        return {
            "same": found["auto"].token_ids == found["plain"].token_ids,
            "ended": found["plain"].finish_reason == "stop",
            "tokens": n_tokens,
            "forced": sum(c["accepted"] for name, c in forced.items() if "forced" in name),
            "seconds": {mode: statistics.median(times) for mode, times in seconds.items()},
        }

    def _of_peer(self, text: str, schema: dict[str, Any]) -> float:
        """Return the peer's seconds a token."""
        assert self._peer
        rendered = self._encoder.render([{"role": "user", "content": text}])
        prompt = self._encoder.encode(rendered)
        done = self._peer.answer(prompt, "structured", text, MOST, schema=schema)
        return 1 / done.tokens_per_second


def ratio(answers: list[dict], mode: str) -> list[float]:
    """Return the mean of plain constrained over `mode`, and its 95% interval."""
    values = [each["seconds"]["plain"] / each["seconds"][mode] for each in answers]
    rng = random.Random(0)
    means = sorted(statistics.mean(rng.choices(values, k=len(values))) for _ in range(2000))
    return [round(x, 3) for x in (statistics.mean(values), means[50], means[1949])]


def mask_microseconds(engine: edgespec.Engine, schema: dict, text: str) -> dict[str, float]:
    """Return what the mask of a token takes, over an answer."""
    params = edgespec.SamplingParams(schema=schema)
    matcher = engine.constraints.of(params).matcher()
    assert isinstance(matcher, GrammarMatcher)
    times = []
    for token in engine.tokenizer.encode(text, add_special=False):
        start = time.perf_counter()
        matcher.mask()
        times.append(time.perf_counter() - start)
        if not matcher.allows(token):
            break
        matcher.accept([token])
    median, p99 = (round(1e6 * float(np.percentile(times, q)), 1) for q in (50, 99))
    return {"median": median, "p99": p99, "masks": len(times)}


def started(target: Path) -> Peer:
    """Return llama.cpp's server with the target."""
    weights = Weights(target, None, 1024, edgespec.EngineConfig().threads(physical_cores())[0])
    return Peer(Mode("llama-server", "llama-server"), weights)


def main() -> None:
    """Measure, and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--name")
    given = parser.parse_args()
    config = {"draft_memory": "off", "draft_corpus": ()}
    with edgespec.load(
        given.target, given.draft, n_ctx=1024, speculative_config=config, sampling=GREEDY
    ) as engine:
        engine.measure()
        peer = started(given.target) if given.peer else None
        bench = Bench(engine, peer, given.rounds)
        answers = [bench.measured(text, schema) for text, schema in prompts(given.prompts)]
        if peer:
            peer.close()
        last = engine.chat().send(*prompts(1)[0][:1], schema=COMMAND, max_tokens=MOST).text
        masks = mask_microseconds(engine, COMMAND, last)
        vocabulary = engine.tokenizer.vocab_size
    total = sum(each["tokens"] for each in answers)
    plain = statistics.median(each["seconds"]["plain"] for each in answers)
    result = {
        "t1_ms": round(1e3 * plain, 2),
        "answers": len(answers),
        "ended": sum(each["ended"] for each in answers),
        "same_text": sum(each["same"] for each in answers),
        "tokens": total,
        "accepted_drafts_with_forced": round(sum(e["forced"] for e in answers) / total, 3),
        "auto_over_plain": ratio(answers, "auto"),
        "free_over_plain": ratio(answers, "free"),
        **({"llama_server_over_plain": ratio(answers, "peer")} if peer else {}),
        "mask_us": masks,
        "vocabulary": vocabulary,
    }
    print(result)
    if given.name:
        save(given.name, result)


if __name__ == "__main__":
    main()
