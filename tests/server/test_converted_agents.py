"""Agents that speak the Responses or the Messages API, and requests as others write them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.helpers.weather import ARGUMENTS, CUSTOM

pytest.importorskip("llguidance")

FLAT = {
    "type": "function", "name": "weather", "parameters": CUSTOM["input_schema"], "strict": False,
}  # fmt: skip


def test_an_agent_of_openais_framework(url):
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    asked = []

    @agents.function_tool
    def weather(city: str, unit: str) -> str:
        """Look up the weather."""
        asked.append((city, unit))
        return "20 degrees"

    async def run(streamed: bool) -> str:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            model = agents.OpenAIResponsesModel(model="toy", openai_client=client)
            agent = agents.Agent(name="a", instructions="be brief", tools=[weather], model=model)
            if not streamed:
                return (await agents.Runner.run(agent, "weather")).final_output
            result = agents.Runner.run_streamed(agent, "weather")
            assert [event async for event in result.stream_events()]
            return result.final_output

    for streamed in (False, True):
        assert asyncio.run(run(streamed)) == "It is 20 degrees."
    assert asked == [("Rome", "C")] * 2


def test_a_request_as_codex_writes_it(url):
    """By its source: codex-rs/codex-api/src/common.rs and codex-rs/protocol/src/models.rs."""

    def says(role: str, text: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    body = {
        "model": "toy", "instructions": "You are a coding agent.", "store": False, "stream": True,
        "input": [
            says("developer", "<permissions>read-only</permissions>"),
            says("user", "# AGENTS.md"), says("user", "<environment_context/>"),
            says("user", "weather"),
            {"type": "reasoning", "summary": [], "encrypted_content": None},
            {"type": "function_call", "name": "weather", "arguments": ARGUMENTS, "call_id": "a"},
            {"type": "function_call_output", "call_id": "a", "output": "20 degrees"},
        ],
        "tools": [
            FLAT, {"type": "local_shell"}, {"type": "web_search"},
            {"type": "custom", "name": "apply_patch", "description": "", "format": {}},
            {"type": "namespace", "name": "mcp", "description": "", "tools": [FLAT]},
        ],
        "tool_choice": "auto", "parallel_tool_calls": False, "include": [],
        "reasoning": {"effort": "medium", "summary": "auto"}, "text": {"verbosity": "low"},
        "prompt_cache_key": "a", "service_tier": "priority", "client_metadata": {"a": "b"},
    }  # fmt: skip
    told = httpx.post(f"{url}/v1/responses", json=body).text
    last = json.loads(told.rpartition("data: ")[2])
    assert last["type"] == "response.completed"
    assert last["response"]["output"][0]["content"][0]["text"] == "It is 20 degrees."
    assert set(last["response"]["usage"]) == {
        "input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details",
        "total_tokens",
    }  # fmt: skip


def test_a_request_in_the_way_of_claude_code(url, chat):
    cached = {"cache_control": {"type": "ephemeral"}}
    billing = "x-anthropic-billing-header: cc_version=2.1; cch=a5145;"
    body = {
        "model": "toy", "max_tokens": 32000, "stream": True, "temperature": 1,
        "system": [
            {"type": "text", "text": billing},
            {"type": "text", "text": "You are an agent."} | cached,
        ],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>today</system-reminder>"},
                {"type": "text", "text": "weather"} | cached,
            ]},
            {"role": "system", "content": "Available agents: none."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I ask.", "signature": ""},
                {"type": "tool_use", "id": "a", "name": "weather", "input": json.loads(ARGUMENTS)},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "20 degrees",
                 "is_error": False} | cached,
            ]},
        ],
        "tools": [
            CUSTOM | {"eager_input_streaming": True} | cached,
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }  # fmt: skip
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-api-key": "none"}
    told = httpx.post(f"{url}/v1/messages?beta=true", json=body, headers=headers).text
    events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta["text"] for delta in deltas) == "It is 20 degrees."
    assert events[-1] == {"type": "message_stop"}
    assert "cch=" not in chat.seen[-1]
    assert "<|im_start|>system\nAvailable agents: none.<|im_end|>" in chat.seen[-1]


def test_the_official_loop_over_tools(url):
    asked = []

    @anthropic.beta_tool
    def weather(city: str, unit: str) -> str:
        """Look up the weather.

        Args:
            city: The name of a city.
            unit: C or F.
        """
        asked.append((city, unit))
        return "20 degrees"

    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(
            model="toy",
            max_tokens=500,
            tools=[weather],
            messages=[{"role": "user", "content": "weather"}],
        )
        final = runner.until_done()
    assert asked == [("Rome", "C")]
    assert final.content[0].text == "It is 20 degrees."
