"""Records what the package openai-agents asks a server for, unmodified, in tests/data.

    python -m tests.helpers.record_agents

Tests replay the requests without the framework. The server is a real one over a scripted model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import agents
import httpx
import openai
import pydantic

from edgespec.server.settings import ServerSettings
from tests.helpers.scripted_chats import ScriptedChat, called
from tests.server.conftest import Running

DATA = Path(__file__).parents[1] / "data" / "openai_agents.json"


ANSWERS = {
    "How is the weather in Rome?": "<think>\nI look it up.\n</think>\n\n"
    + called("get_weather", '{"city": "Rome", "days": 2}'),
    "Rome: 20 degrees for 2 days": "It stays at 20 degrees.",
    "How is the weather in Rome and Paris?": called("get_weather", '{"city": "Rome", "days": 1}')
    + "\n"
    + called("get_weather", '{"city": "Paris", "days": 1}'),
    "Paris: 20 degrees for 1 days": "20 degrees in both.",
    "Fill in the form.": '{"city":"Rome","degrees":20}',
    "Ask the other one.": called("transfer_to_poet", "{}"),
    '{"assistant": "poet"}': "Sun over Rome.",
}


@agents.function_tool
def get_weather(city: str, days: int = 1) -> str:
    """Look up the weather.

    Args:
        city: The name of a city.
        days: For how many days.
    """
    return f"{city}: 20 degrees for {days} days"


class Report(pydantic.BaseModel):
    """A report of the weather."""

    city: str
    degrees: int


async def _whole(agent: agents.Agent, text: str) -> str:
    return str((await agents.Runner.run(agent, text)).final_output)


async def _streamed(agent: agents.Agent, text: str) -> str:
    running = agents.Runner.run_streamed(agent, text)
    async for _ in running.stream_events():
        pass
    return str(running.final_output)


Run = Callable[[agents.Agent, str], Awaitable[str]]


async def _all(url: str) -> list[dict[str, Any]]:
    exchanges: list[dict[str, Any]] = []

    async def keep(request: httpx.Request) -> None:
        exchanges[-1]["requests"].append(json.loads(request.content))

    hooks = {"request": [keep]}
    async with httpx.AsyncClient(event_hooks=hooks) as http:  # type: ignore[dict-item]
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", http_client=http)
        model = agents.OpenAIChatCompletionsModel("toy", client)
        tools = [get_weather]
        plain = agents.Agent("weather", instructions="Be brief.", model=model, tools=tools)
        poet = agents.Agent("poet", model=model)
        host = agents.Agent("host", model=model, handoffs=[poet], tools=tools)
        form = agents.Agent("form", model=model, output_type=Report, tools=tools)
        asks: list[tuple[str, agents.Agent, Run, str]] = [
            ("a call", plain, _whole, "How is the weather in Rome?"),
            ("a call, streamed", plain, _streamed, "How is the weather in Rome?"),
            ("parallel calls", plain, _whole, "How is the weather in Rome and Paris?"),
            ("parallel calls, streamed", plain, _streamed, "How is the weather in Rome and Paris?"),
            ("a form beside tools", form, _whole, "Fill in the form."),
            ("another agent", host, _streamed, "Ask the other one."),
        ]
        for about, agent, run, text in asks:
            exchanges.append({"about": about, "requests": []})
            exchanges[-1]["output"] = await run(agent, text)
    return exchanges


def main() -> None:
    """Write the file of requests and of what they ended with."""
    agents.set_tracing_disabled(True)
    with ScriptedChat(ANSWERS).engine() as engine:
        settings = ServerSettings(model="toy", port=0)
        with Running(engine, settings) as server:
            exchanges = asyncio.run(_all(server.url))
    found = {"package": "openai-agents", "answers": ANSWERS, "exchanges": exchanges}
    DATA.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
