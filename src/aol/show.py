"""`aol show` and `aol report`: the worst classes and the gains of methods; one HTML page, figures, samples."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aol._files import usable
from aol._values import printable
from aol.cli import UsageError, command, console, note, path, print_table, switch, tell, value

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from aol.records.record import Json, Run
    from aol.records.table import RunFrame

MOST_METHODS = 50  # that are listed
PAGE = "report.html"


@command(
    "show",
    "Print the worst classes of each method, the methods over seeds, and what to do next.",
    ("aol show runs/latest", "aol show runs/a runs/b", "aol show results --format csv > runs.csv"),
    value("folders", "FOLDER", "--out of a command, a study, a run, or a folder of those", nargs="+", type=path),
    value("--format", None, "csv: a row a run, with all settings (default: table)", choices=("table", "csv")),
)
def _show(args: argparse.Namespace) -> int:
    from aol.records.metrics import TABLES
    from aol.records.record import DamagedRunError
    from aol.records.store import requested_ids
    from aol.records.table import as_csv, frame_of, read_runs

    if args.json and args.format is not None:
        raise UsageError(f"--json and --format {args.format} contradict each other.")
    damaged: list[DamagedRunError] = []
    frame = frame_of(read_runs(args.folders, damaged, None if args.json else TABLES))
    if args.json:
        print_json(frame)
    elif args.format == "csv":
        print(as_csv(frame.map(lambda cell: printable(cell) if isinstance(cell, str) else cell)), end="")
    else:
        asked = [len(requested_ids(folder)) for folder in args.folders]
        print_runs(frame, args.folders, asked=max(len(frame), sum(asked)) if all(asked) else len(frame))
    for error in damaged:
        note(f"damaged, not shown: {error}")
    return 1 if damaged else 0


def print_json(frame: RunFrame) -> None:
    """Print one JSON object: every run with its settings and results."""
    runs = [_as_json(run, row) for run, (_, row) in zip(frame.runs.values(), frame.iterrows(), strict=True)]
    print(json.dumps({"runs": runs}, allow_nan=False))


_SAME = ("id", "method", "seconds", "trained_together", "finished", "failed_at_epoch")  # names in JSON and in a record
_BY_CLASS = {
    "per_class_accuracy": "test_accuracy", "per_class_precision": "test_precision", "raw_class_age": "age",
    "class_weight": "weight", "class_offset": "offset",
}  # fmt: skip


def _as_json(run: Run, row: pd.Series) -> dict[str, Json]:
    from aol.records.metrics import ALL_MEASURES, METRICS, column_of, is_stream
    from aol.records.record import numbers

    result: dict[str, Json] = {name: getattr(run, name) for name in _SAME}
    result |= {"config": dict(run.settings), "out": str(row["folder"]), "versions": dict(run.versions)}
    parts = [part for part in METRICS if is_stream(run) or part != "second_half_mean"]
    curves = {"accuracy": "test", "validation_accuracy": "validation"}
    curves |= {name: column_of(name) for name in ALL_MEASURES}
    for name, curve in curves.items():
        values = numbers([row[f"{curve}_{part}"] for part in parts], 17)
        metrics: dict[str, Json] = dict(zip(parts, values, strict=True))
        if name == "accuracy" or metrics["last"] is not None or metrics["best"] is not None:
            result[name] = metrics
    age = "smoothed_age" if "smoothed_age" in run.by_class else "age"
    for name, reading in {**_BY_CLASS, "class_age": age}.items():
        result[name] = numbers(run.by_class[reading]) if reading in run.by_class else [None] * len(run.classes)
    if is_stream(run):
        result["zero_threshold"] = numbers([row["zero_threshold"]])[0]
    return result


def print_runs(frame: RunFrame, folders: Sequence[Path], *, asked: int) -> None:
    """Print the worst classes of each method, the methods over seeds, and what to do next."""
    from aol.records.store import REQUEST, resume_command

    out = console()
    runs = frame.runs
    finished = [name for name, run in runs.items() if run.finished]
    by_classes: dict[tuple[str, ...], list[str]] = {}  # methods are compared on the same classes
    for name in finished:
        by_classes.setdefault(tuple(runs[name].classes), []).append(name)
    for names in by_classes.values():
        _print_methods(out, frame.loc[names])
    rows, lines = [], []
    for name, run in runs.items():
        if not run.finished:
            epoch = f"{run.epochs[-1] if len(run.epochs) else 0}/{run.planned or '?'}"
            last = _percent(float(frame["test_last"][name]), ".1f")
            rows.append((run.method, "" if run.seed is None else str(run.seed), epoch, last))
        if run.failed_at_epoch is not None:
            where = run.method + ("" if run.seed is None else f", seed {run.seed}")
            lines.append(f"Failed: {where}: its loss was not finite in epoch {run.failed_at_epoch}.")
    print_table(out, ("in progress", "seed", "epoch", "test %"), rows)
    if len(finished) < asked:
        lines.append(f"{len(finished)}/{asked} runs complete.")
        lines += [f"Continue:       {resume_command(folder)}" for folder in folders if (folder / REQUEST).is_file()]
    if len(frame):
        lines.append(f"Look closer:    aol report {shlex.join(map(str, folders))} --open")
        lines.append(f"In Python:      aol.load_runs({', '.join(repr(str(folder)) for folder in folders)})")
    for line in lines:
        out.print(line, soft_wrap=True)


def _percent(value: float, form: str = ".2f") -> str:
    return "" if math.isnan(value) else f"{100 * value:{form}}"


def _print_methods(out: Console, frame: RunFrame) -> None:
    """Print the methods of runs with the same classes: the worst classes, which no mean hides, the gains, the parts."""
    from aol.records.compare import methods_of, worst_classes
    from aol.records.metrics import measure_text

    methods, runs = methods_of(frame), list(frame.runs.values())
    rows = methods.rows[:MOST_METHODS]
    worst = [(row.name, *map(_class_cell, worst_classes(row.runs).itertuples())) for row in rows]
    head = ("method", "worst class", "second", "third")[: max(map(len, worst), default=0)]
    worst = [row for row in worst if row[1:]]
    print_table(out, head, worst, "Worst classes on test, % right (n: training samples)")
    gains = []
    for row in rows:
        gain = _percent(row.gain.mean, "+.2f") if row.gain else ""
        interval = " to ".join(_percent(end, "+.2f") for end in row.gain.interval or ()) if row.gain else ""
        star = "*" if methods.verdicts.get(row.name) else ""
        gains.append((row.name, str(row.seeds), _percent(row.mean), _percent(row.spread), gain + star, interval))
    print_table(out, ("method", "seeds", f"{methods.measure} %", "sd", "gain", "95 % interval"), gains)
    measures = rows[0].measures if rows else {}
    names = [measure_text("last" if name == "accuracy" else f"{name}_last") for name in measures]
    others = [(row.name, *map(_percent, row.measures.values())) for row in rows if names]
    head = ("method", *(name.removesuffix(" accuracy") for name in names))
    print_table(out, head, others, "Other measures on test, %")
    notes = [methods.about("with *"), methods.answer()] if rows else []
    if len(methods.rows) > len(rows):
        notes.append(f"{len(rows)} of {len(methods.rows)} methods are listed; --format csv has all runs.")
    if any(run.failed_at_epoch is not None for run in runs):
        notes.append("A run that diverged counts as chance.")
    unset = [run.settings.get("threshold") is None for run in runs]
    if zeros := [share for share in frame["zero_threshold"][unset] if share > 0.0]:
        zero = f"The median accuracy of the classes was 0 in {sum(zeros) / len(zeros):.0%} of the steps"
        notes.append(f"{zero}, in which no class grew older. Compare --threshold positive-median.")
    for note_ in filter(None, notes):
        out.print(note_, soft_wrap=True)


def _class_cell(row: Any) -> str:
    """Return a class with its training samples, test accuracy and mean age, as far as these are known."""
    about = [] if math.isnan(row.count) else [f"n = {row.count:,.0f}"]
    about += [] if math.isnan(row.age) else [f"age {row.age:.1f}"]
    right = "" if math.isnan(row.accuracy) else f": {_percent(row.accuracy, '.1f')} %"
    return f"{row.name}{right} ({', '.join(about)})"


@command(
    "report",
    "Show where runs have been wrong, for how long, and what to do about it: one page, figures, a table.",
    (
        "aol report runs/latest --open",
        "aol report runs/a runs/b --write compare.html",
        "aol report runs/latest --figures figures",
    ),
    value("runs", "RUN", "folders of runs: --out of a command, a study, or one run", nargs="+", type=path),
    value("--write", "FILE", f"file of the page (default: {PAGE} in RUN, or here for several)", type=path),
    value("--figures", "FOLDER", "write heatmaps of class ages for a paper, PDF and PNG, and no page", type=path),
    value("--export", "FILE.csv", "write the table of samples, and no page", type=path),
    switch("--open", "open the page in a browser"),
)
def _report(args: argparse.Namespace) -> int:
    """Write what is asked for: the page if nothing is; figures or a table alone, unless a flag asks for the page."""
    from aol.records.store import NoRunsError
    from aol.records.table import frame_of
    from aol.report.figures.heatmap import draw
    from aol.report.label_errors import export
    from aol.report.page import write_page
    from aol.report.payload import LISTED
    from aol.report.run_data import load

    page: Path | None = args.write
    if page is None and (args.open or not (args.figures or args.export)):
        page = args.runs[0] / PAGE if len(args.runs) == 1 else Path(PAGE)
    if args.export is not None and args.export.suffix.lower() != ".csv":
        raise UsageError(f"--export must end in .csv, not {str(args.export)!r}.")
    if page is not None and (page.suffix.lower() not in (".html", ".htm") or page.is_dir()):
        raise UsageError(f"--write must be a file that ends in .html, not {str(page)!r}.")
    damaged: list[str] = []
    whole = math.inf if args.figures or args.export else LISTED
    runs = load(*args.runs, damaged=damaged.append, whole=whole)
    if not runs:
        raise NoRunsError(f"{', '.join(map(str, args.runs))}: no epoch has finished yet.")
    written: dict[str, list[Path]] = {}
    if page is not None:
        with usable(page, "--write"):
            write_page(runs, page)
        written["page"] = [page]
    if args.figures is not None:
        with usable(args.figures, "--figures"):
            written["figures"] = draw(frame_of((data.folder, data.run) for data in runs), args.figures, ("pdf", "png"))
    if args.export is not None:
        with usable(args.export, "--export"):
            written["tables"] = export(runs, args.export)
    if args.open and page is not None and not webbrowser.open(page.resolve().as_uri()):
        note(f"no browser here; the page is {page}")
    files = {kind: [str(path) for path in paths] for kind, paths in written.items()}
    tell(args, files, [path for paths in files.values() for path in paths])
    for reason in damaged:
        note(f"damaged, left out: {reason}")
    return 1 if damaged else 0
