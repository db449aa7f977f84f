"""The benchmarks run at small sizes, print their tables and write records that say what they belong to."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = {
    "sample_ages": ["--samples", "3000", "--compared", "500", "--epochs", "4", "--batch", "1024", "--repeats", "2"],
    "mapped_ages": ["--samples", "3000", "--batch", "1024", "--repeats", "1", "--file", "cold"],
    "reservoir": ["--steps", "100", "1000", "--capacities", "50", "--repeats", "2"],
    "cpu_epoch": ["--cases", "digits, 8 runs as one", "--repeats", "1"],
    "sample_names": ["--samples", "20000", "--repeats", "2"],
}
Measured = Callable[[str, Path], tuple[str, dict[str, Any]]]
KNOWN = {"cpu", "cores", "threads", "load_before", "system", "python", "torch", "numpy", "aol"}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Measured:
    """Run a benchmark in this process: what it prints, and its record."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def done(name: str, out: Path) -> tuple[str, dict[str, Any]]:
        assert importlib.import_module(name).main([*SMALL[name], "--out", str(out)]) == 0
        return capsys.readouterr().out, json.loads(out.read_text())

    return done


def test_ages_are_measured_for_both_stores_and_beside_the_history(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_ages = importlib.import_module("sample_ages")
    apart, kinds = sample_ages.apart, []

    def one_apart(kind: str, **given: object) -> dict[str, object]:
        """Give one case a process of its own, as all have outside tests."""
        kinds.append(kind)
        if len(kinds) == 1:
            return apart(kind, **given)
        return {"kind": kind, **given, **sample_ages.CASES[kind](**given)}

    monkeypatch.setattr(sample_ages, "apart", one_apart)
    printed, record = measured("sample_ages", tmp_path / "new" / "ages.json")
    assert kinds == ["library"] * 9 + ["history", "small_batches"]
    assert record["machine"].keys() == KNOWN
    assert [case["store"] for case in record["large"]] == ["full"] * 4 + ["compact"] * 4
    (pair,) = record["compared"]
    assert pair["history"]["state_bytes"] == 4 * 500 * 4
    assert pair["library"]["state_bytes"] < pair["history"]["state_bytes"]
    assert "all epochs" in printed


def test_ages_in_a_file_are_measured_beside_a_plain_program(measured: Measured, tmp_path: Path) -> None:
    printed, record = measured("mapped_ages", tmp_path / "mapped.json")
    assert record["machine"].keys() == KNOWN
    (case,) = record["cases"]
    assert case["library"].keys() == case["floor"].keys() == {"observe", "advance", "weights"}
    assert all(seconds > 0 for seconds in (*case["library"].values(), *case["floor"].values()))
    assert "of the floor's speed" in printed


def test_the_reservoir_is_measured_beside_the_loop(measured: Measured, tmp_path: Path) -> None:
    printed, record = measured("reservoir", tmp_path / "reservoir.json")
    assert record["machine"].keys() == KNOWN
    assert [(case["step"], case["capacity"]) for case in record["cases"]] == [(100, 50), (1000, 50)]
    assert all(case["library"]["median_s"] > 0 and case["loop"]["median_s"] > 0 for case in record["cases"])
    assert "one at a time" in printed


def test_names_are_measured_and_take_few_bytes(measured: Measured, tmp_path: Path) -> None:
    printed, record = measured("sample_names", tmp_path / "names.json")
    assert record["machine"].keys() == KNOWN
    assert record["samples"] == 20000
    assert 0 < record["bytes"] < record["plain_bytes"] / 5
    assert all(record[name]["median_s"] > 0 for name in ("open", "open_without", "one", "all"))
    assert "bytes each" in printed


def test_an_epoch_faults_fewer_pages_in_where_memory_is_kept(measured: Measured, tmp_path: Path) -> None:
    printed, record = measured("cpu_epoch", tmp_path / "epoch.json")
    assert record["machine"].keys() == KNOWN
    (case,) = record["cases"]
    (pair,) = case["pairs"]
    assert 0 <= pair["now"]["page_faults"] <= pair["before"]["page_faults"]
    assert "page faults" in printed


def test_the_pages_show_the_committed_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    page = importlib.import_module("page")
    for path, text in page.pages().items():
        assert path.read_text() == text, f"{path.name} is out of date: run benchmarks/page.py"


@pytest.mark.parametrize("name", SMALL)
def test_the_committed_record_belongs_to_the_benchmark(name: str) -> None:
    record = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())
    assert record["machine"].keys() == KNOWN


def test_few_seeds_are_simulated(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    few_seeds = importlib.import_module("few_seeds")
    monkeypatch.setattr(few_seeds, "TIMES", 200)
    few_seeds.main()
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| 1")]
    assert [row[:2] for row in rows[1:4]] == [["10", "on its own"], ["10", "on all"], ["10", "on the others"]]
    made_up = [float(row[2]) for row in rows[1:4]]
    assert made_up[0] > made_up[1] > abs(made_up[2])
    covered = {row[1]: [int(each.rstrip("%")) for each in row[2:]] for row in rows[4:]}
    assert min(covered["as the others"]) > 90
    assert covered["1.5 times"][1] < covered["as the others"][1]
