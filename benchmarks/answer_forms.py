"""Write the table of forms of answers: `python -m benchmarks.answer_forms FOLDER`.

FOLDER holds chat templates as files NAME.jinja, such as llama.cpp's models/templates, together with
those of Gemma 3, Phi-4-mini, SmolVLM, Qwen2.5-VL and Qwen3-VL. Templates of models that tests use
are read from their own files. The page is docs/reference/answer-forms.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from edgespec.backends.llama_cpp.tokenizer import vocabulary
from edgespec.chat.call_forms.base import CallForm
from edgespec.chat.format import AnswerFormat
from edgespec.chat.markers import ID, INDEX
from edgespec.hub import catalogue

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "answer-forms.md"
BEGIN = "<!-- from here on generated: python -m benchmarks.answer_forms FOLDER -->\n"
TEST_MODELS = Path.home() / ".cache" / "edgespec-test-models"
FILES = {  # of the catalogue: names that begin so, and the file with their template
    "qwen2.5-coder": "qwen2.5-coder-0.5b.gguf",
    "qwen2.5-vl": "Qwen-Qwen2.5-VL-3B-Instruct.jinja",
    "qwen2.5": "Qwen-Qwen2.5-7B-Instruct.jinja",
    "qwen3-vl": "Qwen-Qwen3-VL-4B-Instruct.jinja",
    "qwen3": "Qwen-Qwen3-0.6B.jinja",
    "llama-3.1": "meta-llama-Llama-3.1-8B-Instruct.jinja",
    "llama-3.2": "meta-llama-Llama-3.2-3B-Instruct.jinja",
    "deepseek-r1-distill": "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja",
    "smollm2": "smollm2-135m.gguf",
    "smolvlm": "HuggingFaceTB-SmolVLM-Instruct.jinja",
    "gemma-3-270m-it": "google-gemma-3-4b-it.jinja",
    "gemma-3-270m": "gemma-3-270m.gguf",
    "gemma-3": "google-gemma-3-4b-it.jinja",
    "phi-4-mini": "microsoft-Phi-4-mini-instruct.jinja",
}
OTHERS = {  # more than one template of one model, and what is no model's own
    "llama-cpp-deepseek-r1",
    "llama-cpp-rwkv-world",
    "google-gemma-4-31B-it-interleaved",
    "StepFun3.5-Flash",
}
HEAD = "| model | a call of `f` with `x` = 1 | reasoning | opened by the prompt | turned off by |\n"
LINE = "| --- | --- | --- | --- | --- |\n"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def code(text: str) -> str:
    """Return a text as code in a table."""
    shown = text.replace("\n", "⏎").replace("|", "\\|")
    return f"`{shown}`" if shown else "–"


def call_of(form: CallForm) -> str:
    """Return a call as a model writes it."""
    arguments = form.arguments.write({"x": 1})
    call = f"f{form.after_name}{arguments}{form.closing}{form.end}"
    return (form.prefix + call).replace(ID, "ID").replace(INDEX, "0")


def row(name: str, form: AnswerFormat) -> str:
    """Return what was learned of a model, as a row of the table."""
    call = (
        code(call_of(form.tools))
        if form.tools
        else "none: " + form.why_no_tools.replace("|", "\\|")
    )
    reasoning = form.reasoning
    if not reasoning:
        return f"| {name} | {call} | – | – | – |\n"
    off = f"{reasoning.switch[0]}={reasoning.switch[1]}" if reasoning.switch else ""
    shown = code(f"{reasoning.begin}…{reasoning.end}")
    opened = "yes" if reasoning.is_opened else "no"
    return f"| {name} | {call} | {shown} | {opened} | {code(off)} |\n"


def learned(path: Path) -> AnswerFormat:
    """Return the form of the model whose template is in a file."""
    if path.suffix == ".jinja":
        return AnswerFormat.of(path.read_text(encoding="utf-8"), SPECIAL)
    with vocabulary(path) as tokenizer:
        return AnswerFormat.of(tokenizer.chat_template, tokenizer.special())


def of_catalogue(templates: Mapping[str, Path]) -> Iterator[str]:
    """Yield the rows of the models of the catalogue."""
    for name in sorted(catalogue.entries()):
        file = next(file for begin, file in FILES.items() if name.startswith(begin))
        yield row(name, learned(templates[file]))


def of_others(templates: Mapping[str, Path]) -> Iterator[str]:
    """Yield the rows of other published models."""
    known = set(FILES.values())
    for name, path in sorted(templates.items(), key=lambda item: item[0].lower()):
        if path.suffix == ".jinja" and name not in known and path.stem not in OTHERS:
            yield row(path.stem, learned(path))


def main(folder: Path) -> None:
    """Write the generated part of the page."""
    paths = (*folder.glob("*.jinja"), *TEST_MODELS.glob("*.gguf"))
    templates = {path.name: path for path in paths}
    written = PAGE.read_text(encoding="utf-8").split(BEGIN)[0]
    text = "".join((
        written, BEGIN, "\n## Models of the catalogue\n\n", HEAD, LINE, *of_catalogue(templates),
        "\n## Templates of other models\n\n", HEAD, LINE, *of_others(templates),
    ))  # fmt: skip
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
