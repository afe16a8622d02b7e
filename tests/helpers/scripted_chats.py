"""A chat model that says what a script says: reasoning, calls of tools, in tokens of any size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import edgespec

TEMPLATE = """\
{%- if tools -%}
<|im_start|>system
You may call these functions:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Write each call as <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif -%}
{{ message.content }}
{%- for call in message.tool_calls or [] -%}
{{ '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif -%}
{%- endif -%}
"""  # noqa: E501
"""In the form of Qwen3's, with `reasoning_content`, tools and `enable_thinking`."""

TURN = {
    "type": "object",
    "properties": {"to": {"enum": ["left", "right"]}, "go": {"type": "boolean"}},
    "required": ["to", "go"],
    "additionalProperties": False,
}
"""A schema of a few short answers."""
TOOLS = [
    {"type": "function", "function": {"name": "turn", "parameters": TURN, "strict": True}},
    {"type": "function", "function": {"name": "halt"}},
]

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_TURN = re.compile(r"<\|im_start\|>assistant\n(?:<think>\n\n</think>\n\n)?")
_SAID = re.compile(r"<\|im_start\|>(?:user|tool)\n(.*?)<\|im_end\|>", re.DOTALL)


class ScriptedChat:
    """A model and its tokenizer.

    answers: what is said to what a user said last, or a tool; to anything else the same again.
    words: tokens of more than one byte. seen: the prompts that the model has read.
    """

    def __init__(self, answers: Mapping[str, str], words: Sequence[str] = MARKERS) -> None:
        self._answers = dict(answers)
        self.vocab = [*(bytes([i]) for i in range(256)), *(word.encode() for word in words)]
        self.end = len(self.vocab)
        self._words = sorted(range(self.end), key=lambda token: -len(self.vocab[token]))
        self.seen: list[str] = []

    def next_probs(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the longest token with which the script goes on; the end where it is over."""
        whole = b"".join(self.vocab[t] for t in tokens if t < self.end)
        text = whole.decode("utf-8", "ignore")
        probs = np.full(self.end + 1, 1e-7)
        turns = list(_TURN.finditer(text))
        script, said = b"", b""
        if turns:
            prompt = text[: turns[-1].end()]
            if [prompt] != self.seen[-1:]:
                self.seen.append(prompt)
            asked = (_SAID.findall(prompt) or [""])[-1]
            script = self._answers.get(asked, asked).encode()
            said = whole[len(prompt.encode()) :]
        rest = script[len(said) :] if script.startswith(said) else b""
        fits = (token for token in self._words if rest.startswith(self.vocab[token]))
        probs[next(fits, self.end) if rest else self.end] = 1
        return probs / probs.sum()

    def engine(self, template: str | None = TEMPLATE, n_ctx: int = 4096, **options: Any):
        """Return an engine over the model, which drafts by prompt lookup."""
        tokenizer = edgespec.ToyTokenizer([*self.vocab, "<end>"], [self.end], template)
        return edgespec.assemble(
            edgespec.ToyModel(self.next_probs, vocab_size=self.end + 1, n_ctx=n_ctx),
            tokenizer,
            **({"speculative_config": {"method": "suffix,forced"}} | options),
        )


def rambling(tokenizer: edgespec.ToyTokenizer, n_ctx: int = 4096) -> edgespec.Engine:
    """Return an engine whose model says anything that an answer may be."""
    n = tokenizer.vocab_size

    def probs(tokens: Sequence[int]) -> np.ndarray:
        return np.random.default_rng([len(tokens), *tokens[-2:]]).dirichlet(np.full(n, 0.5))

    target = edgespec.ToyModel(probs, vocab_size=n, n_ctx=n_ctx)
    return edgespec.assemble(target, tokenizer, None, {"method": "suffix,forced"})


def called(name: str, arguments: str) -> str:
    """Return a call as the template writes it. arguments: JSON."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def accumulated(chunks: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return the message that the deltas of a stream add up to, and the reasons of its end."""
    message: dict[str, Any] = {"content": None}
    reasons: list[str] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            reasons.append(choice["finish_reason"])
            for key, value in choice["delta"].items():
                if key == "tool_calls":
                    _accumulate(message.setdefault("tool_calls", []), value)
                elif value is not None:
                    message[key] = (message.get(key) or "") + value
    return message, [reason for reason in reasons if reason]


def _accumulate(calls: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> None:
    for delta in deltas:
        if delta["index"] == len(calls):
            assert delta["id"]
            assert delta["type"] == "function"
            calls.append({k: v for k, v in delta.items() if k != "index"})
        else:
            assert set(delta) == {"index", "function"}
            assert set(delta["function"]) == {"arguments"}
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
