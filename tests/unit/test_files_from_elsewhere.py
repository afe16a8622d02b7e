"""No number, size or depth in a file that came from elsewhere is believed.

JSON that nests deeply raises RecursionError, which is no ValueError. A file that is opened by its
name may be a pipe that nobody writes to, or larger than the memory. So there is one place that
opens files of models, `edgespec.backends.files`, and whoever decodes JSON catches RecursionError.
"""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECODERS = ("json.loads", "json.load", "decoder.raw_decode", "msgspec.json.decode")
READERS = (
    "open", "np.load", "np.fromfile", "np.memmap", "zipfile.ZipFile",
    "mmap.mmap", "Tokenizer.from_file", "onnx.load", "gguf.GGUFReader",
)  # fmt: skip
ROOMS = ("backends", "convert", "hub")  # that read files of models
OURS = {  # places that decode what edgespec itself has written, or has decoded before
    "edgespec/bench/peer_worker.py": "our own lines, and a config for a benchmark",
    "edgespec/bench/peers.py": "lines of our own worker",
    "edgespec/bench/replay.py": "data of the package",
    "edgespec/bench/workloads.py": "data of the package, and a file that a developer names",
    "edgespec/cache/requantization.py": "the arguments of our own process",
    "edgespec/chat/call_forms/arguments.py": "arguments that `cut_arguments` has made whole",
    "edgespec/chat/forms.py": "a form that edgespec has written",
    "edgespec/chat/lenient.py": "a form that edgespec has written",
    "edgespec/constraints/compiler.py": "a form that `schemas` and `descriptions` have checked",
    "edgespec/convert/program.py": "the arguments of our own worker",
    "edgespec/convert/tools.py": "lines of our own worker",
    "edgespec/train/worker.py": "what edgespec has written",
    "edgespec/measure/libraries.py": "answers of our own process",
}
KNOWN = {  # places that read files of models themselves
    "edgespec/backends/compiled.py": "what pip has printed",
    "edgespec/backends/llama_cpp/head_files.py": "a row that the checked header says is there",
    "edgespec/backends/llama_cpp/metadata.py": "a map of a file that `opened` has opened",
    "edgespec/backends/onnx/head_folder.py": "an array in bytes that `read_bytes` has read",
    "edgespec/convert/conversion.py": "numbers that our own worker has written",
    "edgespec/convert/heads/config.py": "the first bytes of a regular file",
    "edgespec/convert/heads/conversion.py": "weights that edgespec has written",
    "edgespec/convert/heads/graphs.py": "weights that edgespec has written",
    "edgespec/convert/heads/pickles.py": "a zip that `opened` has opened",
    "edgespec/convert/heads/target_weights.py": "a target that has been checked or loaded",
    "edgespec/convert/heads/tensors.py": "numbers that the checked header says are there",
    "edgespec/convert/hidden_outputs.py": "a graph that our own worker has written",
    "edgespec/convert/tools.py": "what our own worker has written",
    "edgespec/convert/tree_inputs.py": "a graph that our own worker has written",
    "edgespec/convert/worker.py": "a graph that our own worker has written",
    "edgespec/hub/catalogue.py": "data of the package",
    "edgespec/hub/storage.py": "pieces of a file that was fetched, and files that are written",
    "edgespec/hub/wheels.py": "a wheel that pip has fetched, by the piece",
}


def sources(*folders):
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found
    return {str(path.relative_to(ROOT)): parsed(path) for path in found}


@functools.cache
def parsed(path):
    return ast.parse(path.read_text("utf-8"))


def caught(handlers):
    """Return True if handlers catch RecursionError."""
    named = {ast.unparse(n) for h in handlers for n in ast.walk(h.type or ast.Name("Exception"))
             if isinstance(n, ast.Name)}  # fmt: skip
    return bool(named & {"RecursionError", "Exception", "BaseException"})


def unguarded(tree):
    """Yield the lines that decode JSON where a RecursionError would get through."""
    guarded = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.Try) and caught(block.handlers)
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in DECODERS
            and id(node) not in guarded
        ):
            yield node.lineno


def readers(tree):
    """Yield the lines that open a file by its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in READERS or (isinstance(node.func, ast.Attribute) and name.endswith(
                (".read_text", ".read_bytes", "path.open", "file.open", "wheel.open", "card.open")
            )):  # fmt: skip
                yield node.lineno


def test_json_may_nest_as_deeply_as_it_likes():
    found = {
        name: lines
        for name, tree in sources("edgespec", "cli").items()
        if (lines := list(unguarded(tree)))
    }
    assert found.keys() - OURS.keys() == set(), found
    assert OURS.keys() - found.keys() == set(), "these are not needed any more"


def test_files_of_models_are_opened_in_one_place():
    rooms = sources(*(f"edgespec/{room}" for room in ROOMS))
    found = {name: lines for name, tree in rooms.items() if (lines := list(readers(tree)))}
    assert found.keys() - KNOWN.keys() == set(), found
    assert KNOWN.keys() - found.keys() == set(), "these are not needed any more"


@pytest.mark.parametrize(("code", "lines"), [
    ("json.loads(x)", [1]), ("try:\n    json.loads(x)\nexcept ValueError:\n    pass", [2]),
    ("try:\n    json.loads(x)\nexcept (ValueError, RecursionError):\n    pass", []),
    ("try:\n    f()\nexcept Exception:\n    json.loads(x)", [4]),
])  # fmt: skip
def test_the_rule_sees_what_it_is_for(code, lines):
    assert list(unguarded(ast.parse(code))) == lines
    assert list(readers(ast.parse("path.read_text()\nopen(path)\nnp.load(x)"))) == [1, 2, 3]
