"""Values from TOML and JSON become structs, and what does not fit is named."""

from typing import Annotated

import msgspec
import pytest

from edgespec import ConfigError
from edgespec.config import did_you_mean
from edgespec.schema import Mismatch, checked, convert


class Disk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="disk"):
    path: str


class Net(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="net"):
    host: str
    port: Annotated[int, msgspec.Meta(gt=0, le=65535)] = 80


class Robot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]
    arms: int = 2
    speed: Annotated[float, msgspec.Meta(ge=0)] | None = None
    parts: tuple[Disk | Net, ...] = ()
    tools: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("hand",)
    gains: dict[str, float] | None = None
    home: Disk | Net | None = None
    says: list[str] | str = ""

    def __post_init__(self) -> None:
        if self.arms == 13:
            raise ValueError("thirteen arms are too many")


def test_values_become_a_struct():
    values = {"name": "r", "parts": [{"kind": "net", "host": "h"}], "gains": {"x": 1}}
    robot = convert(values, Robot, "robot.toml")
    assert robot == Robot("r", parts=(Net("h"),), gains={"x": 1.0})


@pytest.mark.parametrize(("values", "path", "message"), [
    ({}, "name", "the field 'name' is missing"),
    ([], "", "must be an object, got a list"),
    ({"name": 1}, "name", "name must be text, got 1"),
    ({"name": "R2"}, "name", "name must be text that matches '^[a-z]+$', got \"R2\""),
    ({"name": "r", "arms": "2"}, "arms", 'arms must be a whole number, got "2"'),
    ({"name": "r", "arms": True}, "arms", "arms must be a whole number, got true"),
    ({"name": "r", "arms": "x" * 99}, "arms",
     f'arms must be a whole number, got "{"x" * 76}…'),
    ({"name": "r", "arms": [3]}, "arms", "arms must be a whole number, got a list"),
    ({"name": "r", "arms": 13}, "", "thirteen arms are too many"),
    ({"name": "r", "speed": -1.5}, "speed", "speed must be at least 0, got -1.5"),
    ({"name": "r", "speed": "fast"}, "speed", 'speed must be a number, got "fast"'),
    ({"name": "r", "tools": []}, "tools",
     "tools must be a list of length at least 1, got one of length 0"),
    ({"name": "r", "tools": ["a", 2]}, "tools[1]", "tools[1] must be text, got 2"),
    ({"name": "r", "says": 2}, "says", "says must be text or a list, got 2"),
    ({"name": "r", "gains": {"x": "y"}}, "gains[...]", "gains[...] must be a number, got text"),
    ({"name": "r", "arm": 3}, "arm", "unknown field 'arm'; did you mean 'arms'?"),
    ({"name": "r", "wheels": 4}, "wheels",
     "unknown field 'wheels'; known: name, arms, speed, parts, tools, gains, home, says"),
    ({"name": "r", "parts": [{}]}, "parts[0].kind", "the field 'parts[0].kind' is missing"),
    ({"name": "r", "parts": [{"kind": "tape"}]}, "parts[0].kind",
     'parts[0].kind must be "disk" or "net", got "tape"'),
    ({"name": "r", "parts": [{"kind": "disk", "path": "/"}, {"kind": "net", "hosts": "h"}]},
     "parts[1].hosts", "unknown field 'parts[1].hosts'; did you mean 'host'?"),
    ({"name": "r", "parts": [{"kind": "net", "host": "h", "port": 0}]}, "parts[0].port",
     "parts[0].port must be at least 1, got 0"),
    ({"name": "r", "home": {"kind": "net", "host": "h", "port": 65536}}, "home.port",
     "home.port must be at most 65535, got 65536"),
])  # fmt: skip
def test_what_does_not_fit_is_named(values, path, message):
    with pytest.raises(Mismatch) as mismatch:
        checked(values, Robot)
    assert mismatch.value.path == path
    assert str(mismatch.value) == message
    with pytest.raises(ConfigError) as error:
        convert(values, Robot, "robot.toml")
    assert str(error.value) == f"robot.toml: {message}"
    assert error.value.__cause__.args == mismatch.value.args


def test_the_parts_of_a_message():
    with pytest.raises(Mismatch) as error:
        checked({"name": "r", "arms": "2"}, Robot)
    assert error.value.problem == "value"
    assert (error.value.expected, error.value.found) == ("must be a whole number", '"2"')
    with pytest.raises(Mismatch) as error:
        checked({"name": "r", "arm": 2}, Robot)
    assert (error.value.problem, error.value.hint) == ("unknown", "did you mean 'arms'?")
    with pytest.raises(Mismatch) as error:
        checked({}, Robot)
    assert (error.value.problem, error.value.path) == ("missing", "name")


def test_another_exception_may_be_asked_for():
    with pytest.raises(LookupError, match="answer: the field 'name' is missing"):
        convert({}, Robot, "answer", LookupError)


def test_keys_of_the_wrong_kind_are_named():
    with pytest.raises(ConfigError, match="x: a key of gains must be text, got a whole number"):
        convert({"name": "r", "gains": {1: 2.0}}, Robot, "x")


def test_the_closest_name_or_all_of_them():
    assert did_you_mean("temprature", ["seed", "temperature"]) == "did you mean 'temperature'?"
    assert did_you_mean("fish", ["seed", "stop"]) == "known: seed, stop"


def test_structs_of_a_dictionary():
    class Rooms(msgspec.Struct, forbid_unknown_fields=True):
        rooms: dict[str, Disk | Net]

    with pytest.raises(ConfigError, match=r"rooms\[\.\.\.\]\.hots'; did you mean 'host'\?"):
        convert({"rooms": {"x": {"kind": "net", "hots": "h"}}}, Rooms, "x")


def test_what_a_struct_itself_refuses_is_named_with_its_place():
    class Team(msgspec.Struct, forbid_unknown_fields=True):
        robots: list[Robot]

    with pytest.raises(ConfigError, match=r"^x: robots\[0\]: thirteen arms are too many$"):
        convert({"robots": [{"name": "r", "arms": 13}]}, Team, "x")


class Arm(msgspec.Struct, forbid_unknown_fields=True):
    grip: Annotated[None, msgspec.Meta(extra={"reason": "this arm has no hand"})] = None
    joints: list["Arm"] = []


def test_a_reason_of_the_schema_ends_the_message():
    with pytest.raises(
        Mismatch, match=r"^grip must be null, got 3; this arm has no hand$"
    ) as error:
        checked({"grip": 3}, Arm)
    assert error.value.hint == "this arm has no hand"


@pytest.mark.parametrize("name", ["a - at b", "a` - at `$.b", "a\nb", "a` - at `$.b` c"])
def test_names_that_look_like_places_are_not_taken_for_places(name):
    with pytest.raises(Mismatch) as error:
        checked({"joints": [{name: 1}]}, Arm)
    assert (error.value.path, error.value.problem) == (f"joints[0].{name}", "unknown")
