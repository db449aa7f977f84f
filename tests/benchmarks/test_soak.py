"""The soak tells a sentence from a traceback, a crash and a hang, and leaves files as they were."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import pytest

from benchmarks import soak


def refuses() -> int:
    print("aol: damaged.", file=sys.stderr)
    return 1


def raises() -> None:
    raise ValueError("damaged.")


def fails() -> None:
    raise KeyError("x")


def shows() -> int:
    print("Traceback (most recent call last):", file=sys.stderr)
    return 1


def is_silent() -> int:
    return 1


def crashes() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("read", [refuses, raises, fails, shows, is_silent, crashes])
def test_what_comes_of_damage_is_told_apart(read: object, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"whole" * 100)
    seeds = range(40 if read is not crashes else 1)
    found = soak._batch(seeds, tmp_path, lambda seed: soak.damage({"x": [path]}, {"x": read}, random.Random(seed), {}))
    right = read in (refuses, raises)
    assert {text.startswith("WRONG") for _, text in found} == {not right}
    assert [seed for seed, _ in found] == list(seeds)
    if read is not crashes:
        assert path.read_bytes() == b"whole" * 100


def test_a_process_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_PATIENCE", 0.1)
    assert soak._limited(soak._child(lambda: signal.pause())) == 124
    monkeypatch.undo()
    assert soak._limited(soak._child(lambda: 3)) == 3
