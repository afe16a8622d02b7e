"""Grammars of whole answers: places in drafts, budgets, control tokens, and all of it together."""

import functools
import json
import random

import numpy as np
import pytest

from edgespec import SamplingParams, SpeculativeConfig, ToyModel
from edgespec.chat.constraints import AnswerConstraints
from edgespec.chat.encoder import ConversationEncoder
from edgespec.chat.format import AnswerFormat
from edgespec.chat.options import AnswerOptions
from edgespec.chat.tools import Tool
from edgespec.constraints.compiler import Constraints
from edgespec.loading.assembly import assemble
from tests.helpers.formats import CONTROL, END, TEMPLATES, FormTokenizer

pytest.importorskip("llguidance")

N_DRAFTS = 10_000
CITY = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 9}, "n": {"enum": [1, 20]}},
    "required": ["a"],
}
TOOLS = (Tool("get", "", CITY), Tool("ge"))
OPENED = "<|assistant|><think>\n"
CASES = {
    "object": ("object", AnswerOptions(TOOLS), ""),
    "list": ("list", AnswerOptions(TOOLS), ""),
    "bare": ("bare", AnswerOptions(TOOLS), ""),
    "counted": ("counted", AnswerOptions(TOOLS, "required"), ""),
    "keys": ("keys", AnswerOptions(TOOLS), ""),
    "parameters": ("parameters", AnswerOptions(TOOLS, parallel_tool_calls=False), ""),
    "thinking": ("thinking", AnswerOptions(TOOLS, reasoning_budget=9), ""),
    "opened": ("opened", AnswerOptions(TOOLS, "required", reasoning_budget=3), OPENED),
    "control thinking": ("control thinking", AnswerOptions(TOOLS, reasoning_budget=5), ""),
    "off": ("thinking", AnswerOptions(TOOLS, reasoning_budget=0), ""),
}


@functools.cache
def constraint(name, **params):
    template, options, rendered = CASES[name]
    form = AnswerFormat.of(TEMPLATES[template], {})
    made = Constraints(FormTokenizer(TEMPLATES[template]))
    return AnswerConstraints(made, form).of(SamplingParams(**params), options, rendered)


MARKERS = [
    each
    for text in (
        '<tool_call>\n{"name": "get", "arguments": {"a": "b"}}\n</tool_call>', "<think>a</think>",
        '[TOOL_CALLS][{"name": "ge", "arguments": {}, "id": "abcdefghi"}]', "[THINK]ab[/THINK]",
        "[TOOL_CALLS]ge[ARGS]{}", '{"name": "get", "parameters": {"a": "b", "n": 20}}',
        "<|calls|><|call|>functions.get:0<|args|>{", "<tool_call>ge\n</tool_call>",
        "<tool_call>\n<function=get>\n<parameter=a>\nx\n</parameter>\n",
    )
    for each in [FormTokenizer().encode(text)]
]  # fmt: skip


def random_draft(rng, matcher, length):
    """Return tokens, most of them allowed, some of them the beginning of a marker."""
    draft = list(rng.choice(MARKERS))[: rng.randrange(length)] if rng.random() < 0.4 else []
    while len(draft) < length and END not in draft:
        mask = matcher.mask(draft)
        wrong = rng.random() < 0.1
        allowed = np.flatnonzero(mask)
        draft.append(rng.randrange(len(mask)) if wrong else int(rng.choice(list(allowed))))
    return draft


def test_places_in_drafts_are_those_of_a_fresh_matcher():
    rng = random.Random(7)
    n = 0
    while n < N_DRAFTS:
        name = rng.choice(list(CASES))
        made = constraint(name)
        matcher, text = made.matcher(), []
        while len(text) < 60 and (not text or text[-1] != END) and n < N_DRAFTS:
            draft = random_draft(rng, matcher, rng.randrange(1, 7))
            n += 1
            fresh = made.matcher()
            fresh.accept(text)
            right = 0
            for token in draft:
                if not fresh.allows(token):
                    break
                fresh.accept([token])
                right += 1
            assert [matcher.allows(t, draft[:i]) for i, t in enumerate(draft[: right + 1])] == [
                True
            ] * right + [False] * (right < len(draft)), (name, text, draft)
            if END not in draft[:right]:
                assert np.array_equal(matcher.mask(draft[:right]), fresh.mask()), (name, text)
                assert list(matcher.forced(draft[:right])) == list(fresh.forced())
            accepted = draft[: rng.randrange(right + 1)]
            if accepted:
                matcher.accept(accepted)
                text += accepted


def tokens(text):
    return FormTokenizer().encode(text)


@pytest.mark.parametrize("name", ["thinking", "opened", "control thinking"])
def test_a_budget_of_reasoning_ends_it(name):
    form = AnswerFormat.of(TEMPLATES[name], {})
    budget = CASES[name][1].reasoning_budget
    matcher = constraint(name).matcher()
    if name != "opened":
        matcher.accept(tokens(form.reasoning.begin))
    for _ in range(budget):
        assert matcher.allows(ord("x"))
        matcher.accept([ord("x")])
    closing = tokens(form.reasoning.end)
    assert list(matcher.forced()) == closing
    assert np.flatnonzero(matcher.mask()).tolist() == closing[:1]
    assert not matcher.allows(ord("x"))
    assert matcher.allows(closing[0])
    matcher.accept(closing)
    assert matcher.allows(ord("\n"))
    begun = constraint(name).matcher()  # and one that ends before it is spent is left alone
    if name != "opened":
        begun.accept(tokens(form.reasoning.begin))
    begun.accept([*tokens("x"), *closing])
    assert begun.allows(ord("\n"))


def test_a_budget_inside_of_a_draft():
    matcher = constraint("opened").matcher()
    (closing,) = tokens("</think>")
    x = ord("x")
    assert matcher.allows(x, [x, x])
    assert not matcher.allows(x, [x, x, x])
    assert matcher.allows(closing, [x, x, x])
    assert matcher.allows(x, [x])
    assert matcher.allows(tokens("<tool_call>")[0], [x, x, x, closing])


@pytest.mark.parametrize("budget", range(1, 5))
@pytest.mark.parametrize("text", ["é" * 5, "a" + "😀" * 5])
def test_a_budget_that_ends_inside_of_a_character(budget, text):
    """The character is written to its end, then the reasoning ends, whatever came of a draft."""
    (closing,) = tokens("</think>")
    whole = text.encode()
    ends = [n for n in range(budget, len(whole)) if whole[:n].decode("utf-8", "ignore") in text
            and len(whole[:n].decode("utf-8", "ignore").encode()) == n]  # fmt: skip
    made = budgeted("opened", OPENED, budget)
    matcher = made.matcher()
    for n in range(ends[0]):
        assert matcher.allows(whole[n], whole[:n])
    assert matcher.forced(whole[: ends[0]]) == (closing,)
    assert not matcher.allows(whole[ends[0]], whole[: ends[0]])
    matcher.accept(list(whole[: ends[0]]))
    assert np.flatnonzero(matcher.mask()).tolist() == [closing]


def budgeted(name, rendered, budget, tokenizer=None, template=None):
    form = AnswerFormat.of(template or TEMPLATES[name], {})
    options = AnswerOptions(reasoning_budget=budget)
    made = Constraints(tokenizer or FormTokenizer())
    return AnswerConstraints(made, form).of(SamplingParams(), options, rendered)


def test_a_budget_with_several_tokens_that_end_it():
    """They come one after the other, after a character and after reasoning that began them."""
    opened = TEMPLATES["opened"].replace("think>", "thinking>")
    closing = tokens("</thinking>")
    assert len(closing) > 1
    for begun, more in (("", "éé"), ("</th", "é"), ("</thinking", ""), ("ab</", "")):
        text = list((begun + more).encode())
        budget = len(text) - bool(more)
        matcher = budgeted("", "<|assistant|><thinking>\n", budget, template=opened).matcher()
        matcher.accept(text[:budget])
        matcher.accept(text[budget:])
        for n, token in enumerate(closing):
            assert list(matcher.forced(closing[:n])) == closing[n:]
            assert np.flatnonzero(matcher.mask(closing[:n])).tolist() == [token]
        for n in range(len(closing)):
            matcher.accept(closing[n : n + 1])
        assert matcher.allows(ord("x"))
        assert matcher.mask().sum() > 1


def test_no_reasoning_is_none():
    matcher = constraint("off").matcher()
    assert not matcher.allows(tokens("<think>")[0])
    assert matcher.allows(tokens("<think>")[0], tokens("a"))
    spelled = [ord(x) for x in "<think"]
    assert not matcher.allows(ord(">"), spelled)
    assert matcher.allows(ord("x"), spelled)


N_TOKENS = FormTokenizer().vocab_size


def random_probs(length):
    rng = np.random.default_rng(length[-1] + 1000 * len(length))
    row = rng.dirichlet(np.full(N_TOKENS, 0.1))
    words = range(256, END)
    row[list(words)] += 0.02
    return row / row.sum()


def engine(template, method):
    tokenizer = FormTokenizer(TEMPLATES[template])
    target, draft = (
        ToyModel(random_probs, vocab_size=tokenizer.vocab_size, n_ctx=2000) for _ in range(2)
    )
    config = SpeculativeConfig(method=method, num_speculative_tokens=5, draft_p_min=0.0)
    return assemble(target, tokenizer, draft, config)


@pytest.mark.parametrize("template", ["object", "list", "keys", "counted", "control thinking"])
@pytest.mark.parametrize("method", ["none", "suffix,forced", "draft_model", "auto"])
def test_answers_of_engines_are_calls(template, method):
    options = AnswerOptions(TOOLS, "required", parallel_tool_calls=False)
    with engine(template, method) as made:
        encoder = ConversationEncoder(made.tokenizer)
        prompt = encoder.render([{"role": "user", "content": "ab"}], options=options)
        constraint = made.constraint(SamplingParams(), options, prompt)
        for seed in range(3):
            found = made.generate(
                encoder.encode(prompt), constraint=constraint, temperature=1.0, seed=seed,
                max_tokens=400,
            )  # fmt: skip
            reader = made.answer_format.reader(options, prompt)
            reader.feed(found.text)
            reader.end()
            if found.finish_reason == "stop":
                (call,) = reader.calls
                assert call.name in ("get", "ge")
                assert isinstance(json.loads(call.arguments), dict)
            assert reader.content == ""


def test_control_tokens_are_shown_where_they_are_markers_and_nowhere_else():
    with engine("control thinking", "none") as made:
        options = AnswerOptions(TOOLS)
        constraint = made.constraint(SamplingParams(), options, "<|assistant|>")
        shown = {text.decode() for text in constraint.shown.values()}
        assert shown == {"[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"}
        free = made.constraint(SamplingParams(), AnswerOptions(), "<|assistant|>")
        assert free.matcher() is None
        ids = [256 + 8 + CONTROL.index("[THINK]"), ord("a")]
        bias = {ids[0]: 50.0}
        for given, text in ((None, ""), (free, "[THINK]")):
            answer = made.generate("ab", max_tokens=1, logit_bias=bias, constraint=given)
            assert answer.text == text


def test_stop_strings_end_answers_with_tools():
    with engine("object", "auto") as made:
        constraint = made.constraint(SamplingParams(), AnswerOptions(TOOLS), "")
        answer = made.generate("ab", constraint=constraint, max_tokens=300, stop=["e"])
        assert answer.finish_reason == "stop"
        assert "e" not in answer.text


@pytest.mark.parametrize(
    ("name", "before", "marker"),
    [
        ("list", "", "[TOOL_CALLS]"),
        ("list", "a", "[TOOL_CALLS]"),
        ("control thinking", "", "[THINK]"),
        ("control thinking", "b", "[TOOL_CALLS]"),
    ],
)
def test_control_tokens_are_not_spelled(name, before, marker):
    matcher = constraint(name).matcher()
    spelled = [ord(x) for x in before + marker]
    assert all(matcher.allows(token, spelled[:i]) for i, token in enumerate(spelled[:-1]))
    assert not matcher.allows(spelled[-1], spelled[:-1])
    assert matcher.allows(ord("x"), spelled[:-1])


def random_answer(rng, name):
    """Return tokens that a constraint allows, with many beginnings of markers, up to an end."""
    matcher, text = constraint(name).matcher(), []
    while len(text) < 200 and (not text or text[-1] != END):
        for token in rng.choice(MARKERS) if rng.random() < 0.3 else ():
            if matcher.allows(token):
                matcher.accept([token])
                text.append(token)
        allowed = np.flatnonzero(matcher.mask())
        ends = END in allowed and rng.random() < 0.2
        text.append(END if ends else int(rng.choice(list(allowed))))
        matcher.accept(text[-1:])
    return text


@pytest.mark.parametrize("name", CASES)
def test_what_grammars_allow_is_what_readers_read(name):
    """Where a marker of calls stands in an answer under a grammar, a call follows, and is read."""
    template, options, rendered = CASES[name]
    form = AnswerFormat.of(TEMPLATES[template], {})
    shown = constraint(name).shown
    rng = random.Random(11)
    n_calls = 0
    for _ in range(60):
        ids = random_answer(rng, name)
        tokenizer = FormTokenizer()
        pieces = [shown.get(token) or tokenizer.piece(token) for token in ids]
        reader = form.reader(options, rendered)
        reader.feed(b"".join(pieces).decode("utf-8", "replace"))
        reader.end()
        n_calls += len(reader.calls)
        names = {tool.name for tool in TOOLS}
        assert all(call.name in names for call in reader.calls)
        assert all("a" in json.loads(c.arguments) for c in reader.calls if c.name == "get")
        if ids[-1] == END:
            assert form.tools.is_bare or form.tools.trigger not in reader.content
            assert reader.calls or not options.must_call
            if options.must_call:
                assert reader.content == ""
    assert n_calls
