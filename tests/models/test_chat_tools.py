"""Tools in a chat with real weights: calls, results, and what stays in the cache."""

import json
from typing import Literal

import pytest

import edgespec

pytest.importorskip("llguidance")


pytestmark = pytest.mark.llama_cpp


def look(direction: Literal["left", "ahead", "right"]) -> str:
    """Say what the camera sees in a direction."""
    return f"{direction}: a cat"


@pytest.mark.long("calls with real weights; tests/models/test_answers.py has one")
def test_calls_are_the_same_with_drafts_and_stay_in_the_cache(qwen_pair):
    found = []
    with edgespec.load(qwen_pair[1], None, n_ctx=1024) as engine:
        for settings in ({}, {"disable_spec_decode": True}):
            chat = engine.chat("You steer a robot.", tools=[look])
            answer = chat.send(
                "Look to the left.",
                tool_choice="required",
                parallel_tool_calls=False,
                max_tokens=60,
                **settings,
            )
            (call,) = answer.tool_calls
            result = chat.run_tool(call)
            assert result == f"{json.loads(call.arguments)['direction']}: a cat"
            said = chat.send_results([result], tool_choice="none", max_tokens=8, **settings)
            n = answer.stats.num_prompt_tokens + len(answer.token_ids) - 1
            assert said.stats.num_cached_tokens >= n - 1  # the last one was not decoded yet
            found.append((answer.token_ids, said.token_ids))
    assert found[0] == found[1]


def test_a_model_without_tools_says_so(smollm2):
    with edgespec.load(smollm2, None, n_ctx=256) as engine:
        with pytest.raises(edgespec.ConfigError, match="this model cannot call tools"):
            engine.chat(tools=[look])
        assert engine.chat().send("Hello", max_tokens=4).token_ids
