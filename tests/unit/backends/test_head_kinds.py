"""Kinds of heads, which are declared in one place."""

import typing
from pathlib import Path

import pytest

from edgespec import EngineMissing
from edgespec.backends.heads import KINDS, Kind, TargetSizes, misfit
from edgespec.convert.heads import graphs
from edgespec.convert.heads.reading import read_head
from tests.helpers import head_files
from tests.helpers.head_makers import MAKERS
from tests.helpers.toy_head import ToyHead

MADE_FOR = TargetSizes(32, 259, 8)


def test_each_kind_is_declared_and_made():
    assert set(KINDS) == set(typing.get_args(Kind)) == set(MAKERS)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_read_from_checkpoints(kind, tmp_path):
    assert read_head(head_files.write(tmp_path, MAKERS[kind]())).kind == kind


def test_each_kind_has_a_writer_of_graphs():
    writers = Path(graphs.__file__).parent.glob("*_graphs.py")
    assert {path.name.removesuffix("_graphs.py") for path in writers} == set(KINDS)


def test_each_kind_runs_on_onnxruntime():
    pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
    from edgespec.backends.onnx.head import _STEPS

    assert set(_STEPS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_tells_what_its_kind_does(kind):
    head = ToyHead([[0.5, 0.5], [0.5, 0.5]], kind=kind)
    assert head.one_pass == (kind in ("medusa", "dflash"))
    assert head.reads_first_token == (kind == "moa")


@pytest.mark.parametrize(("layers", "target", "why"), [
    ((-1,), MADE_FOR, ""), ((2, 4, 8), MADE_FOR, ""), ((1,), TargetSizes(0, 0, 0, 64), ""),
    ((1,), TargetSizes(48, 259, 8), "for one with 32 numbers a state, and this one has 48"),
    ((1,), TargetSizes(32, 260, 8), "for one with 259 tokens of vocabulary, and this one has 260"),
    ((1,), TargetSizes(32, 259, 9), "for one with 8 layers, and this one has 9"),
    ((2, 9), MADE_FOR, "for one with at least 9 layers, and this one has 8"),
])  # fmt: skip
def test_what_does_not_fit_is_told(layers, target, why):
    assert misfit(MADE_FOR, layers, target).rpartition("another target: ")[2] == why
