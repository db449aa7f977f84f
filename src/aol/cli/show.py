"""`aol show`, and the end of `aol train`: runs as a table, the classes that are wrong longest, what to do next."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aol.cli.parser import Commands, add_command, add_common
from aol.engine.settings import Settings, WrongSettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from aol.runs.record import Json, Run
    from aol.runs.store import Store
    from aol.runs.table import RunFrame

FORMATS = ("table", "csv", "json")
MOST_CLASSES = 5
_OLD = 1.05  # mean age: below it practically every sample was right in the last epoch
_WIDTH = 120  # where there is no terminal
_EXAMPLES = ("aol show runs/latest", "aol show runs/a runs/b", "aol show results --format csv > runs.csv")


def add(commands: Commands) -> None:
    """Add `aol show`."""
    text = "Print runs as a table, the classes that are wrong longest, and what to do next."
    parser = add_command(commands, "show", _show, text, _EXAMPLES)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", type=Path,
                        help="--out of a command, a study's folder, one run, or a folder of those")  # fmt: skip
    parser.add_argument("--format", choices=FORMATS, help="csv: a row a run, with all settings (default: table)")
    add_common(parser)


def _show(words: argparse.Namespace) -> int:
    from aol.runs.record import DamagedRunError, read_run
    from aol.runs.store import find_runs
    from aol.runs.table import frame_of

    if words.json and words.format not in (None, "json"):
        raise WrongSettingsError(f"--json and --format {words.format} contradict each other.")
    runs: list[tuple[Path | None, Run]] = []
    damaged = []
    for folder in find_runs(*words.folders):
        try:
            runs.append((folder, read_run(folder)))
        except DamagedRunError as error:
            damaged.append(str(error))
    frame = frame_of(runs)
    if words.json or words.format == "json":
        print_json(frame)
    elif words.format == "csv":
        print(frame.to_csv(), end="")
    else:
        print_runs(frame, words.folders, asked=_asked(words.folders, len(frame)))
    for each in damaged:
        print(f"aol: damaged, not shown: {each}", file=sys.stderr)
    return 1 if damaged else 0


def _asked(folders: Sequence[Path], there: int) -> int:
    """Return how many runs were asked for in the folders, where that is known."""
    from aol.runs.store import read_request

    requests = [read_request(folder) for folder in folders]
    asked = [len(ids) for each in requests if each is not None and isinstance(ids := each.get("ids"), list)]
    return max(there, sum(asked)) if len(asked) == len(folders) else there


def asked_for(store: Store, runs: Sequence[Settings]) -> RunFrame:
    """Return those of some runs that have a record, in their order."""
    from aol.runs.table import frame_of

    read = [(store.path(run.run_id), store.get(run.run_id)) for run in runs]
    return frame_of((folder, run) for folder, run in read if run is not None)


# For programs


def print_json(frame: RunFrame) -> None:
    """Print one JSON object: every run with its settings and results."""
    runs = [_as_json(run, str(frame.loc[name, "folder"])) for name, run in frame.runs.items()]
    print(json.dumps({"runs": runs}, ensure_ascii=False, allow_nan=False))


def _as_json(run: Run, folder: str) -> dict[str, Json]:
    from aol.runs.figures import CURVES, accuracy_figures, is_stream
    from aol.runs.record import numbers

    def figures(curve: str) -> dict[str, Json]:
        known = accuracy_figures(run.curves[curve], stream=is_stream(run)) if curve in run.curves else {}
        return {name: value if math.isfinite(value) else None for name, value in known.items()}

    def by_class(name: str) -> list[Json]:
        return numbers(run.by_class[name]) if name in run.by_class else [None] * len(run.classes)

    test = figures(CURVES["test"]) or dict.fromkeys(("last", "best", "tail_mean"))
    more = {curve: figures(curve) for split, curve in CURVES.items() if split != "test" and curve in run.curves}
    return {
        "id": run.id,
        "method": run.method,
        "config": dict(run.settings),
        "accuracy": test,
        "per_class_accuracy": by_class("test_accuracy"),
        "class_age": by_class("smoothed_age") if "smoothed_age" in run.by_class else by_class("age"),
        "raw_class_age": by_class("age"),
        "class_weight": by_class("weight"),
        "seconds": run.seconds,
        "trained_together": run.trained_together,
        "finished": run.finished,
        "failed_at_epoch": run.failed_at_epoch,
        "out": folder,
        "versions": dict(run.versions),
        **more,
    }


# For people


@dataclass(frozen=True)
class Row:
    """One method over its seeds: mean and spread of a figure, and the gain over the baseline, paired by seed.

    `conditions` are the settings besides the method in which the runs at hand differ.
    """

    conditions: str
    method: str
    seeds: int
    mean: float
    spread: float
    gain: float | None
    interval: tuple[float, float] | None


def compare(runs: Sequence[Run], figures: Sequence[float]) -> list[Row]:
    """Return a row a method; gains are paired by seed, with Student's interval of 95 % from two seeds on.

    The baseline is the run without weighting: same conditions and loss.
    """
    import numpy as np

    from aol.stats import paired_gain

    settings = [_settings(run) for run in runs]
    conditions = _conditions([each for each in settings if each is not None])
    table: dict[tuple[str, str], dict[int, float]] = {}
    baseline: dict[tuple[str, str], tuple[str, str]] = {}
    for run, own, figure in zip(runs, settings, figures, strict=True):
        if not math.isfinite(figure):
            continue
        key = ("" if own is None else conditions(own), run.method)
        table.setdefault(key, {})[len(table.get(key, {})) if run.seed is None else run.seed] = figure
        if own is not None:
            baseline[key] = (key[0], replace(own, weighting="none", mechanism="reweight").method)
    rows = []
    for key, by_seed in table.items():
        values = np.array(list(by_seed.values()))
        base = table.get(baseline[key], {}) if key in baseline and key != baseline[key] else {}
        pairs = [value - base[seed] for seed, value in by_seed.items() if seed in base]
        spread = float(values.std(ddof=1)) if values.size > 1 else math.nan
        gain = paired_gain(pairs) if pairs else None
        rows.append(Row(*key, values.size, float(values.mean()), spread, *(
            (gain.mean, gain.interval) if gain else (None, None)
        )))  # fmt: skip
    return rows


def _settings(run: Run) -> Settings | None:
    """Return the settings of a run of the engine; None for one of a recorder."""
    if not {field.name for field in fields(Settings)} >= set(run.settings) or "weighting" not in run.settings:
        return None
    try:
        return Settings(**run.settings)  # type: ignore[arg-type]
    except ValueError:
        return None


def _conditions(runs: Sequence[Settings]) -> Callable[[Settings], str]:
    """Return what names the settings, besides the method, that distinguish these runs, as few as possible."""
    keys = [dict(key) for key in {run.group_key for run in runs}]

    def apart(names: Sequence[str]) -> int:
        return len({tuple(key[name] for name in names) for key in keys})

    telling = [name for name in (keys[0] if keys else ()) if apart([name]) > 1]
    for name in reversed(telling):
        rest = [other for other in telling if other != name]
        if apart(rest) == len(keys):
            telling = rest
    return lambda run: " ".join(f"{name}={getattr(run, name)}" for name in telling)


def print_runs(frame: RunFrame, folders: Sequence[Path], *, asked: int) -> None:
    """Print the table over seeds, the classes that are wrong longest, and what to do next."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    finished = frame[frame.finished.astype(bool)] if len(frame) else frame
    if len(finished):
        _print_table(console, finished)
        _print_oldest(console, finished)
    lines = [f"{len(finished)}/{asked} runs complete."] if len(finished) < asked else []
    for run in frame.runs.values():
        if run.failed_at_epoch is not None:
            where = "" if run.seed is None else f", seed {run.seed}"
            lines.append(f"Failed: {run.method}{where}: its loss was not finite in epoch {run.failed_at_epoch}.")
    names = " ".join(str(folder) for folder in folders)
    if len(finished) < asked:
        lines += [f"Continue:       aol resume {folder}" for folder in folders]
    if len(frame):
        lines.append(f"Look closer:    aol report {names} --open")
        lines.append(f"In Python:      aol.load_runs({', '.join(repr(str(folder)) for folder in folders)})")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def _print_table(console: Console, frame: RunFrame) -> None:
    from rich.table import Table

    from aol.runs.figures import is_stream

    runs = list(frame.runs.values())
    stream = all(is_stream(run) for run in runs)
    figure = "second_half_mean" if stream else "tail_mean"
    rows = compare(runs, [float(value) for value in frame[f"test_{figure}"]])
    named = any(row.conditions for row in rows)
    head = ["method", "seeds", "test %", "sd", "gain over none", "95 % interval"]
    table = Table(*(["with", *head] if named else head))
    for row in rows:
        cells = [
            row.method,
            str(row.seeds),
            f"{100 * row.mean:.2f}",
            "" if math.isnan(row.spread) else f"{100 * row.spread:.2f}",
            "" if row.gain is None else f"{100 * row.gain:+.2f}",
            "" if row.interval is None else f"{100 * row.interval[0]:+.2f} to {100 * row.interval[1]:+.2f}",
        ]
        table.add_row(*([row.conditions, *cells] if named else cells))
    if rows:
        console.print(table)
        what = "the second half of the stream" if stream else "the last 5 % of epochs"
        console.print(
            f"Test accuracy, mean over {what}; sd over seeds; gains are paired by seed, with Student's interval.",
            soft_wrap=True,
        )
    if any(run.failed_at_epoch is not None for run in runs):
        console.print("A run that diverged counts as chance.", soft_wrap=True)


def _print_oldest(console: Console, frame: RunFrame) -> None:
    """Print the classes with the highest age at the end, mean over runs: one table for each list of classes."""
    from rich.table import Table

    classes = frame.classes()
    if "age" not in classes or not classes["age"].notna().any():
        return
    sets = {
        name: ("|".join(run.classes), str(run.data or run.settings.get("data") or ""))
        for name, run in frame.runs.items()
    }
    for key in dict.fromkeys(sets.values()):
        mine = classes[classes["id"].isin([name for name, other in sets.items() if other == key])]
        mean = mine.groupby(["class", "name"], sort=False).mean(numeric_only=True).reset_index()
        mean = mean[mean["age"] >= _OLD].sort_values("age", ascending=False, kind="stable").head(MOST_CLASSES)
        if mean.empty:
            continue
        of = f" of {key[1]}" if len(set(sets.values())) > 1 else ""
        table = Table(
            "class", "training samples", "age in epochs", "test %", title=f"Wrong longest{of}", title_justify="left"
        )
        for row in mean.to_dict("records"):
            count, accuracy = float(row.get("count") or math.nan), float(row.get("test_accuracy", math.nan))
            table.add_row(
                str(row["name"]),
                "" if math.isnan(count) else f"{count:,.0f}",
                f"{row['age']:.1f}",
                "" if math.isnan(accuracy) else f"{100 * accuracy:.1f}",
            )
        console.print(table)
