"""The verdict's rule at its edges, and what it says of tables in which the truth is known."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from aol.lab.settings import Settings
from aol.lab.study.spec import Study
from aol.lab.study.stats import choose_leaving_one_out
from aol.lab.study.tables import p_text, points
from aol.lab.study.verdict import FAILS, HOLDS, OPEN, Claim, judge, word_for
from aol.records.record import Run
from aol.stats import Gain, paired_gain
from tests.support.made_up import luck, record, records, results, seed_effect, study


def _claim(gain: Gain | None, *, paper: float | None = None, cells: int = 1) -> Claim:
    return Claim("aol", None, cells if gain else 0, cells, (1, 2, 3), gain, paper)


def _gain(mean: float, error: float, seeds: int = 6) -> Gain:
    return Gain(mean, seeds, error * math.sqrt(seeds), error)


@pytest.mark.parametrize(
    ("gain", "p", "p_small", "word"),
    [
        (0.02, 0.0499, 1.0, HOLDS),
        (0.02, 0.05, 1.0, OPEN),
        (-0.02, 0.0499, 0.0001, FAILS),
        (-0.02, 0.05, 0.06, OPEN),
        (0.001, 0.5, 0.0499, FAILS),
        (0.001, 0.5, 0.05, OPEN),
        (0.001, 0.01, 0.01, HOLDS),  # small but real: it holds, and the sentence gives its size
        (0.0, 1.0, 1.0, OPEN),
    ],
)
def test_the_rule_at_its_edges(gain: float, p: float, p_small: float, word: str) -> None:
    assert word_for(gain, p, p_small) == word


@pytest.mark.parametrize(
    ("mean", "error", "paper", "word"),
    [
        (0.020, 0.005, None, HOLDS),
        (0.010, 0.005, None, OPEN),
        (0.000, 0.001, None, FAILS),  # shown to be below half a point
        (0.000, 0.004, None, OPEN),
        (0.000, 0.004, 0.030, FAILS),  # below half of what the paper has
        (0.010, 0.001, 0.030, HOLDS),
        (-0.010, 0.002, 0.030, FAILS),
    ],
)
def test_a_gain_is_judged_by_zero_and_by_what_matters(
    mean: float, error: float, paper: float | None, word: str
) -> None:
    (verdict,) = judge([_claim(_gain(mean, error), paper=paper)])
    assert verdict.word == word


@pytest.mark.parametrize(
    ("mean", "error", "word"),
    [
        (0.000, 0.001, HOLDS),
        (-0.001, 0.0005, HOLDS),
        (-0.001, 0.002, OPEN),
        (-0.005, 0.0005, FAILS),
        (0.010, 0.002, HOLDS),
    ],
)
def test_where_there_is_nothing_to_gain_the_loss_is_judged(mean: float, error: float, word: str) -> None:
    (verdict,) = judge([replace(_claim(_gain(mean, error)), largest_loss=0.003)])
    assert verdict.word == word


def test_a_study_names_the_largest_loss_it_accepts() -> None:
    plan = replace(study(seeds=(1, 2, 3, 4), rhos=(0.5,)), paper=None, tries_seeds=0)
    known = dict(records(plan.all_runs(), lambda run: (0.5 + 0.0001 * luck(run), 0.5)))
    assert [each.word for each in results(plan, known).verdicts] == [FAILS]  # no gain that matters
    careful = replace(plan, largest_loss=0.3)
    assert [each.word for each in results(careful, known).verdicts] == [HOLDS]
    assert {each.word for _, each in results(careful, known).groups} <= {HOLDS}
    with pytest.raises(ValueError, match="largest_loss"):
        replace(plan, largest_loss=-1.0)


def test_what_matters_is_half_a_point_or_half_of_the_papers_gain() -> None:
    assert _claim(None).margin == 0.005
    assert _claim(None, paper=0.03).margin == 0.015
    assert _claim(None, paper=0.002).margin == 0.005
    assert _claim(None, paper=-0.02).margin == 0.005


def test_a_claim_that_holds_alone_may_not_hold_among_many() -> None:
    edge = _gain(0.010, 0.0034)  # p of about 0.03
    assert [each.word for each in judge([_claim(edge)])] == [HOLDS]
    assert {each.word for each in judge([_claim(edge)] * 3)} == {OPEN}


def test_what_is_not_judged_does_not_weigh_on_the_rest() -> None:
    edge = _gain(0.010, 0.0034)
    assert [each.word for each in judge([_claim(edge), _claim(None), _claim(None)])] == [HOLDS, OPEN, OPEN]


def _flat(plan: Study) -> dict[Settings, Run]:
    return dict(records(plan.all_runs(), lambda run: (0.5 + 0.01 * luck(run), 0.5)))


def test_two_seeds_are_not_enough_however_large_the_gain() -> None:
    plan = study(seeds=(1, 2))
    known = dict(records(plan.all_runs(), lambda run: (0.9 if run.weighting == "aol" else 0.1, luck(run))))
    (verdict,) = results(plan, known).verdicts
    assert (verdict.word, verdict.gain, verdict.cells) == (OPEN, None, 0)


def test_three_seeds_are_enough_for_a_large_gain() -> None:
    plan = study(seeds=(1, 2, 3))
    high = records(plan.all_runs(), lambda run: ((0.9 if run.weighting == "aol" else 0.1) + 0.001 * luck(run), 0.5))
    (verdict,) = results(plan, dict(high)).verdicts
    assert verdict.word == HOLDS


def _one(plan: Study, known: dict[Settings, Run], method: str) -> Claim:
    (verdict,) = results(replace(plan, claims=(method,)), known).verdicts
    return verdict


def test_the_gain_over_cells_is_their_mean_seed_by_seed() -> None:
    plan = study(imbalances=(100, 50))
    table = results(plan, _flat(plan))
    verdict = _one(plan, _flat(plan), "frequency")
    own = table.values[(table.values["method"] == "frequency") & table.values["chosen"]]
    by_cell = [cell["gain"].tolist() for _, cell in own.groupby("cell")]
    assert verdict.gain is not None
    assert verdict.gain.mean == pytest.approx(statistics.fmean(map(statistics.fmean, by_cell)))
    spread = statistics.stdev(statistics.fmean(pair) for pair in zip(*by_cell, strict=True))
    assert verdict.gain.spread == pytest.approx(spread)


def test_cells_without_enough_seeds_are_left_out_and_counted() -> None:
    plan = study(imbalances=(100, 50))
    known = {run: own for run, own in _flat(plan).items() if not (run.imbalance == 50 and run.seed == 2)}
    verdict = _one(plan, known, "frequency")
    assert (verdict.cells, verdict.cells_planned, verdict.seeds) == (1, 2, (1, 2, 3))


def test_cells_that_share_too_few_seeds_are_not_judged() -> None:
    plan = study(imbalances=(100, 50), seeds=(1, 2, 3, 4))
    known = {
        run: own
        for run, own in _flat(plan).items()
        if (run.imbalance, run.seed) not in {(100.0, 1), (50.0, 4)} or run.weighting == "none"
    }
    verdict = _one(plan, known, "frequency")
    assert (verdict.gain, verdict.word, verdict.cells) == (None, OPEN, 2)


def test_a_rival_is_compared_seed_by_seed() -> None:
    plan = study()
    table = results(plan, _flat(plan))
    (rival,) = table.rivals
    values = table.by_seed("value")
    assert (rival.method, rival.over) == ("aol", "frequency")
    assert rival.gain is not None
    assert rival.gain.mean == pytest.approx((values[0, "aol"] - values[0, "frequency"]).mean())
    assert rival.gain.chosen == 1  # the rival has one setting


def test_numbers_are_told_in_points_with_their_sign() -> None:
    assert [points(value) for value in (0.0310, -0.0042, 0.0, -1e-7)] == ["+3.10", "−0.42", "0.00", "0.00"]
    assert [p_text(value) for value in (1.0, 0.5, 0.04999, 0.0001)] == ["1", "0.5", "0.05", "<0.001"]


def _world(run: Settings, salt: int, gain: float, shared: float) -> tuple[float, float]:
    """Accuracies in a world where age gains `gain`, seeds differ, and luck on validation is partly luck on test."""
    chance = 0.008 * luck(run, salt=salt)
    level = 0.7 + 0.015 * seed_effect(run, salt=salt) + (gain if run.weighting == "aol" else 0.0)
    own = 0.008 * luck(run, salt=salt + 1)
    return level + chance, level + shared * chance + math.sqrt(1 - shared**2) * own


def _verdicts(plan: Study, gain: float, times: int) -> Counter[str]:
    """Verdicts on the whole table and on each cell, over many made-up tables, as the whole pipeline gives them."""
    found: Counter[str] = Counter()
    runs = plan.all_runs()
    for salt in range(0, 2 * times, 2):
        known = {run: record(run, *_world(run, salt, gain, 0.9)) for run in runs}
        table = results(plan, known)
        found[table.verdicts[0].word] += 1
        age = table.gains[table.gains["method"] == "aol"]
        found["a cell"] += any(p < 0.05 and gain.mean > 0 for p, gain in zip(age["p"], age["gain"], strict=True))
    return found


SMALL = study(seeds=(1, 2, 3, 4), rhos=(0.1, 0.3, 0.5, 0.7, 0.9), imbalances=(100, 50))


def test_without_an_effect_tables_hold_at_most_at_the_nominal_rate() -> None:
    found = _verdicts(replace(SMALL, paper=None, tries_seeds=0), 0.0, 60)
    # One-sided 2.5 % is 1.5 tables; more than 5 come by chance once in 200 times.
    assert found[HOLDS] <= 5
    assert found["a cell"] <= 5


def test_an_effect_that_is_there_is_found() -> None:
    found = _verdicts(replace(SMALL, paper=None, tries_seeds=0), 0.03, 30)
    assert found[HOLDS] >= 27
    assert found[FAILS] == 0


def test_no_effect_with_many_seeds_is_told_from_too_few_runs() -> None:
    plan = replace(study(seeds=tuple(range(1, 61)), rhos=(0.5,)), paper=None, tries_seeds=0)
    found = _verdicts(plan, 0.0, 12)
    assert found[FAILS] >= 9


def test_the_rate_of_false_finds_is_nominal_over_many_tables() -> None:
    """The same as above, many more times, with the arithmetic alone: the mean of cells, chosen and judged."""
    rng = np.random.default_rng(0)
    times, seeds, settings, cells = 3000, 3, 10, 2
    held = 0
    for _ in range(times):
        by_cell = []
        for _ in range(cells):
            test = rng.standard_normal((seeds, settings))
            own = choose_leaving_one_out(test)
            by_cell.append(test[np.arange(seeds), own] - rng.standard_normal(seeds))
        mean = np.mean(by_cell, axis=0)
        made = Gain(float(mean.mean()), seeds, None, float(mean.std(ddof=1)) * math.sqrt((1 + math.sqrt(3) / 3) / 3))
        held += judge([_claim(made)])[0].word == HOLDS
    assert held / times <= 0.025 + 0.009
    assert paired_gain(mean.tolist(), chosen=1).error == pytest.approx(made.error)  # the same formula
