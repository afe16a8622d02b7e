"""Counts the code by room: statements, protocols, dataclasses and named tuples, `isinstance` checks
on engines, and who imports `costs`.

    python -m benchmarks.statements [FOLDER]
"""

import ast
import json
import re
import sys
from collections import Counter
from pathlib import Path

ENGINE = re.compile(
    r"\b(FileModel|Threaded|ThreadLimited|Restricting|ExpectsDrafts|TreeModel|GrowingModel|"
    r"HiddenStates|CachedStates|Trained|Head|Batchable|HeadBackend|Requantizing|Timed)\b"
)


def room(path: Path) -> str:
    return path.parts[1] if len(path.parts) > 2 else path.name


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    statements, kinds, checks, uses_costs = Counter(), Counter(), 0, []
    for path in sorted((root / "edgespec").rglob("*.py")):
        tree, name = ast.parse(path.read_text()), path.relative_to(root)
        # docstrings are no statements of the program
        nodes = [n for n in ast.walk(tree) if isinstance(n, ast.stmt)]
        docs = sum(isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) for n in nodes)
        statements[room(name)] += len(nodes) - docs
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                words = ast.unparse(node).partition(":")[0] + " ".join(
                    map(ast.unparse, node.decorator_list)
                )
                kinds["protocols"] += "Protocol" in words
                kinds["dataclasses"] += "dataclass" in words
                kinds["named tuples"] += "NamedTuple" in words
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                checks += bool(ENGINE.search(ast.unparse(node)))
            if isinstance(node, ast.ImportFrom) and "costs" in (node.module or "").split("."):
                uses_costs.append(room(name))
    print(json.dumps({
        "statements": dict(statements), "all": sum(statements.values()), **kinds,
        "isinstance checks on engines": checks, "imports of costs": dict(Counter(uses_costs)),
    }, indent=1))  # fmt: skip


main()
