"""The command line's `serve`, which writes figures of its sessions to $EDGESPEC_WATCHED.

Run as a module in place of edgespec_cli; each line of the file is a JSON object.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict
from typing import Any

import psutil

from edgespec.server.verification import sessions
from edgespec_cli.__main__ import main


def figures(found: sessions.Sessions) -> dict[str, Any]:
    """Return memory in MiB, cells of the cache and counts."""
    held = found._registry.all()
    return {
        "rss_mib": psutil.Process().memory_info().rss >> 20,
        "parked": found._model.n_parked,
        "cells": found._model.n_parked + sum(one.n_cached for one in held if one.slot is not None),
        **asdict(found.counts),
    }


def watch(found: sessions.Sessions, path: str) -> None:
    """Write a line a second, for ever."""
    with open(path, "w") as file:
        while True:
            print(json.dumps(figures(found)), file=file, flush=True)
            time.sleep(1)


def serving(*args: Any, **options: Any) -> sessions.Sessions:
    """Return sessions as the real function does, and watch them."""
    found = real(*args, **options)
    path = os.environ["EDGESPEC_WATCHED"]
    threading.Thread(target=watch, args=(found, path), daemon=True).start()
    return found


if __name__ == "__main__":
    real, sessions.serving = sessions.serving, serving
    main()
