"""Random answers under many schemas: each that came to its end is valid."""

import pytest

from tests.helpers import schemas
from tests.helpers.selection import every

jsonschema_rs = pytest.importorskip("jsonschema_rs")
pytest.importorskip("llguidance")

OWN = dict(schemas.own())
SUITE = dict(list(schemas.suite())[::4])  # benchmarks.schemas takes all of them


@pytest.mark.parametrize("name", every(4, OWN, "more schemas"))
def test_answers_under_a_schema_of_ours_are_valid(name):
    found = schemas.answers(OWN[name], 3)
    assert not found.refused
    assert len(found.texts) >= 2
    for text in found.texts:
        jsonschema_rs.validate(OWN[name], schemas.value_of(text))


def test_there_are_a_hundred_of_ours():
    assert len(OWN) == 100


@pytest.mark.parametrize("name", every(4, SUITE, "more schemas"))
def test_answers_under_schemas_of_the_test_suite_are_valid(name):
    found = schemas.answers(SUITE[name], 3)
    if found.refused:
        assert found.refused.startswith("schema cannot be followed: ")
    for text in found.texts:
        jsonschema_rs.validate(SUITE[name], schemas.value_of(text))
