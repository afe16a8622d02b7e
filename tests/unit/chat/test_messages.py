"""Results of calls as messages of a conversation."""

import pytest

from edgespec import ConfigError
from edgespec.chat.messages import results

CALLS = {"call_1": "look", "call_2": "stop"}
EXPECTED = [
    {"role": "tool", "tool_call_id": "call_1", "name": "look", "content": "open"},
    {"role": "tool", "tool_call_id": "call_2", "name": "stop", "content": '{"at":[1,2]}'},
]


@pytest.mark.parametrize(
    "values",
    [
        ["open", {"at": [1, 2]}],
        ("open", {"at": (1, 2)}),
        {"call_2": {"at": [1, 2]}, "call_1": "open"},
    ],
)
def test_each_call_has_its_own_result(values):
    assert results(CALLS, values) == EXPECTED


@pytest.mark.parametrize(
    ("calls", "values", "said"),
    [
        ({}, ["open"], "made no calls"),
        (CALLS, ["open"], "made 2 calls, got 1 results"),
        (CALLS, "open", "made 2 calls, got 'open' results"),
        (CALLS, {"call_1": "open", "call_3": ""}, "got results for call_1, call_3"),
    ],
)
def test_results_that_do_not_fit_the_calls(calls, values, said):
    with pytest.raises(ConfigError, match=said):
        results(calls, values)
