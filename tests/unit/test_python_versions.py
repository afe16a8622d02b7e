"""Code that Python 3.10 to 3.13 run alike."""

import ast
from pathlib import Path

import edgespec

FOLDER = Path(edgespec.__file__).parent
INLINED = (ast.ListComp, ast.SetComp, ast.DictComp)


def _bound(comprehension):
    return {
        name.id
        for generator in comprehension.generators
        for name in ast.walk(generator.target)
        if isinstance(name, ast.Name)
    }


def test_no_comprehension_hides_what_another_one_calls():
    """Python 3.12 makes names of a function's comprehensions local to all of them (until 3.13)."""
    hidden = []
    for path in FOLDER.rglob("*.py"):
        module = ast.parse(path.read_text("utf-8"))
        functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            inlined = [node for node in ast.walk(function) if isinstance(node, INLINED)]
            bound = {name for each in inlined for name in _bound(each)}
            for each in inlined:
                called = {
                    node.func.id
                    for node in ast.walk(each)
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                }
                if clash := (called & bound) - _bound(each):
                    hidden.append((path.name, function.name, clash))
    assert hidden == []
