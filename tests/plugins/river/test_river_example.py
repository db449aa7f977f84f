"""The example runs from end to end and prints its table; wrong words get one clear line."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import river_stream


def test_the_example_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert river_stream.main(["--samples", "200", "--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    for method in river_stream.METHODS:
        assert any(line.strip().startswith(method) for line in printed.splitlines())


def test_wrong_words_get_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        river_stream.main(["--imbalance", "0.5"])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--imbalance: must be a number of 1 or more, not '0.5'" in line


def test_the_benchmark_writes_a_record_that_says_what_it_belongs_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    river_streams = importlib.import_module("river_streams")
    out = tmp_path / "new" / "river.json"
    assert river_streams.main(["--samples", "120", "--seeds", "2", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["machine"]["packages"].keys() == {"river"}
    assert len(record["cases"]) == 3 * 3 * 7
    assert all(len(case["kappa"]) == len(case["seconds"]) == 2 for case in record["cases"])
    assert "| segments | HardSampling " in capsys.readouterr().out


def test_a_shifting_tail_is_long_and_shifts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    river_streams = importlib.import_module("river_streams")
    source = (({"number": float(i)}, i % 4) for i in itertools.count())
    shown = list(itertools.islice(river_streams.shifting_tail(source, [0, 1, 2, 3], 20, 3000, seed=1), 9000))
    heads = []
    for start in (0, 3000, 6000):
        counts = Counter(y for _, y in shown[start : start + 3000])
        often, *_, rare = [number for _, number in counts.most_common()]
        assert 12 < often / rare < 34
        heads.append(counts.most_common(1)[0][0])
    assert len(set(heads)) > 1
    assert [x["number"] for x, _ in shown] == sorted(x["number"] for x, _ in shown)  # none twice, none out of turn
