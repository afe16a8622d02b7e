"""Docstrings begin with what a thing is or does, never with a question word."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUESTIONS = {"whether", "how", "of", "what", "when"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def riddles(tree):
    """Return the lines of docstrings whose first word is one of QUESTIONS."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    words = [(node, (ast.get_docstring(node) or " ").split(maxsplit=1)) for node in nodes]
    return [
        node.body[0].lineno
        for node, said in words
        if said and said[0].strip(".,:;").lower() in QUESTIONS
    ]


@pytest.mark.parametrize("folder", ["edgespec", "cli"])
def test_no_first_line_is_a_riddle(folder):
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / folder).rglob("*.py")
        for line in riddles(ast.parse(path.read_text("utf-8")))
    ]
    assert not found


@pytest.mark.parametrize(("text", "lines"), [
    ('"""What it is."""', [1]), ('"""The answer."""', []), ("x = 1", []), ('""" """', []),
    ('def f():\n    """Of tokens."""', [2]), ('class A:\n    """How."""', [2]),
    ('async def f():\n    """whether it is."""', [2]),
])  # fmt: skip
def test_riddles_are_found(text, lines):
    assert riddles(ast.parse(text)) == lines
