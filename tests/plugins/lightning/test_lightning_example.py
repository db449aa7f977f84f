from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.plugin_checks import check_example

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import lightning_digits


def test_the_example_prints_its_table_and_refuses_wrong_words(capsys: pytest.CaptureFixture[str]) -> None:
    check_example(lightning_digits.main, ["--epochs", "2"], capsys)
