"""A model that asks for the weather, and the tool that it asks."""

from tests.helpers.scripted_chats import called

ARGUMENTS = '{"city": "Rome", "unit": "C"}'
CALL, THOUGHT = called("weather", ARGUMENTS), "<think>\nI ask.\n</think>\n\n"
ANSWERS = {
    "weather": THOUGHT + "Wait.\n" + CALL,
    "twice": CALL + "\n" + CALL,
    "20 degrees": "It is 20 degrees.",
    "as a form": THOUGHT + '{"city":"Rome","unit":"C"}',
}
CUSTOM = {
    "name": "weather",
    "description": "Look it up",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
