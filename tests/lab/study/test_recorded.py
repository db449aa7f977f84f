"""The recorded studies give the numbers that version 0.2 gave, to the last digit."""

from __future__ import annotations

from pathlib import Path

import pytest

from aol.lab.study.results import finished_runs, study_results
from aol.lab.study.spec import load
from aol.records.store import Store
from aol.records.table import RunFrame

RESULTS = Path(__file__).parents[3] / "results"


@pytest.fixture(scope="module")
def runs() -> RunFrame:
    return finished_runs(Store(RESULTS))


def test_a_fixed_setting_on_twenty_seeds(runs: RunFrame) -> None:
    table = study_results(load(RESULTS / "studies" / "fixed-rho-offline.toml"), Store(RESULTS), runs)
    (verdict,) = table.verdicts
    assert (verdict.word, verdict.size, verdict.p) == ("no gain shown", "smaller", 0.1326268467048245)
    assert verdict.gain is not None
    assert verdict.gain.mean == 0.003101000000000009
    assert verdict.gain.interval == (-0.001029742785585994, 0.007231742785586012)


def test_grids_chosen_by_the_other_seeds_and_rivals(runs: RunFrame) -> None:
    table = study_results(load("period-10"), Store(RESULTS), runs)
    (verdict,) = table.verdicts
    assert verdict.gain is not None
    assert (verdict.word, verdict.size) == ("no gain shown", "open")
    assert (verdict.gain.mean, verdict.p) == (-0.0014331111111111315, 0.7654321168316299)
    assert list(table.means) == ["aol", "frequency", "error", "error-ema"]
    assert table.means["aol"] == verdict.gain
    rival = next(own for own in table.rivals if own.over == "frequency")
    assert rival.gain is not None
    assert (rival.gain.mean, rival.p) == (-0.03676000000000001, 0.04413056139680684)
    aol, frequency = table.gains.iloc[1], table.gains.iloc[2]
    assert aol["gain"].interval == (-0.030192139169550512, 0.05606280583621718)
    assert (aol["p"], aol["k"], aol["best"], aol["best_of_k"]) == (
        0.3463275151574997, 11, 0.6792636666666666, 0.682872858974359
    )  # fmt: skip
    assert frequency["choices"] == ("p=0.5", "p=0.25", "p=0.25")
    on_test = table.best_on_test("aol")
    assert on_test is not None
    assert {name: round(100 * value, 2) for name, value in on_test.items()} == {"gain": 2.36, "baseline": 2.03}
