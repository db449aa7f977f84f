"""A folder that is read again and again while it is written: never a mistake, never an epoch less than before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from aol.report.finding import NoRecordsError
from aol.report.story import load


def test_stories_of_a_run_under_way_are_whole_at_any_moment(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "aol", "train", "--epochs", "60", "--weighting", "none,aol", "--keep-samples"]
    words += ["--checkpoint-seconds", "0", "--fraction", "0.5", "--out", str(tmp_path / "run"), "--json"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    looked, lengths = 0, {}
    deadline = time.monotonic() + 120
    try:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                stories = load(tmp_path / "run")
            except NoRecordsError:
                assert not lengths  # before anything was asked for
                continue
            for story in stories:
                looked += 1
                assert story.samples is not None
                length = len(story.epochs)
                assert story.epochs.tolist() == list(range(1, length + 1))
                assert len(story.by_class["age"]) == len(story.samples.history([0])) == length
                assert length >= lengths.get(story.name, 0)
                lengths[story.name] = length
                assert story.command is not None
                last = story.samples.history(np.arange(len(story.samples)))[-1]
                assert (last == story.samples.age).all()
    finally:
        process.kill()
        process.wait()
    assert looked > 5
    assert {story.name: len(story.epochs) for story in load(tmp_path / "run")} == dict.fromkeys(lengths, 60)
    assert all(story.finished for story in load(tmp_path / "run"))
