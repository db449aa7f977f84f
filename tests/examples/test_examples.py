"""The examples run from end to end and print their table; wrong words get one clear line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {
    "digits.py": ["--epochs", "2", "--seeds", "2", "--imbalance", "20"],
    "stream.py": ["--steps", "3", "--seeds", "2", "--period", "2", "--capacity", "50"],
}


def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(EXAMPLES / script), *words], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("script", SMALL)
def test_an_example_prints_its_table(script: str) -> None:
    done = run(script, *SMALL[script])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for measure in ("last", "tail mean"):
        assert any(line.startswith(measure) and "difference to none" in line for line in lines)
    for method in ("none", "frequency^-0.5", "error rate", "AoL"):
        assert any(line.strip().startswith(method) for line in lines)


def test_an_example_gives_the_same_table_twice() -> None:
    first, second = (run("stream.py", *SMALL["stream.py"]).stdout for _ in range(2))
    assert first == second


@pytest.mark.parametrize("script", SMALL)
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--seeds", "1"], "--seeds: must be a whole number of 2 or more, not '1'"),
        (["--seeds", "many"], "--seeds: must be a whole number of 2 or more, not 'many'"),
        (["--imbalance", "0.5"], "--imbalance: must be a number of 1 or more, not '0.5'"),
        (["--imbalance", "nan"], "--imbalance: must be a number of 1 or more, not 'nan'"),
        (["--speed", "9"], "unrecognized arguments: --speed 9"),
    ],
)
def test_wrong_words_get_one_clear_line(script: str, words: list[str], reason: str) -> None:
    done = run(script, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert reason in line
