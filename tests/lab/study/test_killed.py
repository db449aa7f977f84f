"""A study killed before every change that it makes to its folder: what the next process finds there is all it knows.

Between two changes nothing is left behind, so that these are all the moments at which a process can die. Training is
pretended, which only reads; that it goes on from a checkpoint to the last bit is tested with the engine.
"""

from __future__ import annotations

import io
import itertools
import os
import random
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aol._files import write_atomically
from aol.lab.train import driver
from aol.lab.train.group_training import Context
from aol.lab.train.groups import RunGroup
from aol.records.store import Store
from tests.support.running import forked, status_of
from tests.support.tiny_runs import small_networks
from tests.support.tiny_studies import SHORT, unlike, work_left, written

pytestmark = pytest.mark.usefixtures("_warm")

STUDY = SHORT.replace("imbalance = [20, 5]", "imbalance = [20]").replace("rho = [0.2, 0.9]", "rho = [0.2]")
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
WRITES = os.O_CREAT | os.O_WRONLY | os.O_RDWR


@pytest.fixture(scope="module")
def straight(_warm: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of a study that was really run, without a break: five runs in groups of three and two."""
    out = tmp_path_factory.mktemp("straight")
    with pytest.MonkeyPatch.context() as patch:
        small_networks(patch)
        assert status_of(forked(words(written(out, STUDY), out))) == 0
    assert sorted(record.trained_together for record in Store(out)) == [2, 2, 3, 3, 3]
    return out


def words(study: str, out: Path) -> list[str]:
    return ["study", "run", study, "--out", str(out), "--together", "3", "--checkpoint-seconds", "0"]


def pretend(straight: Path) -> None:
    """Let this process take from that folder what training would give."""
    known = {run.id: run for run in Store(straight)}

    def train_group(group: RunGroup, context: Context, _stop: object) -> bool:
        write_atomically(group.checkpoint, b"")
        for finished in (False, True):
            for run in group.runs:
                context.store.write(replace(known[run.run_id], trained_together=len(group.runs), finished=finished))
        return True

    driver.train_group = train_group  # type: ignore[assignment]
    os.fsync = lambda _: None  # which is for power cuts, and takes most of the time


def die_before(change: int) -> None:
    """Let this process kill itself before its so-manieth change of files; to make one and to fill it are two."""
    changes = itertools.count(1)
    real = io.open

    def count() -> None:
        if next(changes) == change:
            os.kill(os.getpid(), signal.SIGKILL)

    def opened(file: object, mode: str = "r", *more: object, **named: object) -> object:
        found = real(file, mode, *more, **named)  # type: ignore[call-overload]
        if mode[0] != "r":
            count()
        return found

    def heard(event: str, given: tuple[object, ...]) -> None:
        again = event == "os.mkdir" and os.path.isdir(str(given[0]))  # which changes nothing
        if (event in CHANGES and not again) or (event == "open" and int(given[2]) & WRITES):  # type: ignore[call-overload]
            count()

    io.open = opened  # type: ignore[assignment]
    sys.addaudithook(heard)


def goes_on(study: str, out: Path, straight: Path) -> list[str]:
    """Let another process go on, and name what is not as if nothing had happened."""
    assert status_of(forked(words(study, out), lambda: pretend(straight))) == 0
    return unlike(out, straight) + work_left(out) + [path.name for path in (out / "runs").glob("*/.*")]


def killed(study: str, out: Path, straight: Path, change: int) -> bool:
    """Run the study and kill it before that change; False if it was over before."""

    def before() -> None:
        pretend(straight)
        die_before(change)

    status = status_of(forked(words(study, out), before))
    assert status in (0, -signal.SIGKILL)
    return status != 0


def test_a_study_killed_before_any_change_of_its_folder_ends_as_if_it_had_not_been(
    straight: Path, tmp_path: Path
) -> None:
    study, out = written(tmp_path, STUDY), tmp_path / "out"
    for change in range(1, 46):  # the first group, and the beginning of the next: the rest is the same
        assert killed(study, out, straight, change)
        assert goes_on(study, out, straight) == [], f"killed before change {change}"
        shutil.rmtree(out)


def test_a_study_killed_again_and_again_ends_as_if_it_had_not_been(straight: Path, tmp_path: Path) -> None:
    study, out, chance = written(tmp_path, STUDY), tmp_path / "out", random.Random(5)
    for _ in range(6):
        changes = [chance.randrange(1, 60), *(chance.randrange(5, 30) for _ in range(3))]
        for change in changes:
            killed(study, out, straight, change)
        assert goes_on(study, out, straight) == [], f"killed before changes {changes}"
        shutil.rmtree(out)
