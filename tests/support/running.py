"""Processes that really run `aol`, to be killed, compared and listened to."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from aol.cli import main

TIMES = ("seconds", "images_per_second")
PATIENCE = 400.0  # seconds; a test that waits this long has failed, however busy the machine is
SRC = Path(__file__).resolve().parents[2] / "src"


class Said(NamedTuple):
    status: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    paths = os.pathsep.join(filter(None, (str(SRC), own.get("PYTHONPATH", ""))))
    return own | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "COLUMNS": "120"} | more


def aol(*words: str | Path, cwd: Path | None = None, by: Sequence[str] = (), **more: str) -> Said:
    """Run the command line in a process of its own; `by`: a module that starts it, and its arguments."""
    command = [sys.executable, *by, "-m", "aol", *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment(**more), timeout=PATIENCE, check=False
    )
    return Said(done.returncode, done.stdout, done.stderr)


def _copied(work: Callable[[], object], heard: Path | str = os.devnull, printed: Path | str = os.devnull) -> int:
    """Do something in a copy of this process, which saves the seconds of importing; return its id.

    It ends with the status that its work returns, with 0 for anything else, and with 1 if that raises.
    """
    if child := os.fork():
        return child
    status = 1
    try:
        with open(printed, "a") as sys.stdout, open(heard, "a", buffering=1) as sys.stderr:
            done = work()
            status = done if isinstance(done, int) else 0
    except BaseException:
        with open(heard, "a") as file:
            traceback.print_exc(file=file)
    finally:
        os._exit(status)


def forked(words: list[str], before: Callable[[], None] = lambda: None, log: Path | None = None) -> int:
    """Start the command line in a copy of this process; what it says on standard error goes to `log`."""
    return _copied(lambda: (before(), main(words))[1], log or os.devnull)


def free_port() -> str:
    """Return a free port."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return str(tried.getsockname()[1])


def as_torchrun(world: int, work: Callable[[], object], log: Path) -> list[int]:
    """Start what torchrun would start, in copies of this process; return their ids. What they print goes to `log`."""
    port = free_port()
    log.write_text("")

    def ranked(rank: int) -> object:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
        return work()

    return [_copied(partial(ranked, rank), log, log) for rank in range(world)]


def status_of(child: int) -> int:
    """Wait for a child: its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_after(seconds: float, words: list[str]) -> int:
    """Start the command line in a copy of this process, and kill it if it has not ended by then; return its status."""
    child = forked(words)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)  # of one that has ended this is no error
    return status_of(child)


def told(folder: Path) -> dict[str, object]:
    """Return everything that runs left behind, without the times: names of files, and what is in them."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or path.name.startswith(".lock"):
            continue
        if path.name == "run.json":
            content = json.loads(path.read_text())
            content["curves"] = {key: values for key, values in content["curves"].items() if key not in TIMES}
            content["versions"].pop("date", None)
            found[name] = {key: value for key, value in content.items() if key not in ("seconds", "sha256")}
        elif path.name == "request.json":
            found[name] = json.loads(path.read_text())["ids"]
        else:
            found[name] = path.read_bytes()
    return found


def wait_for(folder: Path, pattern: str = "work/*/checkpoint.pt") -> Path:
    """Wait until a file of this pattern is in a folder, and return it."""
    end = time.monotonic() + PATIENCE
    while not (there := list(folder.glob(pattern))):
        assert time.monotonic() < end, pattern
        time.sleep(0.002)
    return there[0]
