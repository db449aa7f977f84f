"""The methods of a report side by side: what each reached, and what it gained over training without weights."""

from __future__ import annotations

from collections.abc import Sequence

from aol.records.compare import MethodRow, compare
from aol.records.record import Run
from aol.records.table import frame_of
from aol.report.figures.summary import ends


def method_rows(runs: Sequence[Run]) -> list[MethodRow]:
    """Return a row a method, the baseline first; of finished runs, where there are any.

    Only runs with the same classes are compared: those of the first run.
    """
    chosen = [run for run in runs if run.finished] or list(runs)
    chosen = [run for run in chosen if run.classes == chosen[0].classes]
    if not chosen:
        return []
    by_run = ends(frame_of((None, run) for run in chosen)).dropna(axis=1, how="all")
    return compare(chosen, by_run.pop("accuracy").tolist(), by_run) if "accuracy" in by_run else []


def gain_text(row: MethodRow) -> str:
    """Return what a method gained, in points of accuracy with its interval.

    >>> from aol.stats import paired_gain
    >>> gain_text(MethodRow("", "cb", "none", 3, 0.8, 0.01, paired_gain([0.05, 0.06, 0.07]), {}))
    'cb gained +6.0 points (+3.5 to +8.5, 3 seeds) over none'
    """
    gain = row.gain
    if gain is None:
        return row.name
    seeds = f"{gain.seeds} seeds" if gain.seeds > 1 else "one seed, so it may be chance"
    interval = "" if gain.interval is None else " to ".join(f"{100 * end:+.1f}" for end in gain.interval) + ", "
    return f"{row.name} gained {100 * gain.mean:+.1f} points ({interval}{seeds}) over {row.baseline}"


def is_better(row: MethodRow) -> bool:
    """Return whether the whole interval of the gain lies above zero."""
    return row.gain is not None and row.gain.interval is not None and row.gain.interval[0] > 0


def best_first(rows: Sequence[MethodRow]) -> list[MethodRow]:
    """Return the methods that have a gain, the largest first."""
    return sorted((row for row in rows if row.gain is not None), key=lambda row: -row.gain.mean if row.gain else 0.0)


def answer(rows: Sequence[MethodRow]) -> str:
    """Return in one sentence which methods are better than none here; empty where nothing was compared."""
    tried = best_first(rows)
    better = [gain_text(row) for row in tried if is_better(row)]
    if better:
        return f"Best here: {better[0]}." + (f" Also: {'; '.join(better[1:3])}." if better[1:] else "")
    if not tried:
        return ""
    none = "The method gained nothing" if len(tried) == 1 else f"None of the {len(tried)} methods gained anything"
    return f"{none} for certain in test accuracy. The most: {gain_text(tried[0])}."
