"""The soak tells a sentence from a traceback, a crash and a hang."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import pytest

from benchmarks import soak


def traceback(_: list[str]) -> int:
    print("Traceback (most recent call last):", file=sys.stderr)
    return 1


def nothing(_: list[str]) -> int:
    return 1


def fault(_: list[str]) -> int:
    print("aol: KeyError: 'x' (an error in aol itself; --debug shows where)", file=sys.stderr)
    return 1


def crash(_: list[str]) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.mark.parametrize("main", [traceback, nothing, fault, crash])
def test_an_outcome_that_is_no_sentence_is_a_failure(
    main: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "main", main)
    with pytest.raises(soak.Failure):
        soak.command(["show", "x"], tmp_path)


def test_a_sentence_is_no_failure(tmp_path: Path) -> None:
    output = soak.command(["show", str(tmp_path / "nowhere")], tmp_path)
    assert output.status == 2
    assert "nowhere" in output.err


def test_a_process_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "PATIENCE", 0.1)
    assert soak.limited(soak.child(lambda: signal.pause())) == 124
    monkeypatch.undo()
    assert soak.limited(soak.child(lambda: 3)) == 3


def test_the_same_seed_damages_a_file_in_the_same_way(tmp_path: Path) -> None:
    outcomes = []
    for _ in range(2):
        file, other = tmp_path / "file", tmp_path / "other"
        file.write_bytes(b"whole" * 100)
        other.write_bytes(b"other")
        outcomes.append((soak.damaged(file, other, random.Random("seed")), file.read_bytes()))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1] != b"whole" * 100
