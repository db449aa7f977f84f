"""Why a table comes out as it does, as far as its own records tell: sentences that are there only when they are true.

Knows tables, no formats. Every sentence is arithmetic on the runs; one names a possible cause, and calls it that.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from aol.study.correlations import signed, sizes
from aol.study.few_seeds import all_settings, few_seeds, gains_of, up_to
from aol.study.lines import Line, baseline_pool
from aol.study.sheets import cell_name, percent
from aol.study.shifts import after_shifts
from aol.study.spec import Cell
from aol.study.table import Table
from aol.study.verdict import ALPHA, LEAST_SEEDS, Verdict, points


def reasons(table: Table, others: Sequence[Table]) -> list[str]:
    """Return what the records say about the verdicts; `others` are the same study by its other figures."""
    if table.correlations:
        return [text for cell, _ in table.correlations if (text := _beside_size(table, cell))]
    found: list[str | None] = [_baseline_beside_paper([table, *others])]
    best = next((each for each in [table, *others] if each.figure == "best"), None)
    for verdict in table.verdicts:
        own = told_of(table, verdict.claim.method)
        if any(len(line.seeds) < LEAST_SEEDS for line in own):
            found += [
                few_seeds(table, verdict.claim.method, own),
                all_settings(table, own),
                _beside_spread(table, verdict, own),
            ]
            found += [_as_published(best, verdict), after_shifts(table, verdict.claim.method, own)]
            continue
        found += [_beside_spread(table, verdict, own), _tries(table, verdict, own), _within(own)]
        found += [_as_published(best, verdict), after_shifts(table, verdict.claim.method, own)]
        found += [_by_figure(table, others, verdict), _unstable(own), _beside_rivals(table, verdict)]
    return [each for each in found if each]


def _beside_size(table: Table, cell: Cell) -> str | None:
    """Say what is left of age against accuracy among classes of one size: on a long tail, size goes with both."""
    study = table.study
    runs = study.runs(cell, study.method(study.baseline))
    found = sizes([table.records[run] for run in runs if run in table.records])
    if found is None:
        return None
    r, low, high = found.age
    told = "age tells more than size" if high < 0.0 else "age is not shown to tell more than size"
    return (
        f"{cell_name(cell) or study.name}: the size of a class (its logarithm) goes with test accuracy by r "
        f"{signed(found.accuracy)}. With size held fixed, age goes with it by r {signed(r)} ({signed(low)} to "
        f"{signed(high)}): {told}."
    )


def told_of(table: Table, method: str) -> list[Line]:
    """Return a method's lines in the cells that a verdict is on; where there are none, in all with a whole seed."""
    run = [line for line in table.lines if line.method == method and line.differences]
    return [line for line in run if len(line.seeds) >= LEAST_SEEDS] or run


def _baseline_beside_paper(tables: Sequence[Table]) -> str | None:
    """Say how plain training here is by each figure, and in the paper: whether the set-up is the same."""
    words, theirs, most = [], 0.0, 0
    for table in tables:
        own = [line for line in table.lines if line.method == table.study.baseline and line.mean is not None]
        known = [(baseline_pool(table.study, table.records, table.figure, line.cell), line.paper) for line in own]
        pairs = [(statistics.fmean(pool), paper.accuracy) for pool, paper in known if paper is not None]
        if pairs:
            ours, theirs = (statistics.fmean(column) for column in zip(*pairs, strict=True))
            words.append(f"{table.figure} {percent(ours)}")
            most = max(len(pool) for pool, _ in known)
    if not words:
        return None
    return (
        f"Plain training ({up_to(most)}), averaged over the cells that the paper has: {', '.join(words)}; the paper "
        f"{percent(theirs)}."
    )


def _spread(table: Table, own: Sequence[Line]) -> tuple[float, int] | None:
    """Return the spread of plain runs over all their seeds, pooled over cells, and the most seeds of a cell."""
    pools = [baseline_pool(table.study, table.records, table.figure, line.cell) for line in own]
    known = [pool for pool in pools if len(pool) > 2]
    if not known:
        return None
    pooled = sum(statistics.variance(pool) * (len(pool) - 1) for pool in known) / sum(len(pool) - 1 for pool in known)
    return pooled**0.5, max(len(pool) for pool in known)


def _beside_spread(table: Table, verdict: Verdict, own: Sequence[Line]) -> str | None:
    spread = _spread(table, own)
    gains = gains_of(own)
    if spread is None or not gains:
        return None
    gain, name = statistics.fmean(gains), verdict.claim.method
    apart = 2.0**0.5 * spread[0]
    text = f"Two plain runs with different seeds differ by {percent(apart)} points"
    text += f" (standard deviation; {up_to(spread[1])})"
    if abs(gain) < apart:
        return f"{text}, more than what {name} changes ({points(gain)}): one run of each can show a gain or hide it."
    return f"{text}; {name} changes {points(gain)}, which is more."


def _tries(table: Table, verdict: Verdict, own: Sequence[Line]) -> str | None:
    """Say what becomes of the gain of the best setting on test when the baseline may try as often."""
    known = [(line, line.optimistic, line.gain) for line in own if line.optimistic and line.gain]
    if not known:
        return None
    best = statistics.fmean(found.gain for _, found, _ in known)
    chosen = statistics.fmean(gain.mean for _, _, gain in known)
    left = statistics.fmean(found.left for _, found, _ in known)
    tries, name, base = known[0][1].tries, verdict.claim.method, table.study.baseline
    text = (
        f"Shown at its best setting on test, {name} is {points(best)} points above a run of {base}, and {points(left)}"
    )
    reckoned = " (reckoned from fewer)" if any(found.baseline.extrapolated for _, found, _ in known) else ""
    text += f" above the best of {tries} runs of {base}{reckoned}."
    text += f" With its setting chosen on validation it is {points(chosen)}."
    if best > 0 and chosen < best / 2:
        return f"{text} Most of the gain at the best setting comes from picking it on test."
    return text


@dataclass(frozen=True)
class BestOnTest:
    """A method read at the best epoch of the best setting, both chosen on test, and the paper's; means over cells.

    `tried` is the best of as many baseline runs, read so, or None; `reckoned`: there are fewer of these than tries.
    `plain` is the mean of all baseline runs, read so.
    """

    accuracy: float
    gain: float
    paper: float
    paper_gain: float
    tries: int
    tried: float | None
    reckoned: bool
    plain: float

    @property
    def tried_gain(self) -> float | None:
        """What the best of as many baseline runs has above their mean; not above one, which may be an unlucky one."""
        return None if self.tried is None else self.tried - self.plain


def best_on_test(table: Table, method: str) -> BestOnTest | None:
    """Return how a method does as the paper seems to read its runs, from the table of figure `best`.

    It is of the cells that a verdict is on; where there are none, of all that have a whole seed.
    """
    known = [(line.optimistic, line.paper, line.paper_gain, line.cell) for line in told_of(table, method)]
    whole = [(ours, paper, gain, cell) for ours, paper, gain, cell in known if ours and paper and gain is not None]
    if not whole:
        return None
    ours = [each for each, *_ in whole]
    pools = [baseline_pool(table.study, table.records, table.figure, cell) for *_, cell in whole]
    tried = [each.baseline.mean for each in ours if each.baseline.known]
    return BestOnTest(
        accuracy=statistics.fmean(each.mean for each in ours),
        gain=statistics.fmean(each.gain for each in ours),
        paper=statistics.fmean(paper.accuracy for _, paper, *_ in whole),
        paper_gain=statistics.fmean(gain for _, _, gain, _ in whole),
        tries=ours[0].tries,
        tried=statistics.fmean(tried) if len(tried) == len(ours) else None,
        reckoned=any(each.baseline.extrapolated for each in ours),
        plain=statistics.fmean(statistics.fmean(pool) for pool in pools),
    )


def _as_published(table: Table | None, verdict: Verdict) -> str | None:
    """Say what the best epoch of the best setting, both on test, comes to: the paper's figures seem to be that."""
    found = best_on_test(table, verdict.claim.method) if table else None
    if not table or not found:
        return None
    base = table.study.baseline
    text = (
        f"Read at the best epoch of the best setting, both chosen on test, {verdict.claim.method} has "
        f"{percent(found.accuracy)}, {points(found.gain)} above one run of {base} read so; the paper has "
        f"{percent(found.paper)} and {points(found.paper_gain)}."
    )
    if found.tried is None:
        return text
    reckoned = " (reckoned from fewer)" if found.reckoned else ""
    return f"{text} The best of {found.tries} runs of {base}{reckoned}, read so, has {percent(found.tried)}."


def _within(own: Sequence[Line]) -> str | None:
    known = [line.optimistic for line in own if line.optimistic and line.optimistic.within_interval]
    if not known:
        return None
    above = sum(found.within_interval is not None and found.within_interval[0] > 0 for found in known)
    cells = "the one cell" if len(known) == 1 else f"{above} of {len(known)} cells"
    if len(known) == 1:
        told = "is" if above else "is not"
        return f"In {cells} the best of the grid {told} above what as many tries with one seed give by luck."
    return f"In {cells} the best of the grid is above what as many tries with one seed give by luck (95 %)."


def _by_figure(table: Table, others: Sequence[Table], verdict: Verdict) -> str | None:
    """Say so when the verdict depends on what part of training is looked at."""
    found = []
    for other in others:
        same = next(each for each in other.verdicts if each.claim.method == verdict.claim.method)
        if same.claim.gain is not None:
            found.append((other.figure, same.claim.gain.mean, same.word))
    if not found or verdict.claim.gain is None:
        return None
    words = "; ".join(f"{figure} {points(gain)}, {word}" for figure, gain, word in found)
    if all(word == verdict.word for _, _, word in found):
        return f"By the other figures it is the same verdict: {words}."
    return f"It depends on the figure: {table.figure} {points(verdict.claim.gain.mean)}, {verdict.word}; {words}."


def _unstable(own: Sequence[Line]) -> str | None:
    """Say so when the seeds do not agree on a setting."""
    known = [line for line in own if line.settings > 1 and len(line.seeds) >= LEAST_SEEDS]
    apart = [line for line in known if len(set(line.choices)) > 1]
    if not known or not apart:
        return None
    example = apart[0]
    cells = "this cell" if len(known) == 1 else f"{len(apart)} of {len(known)} cells"
    return (
        f"Which setting of {example.method} is best is not settled by the runs: in {cells} the choice changes with the "
        f"seed that is left out (for example {', '.join(dict.fromkeys(example.choices))})."
    )


def _beside_rivals(table: Table, verdict: Verdict) -> str | None:
    own = [each for each in table.rivals if each.claim.method == verdict.claim.method and each.claim.gain is not None]
    better = [each for each in own if each.p is not None and each.p < ALPHA and _mean(each) < 0]
    if not own:
        return None
    if better:
        return f"Simpler weights gain more than {verdict.claim.method}: {', '.join(_behind(each) for each in better)}."
    ahead = [each for each in own if each.p is not None and each.p < ALPHA and _mean(each) > 0]
    if len(ahead) == len(own):
        return f"{verdict.claim.method} gains more than every rival in the table."
    return None


def _behind(verdict: Verdict) -> str:
    """Return a rival, and how far ahead of a method it is."""
    ends = verdict.claim.gain.interval if verdict.claim.gain is not None else None
    words = [points(value).lstrip("+") for value in (-_mean(verdict), *((-ends[1], -ends[0]) if ends else ()))]
    return f"{verdict.claim.over} by {words[0]}" + (f" ({words[1]} to {words[2]})" if ends else "")


def _mean(verdict: Verdict) -> float:
    return verdict.claim.gain.mean if verdict.claim.gain is not None else 0.0
