"""The verdict's rule at its edges, and what it says of tables in which the truth is known."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from aol.lab.settings import Settings
from aol.lab.study.comparisons import Comparison, compare
from aol.lab.study.spec import Study
from aol.lab.study.stats import choose_leaving_one_out
from aol.lab.study.verdict import FAILS, HOLDS, OPEN, Claim, claim, judge, p_text, points, word_for
from aol.records.record import Run
from aol.stats import Gain, paired_gain
from tests.support.made_up import frame, luck, record, records, results, seed_effect, study


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
    assert verdict.sentence.startswith(word)


@pytest.mark.parametrize(
    ("mean", "error", "word", "says"),
    [
        (0.000, 0.001, HOLDS, "the loss is below 0.30 points, p = 0.03"),
        (-0.001, 0.0005, HOLDS, "the loss is below 0.30 points"),
        (-0.001, 0.002, OPEN, "the loss may be below or above 0.30 points"),
        (-0.005, 0.0005, FAILS, "the loss is above 0.30 points"),
        (0.010, 0.002, HOLDS, "the loss is below 0.30 points"),
    ],
)
def test_where_there_is_nothing_to_gain_the_loss_is_judged(mean: float, error: float, word: str, says: str) -> None:
    (verdict,) = judge([replace(_claim(_gain(mean, error)), largest_loss=0.003)])
    assert verdict.word == word
    assert says in verdict.sentence


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


def _lines(plan: Study, known: dict[Settings, Run]) -> list[Comparison]:
    return compare(plan, frame(known), "tail_mean")


def _flat(plan: Study) -> dict[Settings, Run]:
    return dict(records(plan.all_runs(), lambda run: (0.5 + 0.01 * luck(run), 0.5)))


def test_two_seeds_are_not_enough_however_large_the_gain() -> None:
    plan = study(seeds=(1, 2))
    known = dict(records(plan.all_runs(), lambda run: (0.9 if run.weighting == "aol" else 0.1, luck(run))))
    (verdict,) = judge([claim(_lines(plan, known), "aol")])
    assert verdict.word == OPEN
    assert "3 complete seeds" in verdict.sentence


def test_three_seeds_are_enough_for_a_large_gain() -> None:
    plan = study(seeds=(1, 2, 3))
    high = records(plan.all_runs(), lambda run: ((0.9 if run.weighting == "aol" else 0.1) + 0.001 * luck(run), 0.5))
    (verdict,) = judge([claim(_lines(plan, dict(high)), "aol")])
    assert verdict.word == HOLDS


def test_the_gain_over_cells_is_their_mean_seed_by_seed() -> None:
    plan = study(imbalances=(100, 50))
    made = _lines(plan, _flat(plan))
    found = claim(made, "frequency")
    by_cell = [line.differences for line in made if line.method == "frequency"]
    assert found.gain is not None
    assert found.gain.mean == pytest.approx(statistics.fmean(map(statistics.fmean, by_cell)))
    spread = statistics.stdev(statistics.fmean(pair) for pair in zip(*by_cell, strict=True))
    assert found.gain.spread == pytest.approx(spread)


def test_cells_without_enough_seeds_are_left_out_and_counted() -> None:
    plan = study(imbalances=(100, 50))
    known = {run: each for run, each in _flat(plan).items() if not (run.imbalance == 50 and run.seed == 2)}
    found = claim(_lines(plan, known), "frequency")
    assert (found.cells, found.cells_planned) == (1, 2)
    (verdict,) = judge([found])
    assert "1 of 2 cells" in verdict.sentence


def test_cells_that_share_too_few_seeds_are_not_judged() -> None:
    plan = study(imbalances=(100, 50), seeds=(1, 2, 3, 4))
    known = {
        run: each
        for run, each in _flat(plan).items()
        if (run.imbalance, run.seed) not in {(100.0, 1), (50.0, 4)} or run.weighting == "none"
    }
    found = claim(_lines(plan, known), "frequency")
    assert found.gain is None
    assert "share fewer than 3 complete seeds" in judge([found])[0].sentence


def test_a_rival_is_compared_seed_by_seed() -> None:
    plan = study()
    made = _lines(plan, _flat(plan))
    found = claim(made, "aol", "frequency")
    aol, rival = (next(line for line in made if line.method == name) for name in ("aol", "frequency"))
    assert found.gain is not None
    assert found.gain.mean == pytest.approx(
        statistics.fmean(a - b for a, b in zip(aol.values, rival.values, strict=True))
    )
    assert found.gain.chosen == 1  # the rival has one setting


def test_the_sentence_says_where_the_papers_gain_lies() -> None:
    gain = _gain(0.010, 0.001)
    said = [judge([_claim(gain, paper=paper)])[0].sentence for paper in (0.0105, 0.03, 0.001)]
    assert ["inside" in said[0], "above" in said[1], "below" in said[2]] == [True, True, True]


def test_an_open_verdict_says_how_many_seeds_would_do() -> None:
    (verdict,) = judge([_claim(_gain(0.010, 0.006, seeds=3))])
    assert "; about 7 seeds" in verdict.sentence


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
        age = [each for each in table.comparisons if each.method == "aol"]
        found["a cell"] += any(
            each.p is not None and each.p < 0.05 and each.gain and each.gain.mean > 0 for each in age
        )
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


def test_beyond_what_is_known_of_the_widening_no_number_of_seeds_is_named() -> None:
    (verdict,) = judge([_claim(Gain(0.001, 3, 0.02, 0.02 / math.sqrt(3)))])
    assert "; 20 seeds would not be enough" in verdict.sentence
