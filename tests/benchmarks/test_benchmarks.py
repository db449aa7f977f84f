"""The benchmarks run at small sizes, print their tables and write records that say what they belong to."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KNOWN = {"cpu", "cores", "threads", "load_before", "system", "python", "torch", "numpy", "aol"}


def test_ages_are_measured_beside_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    out = tmp_path / "new" / "ages.json"
    sizes = ["--samples", "3000", "--compared", "500", "--epochs", "4", "--batch", "1024", "--repeats", "2"]
    assert importlib.import_module("sample_ages").main([*sizes, "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["machine"].keys() == KNOWN
    (pair,) = record["compared"]
    assert pair["history"]["state_bytes"] == 4 * 500 * 4
    assert pair["library"]["state_bytes"] < pair["history"]["state_bytes"]
    assert "all epochs" in capsys.readouterr().out


def test_the_tables_of_ages_are_those_of_their_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    record = json.loads((BENCHMARKS / "results" / "sample_ages.json").read_text())
    assert importlib.import_module("sample_ages").text(record) in (BENCHMARKS / "README.md").read_text()


def test_few_seeds_are_simulated(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    few_seeds = importlib.import_module("few_seeds")
    monkeypatch.setattr(few_seeds, "TIMES", 200)
    few_seeds.main()
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| 1")]
    assert [row[:2] for row in rows[1:4]] == [["10", "on its own"], ["10", "on all"], ["10", "on the others"]]
    made_up = [float(row[2]) for row in rows[1:4]]
    assert made_up[0] > made_up[1] > abs(made_up[2])
    covered = {row[1]: [int(part.rstrip("%")) for part in row[2:]] for row in rows[4:]}
    assert min(covered["as the others"]) > 90
    assert covered["1.5 times"][1] < covered["as the others"][1]


def test_networks_as_one_are_timed_beside_the_plain_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stacked = importlib.import_module("benchmarks.stacked")
    out = tmp_path / "stacked.json"
    assert stacked.main(["--runs", "1", "--scale", "0.002", "--workers", "0", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["ratio"] == pytest.approx(row["plain_seconds"] / row["seconds"])
    assert "times as fast" in capsys.readouterr().out


def test_losses_are_timed_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    losses = importlib.import_module("losses")
    monkeypatch.setattr(losses, "PERIODS", 2)
    monkeypatch.setattr(losses, "MOVES_EVERY", 640)
    monkeypatch.setattr(losses, "mixtures", losses.digits)
    for methods in (losses.OFFLINE, losses.STREAM):
        monkeypatch.setattr(
            losses, "OFFLINE" if methods is losses.OFFLINE else "STREAM", dict(list(methods.items())[:2])
        )
    out = tmp_path / "losses.json"
    assert losses.main(["--seeds", "1", "--repeats", "2", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    digits = record["offline"]["digits, 30 epochs"]
    assert digits["`LogitAdjustedLoss`, known counts"][0] > digits["cross-entropy"][0] + 3
    assert record["cost"]["10"]["cross-entropy"] > 0
