"""Tells systemd about the state of this service, as sd_notify(3) does."""

from __future__ import annotations

import contextlib
import os
import socket
import time

SOCKET_VARIABLE = "NOTIFY_SOCKET"


def notify(*states: str) -> None:
    """Send states such as "READY=1" to the service manager. Do nothing if none has started this
    process, or if it does not listen.
    """
    address = os.environ.get(SOCKET_VARIABLE, "")
    family = getattr(socket, "AF_UNIX", None)
    if not address or family is None:
        return
    if address.startswith("@"):  # an abstract socket of Linux
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        sock.send("\n".join(states).encode())


def notify_of_reload() -> None:
    """Say that the configuration is being read again; "READY=1" must follow."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
