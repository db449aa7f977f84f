"""The example runs from end to end and prints its table; wrong words get one clear line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import skorch_digits


def test_the_example_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert skorch_digits.main(["--epochs", "2", "--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    for method in skorch_digits.METHODS:
        assert any(line.strip().startswith(method) for line in printed.splitlines())


def test_wrong_words_get_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        skorch_digits.main(["--imbalance", "0.5"])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--imbalance: must be a number of 1 or more, not '0.5'" in line
