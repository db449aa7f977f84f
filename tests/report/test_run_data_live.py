"""A folder that is read again and again while it is written: never a mistake, never an epoch less than before."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from aol.records.store import NoRunsError
from aol.report.run_data import load
from tests.support.running import PATIENCE, forked, status_of
from tests.support.tiny_runs import small_networks

EPOCHS = 8


def test_runs_under_way_are_whole_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_networks(monkeypatch)
    words = ["train", "--epochs", str(EPOCHS), "--weighting", "none,aol", "--keep-samples", "--fraction", "0.5"]
    child = forked([*words, "--checkpoint-seconds", "0", "--out", str(tmp_path / "run"), "--json"])
    looked, lengths = 0, {}
    deadline = time.monotonic() + PATIENCE
    # Not reaped here: the child is waited for below.
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        try:
            runs = load(tmp_path / "run")
        except NoRunsError:
            assert not lengths  # before anything was asked for
            continue
        for data in runs:
            looked += 1
            assert data.samples is not None
            length = len(data.run.epochs)
            assert data.run.epochs.tolist() == list(range(1, length + 1))
            assert len(data.run.over_time["age"]) == len(data.samples.answers.ages(np.array([0]))) == length
            assert length >= lengths.get(data.name, 0)
            lengths[data.name] = length
            assert data.run.command is not None
            last = data.samples.answers.ages(np.arange(len(data.samples)))[-1]
            assert (last == data.samples.age).all()
    assert status_of(child) == 0
    assert looked > 5
    assert {data.name: len(data.run.epochs) for data in load(tmp_path / "run")} == dict.fromkeys(lengths, EPOCHS)
    assert all(data.run.finished for data in load(tmp_path / "run"))
