"""What is said under a table: the verdicts, how the figures came about, what is missing, and how to repeat it.

Knows tables, no formats. Every sentence follows from the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from aol.study.correlations import NOT_JUDGED, described
from aol.study.figures import meaning
from aol.study.pooled import pooled_gains
from aol.study.sheets import cell_name
from aol.study.table import Table
from aol.study.verdict import ALPHA, Verdict, p_text, points, span

# What the methods of the built-in studies are.
METHODS = {
    "none": "plain training",
    "cb": "class-balanced weights (counts, β)",
    "aol": "weights from ages (ρ), the paper's method",
    "frequency": "counts to the power −p",
    "error": "error rates of the step or epoch before",
    "error-ema": "the same, smoothed",
}
_DIVISORS = {"weight": "the sum of their weights", "count": "the number of samples"}
VERSIONS = ("aol", "torch", "python")
CORRELATIONS = (
    "r: Pearson's correlation over classes between age (of a sample, averaged over all epochs, then over the class) "
    "and readings of the last epoch; Fisher's interval; p corrected for all of them (Holm)."
)
GAIN = (
    "gain: in points, paired by seed with {base}. Each seed's setting is chosen on validation of the other seeds, if "
    "there are others; the setting shown is the choice of all. Interval: Student's, widened for the choice."
)
PAPER = "paper: its accuracy and its gain, which seem to be the best setting on test."
OPTIMISTIC = (
    "OPTIMISTIC: best is over the settings, for each seed, on test, which nobody could have known; for aol no "
    "weighting (ρ = 0) is one of the tries, as in the paper. {base}: the expected best of as many runs of {base} with "
    "other seeds; left: what the grid has above that; luck: how often so many runs of {base} are as good. Other seeds "
    "also mean other data, which is hard on the grid: left, same seed, is its gain above the luck of as many tries "
    "with one seed."
)


def methods(names: Collection[str]) -> str:
    """Return what the built-in studies call their methods, as far as there are some of these names.

    >>> methods(["none", "frequency", "bf16"])
    'methods: none: plain training; frequency: counts to the power −p.'
    """
    return f"methods: {'; '.join(f'{name}: {what}' for name, what in METHODS.items() if name in names)}."


def verdicts(table: Table) -> list[str]:
    """Return the verdict of a table in a sentence, then those of its groups."""
    base = table.study.baseline
    if table.correlations or not any(line.method != base for line in table.lines):
        word, sentence = table.correlation_verdict
        told = table.correlations if word == NOT_JUDGED else ()
        return [sentence, *(f"{cell_name(cell) or table.study.name}: {described(own)}" for cell, own in told)]
    found = [f"{each.claim.method} against {base}: {each.sentence}" for each in table.verdicts]
    if not any(each.claim.gain for _, each in table.groups):  # the same sentence once more for every group
        return found
    return found + [f"{cell_name(group)}, {each.claim.method}: {each.sentence}" for group, each in table.groups]


def pooled(table: Table) -> list[str]:
    """Return what the gains are with one spread for all methods, in a sentence; none where it cannot be told."""
    found = pooled_gains(table.lines, table.study.baseline)
    if not found:
        return []
    words = "; ".join(f"{name} {points(gain.mean)}{span(gain)}" for name, gain in found.items())
    freedom = next(iter(found.values())).freedom
    return [
        f"If all methods vary alike, one spread for all of them ({freedom} degrees of freedom) makes intervals "
        f"narrower: {words}. They are not corrected and have no part in the verdict."
    ]


def rivals(table: Table) -> list[str]:
    """Return how each method of the paper does beside each rival, in a sentence each."""
    return [text for each in table.rivals if (text := _rival(each))]


def _rival(verdict: Verdict) -> str:
    claim, gain, p = verdict.claim, verdict.claim.gain, verdict.p
    if gain is None or p is None:
        return ""
    how = "more than" if gain.mean > 0 else "less than"
    told = f"gains {how}" if p < ALPHA else "cannot be told from"
    return f"{claim.method} {told} {claim.over}: {points(gain.mean)} points{span(gain)}, corrected p {p_text(p)}."


def missing(table: Table) -> list[str]:
    """Return what is not there, or must not be used."""
    there, planned = len(table.records), table.runs_planned
    found = ["The one run is there." if planned == 1 else f"All {planned} runs are there."]
    if there != planned:
        found = [f"{there} of {planned} runs {'is' if there == 1 else 'are'} there."]
    cells = table.study.cells_list()
    empty = sum(not any(line.runs for line in table.lines if line.cell == cell) for cell in cells)
    if 0 < empty < len(cells):
        verbs = ("has", "is") if empty == 1 else ("have", "are")
        found.append(f"{empty} of {len(cells)} cells {verbs[0]} no runs and {verbs[1]} not shown.")
    if table.damaged:
        names = ", ".join(f"{name} ({reason})" for name, reason in table.damaged[:3])
        more = f" and {len(table.damaged) - 3} more" if len(table.damaged) > 3 else ""
        found.append(f"Damaged records, not used: {names}{more}.")
    if failed := table.runs_failed:
        found.append(f"{failed} {'run diverged and counts' if failed == 1 else 'runs diverged and count'} as chance.")
    partial = [line for line in table.lines if line.runs > 0 and len(line.seeds) < line.planned]
    if partial:
        found.append(
            "n is the number of whole seeds: 1/3 means that of three seeds one has every run of the grid and the "
            "baseline's. Where there is none, the runs that are there are counted and no figure is given."
        )
    for problem in dict.fromkeys(line.problem for line in table.lines if line.problem):
        names = ", ".join(dict.fromkeys(line.method for line in table.lines if line.problem == problem))
        found.append(f"{names}: {problem}.")
    return found


def legend(table: Table, *, optimistic: bool) -> list[str]:
    """Return what the columns mean, whatever is in them."""
    base = table.study.baseline
    if table.correlations:
        return [CORRELATIONS]
    found = [GAIN.format(base=base)] if any(line.differences for line in table.lines) else []
    if any(line.paper for line in table.lines):
        found.append(PAPER)
    if optimistic and any(line.optimistic for line in table.lines):
        found.append(OPTIMISTIC.format(base=base))
    return found


def specifics(table: Table, *, optimistic: bool) -> list[str]:
    """Return how the figures of this table came about."""
    study = table.study
    if table.correlations:
        return []
    spread = ", ± standard deviation over seeds" if any(line.spread is not None for line in table.lines) else ""
    found = [f"accuracy: {meaning(table.figure)}; percent{spread}."]
    if any(line.differences and line.settings > 1 for line in table.lines):
        found[0] += f" Settings are chosen by {study.figure} on validation."
    found += _divisors(table)
    if table.tests:
        one = "p: the table has one comparison, and needs no correction."
        many = f"p: corrected for the {table.tests} comparisons of the table (Holm); intervals are not."
        found.append(one if table.tests == 1 else many)
    if any(len(set(line.choices)) > 1 for line in table.lines):
        found.append("*: seeds are judged with different settings; the one shown is the choice of all together.")
    if any(len(line.seeds) == 1 and line.settings > 1 for line in table.lines):
        found.append("With one seed a setting is chosen on that seed's own validation, which flatters it.")
    if table.figure.endswith("best"):
        found.append("OPTIMISTIC: the best epoch was chosen on test.")
    tried = [line.optimistic.baseline for line in table.lines if line.optimistic]
    if optimistic and any(each.extrapolated and each.known for each in tried):
        found.append(f"~: fewer runs of {study.baseline} than tries; reckoned from their mean and spread.")
    return found


def _divisors(table: Table) -> list[str]:
    """Return what weighted losses are divided by, the paper's formula by weights; softmax alone goes unsaid."""
    known = sorted({(run.loss, run.divide_by) for run in table.records}, reverse=True)
    if all(each == ("softmax", "weight") for each in known):
        return []
    words = [f"{loss} by {_DIVISORS[name]}" for loss, name in known]
    return [f"Weighted losses of a batch are divided: {'; '.join(words)}."]


def hardware(table: Table) -> str:
    """Return on what the runs were made, with which versions, how many of them, and how long it took."""
    records = list(table.records.values())
    if not records:
        return ""
    devices = Counter(record.versions.get("device", "an unknown device") for record in records)
    parts = [f"{many_runs(count)} on {name}" if len(devices) > 1 else name for name, count in sorted(devices.items())]
    words = []
    for name in VERSIONS:
        versions = sorted({record.versions.get(name, "?") for record in records})
        words.append(f"{name} {', '.join(versions)}")
    hours = sum(record.seconds for record in records) / 3600.0
    return f"{many_runs(len(records))}; {'; '.join(parts)}; {'; '.join(words)}; {hours:.2f} hours of training."


def many_runs(count: int) -> str:
    """Return a number of runs in words."""
    return "1 run" if count == 1 else f"{count} runs"


def by_figure(tables: Sequence[Table]) -> list[str]:
    """Return the gain of each method of the paper by every figure of the study, in a sentence each."""
    found = []
    for place, verdict in enumerate(tables[0].verdicts):
        words = []
        for table in tables:
            gain = table.verdicts[place].claim.gain
            if gain is not None:
                mark = " (optimistic)" if table.figure.endswith("best") else ""
                words.append(f"{table.figure}{mark} {points(gain.mean)}{span(gain)}")
        if words:
            found.append(f"{verdict.claim.method} by figure: {'; '.join(words)}.")
    return found
