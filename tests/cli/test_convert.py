"""`edgespec convert`."""

import json
from pathlib import Path

import pytest

import edgespec


@pytest.fixture
def converted(monkeypatch):
    """`edgespec.convert` without its tools; what it was given."""
    given = {}

    def convert(source, out, *, progress, **options):
        given.update(source=source, out=out, **options)
        progress("building the graph in int4")
        seconds = {"building": 12.3, "checking": 0.2}
        return edgespec.Conversion(
            Path("out"), "int4", 317_000_000, 0.875, 7, 48, 0.0491, 3.8, seconds, ("beware",)
        )

    monkeypatch.setattr(edgespec, "convert", convert)
    return given


def test_says_what_was_made_and_how_far_it_is_from_its_source(edgespec_cli, converted):
    done = edgespec_cli(
        "convert", str(edgespec_cli.model), "out", "--precision", "int8", "--accuracy-level", "1",
        "--builder-option", "block_size=64", "--builder-option", "algo_config=k_quant",
    )  # fmt: skip
    assert done.exit_code == 0
    assert "made    out, int4, 317.0 MB" in done.stdout
    assert "88% of the source's 48 tokens agree" in done.stdout
    assert "the first 7 of them" in done.stdout
    assert "building 12 s" in done.stdout
    assert "beware" in done.stdout
    assert converted["precision"] == "int8"
    assert converted["accuracy_level"] == 1
    assert converted["builder_options"] == {"block_size": "64", "algo_config": "k_quant"}
    assert converted["out"] == Path("out")


def test_json_and_a_folder_as_source(edgespec_cli, converted):
    (edgespec_cli.folder / "hf").mkdir()
    done = edgespec_cli("convert", "hf", "--json")
    assert json.loads(done.stdout)["agreement"] == 0.875
    assert converted["out"] is None
    assert converted["hidden_states"] == ()


def test_hidden_states_of_a_conversion(edgespec_cli, converted):
    model = str(edgespec_cli.model)
    done = edgespec_cli("convert", model, "out", "--hidden-states", "2,15 27,final")
    assert done.exit_code == 0
    assert converted["hidden_states"] == (2, 15, 27, -1)


def test_a_gguf_needs_no_hidden_states_and_nothing_is_installed_to_say_so(edgespec_cli, converted):
    refused = edgespec_cli("convert", str(edgespec_cli.model), "--hidden-states", "2,15")
    assert refused.exit_code == 2
    assert "toy.gguf is a GGUF, which gives hidden states as it is" in refused.stderr
    assert converted == {}


def test_steps_are_told_where_nobody_sees_a_status_line(edgespec_cli, converted):
    done = edgespec_cli("convert", str(edgespec_cli.model), "out", "--json")
    assert done.stderr == "building the graph in int4\n"
    assert json.loads(done.stdout)["precision"] == "int4"


@pytest.fixture
def changed(edgespec_cli, monkeypatch):
    """`edgespec.add_tree_inputs` and `add_hidden_states` of a folder "graph", without tools; what
    they were given.
    """
    given = {}

    def add_hidden_states(source, layers, **options):
        given["layers"] = layers
        return add_tree_inputs(source, **options)

    def add_tree_inputs(source, *, progress, **options):
        given.update(options)
        progress("adding inputs")
        return Path(source) / "model.onnx"

    monkeypatch.setattr(edgespec, "add_tree_inputs", add_tree_inputs)
    monkeypatch.setattr(edgespec, "add_hidden_states", add_hidden_states)
    (edgespec_cli.folder / "graph").mkdir()
    (edgespec_cli.folder / "graph/model.onnx").touch()
    return given


def test_trees_change_a_graph_that_is_there(edgespec_cli, converted, changed):
    done = edgespec_cli("convert", "graph", "--trees", env={"EDGESPEC_PRECISION": "int8"})
    assert done.stdout == "graph/model.onnx evaluates token trees\n"
    assert converted == {}
    assert changed == {"python": None, "offline": False}
    done = edgespec_cli("convert", "graph", "--trees", "--json", "--offline")
    assert json.loads(done.stdout) == {"path": "graph/model.onnx"}
    assert changed == {"python": None, "offline": True}


@pytest.mark.parametrize("args", [
    ("--precision", "int4"), ("--accuracy-level", "1"), ("--builder-option", "a=b"),
])  # fmt: skip
@pytest.mark.parametrize("flag", [("--trees",), ("--hidden-states", "2")])
def test_graphs_that_are_there_take_no_options_of_a_conversion(edgespec_cli, changed, args, flag):
    done = edgespec_cli("convert", "graph", *flag, *args)
    assert done.exit_code == 2
    assert f"{args[0]} has no effect with {flag[0]}" in done.stderr
    assert changed == {}


def test_hidden_states_change_a_graph_that_is_there(edgespec_cli, converted, changed):
    done = edgespec_cli("convert", "graph", "--hidden-states", "2,final")
    assert done.stdout == "graph/model.onnx gives the hidden states 2, final\n"
    assert changed == {"layers": (2, -1), "python": None, "offline": False}
    done = edgespec_cli("convert", "graph", "--hidden-states", "0", "--trees", "--offline")
    assert done.stdout == "graph/model.onnx gives the hidden states 0 and evaluates token trees\n"
    assert changed == {"layers": (0,), "python": None, "offline": True}
    done = edgespec_cli("convert", "graph", "--hidden-states", "1", "--json")
    assert json.loads(done.stdout) == {"path": "graph/model.onnx"}
    done = edgespec_cli("convert", "graph", "out", "--hidden-states", "1")
    assert done.exit_code == 2
    assert "--hidden-states changes SOURCE in place; leave OUT out" in done.stderr
    assert converted == {}


def test_weights_beside_a_graph_are_converted(edgespec_cli, converted, changed):
    for name in ("config.json", "model.safetensors"):
        (edgespec_cli.folder / "graph" / name).touch()
    edgespec_cli("convert", "graph", "--hidden-states", "2")
    assert converted["hidden_states"] == (2,)
    assert changed == {}


@pytest.mark.parametrize("args", [(), ("--trees",)])
def test_offline_no_tools_are_installed(edgespec_cli, monkeypatch, args):
    """The graph has no trees yet and this Python no onnx; a GGUF and its tools are not needed."""
    onnx_models = pytest.importorskip("tests.helpers.onnx_models")
    pytest.importorskip("edgespec.backends.onnx", exc_type=edgespec.EngineMissing)

    def run(*args, **options):
        raise AssertionError(f"{args} was started")

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    folder = edgespec_cli.folder / "source"
    if args:
        onnx_models.save(folder)
    else:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").touch()
    done = edgespec_cli("convert", "source", *args, "--offline")
    assert done.exit_code == 1
    assert "tools are not installed, and offline=True (--offline)" in done.stderr
    assert not (edgespec_cli.folder / "models" / ".convert").exists()


@pytest.mark.parametrize(("args", "status", "says"), [
    (("toy.gguf", "out", "--trees"), 2, "in place; leave OUT out"),
    (("toy.gguf", "--trees"), 2, "no ONNX graph"),
    (("toy.gguf", "--hidden-states", "1,last"), 2, "'1,last' is no list of layers, for example"),
    (("toy.gguf", "--hidden-states", ""), 2, "is no list of layers"),
    (("toy.gguf", "--precision", "int3"), 2, "'int3' is not one of"),
    (("toy.gguf", "--accuracy-level", "9"), 2, "9 is not in the range"),
    (("toy.gguf", "--builder-option", "fast"), 2, "'fast' is not KEY=VALUE"),
    (("toy.gguf", "--python", "absent"), 2, "does not exist"),
    (("toy.gguf", "draft.gguf"), 2, "is there already"),
    (("absent.gguf",), 1, "there is no file 'absent.gguf'"),
    (("draft.gguf",), 2, "draft.gguf is no GGUF"),
])  # fmt: skip
def test_bad_input(edgespec_cli, args, status, says):
    edgespec_cli.model.write_bytes(b"GGUF")
    done = edgespec_cli("convert", *args, "--offline")
    assert done.exit_code == status
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def head(monkeypatch):
    """`edgespec.convert_head` without its tools; what it was given."""
    given = {}

    def convert_head(source, target, out, *, progress, **options):
        given.update(source=source, target=target, out=out, **options)
        return edgespec.HeadConversion(
            Path("head"), "eagle3", (1, 4, 6), ((2, 5, 7),), options["precision"], 74_000_000,
            "llama3.1", {}, ("the checkpoint does not say",),
        )  # fmt: skip

    monkeypatch.setattr(edgespec, "convert_head", convert_head)
    return given


def test_a_head_is_converted_for_its_target(edgespec_cli, head):
    done = edgespec_cli("convert", "eagle", "--head", "--target", str(edgespec_cli.model), "out")
    assert done.exit_code == 0
    assert "made    head, eagle3, int8, 74.0 MB" in done.stdout
    assert "layers  1, 4, 6" in done.stdout
    assert "license llama3.1" in done.stdout
    assert "note    the checkpoint does not say" in done.stdout
    assert (head["source"], head["out"]) == ("eagle", Path("out"))
    assert head["target"] == str(edgespec_cli.model)


def test_the_precision_of_a_head_and_json(edgespec_cli, head):
    done = edgespec_cli(
        "convert", "eagle", "--head", "--target", str(edgespec_cli.model), "--precision", "int4",
        "--json",
    )  # fmt: skip
    assert json.loads(done.stdout)["layers"] == [1, 4, 6]
    assert head["precision"] == "int4"


@pytest.mark.parametrize(("options", "said"), [
    (["--head"], "--head and --target MODEL go together"),
    (["--target", "x"], "--head and --target MODEL go together"),
    (["--head", "--target", "x", "--trees"], "--trees has no effect with --head"),
    (["--head", "--target", "x", "--accuracy-level", "4"], "--accuracy-level has no effect"),
])  # fmt: skip
def test_options_that_do_not_fit_a_head(edgespec_cli, head, options, said):
    done = edgespec_cli("convert", "eagle", *options)
    assert done.exit_code == 2
    assert said in done.stderr
    assert not head
