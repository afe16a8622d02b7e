"""The requests: what clients of OpenAI's, Anthropic's, vLLM's and llama.cpp's APIs send, right and
wrong, to three scripted models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.helpers.scripted_chats import called

DOOR = '{"at": "door"}'
LOOK = {
    "type": "object",
    "properties": {"at": {"type": "string"}, "times": {"type": "integer"}},
    "required": ["at"],
    "additionalProperties": False,
}
SCRIPTS = {
    "hello": "Hi, what can I do?",
    "umlaut": "Grüße aus Köln, 🙂!",
    "long": "one two three, one two three, one two three, one two three.",
    "think": "<think>\nIs it < or </b>?\n</think>\n\nIt is.",
    "call": called("look", DOOR),
    "stop it": called("halt", "{}"),
    "two": called("look", DOOR) + "\n" + called("halt", "{}"),
    "say and call": "Let me see <that>.\n" + called("look", DOOR),
    "think and call": "<think>\nI look.\n</think>\n\n" + called("look", DOOR),
    "json": '{"at": "door", "times": 2}',
    "think json": '<think>\nHm.\n</think>\n\n{"at": "door"}',
    "broken": '<tool_call>\n{"name": "look", "arguments": {"at": "do',
    "sunny": "It is sunny.",
}
FUNCTIONS = [
    {"type": "function", "function": {"name": "look", "description": "See.", "parameters": LOOK}},
    {"type": "function", "function": {"name": "halt"}},
]
STRICT = [
    {"type": "function", "function": {"name": "look", "parameters": LOOK, "strict": True}},
]
FLAT = [{"type": tool["type"]} | tool["function"] for tool in FUNCTIONS]
CLAUDE = [
    {"name": "look", "description": "See.", "input_schema": LOOK},
    {"name": "halt", "input_schema": {"type": "object"}},
]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "look", "schema": LOOK}}
BAD_SCHEMA = {"type": "object", "properties": {"a": {"type": "nothing"}}}
UNFOLLOWED = {"type": "object", "properties": {"a": {"type": "string", "format": "no-such"}}}
DEEP: Any = 1
for _ in range(400):
    DEEP = {"a": DEEP}


class Asked(NamedTuple):
    """A request. model: which of the scripted ones it is sent to."""

    model: str
    path: str
    body: Any
    method: str = "POST"


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def every() -> Iterator[Asked]:
    for body in chats():
        yield Asked("tools", "/v1/chat/completions", body)
        if not {"n", "max_tokens"} & body.keys() or body.get("n") is None:
            yield Asked("tools", "/v1/chat/completions", body | {"stream": True})
    for body in (*chats_in_pieces(), *wrong_chats()):
        yield Asked("tools", "/v1/chat/completions", body)
    for body in plain_chats():
        yield Asked("plain", "/v1/chat/completions", body)
        yield Asked("bytes", "/v1/chat/completions", body | {"stream": True})
    for body in texts():
        yield Asked("plain", "/v1/completions", body)
        yield Asked("plain", "/v1/completions", body | {"stream": True})
    for body in wrong_texts():
        yield Asked("plain", "/v1/completions", body)
    for body in responses():
        yield Asked("tools", "/v1/responses", body)
        yield Asked("tools", "/v1/responses", body | {"stream": True})
    for body in wrong_responses():
        yield Asked("tools", "/v1/responses", body)
    for body in messages():
        yield Asked("tools", "/v1/messages", body)
        yield Asked("tools", "/v1/messages", body | {"stream": True})
        counted = {k: v for k, v in body.items() if k in COUNTED}
        yield Asked("tools", "/v1/messages/count_tokens", counted)
    for body in wrong_messages():
        yield Asked("tools", "/v1/messages", body)
    for path, body in others():
        yield Asked("tools", path, body)
    for path in ("/v1/models", "/v1/models/toy", "/v1/models/other", "/openapi.json", "/nothing"):
        yield Asked("tools", path, None, "GET")


COUNTED = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")


def chats() -> Iterator[dict[str, Any]]:
    for text in SCRIPTS:
        yield {"messages": user(text)}
        yield {"messages": user(text), "tools": FUNCTIONS}
    for text in ("call", "two", "say and call", "hello"):
        for choice in ("none", "auto", "required"):
            yield {"messages": user(text), "tools": FUNCTIONS, "tool_choice": choice}
        named = {"type": "function", "function": {"name": "look"}}
        yield {"messages": user(text), "tools": FUNCTIONS, "tool_choice": named}
        yield {"messages": user(text), "tools": FUNCTIONS, "parallel_tool_calls": False}
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "halt"}}]}
    yield {
        "messages": user("two"), "tools": FUNCTIONS,
        "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed},
    }  # fmt: skip
    yield {"messages": user("call"), "tools": STRICT}
    yield {"messages": user("call"), "tools": [*FUNCTIONS, {"type": "web_search"}]}
    for text in ("json", "think json", "hello"):
        yield {"messages": user(text), "response_format": SCHEMA}
        yield {"messages": user(text), "response_format": {"type": "json_object"}}
        yield {"messages": user(text), "response_format": {"type": "text"}}
        yield {"messages": user(text), "json_schema": LOOK}
        yield {"messages": user(text), "structured_outputs": {"choice": ["yes", "no"]}}
        yield {"messages": user(text), "structured_outputs": {"regex": "[a-z]{2,4}"}}
        yield {"messages": user(text), "grammar": 'root ::= "yes" | "no"'}
    for budget in (0, 2, 50):
        yield {"messages": user("think"), "thinking_token_budget": budget}
        yield {"messages": user("think and call"), "reasoning_budget_tokens": budget,
               "tools": FUNCTIONS}  # fmt: skip
    for effort in ("none", "low", "high"):
        yield {"messages": user("think"), "reasoning_effort": effort}
    yield {"messages": user("think"), "chat_template_kwargs": {"enable_thinking": False}}
    yield {"messages": user("hello"), "logprobs": True, "top_logprobs": 2, "max_tokens": 5}
    yield {"messages": user("think"), "logprobs": True, "max_tokens": 20}
    yield {"messages": user("umlaut"), "logprobs": True, "return_tokens_as_token_ids": True}
    yield {"messages": user("hello"), "stop": ["can"], "user": "somebody", "store": False}
    yield {"messages": user("long"), "repetition_detection": {"max_pattern_size": 20,
           "min_pattern_size": 2, "min_count": 3}}  # fmt: skip
    yield {"messages": user("hello"), "max_completion_tokens": 4, "priority": 3, "ttl": 60}
    yield {"messages": user("hello"), "seed": 7, "temperature": 0.0, "min_p": 0.1, "n": 1}
    yield {"messages": user("hello"), "prediction": {"type": "content", "content": "Hi, what"}}
    yield {"messages": [{"role": "system", "content": "Be brief."}, *user("hello")]}
    yield {"messages": [{"role": "developer", "content": "Be brief."}, *user("hello")]}
    yield {"messages": [{"role": "user", "content": [{"type": "text", "text": "hel"},
           {"type": "text", "text": "lo"}]}]}  # fmt: skip
    yield {"messages": conversation(), "tools": FUNCTIONS}
    yield {"messages": [*user("a <think> and </tool_call>"), *user("hello")]}


def conversation() -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": DOOR}}
    return [
        *user("How is the weather?"),
        {"role": "assistant", "content": None, "reasoning_content": "I look.",
         "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]  # fmt: skip


def chats_in_pieces() -> Iterator[dict[str, Any]]:
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    for text in ("hello", "think", "two", "think and call"):
        yield {"messages": user(text), "tools": FUNCTIONS} | usage
        for n in (1, 5, 12, 30):
            yield {"messages": user(text), "tools": FUNCTIONS, "max_tokens": n} | usage
            yield {"messages": user(text), "tools": FUNCTIONS, "max_tokens": n}


def wrong_chats() -> Iterator[dict[str, Any]]:
    hello = {"messages": user("hello")}
    for fields in (
        {"messages": []}, {"messages": "hello"}, {"messages": None}, {"messages": [{}]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"model": "other"}, {"model": 5}, {"temperature": -1}, {"temperature": "hot"},
        {"top_p": 0}, {"top_k": -1}, {"max_tokens": 0}, {"max_tokens": 1.5},
        {"max_tokens": 4, "max_completion_tokens": 4}, {"n": 2}, {"seed": "x"}, {"seed": 1 << 70},
        {"stop": 5}, {"stop": [""]}, {"stop": ["x"] * 17}, {"logit_bias": {"x": 1}},
        {"logit_bias": {"99999": 1}}, {"logit_bias": {"5": 101}}, {"top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 50}, {"stream_options": {"include_usage": True}},
        {"temprature": 1}, {"max_token": 1}, {"no_such_field": 1}, {"tools": "x"},
        {"tools": [{"type": "function"}]}, {"tools": [FUNCTIONS[0], FUNCTIONS[0]]},
        {"tools": [{"type": "function", "function": {"name": "none"}}]},
        {"tools": FUNCTIONS, "tool_choice": "sometimes"},
        {"tools": FUNCTIONS, "tool_choice": {"type": "function", "function": {"name": "fly"}}},
        {"tool_choice": "required"}, {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        {"tools": [{"type": "function", "function": {"name": "x", "parameters": BAD_SCHEMA}}]},
        {"tools": [{"type": "function", "function": {"name": "x", "parameters": BAD_SCHEMA,
                                                     "strict": True}}]},
        {"tools": [{"type": "function", "function": {"name": "x", "parameters": DEEP}}]},
        {"tools": [FUNCTIONS[1], {"type": "function", "function": {
            "name": "x", "parameters": UNFOLLOWED, "strict": True}}]},
        {"response_format": {"type": "xml"}}, {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": BAD_SCHEMA}}},
        {"response_format": SCHEMA, "grammar": "root ::= x"}, {"grammar": "root ::="},
        {"structured_outputs": {}}, {"structured_outputs": {"regex": "["}},
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        {"thinking_token_budget": 5, "reasoning_budget_tokens": 6}, {"reasoning_effort": "huge"},
        {"chat_template_kwargs": {"messages": 1}}, {"chat_template_kwargs": DEEP},
        {"functions": [{"name": "x"}]}, {"audio": {}}, {"modalities": ["audio"]},
        {"ignore_eos": True, "tools": FUNCTIONS}, {"messages": user("x" * 9000)},
        {"repetition_detection": {"max_pattern_size": 2000}}, {"time_limit_s": -1},
        {"prediction": {"type": "content"}}, {"parallel_tool_calls": "no", "tools": FUNCTIONS},
    ):  # fmt: skip
        yield hello | fields
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{"}}
    yield {"messages": [*user("x"), {"role": "assistant", "tool_calls": [call]}, *user("hello")]}


def plain_chats() -> Iterator[dict[str, Any]]:
    yield {"messages": user("hello")}
    yield {"messages": user("umlaut"), "logprobs": True, "top_logprobs": 1}
    yield {"messages": user("hello"), "tools": FUNCTIONS}
    yield {"messages": user("hello"), "reasoning_effort": "none"}
    yield {"messages": user("umlaut"), "max_tokens": 3}
    yield {"messages": user("json"), "response_format": SCHEMA}
    yield {"messages": user("long"), "disable_spec_decode": True}


def texts() -> Iterator[dict[str, Any]]:
    yield {"prompt": "abc"}
    yield {"prompt": "abc", "max_tokens": 3, "logprobs": 2}
    yield {"prompt": ["abc", "xyz"], "max_tokens": 2}
    yield {"prompt": [97, 98, 99], "max_tokens": 2}
    yield {"prompt": [[97, 98], [65]], "max_tokens": 2, "logprobs": 0}
    yield {"prompt": "abc", "stop": "g"}
    yield {
        "prompt": "abc",
        "stop": ["g", "f"],
        "stop_token_ids": [105],
        "temperature": 0.5,
        "seed": 3,
    }
    yield {"prompt": "abc", "stop_token_ids": [102]}
    yield {"prompt": "abc", "max_tokens": 8, "json_schema": LOOK}
    yield {"prompt": "abc", "max_tokens": 4, "num_draft_tokens": 2, "ignore_eos": True}
    yield {"prompt": "abc", "max_tokens": 2, "logprobs": 1, "return_tokens_as_token_ids": True}
    yield {"prompt": "Grüße", "max_tokens": 3, "logprobs": 1}


def wrong_texts() -> Iterator[dict[str, Any]]:
    for fields in (
        {"prompt": ""}, {"prompt": []}, {"prompt": None}, {"prompt": [[]]}, {"prompt": ["a", 5]},
        {"prompt": [99999]}, {"prompt": ["a"] * 100}, {"echo": True}, {"suffix": "x"},
        {"best_of": 2}, {"logprobs": 50}, {"messages": user("x")}, {"prompt": "a" * 9000},
        {"stream_options": {}}, {"tools": FUNCTIONS},
    ):  # fmt: skip
        yield {"prompt": "abc"} | fields


def responses() -> Iterator[dict[str, Any]]:
    for text in SCRIPTS:
        yield {"input": text}
        yield {"input": text, "tools": FLAT}
    for text in ("call", "two", "hello"):
        for choice in ("none", "required", {"type": "function", "name": "look"}):
            yield {"input": text, "tools": FLAT, "tool_choice": choice}
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "halt"}],
    }
    yield {"input": "stop it", "tools": [*FLAT, {"type": "web_search"}], "tool_choice": allowed}
    yield {
        "input": "json",
        "text": {"format": {"type": "json_schema", "name": "x", "schema": LOOK}},
    }
    yield {"input": "json", "text": {"format": {"type": "json_object"}, "verbosity": "low"}}
    yield {"input": "think", "reasoning": {"effort": "none"}, "instructions": "Be brief."}
    for n in (1, 3, 12, 30):
        yield {"input": "think and call", "tools": FLAT, "max_output_tokens": n}
        yield {"input": "hello", "max_output_tokens": n, "metadata": {"a": "b"}}
    yield {"input": user("hello"), "parallel_tool_calls": False, "temperature": 0.0, "top_p": 0.5}
    yield {"input": [
        {"role": "developer", "content": "Be brief."}, *user("Weather?"),
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": DOOR},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ], "tools": FLAT, "store": True, "include": ["x"]}  # fmt: skip
    yield {"input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "b"}, {"type": "refusal", "refusal": "c"}]},
        {"type": "message", "role": "user", "content": "hello"},
    ]}  # fmt: skip


def wrong_responses() -> Iterator[dict[str, Any]]:
    for fields in (
        {"input": []}, {"input": None}, {"input": 5},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_image"}]}]},
        {"input": [{"type": "other"}]}, {"previous_response_id": "x"}, {"background": True},
        {"truncation": "auto"}, {"top_logprobs": 2}, {"tools": [{"type": "function"}]},
        {"tools": FLAT, "tool_choice": {"type": "function", "name": "fly"}},
        {"tools": [{"type": "function", "name": "x", "parameters": BAD_SCHEMA}]},
        {"tools": [{"type": "web_search"}, {"type": "function", "name": "x", "strict": True,
                    "parameters": BAD_SCHEMA}]},
        {"text": {"format": {"type": "json_schema", "name": "x"}}},
        {"text": {"format": {"type": "json_schema", "schema": BAD_SCHEMA}}},
        {"max_output_tokens": 0}, {"temperature": 1000}, {"reasoning": {"effort": "huge"}},
        {"inputs": "x"}, {"tool_choice": "required"}, {"input": "x" * 9000}, {"tools": [
            {"type": "function", "name": "x", "parameters": DEEP}]}, {"model": "other"},
        {"conversation": "x"}, {"prompt": {"id": "x"}}, {"metadata": DEEP},
    ):  # fmt: skip
        yield {"input": "hello"} | fields


def messages() -> Iterator[dict[str, Any]]:
    for text in SCRIPTS:
        yield {"max_tokens": 200, "messages": user(text)}
        yield {"max_tokens": 200, "messages": user(text), "tools": CLAUDE}
    for choice in ({"type": "any"}, {"type": "none"}, {"type": "tool", "name": "look"},
                   {"type": "auto", "disable_parallel_tool_use": True}):  # fmt: skip
        yield {"max_tokens": 200, "messages": user("two"), "tools": CLAUDE, "tool_choice": choice}
    for n in (1, 5, 12, 30):
        yield {"max_tokens": n, "messages": user("think and call"), "tools": CLAUDE}
    yield {"max_tokens": 50, "messages": user("hello"), "stop_sequences": ["can"], "top_k": 5}
    yield {"max_tokens": 50, "messages": user("think"), "thinking": {"type": "disabled"}}
    yield {"max_tokens": 50, "messages": user("think"),
           "thinking": {"type": "enabled", "budget_tokens": 2}}  # fmt: skip
    yield {
        "max_tokens": 50,
        "messages": user("json"),
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": LOOK}},
    }
    yield {
        "max_tokens": 50,
        "messages": user("hello"),
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: 5"},
            {"type": "text", "text": "Brief"},
        ],
    }
    yield {"max_tokens": 50, "tools": CLAUDE, "metadata": {"user_id": "x"}, "messages": [
        *user("Weather?"),
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "I look.", "signature": ""},
            {"type": "text", "text": "Wait."},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "door"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
    ]}  # fmt: skip
    yield {"max_tokens": 50, "messages": [*user("one"), *user("two"),
           {"role": "system", "content": "Brief."}, *user("hello")]}  # fmt: skip


def wrong_messages() -> Iterator[dict[str, Any]]:
    base = {"max_tokens": 50, "messages": user("hello")}
    for fields in (
        {"messages": []}, {"messages": None}, {"max_tokens": 0}, {"max_tokens": None},
        {"messages": [*user("x"), {"role": "assistant", "content": "y"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "y",
                                                    "input": {}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "odd"}]}]},
        {"tools": [{"name": "x"}]}, {"tools": [{"input_schema": {}}]},
        {"tools": CLAUDE, "tool_choice": {"type": "tool"}},
        {"tools": CLAUDE, "tool_choice": {"type": "tool", "name": "fly"}},
        {"tools": [{"type": "bash_20250124", "name": "bash"},
                   {"name": "x", "input_schema": BAD_SCHEMA, "strict": True}]},
        {"tools": [{"name": "x", "input_schema": DEEP}]}, {"thread": {}}, {"stop_sequences": [""]},
        {"temperature": -1}, {"output_config": {"format": {"type": "json_schema",
                                                           "schema": BAD_SCHEMA}}},
        {"output_config": {"effort": "none"}}, {"model": "other"}, {"messages": user("x" * 9000)},
        {"thinking": {"type": "enabled", "budget_tokens": -1}}, {"max_token": 5},
        {"tool_choice": {"type": "any"}}, {"messages": user("hello"), "system": 5},
    ):  # fmt: skip
        yield base | fields


def others() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "/tokenize", {"prompt": "Grüße"}
    yield "/tokenize", {"prompt": "a<|im_end|>", "parse_special": False}
    yield "/tokenize", {"messages": user("hello"), "add_generation_prompt": False}
    yield "/tokenize", {"messages": conversation(), "tools": FUNCTIONS}
    yield "/tokenize", {"messages": user("x"), "chat_template_kwargs": {"enable_thinking": False}}
    yield "/tokenize", {"prompt": "x", "messages": user("x")}
    yield "/tokenize", {}
    yield "/tokenize", {"messages": user("x"), "tools": [{"type": "function"}]}
    yield "/detokenize", {"tokens": [72, 105]}
    yield "/detokenize", {"tokens": [99999]}
    yield "/detokenize", {"tokens": "x"}
    for path in ("/completion", "/api/chat", "/v1/embeddings", "/v1/nothing"):
        yield path, {"prompt": "x"}
