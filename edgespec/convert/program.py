"""Runs a module of edgespec in the tools' environment, which has torch and onnx, but not edgespec.

`tools.run_worker` starts this file with the name of the module and its job, one JSON object. The
module has a function `main(job)`. It may import this one and others of its kind, and otherwise
what the tools' environment has: not even the __init__ of the package edgespec is executed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any


def tell(**message: Any) -> None:
    """Write a message to `tools.run_worker`, as one line of JSON: {"step": …} at the beginning of a
    step, {"progress": …} for how far it is, or {"warning": …}.
    """
    print(json.dumps(message), file=sys.__stdout__, flush=True)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, which takes the place of `path` once it is complete."""
    partial = path.with_name(f"{path.name}.partial")
    yield partial
    partial.replace(path)


def main() -> None:
    """Run the module that the arguments name. What libraries print is no message."""
    name, job = sys.argv[1:]
    package = sys.modules["edgespec"] = ModuleType("edgespec")
    package.__path__ = [str(Path(__file__).parents[1])]
    with contextlib.redirect_stdout(sys.stderr):
        importlib.import_module(name).main(json.loads(job))


if __name__ == "__main__":
    main()
