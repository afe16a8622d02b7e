"""The target's own answers to the prompts, half of them greedy and half drawn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from msgspec import structs

from ..backends.base import Tokenizer
from ..chat.encoder import ConversationEncoder
from ..config import RepetitionDetection
from ..engine import Engine
from ..errors import Aborted, EdgeSpecError
from .gently import Pauses
from .prompts import PASSAGE, Messages
from .recordings import ALONE, Recording, Recordings

N_SLOTS = 8  # of the target while it answers
MOST_ANSWER = 256  # tokens
_LEAST_ANSWER = 4  # tokens; the first is never guessed
_MOST_ROUNDS = 8  # in which each prompt is asked once
LOOP = RepetitionDetection(max_pattern_size=64, min_count=4, min_tokens=48)


def record(
    engine: Engine,
    prompts: Sequence[Messages],
    recordings: Recordings,
    n_tokens: int,
    pauses: Pauses,
) -> None:
    """Let the engine answer prompts until all answers together have `n_tokens` tokens, or each
    prompt was answered often enough. Prompts that were recorded before are not asked again.

    Every other prompt is answered greedily, the others with the engine's default sampling. In a
    second round it is the other way round, and in later rounds all answers are drawn.
    """
    jobs = _jobs(engine, prompts, recordings)
    tell = pauses.pace("answers", recordings.n_tokens, n_tokens)
    with ThreadPoolExecutor(engine.n_slots) as pool:
        running: set[Future[Recording]] = set()
        try:
            while True:
                wanted = engine.n_slots - len(running) if recordings.n_tokens < n_tokens else 0
                for job in itertools.islice(jobs, wanted):
                    running.add(pool.submit(_answered, engine, *job, pauses))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    recordings.add(each.result())
                tell(recordings.n_tokens)
        finally:
            if running:
                pauses.end()
                engine.cancel()


def record_alone(
    engine: Engine, prompts: Sequence[Messages], numbers: Sequence[int], recordings: Recordings,
    pauses: Pauses,
) -> None:  # fmt: skip
    """Let the engine answer the prompts of these numbers greedily, one after the other.

    In company an evaluation has more rows, so its sums are rounded differently, and a token may
    come out differently where two are nearly equally likely. A draft is served alone, so what it
    accepts is compared with answers that were made alone.
    """
    known = {each.prompt for each in recordings.all if each.round == ALONE}
    missing = [number for number in numbers if number not in known]
    for i, number in enumerate(missing, 1):
        pauses.progress(f"answers to check the draft with: {i} of {len(missing)}")
        empty = Recording(number, ALONE, "done")
        recordings.add(_answered(engine, prompts[number], empty, pauses))


def _jobs(
    engine: Engine, prompts: Sequence[Messages], recordings: Recordings
) -> Iterator[tuple[Messages, Recording]]:
    """Yield the prompts to ask, each with a recording that has no answer yet."""
    known = {(each.prompt, each.round) for each in recordings.all}
    bad = {each.prompt for each in recordings.all if each.status != "done"}
    draws = engine.sampling.params({}).temperature > 0
    for round in range(_MOST_ROUNDS if draws else 1):
        for number, messages in enumerate(prompts):
            if (number, round) not in known and (not round or number not in bad):
                drawn = draws and (round > 1 or (number + round) % 2 == 1)
                yield messages, Recording(number, round, "done", drawn=drawn)


def prompt_ids(tokenizer: Tokenizer, messages: Messages) -> list[int]:
    """Return the tokens of a prompt, with the model's own template unless it is a passage. Raises
    TemplateError and ConfigError.
    """
    if messages[-1]["role"] == PASSAGE:
        return tokenizer.encode(messages[-1]["content"], parse_special=False)
    encoder = ConversationEncoder(tokenizer)
    return encoder.encode(encoder.render(messages), continues=True)


def _answered(
    engine: Engine, messages: Messages, empty: Recording, pauses: Pauses
) -> Recording:  # fmt: skip
    """Return the recording of one prompt. Raises Aborted if the answer was cancelled."""
    seed = empty.prompt * _MOST_ROUNDS + empty.round
    settings = {"seed": seed} if empty.drawn else {"temperature": 0.0}
    try:
        prompt = prompt_ids(engine.tokenizer, messages)
        if len(prompt) + MOST_ANSWER > engine.n_ctx:
            why = f"the prompt has {len(prompt)} tokens; with an answer, {engine.n_ctx} fit"
            return structs.replace(empty, status="skipped", why=why)
        stream = engine.stream(
            prompt, max_tokens=MOST_ANSWER, repetition_detection=LOOP, **settings
        )
        for event in stream:
            completion = event.completion
            pauses.wait()
    except EdgeSpecError as error:
        return structs.replace(empty, status="failed", why=str(error))
    assert completion
    if completion.finish_reason == "cancelled":
        raise Aborted("the answer was cancelled")
    n = len(completion.token_ids) - completion.stats.num_repeated_tokens
    if n < _LEAST_ANSWER:
        return structs.replace(empty, status="skipped", why=f"the answer has {n} tokens")
    ids = [*prompt, *completion.token_ids[:n]]
    return structs.replace(empty, ids=ids, n_prompt=len(prompt))
