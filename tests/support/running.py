"""Processes that really run `aol`, to be killed, compared and listened to."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
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


def aol(*words: str | Path, cwd: Path | None = None, **more: str) -> Said:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "aol", *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment(**more), timeout=PATIENCE, check=False
    )
    return Said(done.returncode, done.stdout, done.stderr)


def torchrun(*words: str | Path, processes: int = 2) -> Said:
    """Run the command line in several processes that talk to each other."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*launch, "-m", "aol", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


def forked(words: list[str], before: Callable[[], None] = lambda: None, log: Path | None = None) -> int:
    """Start the command line in a copy of this process, which saves the seconds of importing; return its id.

    What it says on standard error goes to `log`.
    """
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        with open(os.devnull, "w") as nowhere, open(log or os.devnull, "w", buffering=1) as heard:
            sys.stdout, sys.stderr = nowhere, heard
            before()
            status = main(words)
    finally:
        os._exit(status)


def free_port() -> str:
    """Return a free port below those that systems give to connections, where nobody else takes it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return str(port)


def as_torchrun(world: int, work: Callable[[], object], log: Path) -> list[int]:
    """Start what torchrun would start, in copies of this process; return their ids.

    What they print goes to `log`. A process ends with the status that its work returns, and with 1 if that raises.
    """
    port = free_port()
    log.write_text("")
    children = []
    for rank in range(world):
        child = os.fork()
        if child:
            children.append(child)
            continue
        status = 1
        try:
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
            os.environ.update({name: str(value) for name, value in place.items()})
            os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
            with open(log, "a", buffering=1) as heard:
                sys.stdout = sys.stderr = heard
                try:
                    found = work()
                    status = found if isinstance(found, int) else 0
                except Exception:
                    traceback.print_exc()
        finally:
            os._exit(status)
    return children


def status_of(child: int) -> int:
    """Wait for a child: its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_after(seconds: float, words: list[str]) -> int:
    child = forked(words)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (done := os.waitpid(child, os.WNOHANG))[0]:
            return os.waitstatus_to_exitcode(done[1])
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return status_of(child)


def told(folder: Path) -> dict[str, object]:
    """Return everything that runs left behind, without the times: names of files, and what is in them."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or path.name.startswith(".lock") or "tensorboard" in name:
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
