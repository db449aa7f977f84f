from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest
import torch

from aol.lab.data import open_data
from aol.lab.settings import Settings
from aol.lab.train import progress
from aol.lab.train.driver import train
from aol.lab.train.group_training import ExecutionOptions, describe, imbalance_note, make_loop
from aol.lab.train.progress import Progress, Stop, duration
from aol.records.store import Store

PAIRS = {"digits": open_data("digits")}
OPTIONS = ExecutionOptions(device=torch.device("cpu"))
SMALL = {"epochs": 2, "batch_size": 64, "net": "cnn", "samples": 300, "imbalance": None}


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.mark.parametrize(
    "more",
    [
        {"imbalance": 20.0, "samples": None},
        {"validation": 0.2},
        {"scenario": "arrival", "fraction": 0.5},
        {"scenario": "stream", "stream": "access", "fraction": 0.1, "imbalance": 5.0, "samples": None},
    ],
    ids=str,
)
def test_the_work_of_the_batches_of_an_epoch_is_about_what_is_expected(more: dict[str, object]) -> None:
    runs = [Settings(**{**SMALL, **more}, seed=seed) for seed in (0, 1)]  # type: ignore[arg-type]
    loop = make_loop(runs, PAIRS, OPTIONS)
    seen: list[int] = []
    loop.on_batch = lambda _: seen.append(loop.work)
    loop.run_epoch()
    assert 0.7 * loop.whole < seen[-1] < 1.3 * loop.whole
    assert len(seen) >= 3
    assert seen == sorted(set(seen))
    loop.run_epoch()
    assert seen[-1] == loop.work < 1.5 * loop.whole  # counted from zero in each epoch


def test_the_time_left_is_estimated_from_the_epochs_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    runs = [Settings(**{**SMALL, "epochs": epochs}, seed=epochs) for epochs in (10, 30)]  # type: ignore[arg-type]
    tally = Progress()
    tally.start(runs, runs, Stop())
    tally.begin(runs[:1], 2, "")  # two epochs are in a checkpoint
    assert (tally.done, tally.share, tally.seconds_left) == (0, 2 / 40, None)
    clock.now += 5.0
    tally.reach(runs[:1], 6, "")
    clock.now += 0.5
    tally.within(1.0)
    clock.now -= 0.5
    assert (tally.done, tally.share, tally.seconds_left) == (0, 7 / 40, 33.0)
    assert tally.text() == "0/2 runs complete, 18 % of all epochs, about 33 s left"
    tally.reach(runs, math.inf, "")  # a diverged run ends early
    assert (tally.done, tally.share, tally.seconds_left) == (2, 1.0, None)
    assert [duration(seconds) for seconds in (0.2, 61, 7260)] == ["1 s", "1 min", "2 h 1 min"]


def test_a_slow_epoch_is_reported_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SHOW_EVERY", 0.0)
    shown: list[tuple[float, float | None, str]] = []

    class Shown(Progress):
        def show(self, doing: str) -> None:
            shown.append((self.share, self.seconds_left, doing))

    train([Settings(**SMALL)], Store(tmp_path), lambda _: PAIRS, OPTIONS, Shown())  # type: ignore[arg-type]
    first = [(share, left) for share, left, doing in shown if "epoch 0/2, " in doing and "% of the next" in doing]
    assert len(first) > 5
    assert all(left is not None for _, left in first)
    shares = [share for share, _, _ in shown]
    assert shares == sorted(shares)
    assert first[0][0] < 0.25
    assert 0.4 < first[-1][0] <= 0.5
    assert shares[-1] == 1.0


@pytest.mark.parametrize("live", [False, True])
def test_lines_show_the_tally_and_what_is_going_on(
    live: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: live)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    lines = Progress("study")
    runs = [Settings(**SMALL, seed=seed) for seed in range(2)]  # type: ignore[arg-type]
    lines.start(runs, runs, Stop())
    loop = make_loop(runs, PAIRS, OPTIONS)
    lines.begin(runs, 0, describe(loop))
    loop.run_epoch()
    lines._printed = -math.inf
    lines.reach(runs, 1, describe(loop))
    lines.say("a sentence")
    lines.close()
    shown = re.split("[\r\n]+", capsys.readouterr().err.replace("\x1b[K", ""))
    assert "a sentence" in shown
    (last,) = (line for line in shown if line.startswith("study: 0/2 runs complete, 50 % of all epochs, about "))
    assert "Training 2 runs as one network (digits): epoch 1/2" in last
    accuracy = loop.history.epoch("test_accuracy")[-1]
    assert f"test {100 * float(accuracy.min()):.1f} to {100 * float(accuracy.max()):.1f} %" in last


@pytest.mark.parametrize(
    ("more", "became"),
    [
        ({"imbalance": 1000.0, "samples": None}, "142"),
        ({"imbalance": 100.0, "samples": None}, None),
        ({"imbalance": None}, None),
        ({"scenario": "stream", "imbalance": 1e6, "samples": None}, "139"),
        ({"scenario": "stream", "imbalance": 100.0, "samples": None}, None),
    ],
    ids=str,
)
def test_an_imbalance_that_is_not_possible_says_what_it_became(more: dict[str, object], became: str | None) -> None:
    loop = make_loop([Settings(**{**SMALL, **more})], PAIRS, OPTIONS)  # type: ignore[arg-type]
    text = imbalance_note(loop)
    assert (text is None) == (became is None)
    assert became is None or f"became {became}," in str(text)
