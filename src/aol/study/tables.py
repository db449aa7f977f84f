"""The tables of a study: rows of numbers for CSV and JSON, and tables of text for people.

In rows, accuracies are in percent and differences in points, and only the last bits of binary sums are rounded away.
Tables of text are DataFrames of strings whose index names the cell of the study; the minus sign is a real one.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from aol.engine.settings import Value
from aol.runs.figures import FIGURES
from aol.stats import Gain
from aol.study.comparisons import Comparison, StudyResults, pooled, records
from aol.study.correlations import NOT_JUDGED, described, signed, sizes
from aol.study.shifts import gains_after_shifts
from aol.study.spec import Cell
from aol.study.stats import BestOfTries
from aol.study.verdict import LEAST_SEEDS, Verdict, p_text, points, span

NONE = "–"
SIGNALS = {
    "accuracy_test": "accuracy, test",
    "loss_train": "loss, training",
    "margin_train": "margin, training",
    "loss_test": "loss, test",
    "margin_test": "margin, test",
}
# The methods of the built-in studies.
METHODS = {
    "none": "no weighting",
    "cb": "class-balanced weights (counts, β)",
    "aol": "weights from ages (ρ), the paper's method",
    "frequency": "counts to the power −p",
    "error": "error rates of the previous step or epoch",
    "error-ema": "the same, smoothed",
}
_NAMED_BY_VALUE = ("data", "loss", "mechanism", "stream", "weighting")  # the value says which setting it is
_DIVISORS = {"weight": "the sum of the weights", "count": "the number of samples"}
Row = dict[str, Value]


# Rows of numbers


def rows(results: StudyResults, *, optimistic: bool = False) -> list[Row]:
    """Return a row for each comparison, or for each correlation."""
    if results.correlations:
        return _correlation_rows(results)
    found = []
    for each in results.comparisons:
        row: Row = {"study": results.study.name, "figure": results.figure, **each.cell, **_row(each)}
        found.append({**row, **_optimistic_row(each)} if optimistic else row)
    return found


def _hundred(value: float | None) -> float | None:
    return None if value is None else round(100.0 * value, 8)


def _ends(name: str, ends: tuple[float, float] | None) -> Row:
    low, high = ends if ends is not None else (None, None)
    return {f"{name}_low_points": _hundred(low), f"{name}_high_points": _hundred(high)}


def _row(each: Comparison) -> Row:
    gain = each.gain
    return {
        "method": each.method,
        "setting": each.setting,
        "settings_tried": each.settings,
        "choices_by_seed": "; ".join(each.choices),
        "seeds": "; ".join(str(seed) for seed in each.seeds),
        "seeds_whole": len(each.seeds),
        "seeds_planned": each.planned,
        "runs": each.runs,
        "runs_planned": each.runs_planned,
        "runs_failed": each.failed,
        "accuracy_percent": _hundred(each.mean),
        "spread_points": _hundred(each.spread),
        "gain_points": _hundred(gain.mean if gain else None),
        **_ends("gain", gain.interval if gain else None),
        **_ends("bootstrap", gain.bootstrap if gain else None),
        "p": gain.p if gain and gain.seeds > 1 else None,
        "paper_percent": _hundred(each.paper.accuracy if each.paper else None),
        "paper_gain_points": _hundred(each.paper_gain),
        "paper_setting": each.paper.setting if each.paper else "",
        "p_corrected": each.p,
    }


def _optimistic_row(each: Comparison) -> Row:
    found = each.optimistic
    known = found is not None and found.baseline.known
    return {
        "optimistic_tries": found.tries if found else None,
        "optimistic_best_percent": _hundred(found.mean if found else None),
        "optimistic_gain_points": _hundred(found.gain if found else None),
        "baseline_best_of_tries_percent": _hundred(found.baseline.mean if found and known else None),
        "baseline_runs": found.baseline.runs if found else None,
        "baseline_extrapolated": found.baseline.extrapolated if found else None,
        "left_points": _hundred(found.left if found and known else None),
        **_ends("left", found.interval if found else None),
        "reached_by_luck": found.reached if found else None,
        "within_points": _hundred(found.within if found else None),
        **_ends("within", found.within_interval if found else None),
    }


def _correlation_rows(results: StudyResults) -> list[Row]:
    found: list[Row] = []
    for cell, own in results.correlations:
        for each in own:
            what: Row = {"signal": each.signal, "classes": each.classes, "seeds": each.seeds}
            numbers: Row = {"r": each.r, "low": each.low, "high": each.high, "p": each.p}
            more: Row = {"p_corrected": each.p_corrected, "paper_r": each.paper}
            found.append({"study": results.study.name, **cell, **what, **numbers, **more})
    return found


def rival_rows(results: StudyResults) -> list[Row]:
    """Return a row for each method of the paper against each other method."""
    return [
        {
            "method": each.claim.method,
            "over": each.claim.over,
            "gain_points": _hundred(each.claim.gain.mean),
            **_ends("gain", each.claim.gain.interval),
            "p_corrected": each.p,
        }
        for each in results.rivals
        if each.claim.gain is not None
    ]


# Tables of text


@dataclass(frozen=True)
class TextTable:
    """A title and a frame of text; the index has the name of the study's cell, "" where there is none."""

    title: str
    frame: pd.DataFrame

    @property
    def named(self) -> bool:
        """Whether any row is of a named cell."""
        return any(self.frame.index)


def text_table(title: str, head: Sequence[str], body: Iterable[tuple[str, Sequence[str]]]) -> TextTable:
    """Return a table from its head and its rows, each with the name of its cell; columns without any text are left out.

    >>> text_table("T", ["method", "gain", "p"], [("", ["aol", "+1.00", "–"])]).frame.columns.tolist()
    ['method', 'gain']
    """
    found = list(body)
    index = pd.Index([name for name, _ in found], name="cell", dtype="object")
    frame = pd.DataFrame([list(row) for _, row in found], columns=list(head), index=index, dtype="object")
    empty = [name for name in frame.columns if len(frame) and frame[name].isin(["", NONE]).all()]
    return TextTable(title, frame.drop(columns=empty))


def cell_name(cell: Cell | Sequence[tuple[str, object]]) -> str:
    """Return the name of a cell, or of a group of cells.

    >>> cell_name({"data": "cifar10", "imbalance": 200, "fraction": 0.05})
    'cifar10, imbalance 200, fraction 0.05'
    """
    words = []
    for name, value in dict(cell).items():
        text = f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
        words.append(text if name in _NAMED_BY_VALUE and isinstance(value, str) else f"{name.replace('_', ' ')} {text}")
    return ", ".join(words)


def percent(value: float | None, digits: int = 2) -> str:
    """Return an accuracy in percent; a dash for none."""
    return NONE if value is None else f"{100.0 * value:.{digits}f}"


def points_or_none(value: float | None) -> str:
    """Return a difference in points; a dash for none."""
    return NONE if value is None else points(value)


def with_interval(mean: float | None, ends: tuple[float, float] | None) -> str:
    """Return a difference in points with its interval."""
    return points_or_none(mean) + ("" if ends is None else f" ({points(ends[0])}, {points(ends[1])})")


def tables(results: StudyResults, *, optimistic: bool = False) -> list[TextTable]:
    """Return the tables of a study: correlations where nothing is compared, else gains; and the optimistic ones."""
    if results.correlations:
        return [correlation_table(results)]
    found = [gain_table(results)]
    if any(each.claim.gain for each in results.rivals) or pooled(results):
        found.append(method_table(results))
    if optimistic:
        found.append(optimistic_table(results))
        found += [as_published_table(results)] if results.study.paper else []
    return [each for each in found if len(each.frame)]


def gain_table(results: StudyResults) -> TextTable:
    """Return the gains in cells that have runs; in all cells where none has, for the paper's figures."""
    base = results.study.baseline
    cells = [each.cell for each in results.comparisons if each.runs]
    shown = [each for each in results.comparisons if each.cell in cells] or list(results.comparisons)
    head = ("method", "n", "accuracy", "gain (95 %)", "p", "paper")
    body = [(cell_name(each.cell), _gain_cells(each, base)) for each in shown]
    table = text_table(results.study.title, head, body)
    return TextTable(table.title, table.frame.reindex(columns=list(head), fill_value=NONE))


def _gain_cells(each: Comparison, baseline: str) -> list[str]:
    name = f"{each.method} {each.setting}".strip() + (" *" if len(set(each.choices)) > 1 else "")
    paper = percent(each.paper.accuracy) if each.paper else NONE
    if each.paper_gain is not None:
        paper += f" {points(each.paper_gain)}"
    seeds = str(len(each.seeds)) if len(each.seeds) == each.planned else f"{len(each.seeds)}/{each.planned}"
    if not each.seeds:
        return [name, seeds, f"{each.runs}/{each.runs_planned} runs", NONE, NONE, paper]
    accuracy = percent(each.mean) + (f" ±{percent(each.spread)}" if each.spread is not None else "")
    gain = each.gain
    if gain is None:
        return [name, seeds, accuracy, "baseline" if each.method == baseline else NONE, NONE, paper]
    p = NONE if each.p is None else p_text(each.p)
    return [name, seeds, accuracy, with_interval(gain.mean, gain.interval), p, paper]


def method_table(results: StudyResults) -> TextTable:
    """Return each method's mean gain, that with one spread for all methods, and the difference to the paper's method.

    Over the cells that a verdict is on; without such, over all that have a gain.
    """
    study, common = results.study, pooled(results)
    claims = [each.claim.method for each in results.verdicts]
    cells = [each.cell for each in results.of(claims[0])] if claims else []
    freedom = next(iter(common.values())).freedom if common else 0
    head = ["method", "gain", f"with one spread ({freedom} df)"]
    for name in claims:
        head += [f"{name} minus it (95 %)", "p" if len(claims) == 1 else f"p ({name})"]
    body = []
    for method in study.methods:
        own = [each for each in results.comparisons if each.method == method.name and each.cell in cells]
        if method.name == study.baseline or not own or not all(each.gain for each in own):
            continue
        gain = common.get(method.name)
        words = [method.name, points(mean_gain(own)), NONE if gain is None else with_interval(gain.mean, gain.interval)]
        for name in claims:
            words += _rival_cells(results.rivals, name, method.name)
        body.append(("", words))
    return text_table("Methods side by side, mean of cells", head, body)


def _rival_cells(rivals: Sequence[Verdict], name: str, other: str) -> list[str]:
    for each in rivals:
        gain, p = each.claim.gain, each.p
        if each.claim.method == name and each.claim.over == other and gain is not None and p is not None:
            return [with_interval(gain.mean, gain.interval), p_text(p)]
    return [NONE, NONE]


def mean_gain(own: Sequence[Comparison]) -> float:
    """Return the mean gain of some comparisons that have one."""
    return statistics.fmean(each.gain.mean for each in own if each.gain is not None)


def optimistic_table(results: StudyResults) -> TextTable:
    """Return the best of each grid on test beside the best of as many baseline runs."""
    base = results.study.baseline
    head = ("OPTIMISTIC", "best on test", f"best of {base}", "difference", "reached by luck", "above noise of one seed")
    body = []
    for each in results.comparisons:
        found = each.optimistic
        if found is not None:
            alone = len(each.seeds) == 1  # its own luck would count as the method's
            words = [
                f"{each.method}: {found.tries} tries",
                percent(found.mean),
                _best_of(found.baseline),
                NONE if alone else with_interval(found.left, found.interval),
                NONE if alone or found.reached is None else f"{found.reached:.0%}",
                with_interval(found.within, found.within_interval),
            ]
            body.append((cell_name(each.cell), words))
    return text_table("Optimistic: the best setting on test", head, body)


def as_published_table(results: StudyResults) -> TextTable:
    """Return the best epoch of the best setting on test, beside the paper's figure and gain."""
    best = results.with_figure("best")
    base = results.study.baseline
    head = ("OPTIMISTIC", "best on test", "gain", "paper", "paper's gain", f"best of {base}")
    body = []
    for each in best.comparisons:
        found, theirs = each.optimistic, each.paper
        if theirs is None or each.mean is None:
            continue
        paper = [percent(theirs.accuracy), points_or_none(each.paper_gain)]
        if found is not None:
            words = [percent(found.mean), points(found.gain), *paper, _best_of(found.baseline)]
            body.append((cell_name(each.cell), [f"{each.method}: {found.tries} tries", *words]))
        elif each.method == base:
            body.append((cell_name(each.cell), [each.method, percent(each.mean), NONE, *paper, NONE]))
    return text_table("As published: the best epoch of the best setting, both chosen on test", head, body)


def _best_of(baseline: BestOfTries) -> str:
    """Return the best of as many baseline runs, marked where it is extrapolated; a dash where there is one run."""
    return ("~" if baseline.extrapolated else "") + percent(baseline.mean) if baseline.known else NONE


def correlation_table(results: StudyResults) -> TextTable:
    """Return the correlations of class age, in each cell that has some."""
    body = []
    for cell, own in results.correlations:
        for each in own:
            r = f"{signed(each.r)} ({signed(each.low)}, {signed(each.high)})"
            paper = NONE if each.paper is None else signed(each.paper)
            counts = [str(each.classes), str(each.seeds)]
            body.append((cell_name(cell), [SIGNALS[each.signal], *counts, r, p_text(each.p_corrected), paper]))
    return text_table(results.study.title, ("class age and", "classes", "n", "r (95 %)", "p", "paper"), body)


def size_table(results: StudyResults) -> TextTable:
    """Return how class size, and age with size held fixed, correlate with test accuracy: size may explain age."""
    study, body = results.study, []
    for cell, _ in results.correlations:
        found = sizes(records(results.frame, study.runs(cell, study.method(study.baseline))))
        if found is not None:
            r, low, high = found.age
            text = f"{signed(r)} ({signed(low)}, {signed(high)})"
            body.append((cell_name(cell), [signed(found.accuracy), text, "yes" if high < 0.0 else "not shown"]))
    head = ("log size and accuracy, r", "age and accuracy, size fixed, r (95 %)", "age adds to size")
    return text_table("Class size", head, body)


# Checks


def checks(results: StudyResults) -> list[TextTable]:
    """Return what else the runs show about the verdicts, as small tables."""
    if results.correlations:
        found = [size_table(results)]
    else:
        found = [_baseline_table(results), _check_table(results), _figure_table(results), _shift_table(results)]
        found += [] if any(each.claim.gain for each in results.rivals) or pooled(results) else [method_table(results)]
    return [each for each in found if len(each.frame)]


def _by_figure(results: StudyResults) -> list[StudyResults]:
    return [results, *(results.with_figure(each) for each in results.study.figures if each != results.figure)]


def _baseline_table(results: StudyResults) -> TextTable:
    """Return the baseline's accuracy by each figure and in the paper: whether the set-up is the same."""
    body, most = [], 0
    for each in _by_figure(results):
        own = [line for line in each.comparisons if line.method == each.study.baseline and line.mean is not None]
        pairs = [(statistics.fmean(line.pool), line.paper.accuracy) for line in own if line.paper is not None]
        if pairs:
            ours, theirs = (statistics.fmean(column) for column in zip(*pairs, strict=True))
            body.append(("", [each.figure, percent(ours), percent(theirs)]))
            most = max(len(line.pool) for line in own)
    title = (
        f"Baseline ({results.study.baseline}) beside the paper: mean of the cells that the paper has, {_up_to(most)}"
    )
    return text_table(title, ("figure", "here", "paper"), body)


def _check_table(results: StudyResults) -> TextTable:
    """Return the checks of each judged method: a column a method."""
    columns = {each.claim.method: _method_checks(results, each) for each in results.verdicts}
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    body = [("", [name, *(column.get(name, NONE) for column in columns.values())]) for name in names]
    return text_table("Checks", ["check", *columns], body)


def _method_checks(results: StudyResults, verdict: Verdict) -> dict[str, str]:
    """Return the checks of one method by their names."""
    own, base = results.of(verdict.claim.method), results.study.baseline
    if not own:
        return {}
    few = any(len(each.seeds) < LEAST_SEEDS for each in own)
    gains = [each.gain.mean for each in own if each.gain is not None]
    cells = "1 cell" if len(own) == 1 else f"mean of {len(own)} cells"
    seeds = max(len(each.seeds) for each in own)
    found = {f"gain, {cells}, {seeds} seed{'s' * (seeds > 1)}": points(statistics.fmean(gains))}
    if few:
        found |= _few_seeds(own, gains, base)
    noise = _noise(own)
    if noise is not None:
        found[f"two runs of {base} differ by (standard deviation, {_up_to(noise[1])})"] = percent(noise[0])
    if not few:
        found |= _best_setting(own, base)
    found |= _as_published(results, verdict.claim.method)
    return found | ({} if few else _stability(own))


def _few_seeds(own: Sequence[Comparison], gains: Sequence[float], base: str) -> dict[str, str]:
    """Describe gains with fewer seeds than a verdict needs."""
    found = {}
    if len(own) > 1:
        found["lowest and highest cell"] = f"{points(min(gains))}, {points(max(gains))}"
        found["cells above zero"] = f"{sum(gain > 0 for gain in gains)} of {len(own)}"
    papers = [each.paper_gain for each in own if each.paper_gain is not None]
    if papers and len(papers) == len(own):
        found["paper's gain"] = points(statistics.fmean(papers))
    if all(len(each.pool) > len(each.seeds) for each in own):
        apart = [statistics.fmean(each.values) - statistics.fmean(each.pool) for each in own]
        most = max(len(each.pool) for each in own)
        found[f"gain over the mean of all runs of {base}, {_up_to(most)}"] = points(statistics.fmean(apart))
    if max(each.settings for each in own) > 1:
        mean = statistics.fmean(statistics.fmean(each.all_gains) for each in own)
        found["gain of all settings, none chosen"] = points(mean)
        above = [f"{sum(gain > 0 for gain in each.all_gains)} of {len(each.all_gains)}" for each in own]
        found[f"settings above {base}, by cell"] = ", ".join(above)
    return found


def _noise(own: Sequence[Comparison]) -> tuple[float, int] | None:
    """Return the standard deviation of the difference of two baseline runs, and the most seeds of a cell."""
    pools = [each.pool for each in own if len(each.pool) > 2]
    if not pools:
        return None
    variance = sum(statistics.variance(pool) * (len(pool) - 1) for pool in pools) / sum(len(pool) - 1 for pool in pools)
    return 2.0**0.5 * variance**0.5, max(len(pool) for pool in pools)


def _best_setting(own: Sequence[Comparison], base: str) -> dict[str, str]:
    """Return the gain of the best setting on test, also when the baseline may be tried as often."""
    known = [each.optimistic for each in own if each.optimistic and each.gain]
    if not known:
        return {}
    extrapolated = ", extrapolated" if any(each.baseline.extrapolated for each in known) else ""
    best = f"best of {known[0].tries} runs of {base}{extrapolated}"
    found = {
        "gain of the best setting on test": points(statistics.fmean(each.gain for each in known)),
        f"the same, minus the {best}": points(statistics.fmean(each.left for each in known)),
    }
    within = [each.within_interval for each in known if each.within_interval]
    if within:
        above = sum(ends[0] > 0 for ends in within)
        found["cells where the best setting is above the noise of one seed (95 %)"] = f"{above} of {len(within)}"
    return found


@dataclass(frozen=True)
class BestOnTest:
    """A method at the best epoch of the best setting, both chosen on test, and the paper's figures; means of cells.

    `tried` is the best of as many baseline runs, or None; `baseline` is the mean of all baseline runs.
    """

    accuracy: float
    gain: float
    paper: float
    paper_gain: float
    tries: int
    tried: float | None
    extrapolated: bool
    baseline: float

    @property
    def tried_gain(self) -> float | None:
        """The best of as many baseline runs, minus the mean of all baseline runs."""
        return None if self.tried is None else self.tried - self.baseline


def best_on_test(results: StudyResults, method: str) -> BestOnTest | None:
    """Return how a method does as the paper seems to read its runs, from results of the figure `best`."""
    known = [(each.optimistic, each.paper, each.paper_gain, each.pool) for each in results.of(method)]
    whole = [(ours, paper, gain, pool) for ours, paper, gain, pool in known if ours and paper and gain is not None]
    if not whole:
        return None
    ours = [each for each, *_ in whole]
    tried = [each.baseline.mean for each in ours if each.baseline.known]
    return BestOnTest(
        accuracy=statistics.fmean(each.mean for each in ours),
        gain=statistics.fmean(each.gain for each in ours),
        paper=statistics.fmean(paper.accuracy for _, paper, *_ in whole),
        paper_gain=statistics.fmean(gain for _, _, gain, _ in whole),
        tries=ours[0].tries,
        tried=statistics.fmean(tried) if len(tried) == len(ours) else None,
        extrapolated=any(each.baseline.extrapolated for each in ours),
        baseline=statistics.fmean(statistics.fmean(pool) for *_, pool in whole),
    )


def _as_published(results: StudyResults, method: str) -> dict[str, str]:
    found = best_on_test(results.with_figure("best"), method) if "best" in results.study.figures else None
    if found is None:
        return {}
    words = {
        "best epoch of the best setting on test": f"{percent(found.accuracy)} {points(found.gain)}",
        "the same in the paper": f"{percent(found.paper)} {points(found.paper_gain)}",
    }
    if found.tried is not None:
        extrapolated = ", extrapolated" if found.extrapolated else ""
        base = results.study.baseline
        words[f"best epoch, best of {found.tries} runs of {base}{extrapolated}"] = percent(found.tried)
    return words


def _stability(own: Sequence[Comparison]) -> dict[str, str]:
    """Return in how many cells the chosen setting depends on the seed that is left out."""
    known = [each for each in own if each.settings > 1 and len(each.seeds) >= LEAST_SEEDS]
    apart = [each for each in known if len(set(each.choices)) > 1]
    if not apart:
        return {}
    example = ", ".join(dict.fromkeys(apart[0].choices))
    return {"cells where the chosen setting depends on the seed left out": f"{len(apart)} of {len(known)} ({example})"}


def _figure_table(results: StudyResults) -> TextTable:
    """Return the gain and the verdict of each judged method by every figure of the study."""
    body = []
    by_figure = _by_figure(results)
    for place, verdict in enumerate(results.verdicts):
        for each in by_figure:
            other = each.verdicts[place]
            if other.claim.gain is not None and verdict.claim.gain is not None:
                name = each.figure + (" (optimistic)" if each.figure.endswith("best") else "")
                gain = with_interval(other.claim.gain.mean, other.claim.gain.interval)
                body.append(("", [verdict.claim.method, name, gain, other.word]))
    return text_table("By figure", ("method", "figure", "gain (95 %)", "verdict"), body)


def _shift_table(results: StudyResults) -> TextTable:
    """Return the gains right after the head of a stream moved, and later."""
    body, period = [], 0
    base = results.study.baseline
    claims = [each.claim.method for each in results.verdicts]
    cells = [each.cell for each in results.of(claims[0])] if claims else []
    first = gains_after_shifts(results, claims[0], cells) if cells else None
    for method in results.study.methods if first else ():
        found = gains_after_shifts(results, method.name, cells) if method.name != base else None
        if found and first and found.pairs.keys() == first.pairs.keys():
            period = found.period
            at_first, later = zip(*found.by_cell, strict=True)
            words = [_range(found.first, at_first), _range(found.rest, later), f"{found.lower} of {len(found.pairs)}"]
            body.append(("", [method.name, *words, "previous step" if found.late else "counts"]))
    title = f"Gain after the head moved (1 step in {period}) and at the other steps, second half of the stream"
    head = ("method", "first step (by cell)", "other steps (by cell)", "runs with less at the first", "weights from")
    return text_table(title, head, body)


def _range(mean: float, cells: Sequence[float]) -> str:
    return points(mean) + (f" ({points(min(cells))} to {points(max(cells))})" if len(cells) > 1 else "")


def _up_to(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"up to {seeds} seeds a cell"


# Sentences under a table


def verdict_lines(results: StudyResults) -> list[str]:
    """Return the verdict in a sentence, then those of groups of cells."""
    study = results.study
    if results.correlations or len(study.methods) == 1:
        word, sentence = results.correlation_verdict
        shown = results.correlations if word == NOT_JUDGED else ()
        return [sentence, *(f"{cell_name(cell) or study.name}: {described(own)}" for cell, own in shown)]
    found = [f"{each.claim.method} against {study.baseline}: {each.sentence}" for each in results.verdicts]
    if not any(each.claim.gain for _, each in results.groups):  # the same sentence for every group
        return found
    return found + [f"{cell_name(group)}, {each.claim.method}: {each.sentence}" for group, each in results.groups]


def run_lines(results: StudyResults) -> list[str]:
    """Return how many runs are complete, and what is missing, damaged or diverged."""
    cells = results.study.cells_list()
    found = [f"{len(results.frame)}/{results.runs_planned} runs complete."]
    empty = sum(not any(each.runs for each in results.comparisons if each.cell == cell) for cell in cells)
    if 0 < empty < len(cells):
        found.append(f"Not shown: {empty} of {len(cells)} cells, without runs.")
    if results.damaged:
        names = ", ".join(f"{name} ({reason})" for name, reason in results.damaged[:3])
        more = f" and {len(results.damaged) - 3} more" if len(results.damaged) > 3 else ""
        found.append(f"Damaged runs, not used: {names}{more}.")
    if failed := results.runs_failed:
        found.append(f"{failed} run{'s' * (failed > 1)} diverged and count{'s' * (failed == 1)} as chance.")
    if any(each.runs > 0 and len(each.seeds) < each.planned for each in results.comparisons):
        found.append("n: complete seeds of those planned; a seed needs every run of the grid and of the baseline.")
    for why in dict.fromkeys(each.problem for each in results.comparisons if each.problem):
        names = ", ".join(dict.fromkeys(each.method for each in results.comparisons if each.problem == why))
        found.append(f"{names}: {why}.")
    return found


def method_lines(results: StudyResults, *, optimistic: bool) -> list[str]:
    """Return how the numbers of this study were made."""
    if results.correlations:
        return []
    own = results.comparisons
    plain = results.figure.removeprefix("averaged_")
    text = f"accuracy: {FIGURES[plain]}{', of the averaged network' if plain != results.figure else ''}; percent"
    text += ", ± standard deviation over seeds." if any(each.spread is not None for each in own) else "."
    if any(each.differences and each.settings > 1 for each in own):
        text += f" Settings are chosen by {results.study.figure} on validation."
    found = [text, *_divisors(results)]
    if results.tests:
        many = f"p: corrected for {results.tests} comparisons (Holm); intervals are not corrected."
        found.append("p: one comparison, no correction needed." if results.tests == 1 else many)
    if any(len(set(each.choices)) > 1 for each in own):
        found.append("*: seeds use different settings; the one shown is chosen on all seeds together.")
    if any(len(each.seeds) == 1 and each.settings > 1 for each in own):
        found.append("With one seed, a setting is chosen on the validation part of the same seed, which is optimistic.")
    if plain == "best":
        found.append("OPTIMISTIC: the best epoch was chosen on test.")
    tried = [each.optimistic.baseline for each in own if each.optimistic]
    if optimistic and any(each.extrapolated and each.known for each in tried):
        found.append(f"~: extrapolated from the mean and spread of fewer runs of {results.study.baseline}.")
    return found


def _divisors(results: StudyResults) -> list[str]:
    """Return what weighted losses are divided by, unless all are softmax divided by the sum of the weights."""
    known = sorted({(run.settings["loss"], run.settings["divide_by"]) for run in results.frame.runs.values()}, key=str)
    if all(each == ("softmax", "weight") for each in known):
        return []
    words = [f"{loss} by {_DIVISORS[str(name)]}" for loss, name in reversed(known)]
    return [f"Weighted losses of a batch are divided: {'; '.join(words)}."]


def legend_lines(results: StudyResults, *, optimistic: bool) -> list[str]:
    """Return what the columns mean."""
    if results.correlations:
        return [CORRELATION_LEGEND]
    base, own = results.study.baseline, results.comparisons
    found = [GAIN_LEGEND.format(base=base)] if any(each.differences for each in own) else []
    found += [PAPER_LEGEND] if any(each.paper for each in own) else []
    if any(each.claim.gain for each in results.rivals) or pooled(results):
        found.append(METHOD_LEGEND)
    return found + ([OPTIMISTIC_LEGEND.format(base=base)] if optimistic and any(e.optimistic for e in own) else [])


CORRELATION_LEGEND = (
    "r: Pearson's correlation over classes between age (of a sample, averaged over all epochs, then over the class) "
    "and the value in the last epoch, with Fisher's interval; p is corrected for their number (Holm)."
)
GAIN_LEGEND = (
    "gain: difference to {base} in points, paired by seed. Each seed's setting is chosen on validation of the other "
    "seeds; the setting shown is the choice of all seeds. Student's interval, widened for the choice."
)
PAPER_LEGEND = "paper: its accuracy and gain, which seem to be those of the best setting on test."
METHOD_LEGEND = (
    "with one spread: intervals if all methods vary alike (df: degrees of freedom); they are not corrected and have "
    "no part in the verdict."
)
OPTIMISTIC_LEGEND = (
    "OPTIMISTIC: the best setting of each seed, chosen on test; for aol no weighting (ρ = 0) is one of the tries, as "
    "in the paper. best of {base}: expected best of as many runs of {base} with other seeds; reached by luck: how "
    "often so many runs of {base} are as good. Other seeds also mean other data, which is a disadvantage of the grid; "
    "above noise of one seed: its gain minus the expected best of as many equal settings with one seed."
)


def method_legend(names: Collection[str]) -> str:
    """Return what the methods of the built-in studies are, for those of these names.

    >>> method_legend(["none", "frequency", "bf16"])
    'methods: none: no weighting; frequency: counts to the power −p.'
    """
    return f"methods: {'; '.join(f'{name}: {what}' for name, what in METHODS.items() if name in names)}."


def hardware(results: StudyResults) -> str:
    """Return the number of runs, the device, the versions and the training time; "" without runs."""
    frame = results.frame
    if not len(frame):
        return ""
    devices = Counter(frame["device"].fillna("an unknown device"))
    parts = [f"{runs_text(count)} on {name}" if len(devices) > 1 else name for name, count in sorted(devices.items())]
    versions = [f"{name} {', '.join(sorted(set(frame[name].fillna('?'))))}" for name in ("aol", "torch", "python")]
    hours = sum(frame["seconds"].fillna(0.0)) / 3600.0
    return f"{runs_text(len(frame))}; {'; '.join(parts)}; {'; '.join(versions)}; {hours:.2f} hours of training."


def runs_text(count: int) -> str:
    """Return a number of runs in words."""
    return "1 run" if count == 1 else f"{count} runs"


def sentences(results: StudyResults, *, optimistic: bool) -> list[str]:
    """Return everything that stands under a table, the verdicts first."""
    found = [*verdict_lines(results), *run_lines(results), *method_lines(results, optimistic=optimistic)]
    found += legend_lines(results, optimistic=optimistic)
    return [*found, line] if (line := hardware(results)) else found


def gain_text(gain: Gain) -> str:
    """Return a gain with its interval."""
    return f"{points(gain.mean)}{span(gain)}"
