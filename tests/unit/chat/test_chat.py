"""Conversations on the toy backend: bytes as tokens, a small template."""

import re
import time

import numpy as np
import pytest

import edgespec
from edgespec import ConfigError, ContextFull, EngineBusy, TemplateError, ToyModel, ToyTokenizer
from edgespec.chat import templates

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
VOCAB = [bytes([i]) for i in range(256)] + ["</>", "<user>", "<assistant>", "<system>"]
EOS = 256


def chat_engine(n_ctx=200, answer=b"ok then", template=TEMPLATE):
    """Answers the same every time: the text after the last <assistant>, byte by byte."""

    def probs(tokens):
        said = 0
        for token in reversed(tokens):
            if token == 258:
                break
            said += 1
        p = np.full(len(VOCAB), 1e-6)
        p[answer[said] if said < len(answer) else EOS] = 1
        return p / p.sum()

    model = ToyModel(probs, vocab_size=len(VOCAB), n_ctx=n_ctx)
    return edgespec.assemble(model, ToyTokenizer(VOCAB, eog=[EOS], chat_template=template))


def test_turns_and_reuse():
    with chat_engine() as engine:
        chat = engine.chat("be kind")
        first = chat.send("hello")
        assert first.text == "ok then"
        second = chat.send("again")
        # </> <user> a g a i n </> <assistant>: the first </> is the EOS that was never decoded
        assert second.stats.num_prefilled_tokens == 9
        assert second.stats.num_cached_tokens == second.stats.num_prompt_tokens - 9
        assert [m["content"] for m in chat.messages] == ["hello", "ok then", "again", "ok then"]


def test_conversations_of_owners_are_kept_apart():
    with chat_engine() as engine:
        one, other = (engine.chat("be kind", owner=name) for name in ("one", "other"))
        assert one.send("hello").stats.num_cached_tokens == 0
        assert other.send("hello").stats.num_cached_tokens == 0
        assert other.send("again").stats.num_cached_tokens > 20
        assert one.send("again").stats.num_cached_tokens == 0


def test_truncated_answers_are_continued_from_the_cache():
    with chat_engine() as engine:
        chat = engine.chat()
        assert chat.send("hello", max_tokens=3).finish_reason == "length"
        assert chat.messages[-1]["content"] == "ok "
        stats = chat.send("x").stats
        assert stats.num_prefilled_tokens == 6  # the last token " ", </> <user> x </> <assistant>


def test_cancelled_answers_stay_as_far_as_shown():
    with chat_engine() as engine:
        chat = engine.chat()
        events = chat.stream("hello")
        shown = ""
        for event in events:
            shown += event.text
            if len(shown) == 4:
                break
        events.close()
        assert chat.messages[-1] == {"role": "assistant", "content": "ok t"}
        events = chat.stream("more")
        for event in events:
            if event.type == "token":
                engine.cancel()
        assert event.completion.finish_reason == "cancelled"
        assert chat.messages[-1]["content"] == event.completion.text
        assert chat.send("and").text == "ok then"


def test_stop_strings_are_not_in_history():
    with chat_engine() as engine:
        chat = engine.chat()
        assert chat.send("a", stop=[" th"]).text == "ok"
        assert chat.messages[-1]["content"] == "ok"
        assert chat.send("b").text == "ok then"


def test_the_oldest_turns_leave_a_full_context():
    with chat_engine(n_ctx=120) as engine:
        chat = engine.chat("SYS")
        notices = []
        for i in range(12):
            events = list(chat.stream(f"question {i}", max_tokens=12))
            notices += [e.text for e in events if e.type == "notice"]
            assert events[-1].completion.text == "ok then"
            assert events[-1].completion.stats.num_prompt_tokens + 12 <= 120
        assert notices
        assert re.search(r"the oldest (\d+ )?turns? (was|were) left out", notices[0])
        assert len(chat.messages) == 24
        assert chat.n_dropped > 0
        asked = [*chat.messages, {"role": "user", "content": "x"}]
        assert chat._context.fit(asked, system="SYS").rendered.startswith("<system>SYS</><user>")


def test_a_turn_that_was_never_answered_costs_no_other_turn():
    with chat_engine(n_ctx=120) as engine:
        chat, other = engine.chat(), engine.chat()
        for text in ("a" * 20, "b" * 20):
            chat.send(text)
        before = chat.to_dict()
        reading = other.stream("wait")
        next(reading)
        for _ in range(2):  # another one is being answered
            events = chat.stream("c" * 60)
            assert next(events).type == "notice"
            with pytest.raises(EngineBusy):
                next(events)
        reading.close()
        chat.stream("d" * 60)  # nobody reads it
        assert (chat.to_dict(), chat.n_dropped) == (before, 0)
        assert "notice" not in [event.type for event in chat.stream("e")]
        assert chat.n_dropped == 0
        assert "notice" in [event.type for event in chat.stream("f" * 60)]
        assert chat.n_dropped > 0


@pytest.mark.parametrize("how", ["cancel", "time_limit", "close"])
def test_a_turn_whose_answer_had_not_begun_does_not_stay(how):
    with chat_engine() as engine:
        chat = engine.chat()
        chat.send("hello")
        before = chat.to_dict()
        events = chat.stream("never mind", time_limit_s=0 if how == "time_limit" else None)
        assert next(events).type == "prefill"
        if how == "close":
            events.close()
        elif how == "cancel":
            engine.cancel()
        assert not any(event.text for event in events)
        assert chat.to_dict() == before
        assert chat.send("again").text == "ok then"


def test_time_counts_from_the_call():
    with chat_engine() as engine:
        for stream in (engine.stream, engine.chat().stream):
            events = stream("hello", time_limit_s=0.05)
            time.sleep(0.06)
            assert list(events)[-1].completion.finish_reason == "time_limit"


def test_a_turn_that_cannot_fit_changes_nothing():
    with chat_engine(n_ctx=100) as engine:
        chat = engine.chat()
        chat.send("hi")
        with pytest.raises(ContextFull, match=r"^the prompt of this message .* shorten it"):
            chat.stream("x" * 300)
        assert len(chat.messages) == 2
        assert chat.send("hi").text == "ok then"
        with pytest.raises(ContextFull, match="of the system prompt and this message"):
            engine.chat("y" * 300).stream("hi")


def test_what_cannot_fit_is_refused_before_it_is_tokenized(monkeypatch):
    with chat_engine(n_ctx=100) as engine:
        chat = engine.chat()
        chat.send("hi")
        longest = []
        encode = engine.tokenizer.encode_pieces
        monkeypatch.setattr(
            engine.tokenizer,
            "encode_pieces",
            lambda text, **options: longest.append(len(text)) or encode(text, **options),
        )
        with pytest.raises(ContextFull, match=r"bytes, which are at least .* shorten it"):
            chat.stream("x" * 10_000)
        assert chat.send("hi").text == "ok then"
        assert max(longest) < 1000
        # what was said before leaves, as it does for a conversation that is a little too long
        messages = [{"role": "user", "content": "y" * 10_000}, {"role": "assistant", "content": ""}]
        chat.load_dict({"system": None, "messages": messages})
        assert chat.send("hi").text == "ok then"
        assert chat.n_dropped == 2


def test_reset_system_save_and_load():
    with chat_engine() as engine:
        chat = engine.chat("one")
        chat.send("hi")
        saved = chat.to_dict()
        chat.reset()
        assert chat.messages == []
        chat.system = "two"
        other = engine.chat()
        other.load_dict(saved)
        assert other.to_dict() == saved
        assert other.send("again").text == "ok then"


@pytest.mark.parametrize("saved", [
    {}, {"messages": "x"}, {"system": 3, "messages": []}, {"messages": [{"role": "user"}]},
    {"messages": [{"role": "assistant", "content": "x"}]},
    {"messages": [{"role": "user", "content": "x"}]},
])  # fmt: skip
def test_bad_saves_change_nothing(saved):
    with chat_engine() as engine:
        chat = engine.chat("kept")
        chat.send("hi")
        before = chat.to_dict()
        with pytest.raises(ConfigError):
            chat.load_dict(saved)
        assert chat.to_dict() == before


def test_templates_are_sandboxed_and_their_errors_clear():
    with pytest.raises(TemplateError):
        templates.render("{{ ''.__class__.__mro__[1].__subclasses__() }}", [], {})
    with pytest.raises(TemplateError, match="only user"):
        templates.render("{{ raise_exception('only user') }}", [], {})
    with pytest.raises(TemplateError, match="cannot be read"):
        templates.render("{% for %}", [], {})


def test_template_helpers():
    text = templates.render(
        "{{ messages | tojson }}{{ strftime_now('%Y') }}"
        "{% for m in messages %}{% break %}{% endfor %}",
        [{"role": "user", "content": "é<"}], {"bos_token": ""},
    )  # fmt: skip
    assert "é<" in text


def test_a_model_without_a_template_speaks_chatml():
    with chat_engine(template=None) as engine:
        asked = [{"role": "user", "content": "x"}]
        assert engine.chat()._context.fit(asked).rendered.startswith("<|im_start|>user")


def test_a_cut_answer_goes_on_as_if_it_had_not_been_cut():
    with chat_engine() as engine:
        chat = engine.chat("be kind")
        chat.send("hello", max_tokens=3)
        events = list(chat.stream_continued(max_tokens=2))
        assert events[-1].completion.text == "th"
        assert events[-1].completion.stats.num_prefilled_tokens == 1  # the last token
        assert list(chat.stream_continued())[-1].completion.text == "en"
        assert chat.messages == [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "ok then"},
        ]
        assert list(chat.stream_continued())[-1].completion.text == ""  # it is whole
        assert chat.messages[-1]["content"] == "ok then"
        assert chat.send("again").stats.num_prefilled_tokens == 9  # as in test_turns_and_reuse


def test_a_cut_answer_that_was_saved_goes_on():
    with chat_engine() as engine:
        saved = engine.chat("be kind")
        saved.send("hello", max_tokens=3)
        chat = engine.chat()
        chat.load_dict(saved.to_dict())
        assert list(chat.stream_continued())[-1].completion.text == "then"
        assert chat.messages[-1]["content"] == "ok then"
        chat.messages[-1] = {"role": "assistant", "content": "ok"}  # the user's own beginning
        assert list(chat.stream_continued())[-1].completion.text == " then"


def test_a_character_that_was_cut_is_written_whole():
    with chat_engine(answer="née".encode()) as engine:
        chat = engine.chat()
        assert chat.send("a", max_tokens=2).text == "n\ufffd"
        assert list(chat.stream_continued())[-1].completion.text == "ée"
        assert chat.messages[-1]["content"] == "née"


def test_only_an_answer_goes_on_and_only_without_a_form():
    with chat_engine() as engine:
        chat = engine.chat()
        with pytest.raises(ConfigError, match="there is no cut answer"):
            chat.stream_continued()
        chat.send("hello", max_tokens=3)
        with pytest.raises(ConfigError, match="an answer with a form cannot go on"):
            chat.stream_continued(choices=["a", "b"])
        assert chat.messages[-1]["content"] == "ok "


def test_an_answer_that_goes_on_leaves_out_old_turns():
    with chat_engine(n_ctx=120, answer=b"x" * 60) as engine:
        chat = engine.chat()
        chat.send("y" * 44, max_tokens=8)
        chat.send("hello", max_tokens=30)
        events = list(chat.stream_continued(max_tokens=28))
        assert any(event.type == "notice" for event in events)
        assert chat.messages[-1]["content"] == "x" * 58
        assert len(chat.messages) == 4
