"""Declarations of settings: what they check, and that everything is made from them."""

import inspect
import math
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import click
import msgspec
import pytest
from msgspec import Meta

from edgespec import ConfigError, EngineConfig, RemoteConfig, SamplingParams, SpeculativeConfig
from edgespec.protocol import Begin, decode, encode
from edgespec.protocol import fields as protocol_fields
from edgespec.sampling.defaults import SETTINGS
from edgespec.server.apis.chat_completions.structs import ChatRequest
from edgespec.server.apis.completions import CompletionRequest
from edgespec.server.settings import ServerSettings
from edgespec.setting import check, described, settings_of
from edgespec_cli.main import cli

OWNERS = (SamplingParams, EngineConfig, SpeculativeConfig, RemoteConfig, ServerSettings)


@dataclass(frozen=True)
class Toy:
    """Settings of a toy."""

    share: Annotated[float, Meta(gt=0, le=1, description="A share.")] = 1.0
    n: Annotated[int | None, Meta(ge=2, description="A number.")] = None
    low: Annotated[float, Meta(description="Any number.")] = 0.0
    is_on: Annotated[bool, Meta(description="On or off.")] = False
    mode: Annotated[Literal["a", "b"], Meta(description="A mode.")] = "a"
    name: Annotated[str, Meta(description="A name.")] = ""
    rest: Annotated[Any, Meta(description="Anything.")] = field(default=None)

    def __post_init__(self) -> None:
        check(self)


@pytest.mark.parametrize(("given", "message"), [
    ({"share": 0}, "share must be above 0 and at most 1, got 0"),
    ({"share": 1.5}, "share must be above 0 and at most 1, got 1.5"),
    ({"share": None}, "share must be a number, got None; leave it out"),
    ({"share": math.nan}, "share must be a number, got nan"),
    ({"share": True}, "share must be a number, got True"),
    ({"share": "0.5"}, "share must be a number, got '0.5'"),
    ({"n": 1}, "n must be at least 2, got 1"),
    ({"n": 2**31}, "n must be between 2 and 2147483647, got 2147483648"),
    ({"n": 2.5}, "n must be a whole number, got 2.5"),
    ({"is_on": 1}, "is_on must be True or False, got 1"),
    ({"is_on": None}, "is_on must be True or False, got None; leave it out"),
    ({"mode": "c"}, "unknown mode 'c'; known: a, b"),
    ({"name": 3}, "name must be text, got 3"),
])  # fmt: skip
def test_what_is_not_allowed_is_refused(given, message):
    with pytest.raises(ConfigError) as refused:
        Toy(**given)
    assert str(refused.value) == message


def test_what_is_allowed_passes():
    Toy(share=1, n=2, low=-math.inf, is_on=True, mode="b", name="x", rest=object())
    Toy(share=1e-9, n=2**31 - 1, low=math.inf)


@pytest.mark.parametrize("owner", OWNERS)
def test_every_setting_has_a_sentence(owner):
    settings = settings_of(owner)
    assert list(settings) == [each.name for each in fields(owner)]
    sentences = {name: each.sentence for name, each in settings.items()}
    assert [name for name, told in sentences.items() if not told.endswith((".", "…"))] == []


def test_help_tells_them():
    told = inspect.cleandoc(SamplingParams.__doc__ or "")
    assert told == SamplingParams.__doc__
    assert described(Toy).splitlines()[-1] == "rest: Anything."
    assert "\ntop_k: Keep the K most likely tokens, 0 or -1 for all.\n" in told


def test_a_field_with_these_bounds_is_in_requests():
    for request in (ChatRequest, CompletionRequest):
        kinds = {each.encode_name: each.type for each in msgspec.inspect.type_info(request).fields}
        for name in SETTINGS:
            setting = settings_of(SamplingParams)[name]
            numbers = (msgspec.inspect.FloatType, msgspec.inspect.IntType)
            number = next(each for each in kinds[name].type.types if isinstance(each, numbers))
            assert (number.ge, number.gt) == (setting.ge, setting.gt), name


def test_every_number_that_shapes_rows_is_an_option():
    for command in ("chat", "run", "serve"):
        options = {option.name: option for option in cli.commands[command].params}
        for name in SETTINGS:
            assert isinstance(options[name], click.Option)
            assert settings_of(SamplingParams)[name].sentence in options[name].help


def test_a_setting_without_a_place_in_frames_travels_by_its_name(monkeypatch):
    places = tuple(name for name in protocol_fields._FLOATS if name != "min_p")
    monkeypatch.setattr(protocol_fields, "_FLOATS", places)
    monkeypatch.setattr(protocol_fields, "_NAMED", {"min_p": settings_of(SamplingParams)["min_p"]})
    for min_p in (0.0, 0.25):
        params = SamplingParams(temperature=0.5, min_p=min_p)
        begin = Begin(1, 0, 0, 1, params, 7, (5, 6), {"regex": "a"})
        assert decode(encode(begin)) == begin
