"""The tables of a study: rows of numbers for CSV and JSON, and tables of text for people.

In rows, accuracies are in percent and differences in points, and only the last bits of binary sums are rounded away.
Tables of text are DataFrames of strings whose index names the cell of the study; the minus sign is a real one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np
import pandas as pd

from aol.lab.settings import Value
from aol.lab.study.comparisons import Comparison, StudyResults, chosen_runs, records
from aol.lab.study.correlations import Correlation, beyond, signed
from aol.lab.study.shifts import gains_after_shifts
from aol.lab.study.spec import Cell, cell_name, plural
from aol.lab.study.stats import BestOfTries
from aol.lab.study.verdict import LEAST_SEEDS, Claim, p_text, points
from aol.stats import Gain

NONE = "–"
Row = dict[str, Value]
Ends = tuple[float, float] | None


# Rows of numbers


def rows(results: StudyResults, *, optimistic: bool = False) -> list[Row]:
    """Return a row for each comparison, or for each correlation."""
    name = results.study.name
    if results.correlations:
        return [{"study": name, **_correlation_row(cell, each)} for cell, own in results.correlations for each in own]
    first: Row = {"study": name, "figure": results.figure}
    return [
        {**first, **each.cell, **_row(each), **(_optimistic_row(each) if optimistic else {})}
        for each in results.comparisons
    ]


def _correlation_row(cell: Cell, each: Correlation) -> Row:
    names = ("signal", "classes", "seeds", "r", "low", "high", "p", "p_corrected")
    row: Row = {**{name: getattr(each, name) for name in names}, "paper_r": each.paper}
    # "signal" is also a setting of runs, which a study may vary.
    return {**{f"setting_{name}" if name in row else name: value for name, value in cell.items()}, **row}


def _hundred(value: float | None) -> float | None:
    return None if value is None else round(100.0 * value, 8)


def _ends(name: str, ends: Ends) -> Row:
    low, high = ends or (None, None)
    return {f"{name}_low_points": _hundred(low), f"{name}_high_points": _hundred(high)}


def _gain(name: str, gain: Gain | None) -> Row:
    mean, ends = (gain.mean, gain.interval) if gain else (None, None)
    return {f"{name}_points": _hundred(mean), **_ends(name, ends)}


def _row(each: Comparison) -> Row:
    gain, paper = each.gain, each.paper
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
        **_gain("gain", gain),
        **_ends("bootstrap", gain.bootstrap if gain else None),
        "p": gain.p if gain and gain.seeds > 1 else None,
        "paper_percent": _hundred(paper.accuracy if paper else None),
        "paper_gain_points": _hundred(each.paper_gain),
        "paper_setting": paper.setting if paper else "",
        "p_corrected": each.p,
    }


def _optimistic_row(each: Comparison) -> Row:
    found = each.optimistic
    known = found if found and found.baseline.known else None
    return {
        "optimistic_tries": found.tries if found else None,
        "optimistic_best_percent": _hundred(found.mean if found else None),
        "optimistic_gain_points": _hundred(found.gain if found else None),
        "baseline_best_of_tries_percent": _hundred(known.baseline.mean if known else None),
        "baseline_runs": found.baseline.runs if found else None,
        "baseline_extrapolated": found.baseline.extrapolated if found else None,
        **_gain("left", known.left if known else None),
        "reached_by_luck": found.reached if found else None,
        **_gain("within", found.within if found else None),
    }


def rival_rows(results: StudyResults) -> list[Row]:
    """Return a row for each method of the paper against each other method."""
    known = [each for each in results.rivals if each.gain is not None]
    return [
        {"method": each.method, "over": each.over, **_gain("gain", each.gain), "p_corrected": each.p} for each in known
    ]


# Tables of text


@dataclass(frozen=True)
class TextTable:
    """A title and a frame of text; the index has the name of the study's cell, "" where there is none."""

    title: str
    frame: pd.DataFrame


def text_table(title: str, body: Iterable[dict[str, str]], *, whole: bool = False) -> TextTable:
    """Return a table from rows, in which "cell" names the cell; columns without any text are left out unless `whole`.

    >>> text_table("T", [{"method": "aol", "gain": "+1.00", "p": "–"}]).frame.columns.tolist()
    ['method', 'gain']
    """
    found = [{"cell": "", **row} for row in body]
    frame = pd.DataFrame(found, dtype="object").set_index("cell") if found else pd.DataFrame()
    empty = [name for name in frame.columns if frame[name].isin(["", NONE]).all() and not whole]
    return TextTable(title, frame.drop(columns=empty))


def percent(value: float | None) -> str:
    """Return an accuracy in percent; a dash for none."""
    return NONE if value is None else f"{100.0 * value:.2f}"


def _points(value: float | None) -> str:
    return NONE if value is None else points(value)


def gain_text(gain: Gain | None) -> str:
    """Return a gain in points with its interval, if it has one; a dash for none."""
    if gain is None:
        return NONE
    ends = gain.interval
    return points(gain.mean) + (f" ({points(ends[0])}, {points(ends[1])})" if ends else "")


def signal_name(signal: str) -> str:
    """Return the name of a signal in a table.

    >>> signal_name("loss_train")
    'loss, training'
    """
    return signal.replace("_", ", ").replace("train", "training")


def tables(results: StudyResults, *, optimistic: bool = False) -> list[TextTable]:
    """Return the tables of a study: correlations where nothing is compared, else gains; and the optimistic ones."""
    if results.correlations:
        return [correlation_table(results)]
    found = [gain_table(results)]
    found += [method_table(results)] if results.side_by_side else []
    found += [optimistic_table(results)] if optimistic else []
    found += [as_published_table(results)] if optimistic and results.beside_paper else []
    return [each for each in found if len(each.frame)]


def gain_table(results: StudyResults) -> TextTable:
    """Return the gains in cells that have runs; in all cells where none has, for the paper's figures."""
    cells = [each.cell for each in results.comparisons if each.runs]
    shown = [each for each in results.comparisons if each.cell in cells] or list(results.comparisons)
    return text_table(results.study.title, (_gain_row(each, results) for each in shown), whole=True)


def _gain_row(each: Comparison, results: StudyResults) -> dict[str, str]:
    accuracy = f"{each.runs}/{each.runs_planned} runs"
    if each.seeds:
        accuracy = percent(each.mean) + (f" ±{percent(each.spread)}" if each.spread is not None else "")
    row = {
        "cell": cell_name(each.cell),
        "method": each.name + (" *" if each.apart else ""),
        "n": str(len(each.seeds)) + (f"/{each.planned}" if len(each.seeds) != each.planned else ""),
        results.measured: accuracy,
        "gain (95 %)": "baseline" if each.seeds and each.method == results.study.baseline else gain_text(each.gain),
        "p": NONE if each.p is None else p_text(each.p),
    }
    if results.beside_paper:
        gain = f" {points(each.paper_gain)}" if each.paper_gain is not None else ""
        row["paper"] = percent(each.paper.accuracy if each.paper else None) + gain
    return row


def method_table(results: StudyResults) -> TextTable:
    """Return each method's mean gain, that with one spread for all methods, and the difference to the paper's method.

    Over the cells that a verdict is on; without such, over all that have a gain.
    """
    common = results.pooled
    freedom = next(iter(common.values())).freedom if common else 0
    claims = [each.method for each in results.verdicts]
    cells = [each.cell for each in results.of(claims[0])] if claims else []
    rivals = {(each.method, each.over): (each.gain, each.p) for each in results.rivals}
    body = []
    for method in results.study.methods:
        own = [each.gain for each in results.comparisons if each.method == method.name and each.cell in cells]
        gains = [gain.mean for gain in own if gain]
        if not own or len(gains) < len(own):
            continue
        row = {"method": method.name, "gain": points(fmean(gains))}
        row[f"with one spread ({freedom} df)"] = gain_text(common.get(method.name))
        for name in claims:
            gain, p = rivals.get((name, method.name), (None, None))
            row[f"{name} minus it (95 %)"] = gain_text(gain)
            row["p" if len(claims) == 1 else f"p ({name})"] = NONE if p is None else p_text(p)
        body.append(row)
    return text_table("Methods side by side, mean of cells", body)


def optimistic_table(results: StudyResults) -> TextTable:
    """Return the best of each grid on test beside the best of as many baseline runs."""
    known = [each for each in results.comparisons if each.optimistic]
    paper = ("gain", "paper", "paper's gain")
    body = [_tried_row(each, results.study.baseline, but=paper) for each in known]
    return text_table("Optimistic: the best setting on test", body)


def as_published_table(results: StudyResults) -> TextTable:
    """Return the best epoch of the best setting on test, or of the only one, beside the paper's figure and gain."""
    published = [each for each in results.with_figure("best").comparisons if each.paper and each.mean is not None]
    known = [each for each in published if each.optimistic or each.settings == 1]
    luck = ("reached by luck", "above noise of one seed")
    body = [_tried_row(each, results.study.baseline, but=luck) for each in known]
    return text_table("As published: the best epoch of the best setting, both chosen on test", body)


def _tried_row(each: Comparison, base: str, *, but: Sequence[str]) -> dict[str, str]:
    """Return a method at its best setting on test, beside as many baseline runs and the paper, without some columns.

    With one seed, a difference to the baseline would count the luck of that seed.
    """
    found, several = each.optimistic, len(each.seeds) > 1
    row = {
        "cell": cell_name(each.cell),
        "OPTIMISTIC": f"{each.method}: {found.tries} tries" if found else each.method,
        "best on test": percent(found.mean if found else each.mean),
        "gain": _points(found.gain if found else each.gain.mean if each.gain else None),
        "paper": percent(each.paper.accuracy if each.paper else None),
        "paper's gain": _points(each.paper_gain),
        f"best of {base}": _best_of(found.baseline) if found else NONE,
        "difference": gain_text(found.left) if found and several else NONE,
        "reached by luck": f"{found.reached:.0%}" if found and several and found.reached is not None else NONE,
        "above noise of one seed": gain_text(found.within if found else None),
    }
    return {name: text for name, text in row.items() if name not in but}


def _best_of(baseline: BestOfTries) -> str:
    """Return the best of as many baseline runs, marked where it is extrapolated; a dash where there is one run."""
    return ("~" if baseline.extrapolated else "") + percent(baseline.mean) if baseline.known else NONE


def correlation_table(results: StudyResults) -> TextTable:
    """Return the correlations of class age, in each cell that has some."""
    body = [
        {
            "cell": cell_name(cell),
            "class age and": signal_name(each.signal),
            "classes": str(each.classes),
            "n": str(each.seeds),
            "r (95 %)": _r_text((each.r, each.low, each.high)),
            "p": p_text(each.p_corrected),
            "paper": NONE if each.paper is None else signed(each.paper),
        }
        for cell, own in results.correlations
        for each in own
    ]
    return text_table(results.study.title, body)


def _r_text(ends: tuple[float, float, float] | None) -> str:
    """Return a correlation with its interval; a dash for none."""
    return NONE if ends is None else f"{signed(ends[0])} ({signed(ends[1])}, {signed(ends[2])})"


# Checks


def checks(results: StudyResults) -> list[TextTable]:
    """Return what else the runs show about the verdicts, as small tables."""
    if results.correlations:
        found = [_beyond_table(results)]
    else:
        found = [_baseline_table(results), _check_table(results), _figure_table(results), _shift_table(results)]
        found += [] if results.side_by_side else [method_table(results)]
    return [each for each in found if len(each.frame)]


def _beyond_table(results: StudyResults) -> TextTable:
    """Return what age tells of test accuracy beyond class size and error rate, which may explain it."""
    study = results.study
    body = [
        {
            "cell": cell_name(cell),
            "held fixed": held,
            "n": str(seeds),
            "age, r (95 %)": _r_text(found["age"]),
            "log age, r (95 %)": _r_text(found["log_age"]),
            "error rate, r (95 %)": _r_text(found["error"]),
        }
        for cell, _ in results.correlations
        for held, seeds, found in beyond(records(results.frame, study.runs(cell, study.method(study.baseline))))
    ]
    return text_table("With test accuracy, beyond class size and training error rate (mean over epochs)", body)


def _by_figure(results: StudyResults) -> list[StudyResults]:
    return [results, *(results.with_figure(each) for each in results.study.figures if each != results.figure)]


def _baseline_table(results: StudyResults) -> TextTable:
    """Return the baseline's accuracy by each figure and in the paper: whether the set-up is the same."""
    base, body, most = results.study.baseline, [], 0
    for each in _by_figure(results):
        own = [line for line in each.comparisons if line.method == base and line.mean is not None]
        pairs = [(fmean(line.pool), line.paper.accuracy) for line in own if line.paper is not None]
        if pairs:
            ours, theirs = (fmean(column) for column in zip(*pairs, strict=True))
            body.append({"figure": each.figure, "here": percent(ours), "paper": percent(theirs)})
            most = max(len(line.pool) for line in own)
    title = f"Baseline ({base}) beside the paper: mean of the cells that the paper has, {_up_to(most)}"
    return text_table(title, body)


def _check_table(results: StudyResults) -> TextTable:
    """Return the checks of each judged method: a column a method."""
    columns = {each.method: _method_checks(results, each) for each in results.verdicts}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    body = [{"check": name, **{method: own.get(name, NONE) for method, own in columns.items()}} for name in names]
    return text_table("Checks", body)


def _method_checks(results: StudyResults, verdict: Claim) -> dict[str, str]:
    own, base = results.of(verdict.method), results.study.baseline
    if not own:
        return {}
    few = any(len(each.seeds) < LEAST_SEEDS for each in own)
    gains = [each.gain.mean for each in own if each.gain is not None]
    cells = "1 cell" if len(own) == 1 else f"mean of {len(own)} cells"
    seeds = max(len(each.seeds) for each in own)
    found = {f"gain, {cells}, {plural(seeds, 'seed')}": points(fmean(gains))}
    found |= _few_seeds(own, gains, base) if few else {}
    if all(len(each.pool) > 2 for each in own):
        most = max(len(each.pool) for each in own)
        found[f"the same between runs of {base}: standard deviation, {_up_to(most)}"] = percent(_noise(own))
    found |= {} if few else _best_setting(own, base)
    found |= _as_published(results, verdict.method)
    return found | ({} if few else _stability(own))


def _noise(own: Sequence[Comparison]) -> float:
    """Return the standard deviation of a mean gain over cells, if every method were the baseline.

    `√(Σ 2 s² / n) / K` over the K cells, with the spread s of the baseline's runs and n seeds in each.
    """
    return float(sum(2.0 * variance(each.pool) / len(each.seeds) for each in own) ** 0.5 / len(own))


def _few_seeds(own: Sequence[Comparison], gains: Sequence[float], base: str) -> dict[str, str]:
    """Describe gains with fewer seeds than a verdict needs."""
    found = {}
    if len(own) > 1:
        found["lowest and highest cell"] = f"{points(min(gains))}, {points(max(gains))}"
        found["cells above zero"] = f"{sum(gain > 0 for gain in gains)} of {len(own)}"
    papers = [each.paper_gain for each in own if each.paper_gain is not None]
    if papers and len(papers) == len(own):
        found["paper's gain"] = points(fmean(papers))
    if all(len(each.pool) > len(each.seeds) for each in own):
        apart = fmean(fmean(each.values) - fmean(each.pool) for each in own)
        most = max(len(each.pool) for each in own)
        found[f"gain over the mean of all runs of {base}, {_up_to(most)}"] = points(apart)
    if max(each.settings for each in own) > 1:
        found["gain of all settings, none chosen"] = points(fmean(fmean(each.all_gains) for each in own))
        above = [f"{sum(gain > 0 for gain in each.all_gains)} of {len(each.all_gains)}" for each in own]
        found[f"settings above {base}, by cell"] = ", ".join(above)
    return found


def _best_setting(own: Sequence[Comparison], base: str) -> dict[str, str]:
    """Return the gain of the best setting on test, also when the baseline may be tried as often."""
    known = [each.optimistic for each in own if each.optimistic]
    if not known:
        return {}
    extrapolated = ", extrapolated" if any(each.baseline.extrapolated for each in known) else ""
    found = {
        "gain of the best setting on test": points(fmean(each.gain for each in known)),
        f"the same, minus the best of {known[0].tries} runs of {base}{extrapolated}": points(
            fmean(each.left.mean for each in known)
        ),
    }
    above = [each.within.interval[0] > 0 for each in known if each.within and each.within.interval]
    if above:
        text = f"{sum(above)} of {len(above)}"
        found["cells where the best setting is above the noise of one seed (95 %)"] = text
    return found


def best_on_test(results: StudyResults, method: str) -> dict[str, float] | None:
    """Return a method at the best epoch of the best setting, both chosen on test, and the paper's figures.

    Means of cells. `tried` is the best of as many baseline runs, where it is known, and `tried_gain` what that has
    above the mean of all baseline runs.
    """
    best = results.with_figure("best").of(method)
    known = [(each.optimistic, each.paper, each.paper_gain, each.pool) for each in best]
    whole = [(ours, paper, gain, pool) for ours, paper, gain, pool in known if ours and paper and gain is not None]
    if not whole:
        return None
    ours = [each for each, *_ in whole]
    found = {
        "accuracy": fmean(each.mean for each in ours),
        "gain": fmean(each.gain for each in ours),
        "paper": fmean(paper.accuracy for _, paper, *_ in whole),
        "paper_gain": fmean(gain for _, _, gain, _ in whole),
        "tries": ours[0].tries,
        "extrapolated": any(each.baseline.extrapolated for each in ours),
    }
    if all(each.baseline.known for each in ours):
        tried = fmean(each.baseline.mean for each in ours)
        found |= {"tried": tried, "tried_gain": tried - fmean(fmean(pool) for *_, pool in whole)}
    return found


def _as_published(results: StudyResults, method: str) -> dict[str, str]:
    found = best_on_test(results, method) if "best" in results.study.figures else None
    if found is None:
        return {}
    words = {
        "best epoch of the best setting on test": f"{percent(found['accuracy'])} {points(found['gain'])}",
        "the same in the paper": f"{percent(found['paper'])} {points(found['paper_gain'])}",
    }
    if "tried" in found:
        extrapolated = ", extrapolated" if found["extrapolated"] else ""
        name = f"best epoch, best of {found['tries']} runs of {results.study.baseline}{extrapolated}"
        words[name] = percent(found["tried"])
    name = f"best setting minus best of {found['tries']} runs of {results.study.baseline}, by cell"
    for figure, left in gain_over_baseline_best(results, method).items():
        words[f"{name}: {figure}"] = ", ".join(map(points, left))
    if (spread := step_deviations(results, method)) is not None:
        name = f"standard deviation over the steps of a run: {method}, {results.study.baseline}"
        words[name] = ", ".join(map(percent, spread))
    return words


def gain_over_baseline_best(results: StudyResults, method: str) -> dict[str, list[float]]:
    """Return by figure, and then by cell, how far the best setting is above the best of as many baseline runs.

    By the study's figure and by the best epoch: runs may be above by one and not by the other. Only where a verdict is.
    """
    found = {}
    for each in (results, results.with_figure("best")):
        known = [line.optimistic for line in each.of(method) if line.optimistic and len(line.seeds) >= LEAST_SEEDS]
        if known and all(line.baseline.known for line in known):
            found[each.figure] = [line.left.mean for line in known]
    return found


def step_deviations(results: StudyResults, method: str) -> tuple[float, float] | None:
    """Return the mean standard deviation of a run's accuracy over its second half, of a method and of the baseline.

    Of streams only, where a verdict is. A maximum over steps rewards it.
    """
    own = results.of(method)
    if not own or results.figure != "second_half_mean" or any(len(each.seeds) < LEAST_SEEDS for each in own):
        return None
    both = []
    for name in (method, results.study.baseline):
        runs = [run for each in own for run in chosen_runs(results, each.cell, name).values()]
        curves = [run.curves["test_accuracy"][len(run.epochs) // 2 :] for run in runs if run.failed_at_epoch is None]
        spreads = [float(np.nanstd(curve, ddof=1)) for curve in curves if np.isfinite(curve).sum() > 1]
        both.append(fmean(spreads) if spreads else 0.0)
    return both[0], both[1]


def _stability(own: Sequence[Comparison]) -> dict[str, str]:
    """Return in how many cells the chosen setting depends on the seed that is left out."""
    known = [each for each in own if each.settings > 1 and len(each.seeds) >= LEAST_SEEDS]
    apart = [each for each in known if each.apart]
    if not apart:
        return {}
    example = ", ".join(dict.fromkeys(apart[0].choices))
    return {"cells where the chosen setting depends on the seed left out": f"{len(apart)} of {len(known)} ({example})"}


def _figure_table(results: StudyResults) -> TextTable:
    """Return the gain and the verdict of each judged method by every figure of the study."""
    body = []
    for place, verdict in enumerate(results.verdicts):
        for each in _by_figure(results):
            gain, word = each.verdicts[place].gain, each.verdicts[place].word
            if gain is not None and verdict.gain is not None:
                figure = each.figure + (" (optimistic)" if each.figure.endswith("best") else "")
                row = {"method": verdict.method, "figure": figure}
                body.append({**row, "gain (95 %)": gain_text(gain), "verdict": word})
    return text_table("By figure", body)


def _shift_table(results: StudyResults) -> TextTable:
    """Return the gains right after the head of a stream moved, and later."""
    claims = [each.method for each in results.verdicts]
    cells = [each.cell for each in results.of(claims[0])] if claims else []
    first = gains_after_shifts(results, claims[0], cells) if cells else None
    body = []
    for method in results.study.methods if first else ():
        found = gains_after_shifts(results, method.name, cells) if method.name != results.study.baseline else None
        if found and first and found.gains.index.equals(first.gains.index):
            gains = found.gains
            at_first, later = (_range(gains[column]) for column in ("first", "rest"))
            body.append(
                {
                    "method": method.name,
                    "first step (by cell)": at_first,
                    "other steps (by cell)": later,
                    "runs with less at the first": f"{(gains['first'] < gains['rest']).sum()} of {len(gains)}",
                    "weights from": "previous step" if found.late else "counts",
                }
            )
    period = first.period if first else 0
    title = f"Gain after the head moved (1 step in {period}) and at the other steps, second half of the stream"
    return text_table(title, body)


def _range(gains: pd.Series[float]) -> str:
    cells = gains.groupby(level="cell").mean()
    ends = f" ({points(cells.min())} to {points(cells.max())})" if len(cells) > 1 else ""
    return points(gains.mean()) + ends


def _up_to(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"up to {seeds} seeds a cell"
