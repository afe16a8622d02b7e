"""Python functions as tools: their types, their docstrings, and what is refused."""

import dataclasses
import enum
import functools
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pytest

from edgespec import ConfigError
from edgespec.chat.tools import Tool, tool_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Place:
    x: int
    y: int = 0


class Speed(TypedDict):
    metres: float


def everything(
    name: str,
    count: int,
    share: float,
    sure: bool,
    kind: Literal["a", "b"],
    colour: Colour,
    place: Place,
    speed: Speed,
    names: list[str],
    counts: dict[str, int],
    maybe: Optional[int] = None,  # noqa: UP045
    either: int | str = 5,
    anything: Any = None,
    bounded: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0,
    *,
    last: str = "",
) -> None:
    """Do everything."""


def test_types_become_schemas():
    parameters = tool_of(everything).parameters
    found = {key: parameters["properties"][key] for key in parameters["properties"]}
    assert list(found)[:3] == ["name", "count", "share"]
    assert [found[key]["type"] for key in ("name", "count", "share", "sure")] == [
        "string", "integer", "number", "boolean",
    ]  # fmt: skip
    assert found["kind"]["enum"] == ["a", "b"]
    assert found["names"] == {"type": "array", "items": {"type": "string"}}
    assert found["bounded"]["maximum"] == 9
    assert found["maybe"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    definitions = parameters["$defs"]
    assert definitions["Colour"]["enum"] == ["blue", "red"]
    assert definitions["Place"]["required"] == ["x"]
    assert definitions["Speed"]["properties"]["metres"]["type"] == "number"
    assert parameters["required"] == list(found)[:10]
    assert parameters["additionalProperties"] is False


def google(a: str, b: int = 3) -> str:
    """Return the weather
    of a city.

    More about it: nothing.

    Args:
        a (str): The city, or
            a part of it.
        b: How many
            days.

    Returns:
        a: The weather.
    """


def numpy_style(a: str, b: int = 3) -> str:
    """Return the weather of a city.

    Parameters
    ----------
    a : str
        The city, or
        a part of it.
    b : int, optional
        How many days.

    Returns
    -------
    a : str
        The weather.
    """


def sphinx(a: str, b: int = 3) -> str:
    """Return the weather of a city.

    :param str a: The city, or
        a part of it.
    :param b: How many days.
    :returns: The weather.
    """


@pytest.mark.parametrize("function", [google, numpy_style, sphinx])
def test_docstrings_describe(function):
    tool = tool_of(function)
    assert tool.name == function.__name__
    assert tool.description == "Return the weather of a city."
    described = {key: each["description"] for key, each in tool.parameters["properties"].items()}
    assert described == {"a": "The city, or a part of it.", "b": "How many days."}
    assert tool.parameters["required"] == ["a"]


def test_functions_without_words_methods_and_wrapped_ones():
    def bare(a: int): ...

    class Robot:
        def turn(self, degrees: int) -> None:
            """Turn."""

    @functools.wraps(google)
    def wrapped(*args, **named):
        return google(*args, **named)

    assert tool_of(bare).description == ""
    assert list(tool_of(Robot().turn).parameters["properties"]) == ["degrees"]
    assert tool_of(wrapped).to_dict() == tool_of(google).to_dict()


def test_pydantic_models():
    pydantic = pytest.importorskip("pydantic")

    class Inner(pydantic.BaseModel):
        n: int

    class Order(pydantic.BaseModel):
        inner: Inner

    def order(what: Order, when: str = "now"): ...

    parameters = tool_of(order).parameters
    assert parameters["$defs"]["Inner"]["properties"]["n"]["type"] == "integer"
    assert parameters["properties"]["what"]["properties"]["inner"] == {"$ref": "#/$defs/Inner"}


def test_two_types_of_one_name_are_refused():
    def other():
        @dataclasses.dataclass
        class Place:
            name: str

        return Place

    def go(start: Place, end: Place | None = None): ...

    def come(start: Place, end): ...

    assert tool_of(go).parameters["$defs"]["Place"]["required"] == ["x"]
    come.__annotations__["end"] = other()
    with pytest.raises(ConfigError, match="two types in come are named Place"):
        tool_of(come)


def test_what_cannot_be_called_by_a_model_is_refused():
    def several(*numbers: int): ...

    def options(**numbers: int): ...

    def position(a: int, /): ...

    def untyped(a): ...

    def strange(a: set.__class__): ...

    def unknown(a: "Missing"): ...  # noqa: F821

    for function, reason in [
        (several, r"several takes \*numbers"),
        (options, r"options takes \*\*numbers"),
        (position, "takes a by position only"),
        (untyped, "a of untyped has no type hint"),
        (strange, "a of strange has a type that JSON cannot hold"),
        (unknown, "type hints of unknown cannot be read: name 'Missing'"),
        (lambda: None, "a tool's name"),
        ("get", "a tool is a function"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            tool_of(function)


def test_tools_in_openais_form():
    made = Tool("get", "Get it.", {"type": "object", "properties": {"a": {"type": "string"}}})
    assert made.to_dict() == {
        "type": "function",
        "function": {
            "name": "get",
            "description": "Get it.",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
        },
    }
    assert Tool("now").to_dict()["function"]["parameters"] == {"type": "object", "properties": {}}
