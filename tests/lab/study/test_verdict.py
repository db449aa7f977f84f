"""The two statements at their edges, and what they say of tables in which the truth is known."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from aol.lab.settings import Settings
from aol.lab.study.spec import Study
from aol.lab.study.stats import AS_LARGE, FEW, GAIN, LESS, LOSS, MORE, NOT_SHOWN, OPEN, SMALLER, Claim, judge
from aol.lab.study.tables import p_text, points
from aol.records.record import Run
from aol.stats import Gain
from tests.support.made_up import luck, record, records, results, seed_effect, study


def _claim(gain: Gain | None, *, paper: float | None = None, loss: float | None = None) -> Claim:
    return Claim("aol", None, (0,) if gain else (), 1, (1, 2, 3), gain, paper, loss)


def _gain(mean: float, error: float, seeds: int = 6) -> Gain:
    return Gain(mean, seeds, error * math.sqrt(seeds))


@pytest.mark.parametrize(
    ("mean", "error", "paper", "loss", "words"),
    [
        (0.020, 0.005, None, None, (GAIN, "")),
        (0.010, 0.005, None, None, (NOT_SHOWN, "")),
        (-0.020, 0.005, -0.030, None, (LOSS, "")),  # half of a loss is nothing to reach
        (0.000, 0.004, 0.030, None, (NOT_SHOWN, SMALLER)),
        (0.012, 0.004, 0.030, None, (GAIN, OPEN)),
        (0.010, 0.001, 0.030, None, (GAIN, SMALLER)),
        (0.025, 0.003, 0.030, None, (GAIN, AS_LARGE)),
        (-0.010, 0.002, 0.030, None, (LOSS, SMALLER)),
        (-0.001, 0.0005, None, 0.003, (NOT_SHOWN, LESS)),
        (-0.001, 0.002, None, 0.003, (NOT_SHOWN, OPEN)),
        (-0.005, 0.0005, None, 0.003, (LOSS, MORE)),
    ],
)
def test_a_gain_is_compared_with_zero_and_with_half_of_the_papers_or_the_largest_loss(
    mean: float, error: float, paper: float | None, loss: float | None, words: tuple[str, str]
) -> None:
    (verdict,) = judge([_claim(_gain(mean, error), paper=paper, loss=loss)])
    assert (verdict.word, verdict.size) == words


TRUE_OF = {0.0: ({NOT_SHOWN}, {SMALLER, OPEN}), 1.0: ({GAIN, NOT_SHOWN}, {AS_LARGE, OPEN})}
TRUE_OF |= dict.fromkeys((0.25,), ({GAIN, NOT_SHOWN}, {SMALLER, OPEN}))
TRUE_OF |= dict.fromkeys((0.5, 0.75), TRUE_OF[1.0])


@pytest.mark.parametrize("share", sorted(TRUE_OF))
def test_statements_are_wrong_in_five_percent_at_most_and_settle_as_seeds_grow(share: float) -> None:
    """The true gain is a share of the paper's; the same tables are judged again as seeds are added to them."""
    tables, paper, noise = 600, 0.03, 0.02
    most = 0.05 + 3 * math.sqrt(0.05 * 0.95 / tables)
    draws = share * paper + noise * np.random.default_rng(5).standard_normal((tables, 200))
    said: dict[int, list[Claim]] = {}
    for seeds in (3, 5, 10, 20, 50, 200):
        means, spreads = draws[:, :seeds].mean(1), draws[:, :seeds].std(1, ddof=1)
        gains = [Gain(m, seeds, s) for m, s in zip(means.tolist(), spreads.tolist(), strict=True)]
        said[seeds] = [judge([_claim(gain, paper=paper)])[0] for gain in gains]
        for name, true in zip(("word", "size"), TRUE_OF[share], strict=True):
            wrong = [getattr(claim, name) not in true for claim in said[seeds]]
            assert np.mean(wrong) <= most, (seeds, name)
    for name, true, sure in (("word", TRUE_OF[share][0], {GAIN}), ("size", TRUE_OF[share][1], {AS_LARGE, SMALLER})):
        paths = [[getattr(claim, name) for claim in path] for path in zip(*said.values(), strict=True)]
        flips = [len({word for word in path if word not in true}) > 1 for path in paths]
        assert np.mean(flips) <= 0.01, name  # from one wrong statement to another
        at_an_edge = share == (0.0 if name == "word" else 0.5)
        settled = np.mean([path[-1] in true & sure for path in paths])
        assert settled >= 0.9 or at_an_edge, name


def test_a_statement_that_is_made_alone_may_not_be_made_among_many() -> None:
    edge = _claim(_gain(0.010, 0.0034))  # p of about 0.03
    assert [own.word for own in judge([edge])] == [GAIN]
    assert {own.word for own in judge([edge] * 3)} == {NOT_SHOWN}
    assert [own.word for own in judge([edge, _claim(None), _claim(None)])] == [GAIN, FEW, FEW]


def test_a_study_names_the_largest_loss_it_accepts() -> None:
    plan = replace(study(seeds=(1, 2, 3, 4), rhos=(0.5,)), paper=None, tries_seeds=0, largest_loss=0.3)
    known = dict(records(plan.all_runs(), lambda run: (0.5 + 0.0001 * luck(run), 0.5)))
    assert [own.size for own in results(plan, known).verdicts] == [LESS]
    with pytest.raises(ValueError, match="largest_loss"):
        replace(plan, largest_loss=-1.0)


def _flat(plan: Study) -> dict[Settings, Run]:
    return dict(records(plan.all_runs(), lambda run: (0.5 + 0.01 * luck(run), 0.5)))


@pytest.mark.parametrize(("seeds", "word"), [((1, 2), FEW), ((1, 2, 3), GAIN)])
def test_three_seeds_are_enough_for_a_large_gain_and_two_for_none(seeds: tuple[int, ...], word: str) -> None:
    plan = study(seeds=seeds)
    high = records(plan.all_runs(), lambda run: ((0.9 if run.weighting == "aol" else 0.1) + 0.001 * luck(run), 0.5))
    (verdict,) = results(plan, dict(high)).verdicts
    assert verdict.word == word
    assert (verdict.gain is None) == (word == FEW)


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
    assert (verdict.cells, verdict.cells_planned, verdict.seeds) == ((0,), 2, (1, 2, 3))


def test_cells_that_share_too_few_seeds_are_not_judged() -> None:
    plan = study(imbalances=(100, 50), seeds=(1, 2, 3, 4))
    known = {
        run: own
        for run, own in _flat(plan).items()
        if (run.imbalance, run.seed) not in {(100.0, 1), (50.0, 4)} or run.weighting == "none"
    }
    verdict = _one(plan, known, "frequency")
    assert (verdict.gain, verdict.word, verdict.cells) == (None, FEW, (0, 1))


def test_a_rival_is_compared_seed_by_seed() -> None:
    plan = study()
    table = results(plan, _flat(plan))
    (rival,) = table.rivals
    values = table.by_seed
    assert (rival.method, rival.over) == ("aol", "frequency")
    assert rival.gain is not None
    assert rival.gain.mean == pytest.approx((values["aol", 0] - values["frequency", 0]).mean())
    assert rival.gain.chosen == 1  # the rival has one setting


def test_numbers_are_told_in_points_with_their_sign() -> None:
    assert [points(value) for value in (0.0310, -0.0042, 0.0, -1e-7)] == ["+3.10", "−0.42", "0.00", "0.00"]
    assert [p_text(value) for value in (1.0, 0.5, 0.04999, 0.0001)] == ["1", "0.5", "0.05", "<0.001"]


def _world(run: Settings, salt: int, gain: float) -> tuple[float, float]:
    """Accuracies in a world where age gains `gain`, seeds differ, and luck on validation is mostly luck on test."""
    chance = 0.008 * luck(run, salt=salt)
    level = 0.7 + 0.015 * seed_effect(run, salt=salt) + (gain if run.weighting == "aol" else 0.0)
    return level + chance, level + 0.9 * chance + math.sqrt(0.19) * 0.008 * luck(run, salt=salt + 1)


@pytest.mark.parametrize(("gain", "tables"), [(0.0, 30), (0.03, 15)])
def test_made_up_tables_are_judged_by_the_whole_pipeline(gain: float, tables: int) -> None:
    plan = study(seeds=(1, 2, 3, 4), rhos=(0.1, 0.3, 0.5, 0.7, 0.9), imbalances=(100, 50))
    plan = replace(plan, paper=None, tries_seeds=0)
    runs, words = plan.all_runs(), Counter[str]()
    for salt in range(0, 2 * tables, 2):
        table = results(plan, {run: record(run, *_world(run, salt, gain)) for run in runs})
        words[table.verdicts[0].word] += 1
    # Without an effect 2.5 % are 0.75 tables; more than 4 come by chance once in 1,000 times.
    assert words[LOSS] <= (0 if gain else 4)
    assert words[GAIN] >= 13 if gain else words[GAIN] <= 4
