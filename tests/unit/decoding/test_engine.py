"""The public engine on the toy backend."""

import asyncio
import contextlib
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import edgespec
from edgespec import ConfigError, ContextFull, EdgeSpecError, EngineBusy, ToyModel, ToyTokenizer
from edgespec.decoding.interrupt import Interrupt
from edgespec.decoding.slots import Slots
from tests.helpers.serving import until

VOCAB = [*"abcdefgh", "."]


class SlowToy(ToyModel):
    """Takes its time, so that other threads get a chance."""

    def decode(self, *args, **options):
        time.sleep(0.002)
        return super().decode(*args, **options)


def cycle(kind=ToyModel, sure=0.9, **options):
    n = len(VOCAB)
    table = np.full((n, n), (1 - sure) / (n - 2))
    table[:, n - 1] = 0
    table[np.arange(n), (np.arange(n) + 1) % (n - 1)] = sure
    table /= table.sum(axis=1, keepdims=True)
    return kind(table, **options)


def engine(kind=ToyModel, draft=True, config=None, **options):
    return edgespec.assemble(
        cycle(kind, n_ctx=400), ToyTokenizer(VOCAB, eog=[8]),
        cycle(sure=0.7) if draft else None, config, **options,
    )  # fmt: skip


def test_generate_stream_and_stats():
    with engine() as made:
        done = made.generate("abcabc", max_tokens=20)
        assert done.text == "defghabcdefghabcdefg"[:20]
        assert done.finish_reason == "length"
        events = list(made.stream("abcabc", max_tokens=20))
        assert [e.type for e in events][-1] == "done"
        assert "".join(e.text for e in events) == done.text
        assert tuple(e.token for e in events if e.type == "token") == done.token_ids
        assert any(e.from_draft for e in events)
        stats = events[-1].completion.stats
        assert stats.num_emitted_tokens == 20
        assert stats.num_accepted_draft_tokens == sum(e.from_draft for e in events)
        assert sum(stats.acceptance_histogram) == stats.num_spec_steps
        told = stats.to_dict()
        assert told["mean_acceptance_length"] == pytest.approx(
            1 + stats.num_accepted_draft_tokens / stats.num_spec_steps, abs=1e-3
        )
        assert told["timings"]["draft_n"] == stats.num_draft_tokens


def test_a_prompt_is_read_in_whatever_chunks_the_engine_takes():
    for max_batch in (1, 32, 33, 64):
        target = cycle(n_ctx=400, max_batch=max_batch)
        with edgespec.assemble(target, ToyTokenizer(VOCAB, eog=[8])) as made:
            assert made.generate("abcdefgh" * 20, max_tokens=4).text == "abcd"


def test_a_prompt_that_was_not_read_to_its_end_counts_as_far_as_it_was():
    with edgespec.assemble(cycle(n_ctx=400, max_batch=32), ToyTokenizer(VOCAB, eog=[8])) as made:
        for n_chunks, n_read in ((0, 0), (2, 32), (9, 144)):  # 16 at a time, the rest with a step
            events = made.stream("abcdefgh" * 20, max_tokens=4)
            for _ in range(1 + n_chunks):
                assert next(events).type == "prefill"
            made.cancel()
            stats = [*events][-1].completion.stats
            assert (stats.num_cached_tokens, stats.num_prefilled_tokens) == (0, n_read)
            made.generate("h", max_tokens=1)  # something else is in the cache then
        stats = made.generate("abcdefgh" * 20, max_tokens=4).stats
        assert (stats.num_cached_tokens, stats.num_prefilled_tokens) == (0, 160)


def test_token_ids_in_and_out():
    with engine() as made:
        assert made.generate([0, 1, 2], max_tokens=3).token_ids == (3, 4, 5)
        assert made.generate(np.array([0, 1, 2]), max_tokens=3).token_ids == (3, 4, 5)


@pytest.mark.parametrize("config", [
    {"method": "none"}, {"method": "suffix"}, {"method": "draft_model"}, {"method": "auto"},
    {"num_speculative_tokens": 0}, {"num_assistant_tokens": 9}, {"acceptance": "coupled"},
])  # fmt: skip
def test_every_method_gives_the_same_greedy_text(config):
    with engine(config=config) as made:
        assert made.generate("abcabc", max_tokens=24).text == "defghabcdefghabcdefghabc"


@pytest.mark.parametrize("config", [{"method": "suffix"}, {"acceptance": "coupled"}])
@pytest.mark.parametrize("seed", range(5))
def test_same_seed_same_text_with_and_without_speculation(config, seed):
    with engine(config=config) as made:
        options = {"temperature": 1.2, "seed": seed, "max_tokens": 40}
        plain = made.generate("abcabc", **options, disable_spec_decode=True)
        assert plain.stats.num_draft_tokens == 0
        drafted = made.generate("abcabc", **options)
        assert drafted.token_ids == plain.token_ids
        assert made.generate("abcabc", **options, num_draft_tokens=1).token_ids == plain.token_ids


def test_switches_of_one_request():
    with engine(config={"draft_p_min": 0.0}) as made:
        off = made.generate("abcabc", max_tokens=9, disable_spec_decode=True).stats
        assert (off.num_draft_tokens, off.speculation) == (0, "off: disabled by request")
        one = made.generate("abcabc", max_tokens=9, num_draft_tokens=1).stats
        assert len(one.acceptance_histogram) == 2


def test_never_drafts_past_max_tokens():
    with engine(config={"num_speculative_tokens": 8, "draft_p_min": 0.0}) as made:
        stats = made.generate("abcabc", max_tokens=2).stats
        assert stats.num_draft_tokens <= 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_those_of_plain_decoding(temperature):
    options = {"max_tokens": 12, "logprobs": 2, "temperature": temperature, "seed": 3}
    with engine(config={"acceptance": "coupled", "draft_p_min": 0.0}) as made:
        plain = made.generate("abcabc", **options, disable_spec_decode=True)
        drafted = made.generate("abcabc", **options)
        assert drafted.stats.num_accepted_draft_tokens > 0
        assert drafted.token_ids == plain.token_ids
        for ours, theirs in zip(drafted.logprobs, plain.logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob)
            assert [t for t, _ in ours.top] == [t for t, _ in theirs.top]
            assert len(ours.top) == 2


def test_context_full():
    with engine() as made:
        full = made.generate("abc", ignore_eos=True)
        assert full.finish_reason == "context_full"
        assert len(full.token_ids) == 400 - 3 + 1
        with pytest.raises(ContextFull, match="401 tokens, the context 400"):
            made.generate([0] * 401)
        assert made.generate([0] * 400, max_tokens=3).finish_reason == "context_full"
        assert made.generate("abc", max_tokens=2).text == "de"


def test_bad_arguments_are_told_at_once():
    with engine() as made:
        with pytest.raises(ConfigError, match="did you mean 'temperature'"):
            made.stream("abc", temprature=1)
        with pytest.raises(ConfigError, match="token id 77 is not in the vocabulary"):
            made.stream([77])
        with pytest.raises(ConfigError, match="empty"):
            made.stream("")
        with pytest.raises(ConfigError, match="top_p must be between 0 and 1"):
            made.generate("abc", top_p=1.5)


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        *((name, 1.5, "whole number") for name in ("max_tokens", "top_k", "logprobs", "seed")),
        ("num_draft_tokens", 1.5, "whole number"),
        ("max_tokens", True, "a number"),
        ("stop", None, "several str"),
        ("stop", [1], "several str"),
        ("stop_token_ids", ["a"], "several int"),
        ("logit_bias", None, "must map"),
        ("logit_bias", {3: "x"}, "must be a number"),
        ("logit_bias", {3: None}, "must be a number"),
        ("logit_bias", {3: float("inf")}, "between"),
        ("logit_bias", {3: float("nan")}, "must be a number"),
        ("logit_bias", {"3": 1.0}, "token id"),
        ("logit_bias", {-3: 1.0}, "at least 0"),
    ],
)
def test_values_that_cannot_be(name, value, what):
    with pytest.raises(ConfigError, match=what):
        edgespec.SamplingParams(**{name: value})


def test_one_stop_stands_for_several():
    params = edgespec.SamplingParams(stop="x", stop_token_ids=7, logit_bias={3: float("-inf")})
    assert (params.stop, params.stop_token_ids) == (("x",), (7,))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"n_ctx": 512.5}, "whole number"),
        ({"n_threads": "2"}, "a number"),
        ({"flash_attn": "off", "type_v": "q8_0"}, "needs flash attention"),
    ],
)
def test_engines_that_cannot_be(options, what):
    with pytest.raises(ConfigError, match=what):
        edgespec.EngineConfig(**options)
    assert edgespec.EngineConfig(flash_attn="off", type_v="bf16").type_v == "bf16"


@pytest.mark.parametrize("size", [1, 2, 4])
def test_costs_of_a_small_vocabulary_can_be_measured(size):
    table = np.full((size, size), 1 / size)
    model = ToyModel(lambda tokens: table[tokens[-2:][0]], vocab_size=size)
    tokenizer = ToyTokenizer([*"abcd"[:size]])
    with edgespec.assemble(model, tokenizer) as made:
        assert len(made.generate([0], max_tokens=3).token_ids) == 3


@pytest.mark.parametrize("stop", [{"stop": "c"}, {"stop_token_ids": [2]}])
def test_what_a_stop_cuts_off_was_not_accepted(stop):
    config = {"method": "draft_model", "num_speculative_tokens": 6, "draft_p_min": 0.0}
    with engine(config=config) as made:
        stats = made.generate("a", **stop).stats
        assert stats.num_draft_tokens == 6
        assert stats.num_accepted_draft_tokens == stats.num_emitted_tokens == 2


def test_cancel_from_another_thread():
    with engine(SlowToy) as made:
        events = made.stream("abc", ignore_eos=True)
        seen = 0
        for event in events:
            seen += event.type == "token"
            if seen == 3:
                thread = threading.Thread(target=made.cancel)
                thread.start()
                thread.join()
            last = event
        assert last.completion.finish_reason == "cancelled"
        assert last.completion.text.startswith("def")
        assert made.generate("abc", max_tokens=3).text == "def"


def test_cancel_reaches_a_request_that_waits_for_its_turn():
    """Work between requests gives way a moment later; a cancel in that moment was lost."""
    with engine() as made, ThreadPoolExecutor() as pool:
        with made._slots.between_requests():
            answers = [pool.submit(made.generate, "abc", max_tokens=5) for _ in range(2)]
            until(lambda: len(made._slots._waiting) == 2)
            made.cancel()
            ends = [answer.result(10) for answer in answers]
        assert {(end.finish_reason, end.text) for end in ends} == {("cancelled", "")}
        assert made.generate("abc", max_tokens=3).text == "def"


def test_cancel_reaches_a_stream_that_has_not_been_read():
    with engine() as made:
        made.cancel()  # which does nothing: there is no request
        running, begun = made.stream("abc", ignore_eos=True), made.stream("abc", max_tokens=3)
        next(running)
        made.cancel()
        assert [*running][-1].completion.finish_reason == "cancelled"
        assert [*begun][-1].completion.text == "def"  # one ran: only that was cancelled
        begun = made.stream("abc", max_tokens=3)
        made.cancel()
        assert [*begun][-1].completion.finish_reason == "cancelled"
        assert not made._slots._begun


def test_cancel_reaches_a_request_whose_prompt_is_prepared(monkeypatch):
    with engine() as made:
        encode = made.encode
        monkeypatch.setattr(made, "encode", lambda prompt: (made.cancel(), encode(prompt))[1])
        assert made.generate("abc").finish_reason == "cancelled"


def test_time_limit():
    with engine(SlowToy, draft=False) as made:
        done = made.generate("abc", ignore_eos=True, time_limit_s=0.4, disable_spec_decode=True)
        assert done.finish_reason == "time_limit"
        assert 0 < len(done.token_ids) < 300
        assert made.generate("abcd" * 40, time_limit_s=0).finish_reason == "time_limit"


def test_closed_streams_release_the_engine():
    with engine() as made:
        events = made.stream("abc", max_tokens=50)
        next(events)
        events.close()
        assert made.generate("abc", max_tokens=3).text == "def"
        for _event in made.stream("abc", max_tokens=50):
            break
        gc.collect()
        assert made.generate("abc", max_tokens=3).text == "def"


def test_a_thread_does_not_wait_for_itself():
    with engine() as made:
        events = made.stream("abc", max_tokens=50)
        next(events)
        with pytest.raises(EngineBusy, match="this thread"):
            made.generate("abc", max_tokens=1)
        list(events)


@pytest.mark.parametrize("on_busy", ["wait", "error"])
def test_a_second_caller(on_busy):
    with engine(SlowToy, on_busy=on_busy) as made:
        started, results = threading.Event(), []

        def first():
            for _ in made.stream("abc", max_tokens=30):
                started.set()
            results.append("first")

        thread = threading.Thread(target=first)
        thread.start()
        started.wait()
        if on_busy == "wait":
            assert made.generate("abc", max_tokens=2).text == "de"
            assert results == ["first"]
        else:
            with pytest.raises(EngineBusy, match="cancel"):
                made.generate("abc", max_tokens=2)
        thread.join()


def _of(stream):
    return list(stream)[-1].completion


async def _of_async(stream):
    return [event async for event in stream][-1].completion


ASKED = {
    "generate": lambda made, **given: made.generate("abc", **given),
    "stream": lambda made, **given: _of(made.stream("abc", **given)),
    "send": lambda made, **given: made.chat().send("abc", **given),
    "chat stream": lambda made, **given: _of(made.chat().stream("abc", **given)),
    "agenerate": lambda made, **given: asyncio.run(made.agenerate("abc", **given)),
    "astream": lambda made, **given: asyncio.run(_of_async(made.astream("abc", **given))),
}


@pytest.fixture
def chatting():
    tokenizer = ToyTokenizer(VOCAB, [8], "{{ messages[-1].content }}")
    with edgespec.assemble(cycle(n_ctx=400), tokenizer) as made:
        yield made


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("left_s", [-0.05, -float("inf"), 0])
def test_a_deadline_that_has_passed_leaves_no_time(chatting, ask, left_s):
    done = ASKED[ask](chatting, time_limit_s=left_s)
    assert (done.text, done.token_ids, done.finish_reason) == ("", (), "time_limit")


@pytest.mark.parametrize("ask", ASKED)
def test_a_request_whose_time_ends_before_its_turn_ends_as_every_other(chatting, ask):
    started, release = threading.Event(), threading.Event()

    def holder():
        for _ in chatting.stream("abc", max_tokens=5):
            started.set()
            release.wait(20)

    thread = threading.Thread(target=holder)
    thread.start()
    started.wait()
    try:
        done = ASKED[ask](chatting, time_limit_s=0.1)
        assert thread.is_alive()
    finally:
        release.set()
        thread.join()
    assert (done.text, done.token_ids, done.finish_reason) == ("", (), "time_limit")
    assert ASKED[ask](chatting, max_tokens=2).text == "de"


@pytest.mark.parametrize("chat", [False, True])
def test_leaving_a_with_block_ends_the_request(chatting, chat):
    ask = chatting.chat().stream if chat else chatting.stream
    with ask("abc", ignore_eos=True) as events:
        while next(events).type != "token":
            pass
    assert list(events) == []
    assert chatting.generate("abc", max_tokens=1).text == "d"  # it would wait for itself
    with pytest.raises(LookupError), ask("abc", ignore_eos=True):
        raise LookupError
    assert chatting.generate("abc", max_tokens=1).text == "d"

    async def main():
        async with chatting.astream("abc", ignore_eos=True) as stream:
            await anext(stream)
        assert [event async for event in stream] == []
        assert (await chatting.agenerate("abc", max_tokens=1)).text == "d"

    asyncio.run(main())


def test_closing():
    made = engine()
    made.close()
    made.close()
    with pytest.raises(EdgeSpecError, match="closed"):
        made.generate("abc")


def test_closing_in_the_moment_in_which_a_request_ends():
    freed = []
    slots = Slots([None], "wait", lambda: freed.append(True))
    with slots.held(Interrupt(None)):
        slots.close()
        assert not freed
    assert freed


def test_closing_while_a_stream_is_open_ends_it():
    made = engine()
    events = made.stream("abc", ignore_eos=True)
    next(events)
    made.close()
    assert list(events)[-1].completion.finish_reason == "cancelled"
    with contextlib.suppress(KeyboardInterrupt), engine() as other:
        for _event in other.stream("abc"):
            raise KeyboardInterrupt


def test_async_twins():
    async def main():
        with engine(SlowToy) as made:
            done = await made.agenerate("abc", max_tokens=5)
            assert done.text == "defgh"
            texts = [event.text async for event in made.astream("abc", max_tokens=5)]
            assert "".join(texts) == "defgh"
            both = await asyncio.gather(
                made.agenerate("abc", max_tokens=4), made.agenerate("bcd", max_tokens=4)
            )
            assert [b.text for b in both] == ["defg", "efgh"]

    asyncio.run(main())


def test_cancelled_tasks_free_the_engine():
    async def main():
        with engine(SlowToy, config={"num_speculative_tokens": 4}) as made:
            task = asyncio.create_task(made.agenerate("abc", ignore_eos=True))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await made.agenerate("abc", max_tokens=3)).text == "def"
            stream = made.astream("abc", ignore_eos=True)
            await anext(stream)
            await stream.aclose()
            assert (await made.agenerate("abc", max_tokens=3)).text == "def"

    asyncio.run(main())


def test_a_cancelled_async_stream_still_has_its_completion():
    async def read(stream, events, began):
        async for event in stream:
            events.append(event)
            if event.token is not None:
                began.set()

    async def main():
        with engine(SlowToy, draft=False, on_busy="error") as made:
            stream, events = made.astream("abc", ignore_eos=True), []
            task = asyncio.create_task(read(stream, events, began := asyncio.Event()))
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not any(event.completion for event in events)
            assert made.generate("abc", max_tokens=1).text == "d"  # the engine is free again
            rest = [event async for event in stream]
            done = rest[-1].completion
            assert done.finish_reason == "cancelled"
            assert done.text == "".join(event.text for event in [*events, *rest])
            assert done.stats.num_emitted_tokens == len(done.token_ids) > 0
            assert [event async for event in stream] == []

            stream = made.astream("abc", ignore_eos=True)
            await anext(stream)
            made.cancel()
            assert [e async for e in stream][-1].completion.finish_reason == "cancelled"
            stream = made.astream("abc", ignore_eos=True, time_limit_s=0.05)
            assert [e async for e in stream][-1].completion.finish_reason == "time_limit"

    asyncio.run(main())


def test_an_async_stream_cancelled_before_its_turn_ends_as_a_cancelled_one():
    async def main():
        with engine() as made:
            holder = made.stream("abc")
            next(holder)
            stream = made.astream("abc")
            task = asyncio.create_task(anext(stream))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (done,) = [event.completion async for event in stream]
            assert (done.text, done.token_ids, done.finish_reason) == ("", (), "cancelled")
            next(holder)  # it still has the engine
            with pytest.raises(EngineBusy, match="this thread"):
                made.generate("abc")
            holder.close()
            assert made.generate("abc", max_tokens=1).text == "d"

    asyncio.run(main())


def test_an_async_stream_that_nobody_reads_any_more_ends():
    async def main():
        with engine(SlowToy) as made:
            async for event in made.astream("abc", ignore_eos=True):
                if event.token is not None:
                    break
            assert (await made.agenerate("abc", max_tokens=3)).text == "def"
            closed = made.astream("abc")
            await closed.aclose()
            assert [event async for event in closed] == []

    asyncio.run(main())


def test_prefill_is_reused_and_reported():
    with engine(draft=False) as made:
        prompt = [i % 8 for i in range(120)]
        events = list(made.stream(prompt, max_tokens=4))
        progress = [(e.n_done, e.n_total) for e in events if e.type == "prefill"]
        assert progress[0] == (0, 120)
        assert progress == sorted(progress)
        assert len(progress) > 2
        longer = [*prompt, *events[-1].completion.token_ids, 5]
        stats = made.generate(longer, max_tokens=4).stats
        assert stats.num_cached_tokens == len(longer) - 2  # the last emitted token and the new one
        assert stats.num_prefilled_tokens == 2


def test_description_is_json():
    import json

    with engine() as made:
        assert json.loads(json.dumps(made.describe()))["n_ctx"] == 400


def test_the_cache_of_another_owner_is_not_reused():
    """Neither a count nor a time tells one owner how another one's prompt begins."""
    with engine() as made:

        def n_cached(owner):
            done = made.generate("abcabcabc", max_tokens=4, owner=owner)
            assert done.text == "defg"
            return done.stats.num_cached_tokens

        owners = ("", "", "one", "one", "two", "one", "")
        assert [n_cached(owner) for owner in owners] == [0, 8, 0, 8, 0, 0, 0]


@pytest.mark.parametrize("part", ["constraint", "encode"])
def test_the_loop_goes_on_while_a_request_is_prepared(part, monkeypatch):
    """Reading a long text or compiling a form takes a thread, and nothing of the loop's time."""

    async def main():
        with engine(SlowToy) as made:
            begun, go, prepare = threading.Event(), threading.Event(), getattr(made, part)

            def slow(*args, **options):
                begun.set()
                assert go.wait(20)
                return prepare(*args, **options)

            monkeypatch.setattr(made, part, slow)
            task = asyncio.create_task(made.agenerate("abc", max_tokens=2))
            while not begun.is_set():
                await asyncio.sleep(0.001)
            go.set()  # never reached by a loop that waits in `slow`
            assert (await task).text == "de"

    asyncio.run(main())
