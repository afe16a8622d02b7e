"""Prompts for filling in the middle of a text."""

from __future__ import annotations

import pytest

from edgespec import ToyTokenizer
from edgespec.decoding.infill import Infill, infill_ids, markers_of

QWEN = (
    "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>",
)  # fmt: skip
STARCODER = (
    "<fim_prefix>",
    "<fim_middle>",
    "<fim_suffix>",
    "<fim_pad>",
    "<repo_name>",
    "<file_sep>",
)
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")
CODESTRAL = ("[PREFIX]", "[SUFFIX]")
EVERY = {
    "qwen": QWEN, "starcoder": STARCODER, "deepseek": DEEPSEEK, "codestral": CODESTRAL,
    "code llama": ("▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"),
    "glm": ("<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>"),
    "santacoder": ("<fim-prefix>", "<fim-middle>", "<fim-suffix>", "<fim-pad>"),
}  # fmt: skip
HOLE = Infill("def f(x):\n", "\nprint(f(2))", "    ret")


class Marked(ToyTokenizer):
    """Bytes, and markers that are control tokens."""

    def __init__(self, markers, named=None) -> None:
        bytes_ = [bytes([i]) for i in range(256)]
        super().__init__([*bytes_, *markers, "<|end|>"], eog=[256 + len(markers)])
        self._markers, self._named = markers, named

    def control_texts(self) -> list[str]:
        return list(self._markers)

    def infill_texts(self):
        return self._named

    def encode(self, text, *, add_special=True, parse_special=True):
        if parse_special:
            return super().encode(text)
        return list(text.encode())

    def shown(self, ids) -> str:
        return b"".join(map(self.token_text, ids)).decode()


def prompt(markers, hole=HOLE, limit=1000) -> str:
    tokenizer = Marked(markers)
    return tokenizer.shown(infill_ids(tokenizer, markers_of(tokenizer), hole, limit))


@pytest.mark.parametrize("markers", EVERY.values(), ids=EVERY)
def test_the_markers_of_known_models(markers):
    found = markers_of(Marked(markers))
    assert len(found.all) == len(markers)
    assert prompt(markers).count("def f(x):\n") == 1


def test_a_vocabulary_without_all_markers_has_none():
    assert markers_of(Marked(())) is None
    assert markers_of(Marked(QWEN[:2])) is None
    assert markers_of(Marked(("<|repo_name|>", "<|file_sep|>"))) is None


def test_what_the_file_names_comes_first():
    own = ("<A>", "<B>", "<C>")
    tokenizer = Marked((*QWEN, *own), named=own)
    markers = markers_of(tokenizer)
    assert tokenizer.shown([markers.prefix, markers.suffix, markers.middle]) == "<A><B><C>"


def test_the_answer_follows_what_has_begun():
    begin, middle, suffix = QWEN[:3]
    assert prompt(QWEN) == f"{begin}def f(x):\n{suffix}\nprint(f(2)){middle}    ret"
    assert prompt(CODESTRAL) == "[SUFFIX]\nprint(f(2))[PREFIX]def f(x):\n    ret"


def test_other_files_come_before_it():
    hole = Infill("a", "b", extra=[("x.py", "one"), ("y.py", "two\n")])
    framed = (
        "<|repo_name|>myproject\n<|file_sep|>x.py\none<|file_sep|>y.py\ntwo\n<|file_sep|>filename\n"
    )
    assert prompt(QWEN, hole) == f"{framed}<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    begin, hole_marker, end = DEEPSEEK
    assert prompt(DEEPSEEK, hole) == f"one\n\ntwo\n\n\n{begin}a{hole_marker}b{end}"


def test_only_an_empty_hole_may_be_read():
    assert prompt(QWEN, Infill("", "")) == "<|fim_prefix|><|fim_suffix|><|fim_middle|>"


def test_markers_in_the_texts_are_text():
    hole = Infill("<|fim_middle|>", "<|fim_prefix|>", "<|fim_suffix|>", [("<|repo_name|>", "x")])
    tokenizer = Marked(QWEN)
    ids = infill_ids(tokenizer, markers_of(tokenizer), hole, 1000)
    assert sum(token > 255 for token in ids) == 6


@pytest.mark.parametrize("limit", range(20, 130, 7))
@pytest.mark.parametrize("sizes", [(200, 200, 3), (200, 3, 3), (3, 200, 3), (10, 10, 3)])
def test_what_is_near_the_hole_stays(limit, sizes):
    before, after, begun = ("".join(chr(97 + i % 26) for i in range(n)) for n in sizes)
    hole = Infill(before, after, begun, [("a", "A" * 20), ("b", "B" * 20)], cuts=True)
    shown = prompt(QWEN, hole, limit)
    tokenizer = Marked(QWEN)
    assert len(infill_ids(tokenizer, markers_of(tokenizer), hole, limit)) <= limit
    files, _, rest = shown.partition("<|fim_prefix|>")
    prefix, _, rest = rest.partition("<|fim_suffix|>")
    suffix, _, end = rest.partition("<|fim_middle|>")
    assert end == begun
    assert prefix
    assert before.endswith(prefix)
    assert after.startswith(suffix)
    if len(before) > len(prefix) and len(after) > len(suffix):
        assert len(prefix) >= 2 * len(suffix)
    assert ("A" in files) <= ("B" in files)  # the last one is the most important


def test_nothing_is_cut_unless_it_may_be():
    hole = Infill("a" * 100, "b" * 100)
    assert len(prompt(QWEN, hole, 50)) > 200
