"""Runs the command lines of a page as its reader would, in a folder of their own, and compares what they print."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from torch.distributed.run import get_args_parser

from aol.cli import build, main
from aol.lab.study.spec import load
from tests.support.doc_pages import ROOT
from tests.support.running import PATIENCE, as_torchrun, status_of

_NUMBER = re.compile(r"[-+−]?\d+(?:\.\d+)?")
_TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
_PROGRAMS = {
    "python": [],
    "torchrun": ["-m", "torch.distributed.run", "--standalone"],  # each on a port of its own
}
_EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def command_lines(code: str) -> list[list[str]]:
    """Return the commands of a block as words: comments gone, continued lines joined."""
    joined = code.replace("\\\n", " ")
    return [words for line in joined.splitlines() if (words := shlex.split(line, comments=True))]


def run(words: list[str], folder: Path, *, without_data: bool = False) -> str:
    """Run one command and return what it printed; anything but success is an AssertionError."""
    first, rest = words[0], words[1:]
    if first == "aol" and any(word.startswith("results/") for word in rest):  # of recorded runs: trained on a GPU
        args = build(rest[0]).parse_args(rest)
        assert load(str(ROOT / args.study) if args.study.endswith(".toml") else args.study).seeds
        return ""
    if first == "make":
        assert set(rest) <= _TARGETS, f"the Makefile has no target {rest}"
        return ""
    if first == "pip":
        asked = set(re.findall(r"[\w-]+", " ".join(re.findall(r"\[(.*?)\]", " ".join(rest)))))
        assert asked <= _EXTRAS, f"pyproject.toml has no extras {asked - _EXTRAS}"
        return ""
    assert first in ("aol", *_PROGRAMS), f"no way is known to run {first!r}: mark the block, or teach doc_commands.py"
    if first == "aol":
        status, printed, errors = _here(rest, folder)
    elif first == "torchrun" and "aol" in rest:
        status, printed, errors = _many(rest, folder)
    else:
        status, printed, errors = _apart([*_PROGRAMS[first], *rest], folder)
    missing = ("`aol data get", "was not found in", "There is no folder")
    if without_data and any(text in errors for text in missing):  # all words were read, only data or runs are missing
        return printed
    # Some builds of torch now and then abort when a process with DDP over gloo ends, with no line of ours involved.
    assert status == 0 or "terminate called without an active exception" in errors, f"{shlex.join(words)}\n{errors}"
    return printed


def _here(words: list[str], folder: Path) -> tuple[int, str, str]:
    """Run `aol` in this process: a new one would spend most of its time on importing torch."""
    out, err = io.StringIO(), io.StringIO()
    surroundings = mock.patch.dict(os.environ, _surroundings(folder), clear=True)
    with surroundings, chdir(folder), redirect_stdout(out), redirect_stderr(err):
        status = main(words)
    return status, out.getvalue(), err.getvalue()


def _many(words: list[str], folder: Path) -> tuple[int, str, str]:
    """Run `aol` in as many copies of this process as torchrun would start; it reads these words itself."""
    asked = get_args_parser().parse_args(words)
    assert (asked.module, asked.training_script) == (True, "aol")

    def work() -> int:
        os.environ.update(_surroundings(folder))
        os.chdir(folder)
        return main(asked.training_script_args)

    log = folder / ".torchrun"
    ended = {status_of(child) for child in as_torchrun(int(asked.nproc_per_node), work, log)}
    printed = log.read_text()
    log.unlink()
    return max(ended, key=abs), printed, printed


def _apart(words: list[str], folder: Path) -> tuple[int, str, str]:
    there = [str(ROOT / word) if word.startswith("examples/") else word for word in words]
    surroundings = _surroundings(folder)
    done = subprocess.run(
        [sys.executable, *there], cwd=folder, env=surroundings, capture_output=True, text=True, timeout=PATIENCE
    )
    return done.returncode, done.stdout, done.stderr


def _surroundings(folder: Path) -> dict[str, str]:
    """Return an environment in which no data set of the machine's owner is found, and tables are 100 columns wide."""
    found = {name: value for name, value in os.environ.items() if name not in ("AOL_DATA", "XDG_CACHE_HOME")}
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [found.get("PYTHONPATH")])])
    return {**found, "HOME": str(folder), "PYTHONPATH": path, "COLUMNS": "100", "NO_COLOR": "1"}


def same_but_for_noise(promised: str, printed: str, within: float) -> bool:
    """Say whether the promised lines were printed, in order: the same words, and numbers that are near.

    Networks differ in the last digits from one processor to another, and after some epochs in the first too.
    """
    rest = iter(printed.splitlines())
    return all(any(_near(line, other, within) for other in rest) for line in promised.splitlines() if line.strip())


def _near(line: str, other: str, within: float) -> bool:
    if _words(line) != _words(other):
        return False
    return all(abs(a - b) <= within for a, b in zip(_numbers(line), _numbers(other), strict=True))


def _words(line: str) -> list[str]:
    return _NUMBER.sub("#", line).split()


def _numbers(line: str) -> list[float]:
    return [float(each.replace("−", "-")) for each in _NUMBER.findall(line)]
