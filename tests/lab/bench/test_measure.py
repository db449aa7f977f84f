"""`aol bench`, on pictures so small that the table comes in seconds: every row is there, and is what its words say."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from aol.cli import main
from aol.lab.bench import measure

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits' size, which a small network learns; the straightforward loop's crops are for 32 pixels."""
    monkeypatch.setattr(measure, "random_pair", partial(measure.random_pair, size=8, channels=1))
    monkeypatch.setattr(measure, "seconds_per_epoch", lambda *_, epochs, **__: [2.0] * epochs)


@pytest.fixture
def timed(small: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, float]]:
    """Measure with epochs that take a second a run, and a tenth more where ages come from a clean pass."""

    def taken(_: object, number: int, *, signal: str = "train", **__: object) -> tuple[float, None]:
        return number * (1.1 if signal == "eval" else 1.0), None

    monkeypatch.setattr(measure.Bench, "time_epochs", taken)

    def rows(*runs: int) -> dict[str, float]:
        figures = measure.Figures(CPU, "random images")
        measure.measure(figures, runs=runs, scale=0.01, epochs=1, workers=0)
        return {row.what: row.value for row in figures.rows}

    return rows


def test_ratios_and_the_whole_grid_follow_from_the_epochs(timed: Callable[..., dict[str, float]]) -> None:
    rows = timed(1, 16)
    assert rows["engine, 16 runs together, ages from a clean pass"] == pytest.approx(16 * 1.1)
    assert rows["engine, 16 runs together, straightforward loop over engine"] == pytest.approx(2.0 / 1.1)
    assert rows["one run × 200 epochs, from that epoch"] == pytest.approx(220)
    assert rows["54 runs × 200 epochs (14 + 14 + 13 + 13), from an epoch"] == pytest.approx(54 * 1.1 * 200 / 60)
    assert rows["cost of ages over plain training, signal eval, 16 runs"] == pytest.approx(10)
    assert rows["cost of ages over plain training, signal train, 16 runs"] == pytest.approx(0)


def test_a_size_that_was_timed_is_not_timed_again(
    timed: Callable[..., dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    inside = measure.Bench.time_epochs
    monkeypatch.setattr(
        measure.Bench, "time_epochs", lambda self, number, **more: sizes.append(number) or inside(self, number, **more)
    )
    timed(54)
    assert sizes == [54] * 5  # as a whole, without ages, both signals, and a stream


def test_a_grid_that_fits_is_timed_as_one(timed: Callable[..., dict[str, float]]) -> None:
    assert "54 runs × 200 epochs (54), from an epoch" in timed(64)
    assert "54 runs × 200 epochs (1 at a time), from an epoch" in timed(1)


@pytest.mark.usefixtures("small")
def test_the_command_times_real_epochs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_TABLE_RUNS", 2)
    file = tmp_path / "new" / "bench.json"
    assert main(["bench", "--device", "cpu", "--workers", "0", "--out", str(file)]) == 0  # as a newcomer would
    said = capsys.readouterr()
    assert "| 2 runs × 200 epochs (2), from an epoch |" in said.out
    assert "torch " in said.out.splitlines()[0]
    assert "engine, 2 runs together" in said.err
    record = json.loads(file.read_text())
    assert record["versions"]["torch"] == torch.__version__
    assert record["data"] == "0.01 of CIFAR-10's size, imbalance 100"
    assert said.out.splitlines()[0].endswith(f"; {record['data']}")
    assert [row["what"] for row in record["rows"]] == [row.split(" | ")[0][2:] for row in said.out.splitlines()[4:]]
    costs = [row for row in record["rows"] if not row["what"].startswith("cost")]
    assert all(row["value"] > 0 and row["n"] == 1 for row in costs)
