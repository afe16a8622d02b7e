"""Tools: functions that a model may call, and their descriptions made from Python functions."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..constraints.schemas import text_of
from ..errors import ConfigError
from . import docstrings

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


def _nothing() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    parameters: the JSON schema of the object that contains the arguments. strict: True forbids
    arguments that are not in the schema, and refuses a schema that cannot be followed completely.
    In a tool that is not strict, keywords that cannot be followed are left out.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=_nothing)
    strict: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"a tool's name has 1 to 128 letters, digits and _ . : / -, got {self.name!r:.80}"
            )
        if not isinstance(self.description, str):
            raise ConfigError(
                f"the description of {self.name} is text, got {self.description!r:.80}"
            )
        if not isinstance(self.parameters, Mapping):
            raise ConfigError(
                f"the parameters of {self.name} are a JSON schema, got {self.parameters!r:.80}"
            )
        text_of(self.parameters, f"the schema of {self.name}")
        if self.parameters.get("type", "object") != "object":
            raise ConfigError(
                f"the parameters of {self.name} are the schema of an object, got one of type "
                f"{self.parameters['type']!r:.80}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the tool in OpenAI's form, as chat templates read it."""
        function = {"name": self.name, "description": self.description}
        parameters = {"type": "object", "properties": {}, **self.parameters}  # some need both
        return {"type": "function", "function": {**function, "parameters": parameters}}


def tool_of(function: Callable[..., Any]) -> Tool:
    """Return a tool made from a Python function: its name, its docstring and its type hints.

    Descriptions of arguments are read from docstrings in Google's, NumPy's or Sphinx's form. Raises
    ConfigError for a function that cannot be called with named arguments, or that has an argument
    without a type that JSON can hold.
    """
    name = getattr(function, "__name__", "")
    if not callable(function) or not name:
        raise ConfigError(f"a tool is a function, got {function!r:.80}")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        arguments = inspect.signature(function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"the type hints of {name} cannot be read: {error}") from None
    described = docstrings.read(inspect.getdoc(function) or "")
    fields = [_field(name, each, hints) for each in arguments]
    properties, definitions = _schemas(name, [(each, hints[each.name]) for each, _ in fields])
    for each, text in described.arguments.items():
        if each in properties:
            properties[each] = {**properties[each], "description": text}
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [each.name for each, required in fields if required],
        "additionalProperties": False,
    }
    if definitions:
        parameters["$defs"] = definitions
    return Tool(name, described.summary, parameters)


def _field(
    name: str, argument: inspect.Parameter, hints: Mapping[str, Any]
) -> tuple[inspect.Parameter, bool]:
    """Return an argument, and True if every call must give it."""
    if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
        raise ConfigError(
            f"{name} takes {argument}, and a model cannot tell what to give; name every argument"
        )
    if argument.kind is argument.POSITIONAL_ONLY:
        raise ConfigError(
            f"{name} takes {argument.name} by position only; tools are called with names"
        )
    if argument.name not in hints:
        raise ConfigError(f"{argument.name} of {name} has no type hint; tools need one for each")
    return argument, argument.default is argument.empty


def _schemas(
    name: str, fields: list[tuple[inspect.Parameter, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schemas of arguments by name, and the definitions to which they refer."""
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for argument, kind in fields:
        schema, its_definitions = _schema(f"{argument.name} of {name}", kind)
        properties[argument.name] = schema
        twice = [each for each in its_definitions if each in definitions]
        if other := [each for each in twice if definitions[each] != its_definitions[each]]:
            raise ConfigError(f"two types in {name} are named {other[0]}; give each its own name")
        definitions.update(its_definitions)
    return properties, definitions


def _schema(what: str, kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        if hasattr(kind, "model_json_schema"):  # a pydantic model; pydantic need not be imported
            schema = kind.model_json_schema(ref_template="#/$defs/{model}")
            return schema, schema.pop("$defs", {})
        (schema,), definitions = msgspec.json.schema_components(
            [kind], ref_template="#/$defs/{name}"
        )
        return schema, definitions
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} has a type that JSON cannot hold: {error}") from None
