from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from aol.lab.data import open_data
from aol.lab.engine.history import EPOCH
from aol.lab.settings import Settings
from aol.lab.train import progress
from aol.lab.train.driver import train
from aol.lab.train.group_training import make_loop
from aol.lab.train.groups import ExecutionOptions
from aol.lab.train.progress import Live, Silent, Status, Tally, costs, describe, imbalance_note
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
        {},
        {"imbalance": 20.0, "samples": None},
        {"validation": 0.2},
        {"scenario": "arrival", "fraction": 0.5},
        {"scenario": "stream", "stream": "access", "fraction": 0.1, "imbalance": 5.0, "samples": None},
    ],
    ids=str,
)
def test_the_work_of_the_batches_of_an_epoch_is_that_of_the_estimate(more: dict[str, object]) -> None:
    runs = [Settings(**{**SMALL, **more}, seed=seed) for seed in (0, 1)]  # type: ignore[arg-type]
    loop = make_loop(runs, PAIRS, OPTIONS)
    seen: list[int] = []
    loop.on_batch = lambda: seen.append(loop.work)
    loop.run_epoch()
    expected = costs(runs[:1], PAIRS)[runs[0].run_id] / 2
    if runs[0].scenario == "offline":
        assert seen[-1] == expected
    else:
        assert 0.3 * expected < seen[-1] < 1.3 * expected  # a memory grows with the steps
    assert len(seen) >= 3
    assert seen == sorted(set(seen))
    loop.run_epoch()
    assert seen[-1] == pytest.approx(loop.work)  # counted from zero in each epoch


def test_waiting_for_images_is_said_where_it_is_long() -> None:
    loop = make_loop([Settings(**SMALL)], PAIRS, OPTIONS)  # type: ignore[arg-type]
    loop.run_epoch()
    assert "waiting" not in describe(loop)  # images in memory
    row = loop.history._by_epoch[-1]
    for waited, said in ((0.5, False), (2.5, True)):
        row[EPOCH.index("train_seconds")], row[EPOCH.index("data_seconds")] = 10.0, waited
        assert ("(25 % of the training time waiting for images)" in describe(loop)) is said


def test_the_time_left_is_known_within_the_first_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    runs = [Settings(**SMALL, seed=seed) for seed in range(4)]  # type: ignore[arg-type]
    tally = Tally(runs, runs, PAIRS)
    work = costs(runs, PAIRS)[runs[0].run_id] / 2
    tally.begin(runs[:2], 0)
    assert tally.status() == Status(0, 4, 0.0, None)
    clock.now += 10.0
    assert tally.batch(runs[:2], 0, work / 4) == pytest.approx(0.25)
    status = tally.status()
    assert status.share == pytest.approx(2 * 0.25 / 8)
    assert status.seconds_left == pytest.approx(10.0 * 15)
    clock.now += 30.0
    tally.epoch(runs[:2], 1)
    assert tally.status().share == pytest.approx(2 / 8)
    assert tally.status().seconds_left == pytest.approx(40.0 * 3)


def test_a_slow_epoch_is_reported_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aol.lab.train.driver._SHOW_EVERY", 0.0)
    shown: list[tuple[Status, str]] = []

    class Shown(Silent):
        def update(self, status: Status, doing: str, loop: object = None) -> None:
            shown.append((status, doing))

    train([Settings(**SMALL)], Store(tmp_path), lambda _: PAIRS, OPTIONS, Shown())  # type: ignore[arg-type]
    first = [status for status, doing in shown if "epoch 1/2, " in doing and "% of it" in doing]
    assert len(first) > 5
    assert all(status.seconds_left is not None for status in first)
    shares = [status.share for status, _ in shown]
    assert shares == sorted(shares)
    assert first[0].share < 0.25
    assert first[-1].share == pytest.approx(0.5)
    assert shares[-1] == 1.0


def _live(total: int, seeds: int, groups: int = 1) -> str:
    screen = io.StringIO()
    live = Live(Console(file=screen, force_terminal=True, width=120))
    for group in range(groups):
        part = range(group * seeds, (group + 1) * seeds)
        both = [("none", 0.0), ("aol", 0.5)]
        runs = [Settings(**SMALL, weighting=name, rho=rho, seed=seed) for seed in part for name, rho in both]  # type: ignore[arg-type]
        loop = make_loop(runs, PAIRS, OPTIONS)
        loop.run_epoch()
        if group == 0:
            loop.run_epoch()
        live.update(Status(0, total, 0.25, 120.0), "busy", loop)
    live.close()
    return screen.getvalue().rpartition("runs")[2]


def test_the_live_table_has_a_row_for_each_of_a_few_runs_and_labelled_times() -> None:
    last = _live(4, 2)
    assert "elapsed, about 2 min left" in last
    assert "± sd" not in last
    rows = [line.split() for line in last.splitlines() if line.startswith(("none", "aol"))]
    assert [row[0] for row in rows] == ["none", "aol", "none", "aol"]


def test_the_live_table_has_a_row_for_each_method_of_many_runs() -> None:
    last = _live(12, 3)
    assert "test % ± sd" in last
    rows = [line for line in last.splitlines() if line.startswith(("none", "aol"))]
    assert len(rows) == 2
    assert all(row.count("±") == 2 for row in rows)
    rows = [line for line in _live(12, 3, groups=2).splitlines() if line.startswith(("none", "aol"))]
    assert all("3 of 6  2 " in row for row in rows)  # seeds of the next group, at epoch 1, are not in the mean


@pytest.mark.parametrize(
    ("more", "became"),
    [
        ({"imbalance": 1000.0, "samples": None}, "142"),
        ({"imbalance": 1000.0, "profile": "step"}, "30"),
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
