from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from tests.support.plugin_checks import check_example

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import transformers_text


def test_the_example_prints_its_table_and_refuses_wrong_words(capsys: pytest.CaptureFixture[str]) -> None:
    check_example(transformers_text.main, ["--epochs", "1", "--imbalance", "100"], capsys)


def test_the_benchmark_of_margins_writes_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    benchmark = importlib.import_module("margins_text")
    out = tmp_path / "margins_text.json"
    assert benchmark.main(["--epochs", "1", "--imbalance", "100", "--seeds", "2", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["machine"]["packages"].keys() == {"transformers", "accelerate"}
    assert [case["method"] for case in record["cases"]] == list(benchmark.METHODS)
    assert all(len(case["accuracy"]) == 2 for case in record["cases"])
    assert "| docstrings | margins by age " in capsys.readouterr().out
