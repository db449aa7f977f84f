"""The results in short: for each table of the paper its claim, the figure here, and the verdict.

A table with a study that has a verdict is shown by that study, or by all that have one; otherwise by the first that has
any figure. What several studies share, such as a study that is a part of another, is shown once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from aol.plots.forest import Estimate
from aol.runs.metrics import zero_threshold_share
from aol.study.comparisons import StudyResults, chosen_runs
from aol.study.correlations import signed
from aol.study.spec import cell_name
from aol.study.tables import above_tries, unrest
from aol.study.verdict import OPEN, Verdict, points, span

# By the name of the paper's table: what it is about.
TABLES = {
    "offline": "long-tailed CIFAR, offline",
    "arrival": "balanced CIFAR, a part arrives each epoch",
    "online_cifar10": "streams of CIFAR-10",
    "online_period10_seeds": "stream whose head moves, Period-10",
    "online_large_scale": "ImageNet-1k and Places365 as streams",
    "correlations_cifar100_resnet34": "class age against test accuracy",
}
NO_RUNS = "no runs"


@dataclass(frozen=True)
class SummaryLine:
    """One row: the paper's table and claim, the figure here, from how many seeds and cells, and the verdict.

    `estimate` is the gain for a chart, None where there is no interval. `zero_threshold` has by cell the share of steps
    in which no class grew older, because the median accuracy was 0; empty where that is not recorded. `above_tries` and
    `unrest` are those of `tables`.
    """

    table: str
    study: str | None
    claim: str
    here: str
    data: str
    verdict: str
    estimate: Estimate | None = None
    zero_threshold: dict[str, float] = field(default_factory=dict)
    above_tries: dict[str, list[float]] = field(default_factory=dict)
    unrest: tuple[float, float] | None = None


def summary(every: Sequence[StudyResults]) -> list[SummaryLine]:
    """Return the rows for all tables of the paper that any of the studies is about, in the paper's order."""
    lines = []
    for name, table in TABLES.items():
        own = [each for each in every if each.study.paper == name and each.has_figures]
        judged = [each for each in own if each.correlations or any(verdict.claim.gain for verdict in each.verdicts)]
        judged.sort(key=lambda each: -max([len(verdict.claim.seeds) for verdict in each.verdicts], default=0))
        found = [line for each in judged or own[:1] for line in _lines(table, each)]
        lines += found or [SummaryLine(table, None, "", "", "", NO_RUNS)]
    return lines


def _lines(table: str, results: StudyResults) -> list[SummaryLine]:
    if results.correlations:
        return [_correlation(table, results)]
    return [_gain(table, results, verdict) for verdict in results.verdicts]


def _gain(table: str, results: StudyResults, verdict: Verdict) -> SummaryLine:
    claim, study = verdict.claim, results.study
    own = results.of(claim.method)
    paper = "" if claim.paper_gain is None else points(claim.paper_gain)
    if claim.gain is None:
        seeds = max((len(each.seeds) for each in own), default=0)
        here = points(fmean(each.gain.mean for each in own if each.gain)) if own else ""
        return SummaryLine(table, study.name, paper, here, _data(seeds, len(own)), OPEN)
    ends = claim.gain.interval
    estimate = Estimate(
        study.name,
        100.0 * claim.gain.mean,
        None if ends is None else (100.0 * ends[0], 100.0 * ends[1]),
        None if claim.paper_gain is None else 100.0 * claim.paper_gain,
    )
    shares = {
        cell_name(each.cell): fmean(zero_threshold_share(run) for run in chosen_runs(results, each.cell, claim.method))
        for each in own
    }
    return SummaryLine(
        table,
        study.name,
        paper,
        f"{points(claim.gain.mean)}{span(claim.gain)}",
        _data(claim.gain.seeds, claim.cells),
        verdict.word,
        estimate,
        {cell: share for cell, share in shares.items() if not math.isnan(share)},
        above_tries(results, claim.method),
        unrest(results, claim.method),
    )


def _correlation(table: str, results: StudyResults) -> SummaryLine:
    """Return the row of correlations: that of age and test accuracy, by cell."""
    known = [each for _, found in results.correlations for each in found if each.signal == "accuracy_test"]
    paper = ", ".join(f"r {signed(each.paper)}" for each in known if each.paper is not None)
    here = ", ".join(f"r {signed(each.r)} ({signed(each.low)} to {signed(each.high)})" for each in known)
    seeds = max(each.seeds for each in known)
    return SummaryLine(table, results.study.name, paper, here, _data(seeds, len(known)), results.correlation_verdict[0])


def _data(seeds: int, cells: int) -> str:
    """Return how many seeds and cells there are.

    >>> _data(10, 3)
    '10 seeds, 3 cells'
    """
    return f"{seeds} seed{'s' * (seeds != 1)}, {cells} cell{'s' * (cells != 1)}"
