"""Each fault that was mended in one place is looked for in all others, by what its code looks like.

Who a request belongs to is asked of one module. One module merges what a request names with its
model's own sampling, which benchmarks leave alone. What runs on the event loop may not block. A
folder may be another user's, and `kept_files.matching` copes with that. test_files_from_elsewhere
has the searches for files, tests/cli/test_foreign_text.py those for text on a terminal.
"""

import ast

import pytest

from tests.unit.test_files_from_elsewhere import sources

CLIENTS = "edgespec/server/clients.py"
SENDERS = {"authorization", "x-api-key", "x-forwarded-for", "forwarded", "client"}
BLOCKING = {
    "acquire", "compile", "constraint", "encode", "encode_pieces", "flush", "generate", "join",
    "of", "open", "piece", "read_bytes", "read_text", "render", "result", "run", "sleep",
    "tokenize", "urlopen", "wait", "write_bytes", "write_text",
}  # fmt: skip
ON_THE_LOOP = {
    ("edgespec/server/event_stream.py", "text.encode"): "of one event",
    ("edgespec/server/generation.py", "self._queue.acquire"): "is entered with `async with`",
    ("edgespec/server/generation.py", "task.result"): "of a task that is done",
    ("edgespec/server/verification/websocket.py", "compile"): "is a coroutine",
    ("edgespec/server/verification/websocket.py", "reading.result"): "of a task that is done",
    ("edgespec/server/verification/websocket.py", "self._sessions.compile"): "returns a future",
    ("edgespec/server/work.py", "queue.acquire"): "is entered with `async with`",
    ("edgespec/server/work.py", "working.result"): "of a task that is done",
}  # fmt: skip
MADE = {  # settings of requests
    "edgespec/bench/replay.py": "greedy",
    "edgespec/bench/runner.py": "those of the benchmark, with nothing of the model's own",
    "edgespec/engine.py": "the form of an answer",
    "edgespec/hub/catalogue.py": "a check",
    "edgespec/loading/connect.py": "a measurement",
    "edgespec/loading/recommendations.py": "a check",
    "edgespec/measure/doctor.py": "a check",
    "edgespec/protocol/fields.py": "what a device has merged",
    "edgespec/sampling/defaults.py": "the one place",
    "edgespec/server/preparation.py": "the form of an answer",
    "edgespec/server/settings.py": "a check",
    "edgespec/verifiers/completions.py": "a measurement",
    "edgespec/verifiers/inference_server.py": "before the first request",
    "cli/edgespec_cli/arguments.py": "a check",
    "cli/edgespec_cli/conversation.py": "a check",
    "cli/edgespec_cli/run.py": "the form of an answer",
}
LISTERS = {"iterdir", "listdir", "scandir", "walk"}
LISTED = {
    ("edgespec/convert/heads/conversion.py", "work.folder.iterdir"): "a folder that it has made",
    ("edgespec/corpus/documents.py", "os.walk"): "says which folders it leaves out",
    ("edgespec/device.py", "tasks.iterdir"): "this process in /proc",
    ("edgespec/hub/catalogue.py", "files('edgespec_models').iterdir"): "a folder of the package",
    ("edgespec/hub/wheels.py", "os.walk"): "says nothing of what it cannot read",
    ("edgespec/kept_files.py", "os.scandir"): "the one place",
}


def calls(tree, names):
    """Yield calls of functions and methods with these names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.rpartition(".")[2] in names and not name.startswith(
                ("'", "b'", "ast.", "re.", "asyncio.")
            ):
                yield node, name


def senders(tree):
    """Yield the lines that look up who has sent a request."""
    for node in ast.walk(tree):
        looked_up = []
        if isinstance(node, ast.Subscript):
            looked_up = [node.slice]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".get", ".getlist")):
            looked_up = node.args[:1]
        for key in looked_up:
            value = key.value if isinstance(key, ast.Constant) else None
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            if isinstance(text, str) and text.lower() in SENDERS:
                yield node.lineno
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith(
            ("request.client", "socket.client")
        ):
            yield node.lineno


def blocking(tree):
    """Yield what coroutines call themselves, without awaiting it, that may block."""
    for coroutine in ast.walk(tree):
        if not isinstance(coroutine, ast.AsyncFunctionDef):
            continue
        elsewhere = {
            id(node)
            for inner in ast.walk(coroutine)
            if isinstance(inner, ast.FunctionDef | ast.Lambda)
            for node in ast.walk(inner)
        } | {id(node.value) for node in ast.walk(coroutine) if isinstance(node, ast.Await)}
        yield from (name for node, name in calls(coroutine, BLOCKING) if id(node) not in elsewhere)
        for node in ast.walk(coroutine):
            if isinstance(node, ast.With) and id(node) not in elsewhere:
                entered = [ast.unparse(item.context_expr) for item in node.items]
                yield from (name for name in entered if "lock" in name.lower())


def listers(tree):
    """Yield what lists a folder and raises, or stays silent, where it may not be read."""
    yield from (name for _, name in calls(tree, LISTERS) if name not in ("ast.walk",))


def made(tree):
    """Yield what makes the settings of a request."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "build" and node.args:
                called = ast.unparse(node.args[0])
            if called.rpartition(".")[2] == "SamplingParams":
                yield called


def recommended(tree):
    """Yield what loads an engine whose requests are sampled as its makers recommend."""
    for node, name in calls(tree, {"load", "connect"}):
        own = name in ("edgespec.load", "edgespec.connect") or (
            name == "load" and any(each.arg == "speculative_config" for each in node.keywords)
        )
        if own and not any(each.arg == "sampling" for each in node.keywords):
            yield name


def places(search, *folders):
    return {(path, name) for path, tree in sources(*folders).items() for name in search(tree)}


def test_one_module_says_who_a_request_belongs_to():
    asked = {path for path, tree in sources("edgespec/server").items() if list(senders(tree))}
    assert asked == {CLIENTS}


def test_coroutines_call_nothing_that_blocks():
    assert places(blocking, "edgespec", "cli") == ON_THE_LOOP.keys()


def test_folders_that_cannot_be_read_are_met_in_one_place():
    assert places(listers, "edgespec", "cli") == LISTED.keys()


def test_one_module_merges_settings_with_the_models_own():
    assert {path for path, _ in places(made, "edgespec", "cli")} == MADE.keys()


def test_benchmarks_are_greedy_unless_they_say_so():
    assert places(recommended, "benchmarks") == set()


@pytest.mark.parametrize(("search", "code", "expected"), [
    (made, "SamplingParams()\nbuild(SamplingParams, x)\nbuild(Other, x)", ["SamplingParams"] * 2),
    (recommended, "edgespec.load(x)\nload(x, speculative_config=c)\njson.load(x)\n"
     "edgespec.connect(x, sampling=GREEDY)", ["edgespec.load", "load"]),
    (senders, "request.headers['Authorization']\nheaders.get(b'x-api-key')", [1, 2]),
    (senders, "request.client", [1]),
    (blocking, "async def f():\n    with self._lock:\n        x.of('a')", ["x.of", "self._lock"]),
    (blocking, "async def f():\n    await x.join()\n    await run(lambda: open('a'))", []),
    (listers, "for a in path.iterdir():\n    os.listdir(a)", ["path.iterdir", "os.listdir"]),
])  # fmt: skip
def test_the_searches_see_what_they_are_for(search, code, expected):
    assert list(search(ast.parse(code))) == expected
