"""Comparisons of methods: cases in the order of seeds, records that read back, and differences paired by seed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("measuring")


def one_seed(stream: str, seed: int) -> list[dict[str, object]]:
    return [
        {"stream": stream, "method": method, "score": seed + bonus} for method, bonus in (("bare", 0.0), ("age", 0.5))
    ]


CASES = [
    {"stream": "a", "method": "bare", "model": "tree", "score": [0.5, 0.6, 0.7]},
    {"stream": "a", "method": "age", "model": "tree", "score": [0.51, 0.61, 0.71]},
    {"stream": "a", "method": "other", "model": "tree", "score": [0.4, 0.7, 0.7]},
]


def test_runs_become_cases_with_one_figure_a_seed(measuring) -> None:
    jobs = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert measuring.compare(one_seed, jobs, ("stream", "method"), 1) == [
        {"stream": stream, "method": method, "score": [bonus, 1 + bonus]}
        for stream in ("a", "b")
        for method, bonus in (("bare", 0.0), ("age", 0.5))
    ]


def test_a_record_reads_back_and_has_one_line_a_case(measuring, tmp_path: Path) -> None:
    record = {"machine": {"cpu": "ρ"}, "seeds": 3, "cases": CASES}
    measuring.write_cases(record, tmp_path / "new" / "record.json")
    text = (tmp_path / "new" / "record.json").read_text()
    assert json.loads(text) == record
    assert sum('"method"' in line for line in text.splitlines()) == len(CASES)


def test_differences_are_paired_by_seed_and_starred_where_they_are_clear(measuring) -> None:
    record = {"cases": CASES}
    text = measuring.tables(
        record, rows=("stream", "method"), column="model", measures={"score": "Score"}, baseline="bare"
    )
    rows = {
        line.split("|")[2].strip(): line.split("|")[3].strip() for line in text.splitlines() if line.startswith("| a")
    }
    assert rows == {"bare": "60.0", "age": "61.0 (+1.0*)", "other": "60.0 (+0.0)"}
    across = measuring.tables(
        record, rows=("stream", "model"), column="method", measures={"score": "Score"}, baseline="bare"
    )
    row = [value.strip() for value in across.splitlines()[-1].strip("|").split("|")]
    assert row == ["a", "tree", "60.0", "61.0 (+1.0*)", "60.0 (+0.0)"]


RECORDS = [("river_streams", {"river"}), ("tabular", {"lightgbm", "xgboost"})]


@pytest.mark.parametrize(("name", "packages"), RECORDS)
def test_the_committed_records_are_whole(name: str, packages: set[str]) -> None:
    record = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())
    for part in (record, record.get("earlier", record)):  # what another version measured
        assert packages <= part["machine"]["packages"].keys()
        assert part["seeds"] >= 5
        figures = [value for case in part["cases"] for value in case.values() if isinstance(value, list)]
        assert {len(each) for each in figures} == {part["seeds"]}


def test_the_tables_of_boosted_trees_are_those_of_their_record(measuring) -> None:
    page = (BENCHMARKS.parent / "docs" / "how-to" / "boosted-trees.md").read_text()
    record = json.loads((BENCHMARKS / "results" / "tabular.json").read_text())
    options = {"rows": ("table", "model"), "column": "method", "baseline": "none"}
    assert measuring.tables(record, measures={"balanced_accuracy": "Balanced accuracy, %"}, **options) in page
    assert measuring.belongs_to(record) in page
