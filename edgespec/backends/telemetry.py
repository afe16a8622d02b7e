"""Switches off the telemetry of onnxruntime and of onnxruntime-genai.

From version 1.29 on, onnxruntime writes a device id and the path of the running program to the
user's cache folder as soon as it is imported, and sends them to its makers a few seconds later. Its
own function `disable_telemetry_events` does not stop this; only an environment variable that is set
before the import does.
"""

from __future__ import annotations

import functools
import os
import sys

_SWITCH = "ORT_DISABLE_TELEMETRY"
_SWITCHES = (_SWITCH, "ORT_TELEMETRY_DISABLED")  # the second one is onnxruntime-genai's
_SET = ("1", "on", "true", "y", "yes")  # values that onnxruntime follows, in any case


@functools.cache
def switch_off() -> bool:
    """Switch the telemetry off in this process and in all processes that it starts.

    Returns False if it is too late: the program that uses edgespec imported onnxruntime before,
    and without the switch.
    """
    was_off = os.environ.get(_SWITCH, "").strip().lower() in _SET
    os.environ.update(dict.fromkeys(_SWITCHES, "1"))
    return was_off or "onnxruntime" not in sys.modules
