"""Chat templates in the forms that published models use, written for these tests, and a vocabulary.

Each is a few lines of Jinja that write what the model named beside it writes.
"""

import re

from edgespec.backends.toy import ToyTokenizer

_HEAD = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|end|>"
    "{% endif %}"
    "{% for m in messages %}{% if m.role != 'assistant' %}<|{{ m.role }}|>{{ m.content }}<|end|>"
    "{% else %}<|assistant|>"
)
_TAIL = (
    "<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ opened }}{% endif %}"
)
_CALLS = "{% for call in m.tool_calls or [] %}{% set f = call.function %}"
_PAIRS = "{% for k, v in f.arguments.items() %}"
_VALUE = "{{ v if v is string else v | tojson }}"


def _template(calls: str, reasoning: str = "", opened: str = "") -> str:
    body = f"{reasoning}{{{{ m.content or '' }}}}{calls}"
    return f"{{% set opened = {opened or repr('')} %}}{_HEAD}{body}{_TAIL}"


def _several(first: str, call: str, between: str, last: str) -> str:
    """Return a template of calls that stand together."""
    each = f"{call}{{% if not loop.last %}}{between}{{% endif %}}"
    calls = f"{_CALLS}{each}{{% endfor %}}"
    return f"{{% if m.tool_calls %}}{first}{calls}{last}{{% endif %}}"


_OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_THOUGHT = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
_NO_THOUGHT = "'<think>\\n\\n</think>\\n\\n' if enable_thinking is false else ''"

TEMPLATES = {
    # Hermes, Qwen2.5, Qwen3, Granite 4: one marked object a call
    "object": _template(f"{_CALLS}\n<tool_call>\n{_OBJECT}\n</tool_call>{{% endfor %}}"),
    # Mistral Nemo: a marked list of objects with ids
    "list": _template(
        _several(
            "[TOOL_CALLS][",
            '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, '
            '"id": "{{ call.id }}"}',
            ", ",
            "]",
        )
    ),
    # Nemotron Nano 2, Apriel
    "closed list": _template(_several("<TOOLCALL>[", _OBJECT, ", ", "]</TOOLCALL>")),
    # Llama 3: the object alone, one call
    "bare": _template(
        "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}"
        '{% endif %}{% set f = m.tool_calls[0].function %}{"name": "{{ f.name }}", "parameters": '
        "{{ f.arguments | tojson }}}{% endif %}"
    ),
    # Functionary 3.1: the name in the marker; arguments are wanted as text
    "function": _template(
        f"{_CALLS}{{{{ '<function=' + f.name + '>' + f.arguments + '</function>' }}}}{{% endfor %}}"
    ),
    # Devstral
    "name": _template(
        f"{_CALLS}[TOOL_CALLS]{{{{ f.name }}}}[ARGS]{{{{ f.arguments | tojson }}}}{{% endfor %}}"
    ),
    # Mistral Small 3.2
    "name and id": _template(
        f"{_CALLS}[TOOL_CALLS]{{{{ f.name }}}}[CALL_ID]{{{{ call.id }}}}[ARGS]"
        "{{ f.arguments | tojson }}{% endfor %}"
    ),
    # Kimi K2: calls are counted
    "counted": _template(
        _several(
            "<|calls|>",
            "<|call|>functions.{{ f.name }}:{{ loop.index0 }}<|args|>{{ f.arguments | tojson }}"
            "<|call_end|>",
            "",
            "<|calls_end|>",
        )
    ),
    # Qwen3-Coder, Nemotron 3, Step 3.5
    "parameters": _template(
        f"{_CALLS}\n<tool_call>\n<function={{{{ f.name }}}}>\n{_PAIRS}<parameter={{{{ k }}}}>\n"
        f"{_VALUE}\n</parameter>\n{{% endfor %}}</function>\n</tool_call>{{% endfor %}}"
    ),
    # GLM 4.6
    "keys": _template(
        f"{_CALLS}\n<tool_call>{{{{ f.name }}}}\n{_PAIRS}<arg_key>{{{{ k }}}}</arg_key>\n"
        f"<arg_value>{_VALUE}</arg_value>\n{{% endfor %}}</tool_call>{{% endfor %}}"
    ),
    # MiniMax M2
    "invoke": _template(
        _several(
            "<calls>\n",
            f'<invoke name="{{{{ f.name }}}}">\n{_PAIRS}<parameter name="{{{{ k }}}}">{_VALUE}'
            "</parameter>\n{% endfor %}</invoke>\n",
            "",
            "</calls>",
        )
    ),
    # Qwen3
    "thinking": _template(
        f"{_CALLS}\n<tool_call>\n{_OBJECT}\n</tool_call>{{% endfor %}}", _THOUGHT, _NO_THOUGHT
    ),
    # QwQ: the prompt opens the reasoning, and history holds none
    "opened": _template(
        f"{_CALLS}\n<tool_call>\n{_OBJECT}\n</tool_call>{{% endfor %}}", "", "'<think>\\n'"
    ).replace("{{ m.content or '' }}", "{{ (m.content or '').split('</think>')[-1] }}"),
    # Magistral: reasoning between control tokens
    "control thinking": _template(
        f"{_CALLS}[TOOL_CALLS]{{{{ f.name }}}}[ARGS]{{{{ f.arguments | tojson }}}}{{% endfor %}}",
        "{% if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]{% endif %}",
    ),
}

_SMOLLM_3 = """\
<|system|>Reasoning Mode: /think
You are a helpful AI assistant named SmolLM, trained by Hugging Face.
{%- if TOOLS -%}### Tools
{% for tool in TOOLS[:] %}{{ tool | string }}
{% endfor %}{%- endif -%}<|end|>
{%- for m in messages -%}<|{{ m.role }}|>{{ m.content }}<|end|>{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""
_COMMAND_R7B = """\
{%- set n = namespace(call=0) -%}
{%- if tools -%}<|system|>{{ tools | tojson }}<|end|>{%- endif -%}
{%- for m in messages -%}
{%- if m.tool_calls -%}<|assistant|><|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>
{{- '<|START_ACTION|>[\\n    ' -}}
{%- for call in m.tool_calls -%}
{{- '{"tool_call_id": "' ~ n.call ~ '", "tool_name": "' ~ call.function.name ~ '", ' -}}
{{- '"parameters": ' ~ (call.function.arguments | tojson) ~ '}' -}}
{{- '' if loop.last else ',\\n    ' -}}
{%- set n.call = n.call + 1 -%}
{%- endfor -%}
{{- '\\n]<|END_ACTION|><|end|>' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|><|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|><|end|>
{%- else -%}<|{{ m.role }}|>{{ m.content }}<|end|>{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""
OWN = {  # in the form of models whose templates may not be copied, or are not published alone
    "command_r7b": _COMMAND_R7B,
    "smollm_3 xml_tools": _SMOLLM_3.replace("TOOLS", "xml_tools"),
    "smollm_3 tools": _SMOLLM_3.replace("TOOLS", "tools"),
    "lfm_2": """\
{%- if tools -%}<|system|>List of tools: <|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>
<|end|>{%- endif -%}
{%- for m in messages -%}<|{{ m.role }}|>{{ m.content }}<|end|>{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
""",
}

CONTROL = (
    "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>", "[TOOL_CALLS]", "[ARGS]",
    "[CALL_ID]", "[THINK]", "[/THINK]", "<|calls|>", "<|call|>", "<|args|>", "<|call_end|>",
    "<|calls_end|>", "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|return|>",
    "<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>",
    "<|START_ACTION|>", "<|END_ACTION|>", '<|"|>', "<|tool_call>", "<tool_call|>", "<|channel>",
    "<channel|>", "]<]minimax[>[",
)  # fmt: skip
_WORDS = (
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<function=",
    '{"name": "',
    "ab",
    '": ',
)
_LETTERS = [bytes([n]) for n in range(256)]
_IDS = {word: len(_LETTERS) + i for i, word in enumerate((*_WORDS, *CONTROL))}


def _pattern(words):
    """Return a pattern that splits a text at words, the longest that fits first."""
    return re.compile("(" + "|".join(map(re.escape, sorted(words, key=len, reverse=True))) + ")")


_PLAIN_WORDS, _ALL_WORDS = _pattern(_WORDS), _pattern((*_WORDS, *CONTROL))
END = len(_LETTERS) + len(_WORDS) + CONTROL.index("<|end|>")


class FormTokenizer(ToyTokenizer):
    """Bytes, some longer words and control tokens, as the vocabulary of a published model."""

    def __init__(self, template: str | None = None) -> None:
        ends = [_IDS["<|return|>"], _IDS["<|call|>"]] if "<|return|>" in (template or "") else [END]
        super().__init__([*_LETTERS, *_WORDS, *CONTROL], eog=ends, chat_template=template)
        self._first_control = len(_LETTERS) + len(_WORDS)
        self.end = ends[0]

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return the token ids of `text`, the longest word that fits first."""
        entries = _ALL_WORDS if parse_special else _PLAIN_WORDS
        ids = []
        for part in entries.split(text):
            ids += [_IDS[part]] if entries.fullmatch(part) else part.encode()
        return ids

    def has_control(self, text: str) -> bool:
        """Return True if a control token stands in the text."""
        return any(each in text for each in CONTROL)

    def control_texts(self) -> list[str]:
        """Return the texts of the control tokens."""
        return list(CONTROL)

    def user_defined_texts(self) -> list[str]:
        """Return the texts of the words, which are read everywhere."""
        return list(_WORDS)

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token, none for control tokens."""
        return b"" if token >= self._first_control else super().piece(token)
