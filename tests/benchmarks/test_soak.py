"""The soak tells a sentence from a traceback, a crash and a hang, and leaves files as they were."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import soak, soak_loops


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


@pytest.mark.parametrize("name", ["torch", "torch stream"])
def test_a_loop_that_goes_on_from_half_way_ends_alike_and_its_flipped_bits_are_seen(name: str, tmp_path: Path) -> None:
    loop, whole, half = soak_loops.LOOPS[name], tmp_path / "whole", tmp_path / "half"
    whole.mkdir()
    loop.run(whole, False)
    with pytest.MonkeyPatch.context() as patch:
        saved, times = soak_loops._save, iter(range(9))
        patch.setattr(soak_loops, "_save", lambda *given: [saved(*given), next(times)])
        half.mkdir()
        with pytest.raises(StopIteration):
            loop.run(half, False)
    known = soak_loops.look(loop, half)
    state = torch.load(half / "mine.pt", weights_only=True)
    state["ages"]["ema"].flatten().view(torch.uint8)[0] ^= 1
    kept = (half / "mine.pt").read_bytes()
    torch.save(state, half / "mine.pt")
    with pytest.raises(ValueError, match="damaged"):
        soak_loops.look(loop, half)
    (half / "mine.pt").write_bytes(kept)
    assert soak_loops.look(loop, half) == known
    loop.run(half, False)
    assert soak_loops.left(half) == soak_loops.left(whole)
