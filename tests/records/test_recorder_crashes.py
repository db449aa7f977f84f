"""A recorder whose process dies at any write, by kill -9, or for want of room, goes on as if nothing had happened."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import aol
from aol.records import previews, record, samples
from aol.records.record import DamagedRunError, read_run
from tests.support.recorded_loop import LABELS, NAMES, ages_over_time, answers, epoch_of, samples_of
from tests.support.running import PATIENCE


def straight(folder: Path, epochs: int) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    with aol.Recorder(folder, ages, classes=NAMES) as recorder:
        for epoch in range(epochs):
            epoch_of(ages, recorder, epoch)


def same_records(one: Path, other: Path, *, exact_means: bool) -> None:
    """Assert equality but for the clock, and for means and votes over time where epochs were repeated."""
    mine, theirs = read_run(one), read_run(other)
    assert mine.epochs.tolist() == theirs.epochs.tolist()
    for kind in ("curves", "by_class", "over_time"):
        for name, values in getattr(mine, kind).items():
            if name != "seconds":
                assert values == pytest.approx(getattr(theirs, kind)[name], rel=2**-15, nan_ok=True), name
    kept, found = samples_of(one), samples_of(other)
    assert ages_over_time(kept) == ages_over_time(found)
    for name in (
        vars(kept).keys()
        - {"answers"}
        - (set() if exact_means else {"mean_margin", "margin_weight", "suggested", "lead"})
    ):
        close = 1e-6 if exact_means or not name.startswith("mean") else 0.2
        assert getattr(kept, name) == pytest.approx(getattr(found, name), abs=close, nan_ok=True), name


class Killed(BaseException):
    """As good as kill -9: nothing of ours catches it."""


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """The process dies at the n-th write to the disk from now on."""
    left = {"writes": 10**9}
    write = record.write_atomically

    def fragile(path: Path, content: bytes) -> None:
        left["writes"] -= 1
        if left["writes"] < 0:
            raise Killed
        write(path, content)

    for module in (previews, record, samples):
        monkeypatch.setattr(module, "write_atomically", fragile)
    return left


@pytest.mark.parametrize("write", range(3))
@pytest.mark.parametrize("back", [0, 1, 2])
def test_a_loop_killed_at_any_write_goes_on_from_its_own_checkpoint(
    write: int, back: int, tmp_path: Path, dies: dict[str, int]
) -> None:
    """`back`: how many epochs before the one that died the loop's own checkpoint was taken."""
    straight(tmp_path / "straight", 6)
    ages = aol.SampleAges(LABELS, num_classes=4)
    recorder = aol.Recorder(tmp_path / "killed", ages, classes=NAMES)
    states = [ages.state_dict()]
    for epoch in range(2):
        epoch_of(ages, recorder, epoch)
        states.append(ages.state_dict())
    dies["writes"] = write
    with contextlib.suppress(Killed):
        for epoch in range(2, 5):
            epoch_of(ages, recorder, epoch)
            states.append(ages.state_dict())
    assert len(states) < 6
    recorder._held.close()  # as the end of the process would
    dies["writes"] = 10**9
    ages = aol.SampleAges(LABELS, num_classes=4)
    early = back == 1  # a recorder may be made before or after the state is loaded
    if early:
        recorder = aol.Recorder(tmp_path / "killed", ages, classes=NAMES, resume=True)
    ages.load_state_dict(states[max(0, len(states) - 1 - back)])
    if not early:
        recorder = aol.Recorder(tmp_path / "killed", ages, classes=NAMES, resume=True)
    for epoch in range(ages.epoch, 6):
        epoch_of(ages, recorder, epoch)
    recorder.close()
    same_records(tmp_path / "straight", tmp_path / "killed", exact_means=False)


def test_a_loop_killed_after_its_last_epoch_is_finished_when_it_is_resumed_and_closed(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    recorder = aol.Recorder(tmp_path, ages)
    epoch_of(ages, recorder, 0)
    recorder._held.close()  # as the end of the process would
    before = read_run(tmp_path)
    aol.Recorder(tmp_path, aol.SampleAges(LABELS, num_classes=4), resume=True).close()  # without the ages' state
    assert not read_run(tmp_path).finished
    aol.Recorder(tmp_path, ages, resume=True).close()
    after = read_run(tmp_path)
    assert after.finished
    np.testing.assert_array_equal(after.over_time["age"], before.over_time["age"])


def test_a_loop_that_stops_between_epochs_goes_on_exactly(tmp_path: Path) -> None:
    straight(tmp_path / "straight", 5)
    ages = aol.SampleAges(LABELS, num_classes=4)
    for part in (range(2), range(2, 5)):
        with aol.Recorder(tmp_path / "parts", ages, classes=NAMES, resume=True) as recorder:
            for epoch in part:
                epoch_of(ages, recorder, epoch)
                assert not read_run(tmp_path / "parts").finished
        assert read_run(tmp_path / "parts").finished
    same_records(tmp_path / "straight", tmp_path / "parts", exact_means=True)


@pytest.mark.parametrize("early", [True, False])
def test_an_epoch_that_was_saved_and_not_recorded_is_recorded_from_the_ages(early: bool, tmp_path: Path) -> None:
    """`early`: the recorder is made before the state is loaded."""
    straight(tmp_path / "straight", 5)
    ages = aol.SampleAges(LABELS, num_classes=4)
    recorder = aol.Recorder(tmp_path / "killed", ages, classes=NAMES)
    for epoch in range(2):
        epoch_of(ages, recorder, epoch)
    ages.observe(torch.arange(30), aol.is_correct(answers(2), LABELS))
    ages.advance()
    recorder._held.close()  # saved; then the process ended
    state, ages = ages.state_dict(), aol.SampleAges(LABELS, num_classes=4)
    made = aol.Recorder(tmp_path / "killed", ages, classes=NAMES, resume=True) if early else None
    ages.load_state_dict(state)
    recorder = made or aol.Recorder(tmp_path / "killed", ages, classes=NAMES, resume=True)
    for epoch in (3, 4):
        epoch_of(ages, recorder, epoch)
    recorder.close()
    run, known = read_run(tmp_path / "killed"), read_run(tmp_path / "straight")
    assert run.epochs.tolist() == known.epochs.tolist() == [1, 2, 3, 4, 5]
    for name in ("age", "smoothed_age"):
        np.testing.assert_array_equal(run.over_time[name], known.over_time[name])
    assert np.isnan(run.curves["train_accuracy"]).tolist() == [False, False, True, False, False]
    assert run.curves["test_accuracy"][3:].tolist() == known.curves["test_accuracy"][3:].tolist()
    assert ages_over_time(samples_of(tmp_path / "killed")) == ages_over_time(samples_of(tmp_path / "straight"))


def test_ages_of_another_run_are_not_taken_for_those_of_the_next_epoch(tmp_path: Path) -> None:
    ages, other = (aol.SampleAges(LABELS, num_classes=4) for _ in range(2))
    with aol.Recorder(tmp_path, ages, classes=NAMES) as recorder:
        ages.observe(range(30), torch.ones(30, dtype=torch.bool))
        ages.advance()
        recorder.advance()
    for _ in range(2):
        other.observe(range(30), torch.zeros(30, dtype=torch.bool))
        other.advance()
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(DamagedRunError, match="record of other ages"):
        aol.Recorder(tmp_path, other, classes=NAMES, resume=True)
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_checkpoint_newer_than_the_records_is_refused_and_the_record_stays(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    recorder = aol.Recorder(tmp_path, ages, classes=NAMES)
    epoch_of(ages, recorder, 0)
    before = (tmp_path / "run.json").read_bytes()
    ages.observe(torch.arange(30), aol.is_correct(answers(1), LABELS))  # of this epoch it is not told
    ages.advance()
    with pytest.raises(ValueError, match="record up to epoch 1, and the ages are in epoch 3"):
        epoch_of(ages, recorder, 2)
    assert (tmp_path / "run.json").read_bytes() == before


SCRIPT = """
import sys, torch, aol
from tests.support.recorded_loop import LABELS, epoch_of
ages = aol.SampleAges(LABELS, num_classes=4)
recorder = aol.Recorder(sys.argv[1], ages, images=torch.rand(30, 3, 90, 90))
for epoch in range(100000):
    epoch_of(ages, recorder, epoch)
"""


def test_kill_9_leaves_records_that_can_be_read_and_a_folder_that_is_free(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    process = subprocess.Popen(words, env=environment)
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "run.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    process.kill()
    process.wait()
    run = read_run(tmp_path)
    assert len(run.epochs) > 0
    assert len(ages_over_time(samples_of(tmp_path))) - len(run.epochs) in (0, 1)
    ages = aol.SampleAges(LABELS, num_classes=4)
    recorder = aol.Recorder(tmp_path, ages, resume=True)
    epoch_of(ages, recorder, 0)
    recorder.close()
    assert not list(tmp_path.glob(".*.part"))
    assert read_run(tmp_path).epochs.tolist() == [1]


def test_a_full_disk_loses_nothing_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    recorder = aol.Recorder(tmp_path, ages)
    epoch_of(ages, recorder, 0)
    before = (tmp_path / "run.json").read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            epoch_of(ages, recorder, 1)
    assert (tmp_path / "run.json").read_bytes() == before
    assert not list(tmp_path.glob(".*.part"))
    epoch_of(ages, recorder, 2)  # there is room again: nothing was forgotten
    assert read_run(tmp_path).epochs.tolist() == [1, 2, 3]
