"""A table as plain rows of numbers, for CSV and JSON: accuracies in percent, differences in points.

Knows tables, no formats. Nothing is rounded but the last bits of a sum in binary.
"""

from __future__ import annotations

from collections.abc import Sequence

from aol.engine.settings import Value
from aol.study.lines import Line
from aol.study.table import Table

Row = dict[str, Value]


def as_rows(table: Table, *, optimistic: bool = False) -> list[Row]:
    """Return a row for each line of the table, or for each correlation."""
    if table.correlations:
        return _correlations(table)
    found = []
    for line, p in zip(table.lines, table.p_values, strict=True):
        row: Row = {"study": table.study.name, "figure": table.figure, **line.cell, **_line(line), "p_corrected": p}
        found.append({**row, **_optimistic(line)} if optimistic else row)
    return found


def hundred(value: float | None) -> float | None:
    """Return a fraction in percent, without the last bits of binary sums."""
    return None if value is None else round(100.0 * value, 8)


def _ends(name: str, ends: tuple[float, float] | None) -> Row:
    low, high = ends if ends is not None else (None, None)
    return {f"{name}_low_points": hundred(low), f"{name}_high_points": hundred(high)}


def _line(line: Line) -> Row:
    gain = line.gain
    return {
        "method": line.method,
        "setting": line.setting,
        "settings_tried": line.settings,
        "choices_by_seed": _list(line.choices),
        "seeds": _list([str(seed) for seed in line.seeds]),
        "seeds_whole": len(line.seeds),
        "seeds_planned": line.planned,
        "runs": line.runs,
        "runs_planned": line.runs_planned,
        "runs_failed": line.failed,
        "accuracy_percent": hundred(line.mean),
        "spread_points": hundred(line.spread),
        "gain_points": hundred(gain.mean if gain else None),
        **_ends("gain", gain.interval if gain else None),
        **_ends("bootstrap", gain.bootstrap if gain else None),
        "p": gain.p if gain and gain.seeds > 1 else None,
        "paper_percent": hundred(line.paper.accuracy if line.paper else None),
        "paper_gain_points": hundred(line.paper_gain),
        "paper_setting": line.paper.setting if line.paper else "",
    }


def _list(words: Sequence[str]) -> str:
    return "; ".join(words)


def _optimistic(line: Line) -> Row:
    found = line.optimistic
    tried = found is not None and found.baseline.known
    return {
        "optimistic_tries": found.tries if found else None,
        "optimistic_best_percent": hundred(found.mean if found else None),
        "optimistic_gain_points": hundred(found.gain if found else None),
        "baseline_best_of_tries_percent": hundred(found.baseline.mean if found and tried else None),
        "baseline_runs": found.baseline.runs if found else None,
        "baseline_extrapolated": found.baseline.extrapolated if found else None,
        "left_points": hundred(found.left if found and tried else None),
        **_ends("left", found.interval if found else None),
        "reached_by_luck": found.reached if found else None,
        "within_points": hundred(found.within if found else None),
        **_ends("within", found.within_interval if found else None),
    }


def _correlations(table: Table) -> list[Row]:
    rows: list[Row] = []
    for cell, found in table.correlations:
        for each in found:
            own: Row = {"signal": each.signal, "classes": each.classes, "seeds": each.seeds}
            numbers: Row = {
                "r": each.r,
                "low": each.low,
                "high": each.high,
                "p": each.p,
                "p_corrected": each.p_corrected,
            }
            rows.append({"study": table.study.name, **cell, **own, **numbers, "paper_r": each.paper})
    return rows
