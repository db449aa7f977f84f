"""The example runs from end to end and prints its table; wrong words get one clear line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import lightning_digits


def test_the_example_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert lightning_digits.main(["--epochs", "2", "--seeds", "2"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    for measure in ("last epoch", "tail mean"):
        assert any(line.startswith(measure) and "difference to none" in line for line in lines)
    for method in ("none", "frequency^-0.5", "AoL class", "AoL sample", "AoL class, resampled"):
        assert sum(line.strip().startswith(f"{method}  ") for line in lines) == 2
    assert [line.split(",")[0] for line in printed.err.splitlines()] == ["seed 1 of 2", "seed 2 of 2"]


def test_wrong_words_get_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        lightning_digits.main(["--seeds", "1"])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--seeds: must be a whole number of 2 or more, not '1'" in line
