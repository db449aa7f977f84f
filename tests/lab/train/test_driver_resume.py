"""Processes killed with kill -9, at random moments and at every moment that matters, and what is left of them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.running import forked, killed_after, status_of, told, wait_for

pytestmark = pytest.mark.usefixtures("_loaded")
KINDS = {
    "offline": "train --epochs 6 --weighting aol --keep-samples --validation 0.2",
    "arrival": "train --epochs 6 --weighting aol --fraction 0.4 --keep-samples --mechanism resample",
    "reservoir": "stream --steps 6 --weighting aol --memory reservoir:100",
}


def words(kind: str, runs: int, out: Path, *more: str) -> list[str]:
    seeds = ",".join(map(str, range(runs)))
    often = ["--seed", seeds, "--checkpoint-seconds", "0", "--batch-size", "128", "--out", str(out)]
    return [*KINDS[kind].split(), *often, *more]


@pytest.mark.parametrize(("kind", "runs"), [("offline", 3), ("arrival", 3), ("reservoir", 1)])
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(kind: str, runs: int, tmp_path: Path) -> None:
    start, out = time.monotonic(), tmp_path / "killed"
    assert status_of(forked(words(kind, runs, tmp_path / "straight"))) == 0
    seconds, moments, killed = time.monotonic() - start, random.Random(f"{kind} {runs}"), 0
    while killed < 2:
        if killed_after(moments.uniform(0.1, 0.6) * seconds, words(kind, runs, out, "--resume")) < 0:
            killed += 1
        else:  # it was quicker than the first time: again from the start, with less patience
            shutil.rmtree(out)
            killed, seconds = 0, seconds / 2
    assert status_of(forked(words(kind, runs, out, "--resume"))) == 0
    assert told(out) == told(tmp_path / "straight")


CALLS = ("replace", "unlink", "rmdir")  # by which a folder changes


def armed(last: int, happens: bool, log: Path) -> Callable[[], None]:
    """Return what lets a process die at its n-th change of a folder, before or after it; `log` counts the changes."""

    def arm() -> None:
        calls = iter(range(1, 10**6))

        def deadly(real: Callable[..., object]) -> Callable[..., object]:
            def call(*given: object, **named: object) -> object:
                number = next(calls)
                log.write_text(str(number))
                if number == last and not happens:
                    os.kill(os.getpid(), signal.SIGKILL)
                try:
                    return real(*given, **named)
                finally:
                    if number == last:
                        os.kill(os.getpid(), signal.SIGKILL)

            return call

        for name in CALLS:
            setattr(os, name, deadly(getattr(os, name)))

    return arm


def test_a_run_killed_at_any_change_of_its_folder_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    log, given = tmp_path / "changes", ["stream", "--steps", "2", "--weighting", "aol", "--memory", "reservoir:100"]
    given += ["--checkpoint-seconds", "0", "--batch-size", "256", "--out", str(tmp_path / "whole")]
    assert status_of(forked(given, armed(10**9, False, log))) == 0
    wanted, changes = told(tmp_path / "whole"), int(log.read_text())
    assert changes >= 6
    for last in range(1, changes + 1):
        out = tmp_path / f"killed-{last}"
        given[-1] = str(out)
        assert status_of(forked(given, armed(last, last % 2 == 0, log))) == -signal.SIGKILL
        assert status_of(forked([*given, "--resume"])) == 0
        assert told(out) == wanted, last
        assert not list(out.rglob("*.part"))


def test_a_run_resumed_among_a_different_number_of_others_stays_where_it_was_begun(tmp_path: Path) -> None:
    base = ["train", "--epochs", "5", "--seed", "0-6", "--batch-size", "256", "--checkpoint-seconds", "0"]
    base += ["--out", str(tmp_path / "a")]
    child = forked([*base, "--together", "3"])
    first = wait_for(tmp_path / "a")
    while first.exists() or not list((tmp_path / "a").glob("work/*/checkpoint.pt")):  # until the second group
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    assert status_of(child) == -signal.SIGKILL
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert status_of(forked([*base, "--resume", "--together", "2"])) == 0
    base[-1] = str(tmp_path / "b")
    assert status_of(forked([*base, "--resume", "--together", "3"])) == 0
    assert told(tmp_path / "a") == told(tmp_path / "b")
