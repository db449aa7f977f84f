"""The example runs from end to end and prints its table; wrong words get one clear line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import avalanche_stream

SMALL = ["--steps", "3", "--seeds", "2", "--period", "2", "--capacity", "50"]


def test_the_example_prints_its_table_and_the_same_one_twice(capsys: pytest.CaptureFixture[str]) -> None:
    tables = []
    for _ in range(2):
        assert avalanche_stream.main(SMALL) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]
    for method in avalanche_stream.METHODS:
        assert any(line.strip().startswith(method) for line in tables[0].splitlines())


def test_wrong_words_get_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        avalanche_stream.main(["--capacity", "0"])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--capacity: must be a whole number of 1 or more, not '0'" in line
