"""The examples run from end to end and print their table; wrong words get one clear line."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.running import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {
    "digits.py": ["--epochs", "2", "--seeds", "2", "--imbalance", "20"],
    "stream.py": ["--steps", "3", "--seeds", "2", "--period", "2", "--capacity", "50"],
}


class Done(NamedTuple):
    status: object
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run a script in this process, which saves the seconds of importing torch."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def done(script: str, *words: str) -> Done:
        monkeypatch.setattr(sys, "argv", [str(EXAMPLES / script), *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return Done(ended.value.code, *capsys.readouterr())

    return done


@pytest.mark.parametrize("script", SMALL)
def test_an_example_prints_its_table(script: str, run: Callable[..., Done]) -> None:
    done = run(script, *SMALL[script])
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    for measure in ("last", "tail mean"):
        assert any(line.startswith(measure) and "difference to none" in line for line in lines)
    for method in ("none", "frequency^-0.5", "error rate", "AoL"):
        assert any(line.strip().startswith(method) for line in lines)


def test_an_example_gives_the_same_table_again_and_in_a_process_of_its_own(run: Callable[..., Done]) -> None:
    command = [sys.executable, str(EXAMPLES / "stream.py"), *SMALL["stream.py"]]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    apart = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert apart.returncode == 0, apart.stderr
    assert run("stream.py", *SMALL["stream.py"]).out == apart.stdout
    assert run("stream.py", *SMALL["stream.py"]).out == apart.stdout


def test_the_example_of_scikit_learn_prints_its_table(run: Callable[..., Done]) -> None:
    done = run("sklearn_digits.py", "--rounds", "2", "--seeds", "2")
    assert done.status == 0, done.err
    for method in ("none", "offsets", "balanced", "AoL class", "AoL sample", "AoL class x balanced"):
        assert sum(line.strip().startswith(f"{method}  ") for line in done.out.splitlines()) == 2


@pytest.mark.parametrize("script", [*SMALL, "sklearn_digits.py"])
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
def test_wrong_words_get_one_clear_line(script: str, words: list[str], reason: str, run: Callable[..., Done]) -> None:
    done = run(script, *words)
    assert (done.status, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert reason in line
