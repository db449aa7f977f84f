"""Which process this is, in a way that other machines, containers and later processes cannot mistake."""

from __future__ import annotations

import os
import socket
from pathlib import Path

_PROC = Path("/proc")


def myself() -> dict[str, str | int]:
    """Return who this process is: host, machine, process id, and when it began."""
    return {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "began": _began(os.getpid()) or ""}


def alive(who: dict[str, object]) -> bool | None:
    """Return whether the process is there, or None where that cannot be seen from here.

    >>> alive(dict(myself()))
    True
    >>> alive({**myself(), "began": "1"})  # the same number, but another process
    False
    >>> alive({**myself(), "machine": "another"}) is None
    True
    """
    pid, began, machine = who.get("pid"), who.get("began"), _machine()
    if not machine or who.get("machine") != machine or not isinstance(pid, int) or not began:
        return None
    return _began(pid) == began


def _machine() -> str:
    """Return what is the same for all processes that see each other by number: this start of the system, and container.

    Empty where the system does not tell; then nobody is known to be gone.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _began(pid: int) -> str | None:
    """Return when a process began, in the system's ticks; None if it is gone or only waits to be buried."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the name before may hold spaces and brackets
    return None if fields[0] in "ZX" else fields[19]
