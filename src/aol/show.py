"""`aol show` and `aol report`: runs as a table, the classes that are wrong longest; one HTML page, figures, samples."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aol._values import printable, spreadsheet_text
from aol.cli import (
    UsageError,
    choice,
    chosen_format,
    command,
    console,
    note,
    number,
    path,
    print_table,
    switch,
    tell,
    value,
)

if TYPE_CHECKING:
    from rich.console import Console

    from aol.records.record import Json, Run
    from aol.records.table import RunFrame

FORMATS = ("table", "csv", "json")
MOST_CLASSES = 5
_OLD = 1.05  # mean age: below it practically every sample was right in the last epoch
FIGURE_FORMATS = ("png", "pdf", "svg")
SAMPLE_TABLES = (".csv", ".parquet")
PAGE = "report.html"


@command(
    "show",
    "Print runs as a table, the classes that are wrong longest, and what to do next.",
    ("aol show runs/latest", "aol show runs/a runs/b", "aol show results --format csv > runs.csv"),
    value("folders", "FOLDER", "--out of a command, a study, a run, or a folder of those", nargs="+", type=path),
    choice("--format", FORMATS, "csv: a row a run, with all settings (default: table)"),
)
def _show(args: argparse.Namespace) -> int:
    from aol.records.record import DamagedRunError
    from aol.records.store import requested_ids
    from aol.records.table import frame_of, read_runs

    wanted = chosen_format(args)
    damaged: list[DamagedRunError] = []
    frame = frame_of(read_runs(args.folders, damaged))
    if wanted == "json":
        print_json(frame)
    elif wanted == "csv":
        text = frame.map(lambda cell: spreadsheet_text(printable(cell)) if isinstance(cell, str) else cell)
        print(text.to_csv(), end="")
    else:
        asked = [len(requested_ids(folder)) for folder in args.folders]
        print_runs(frame, args.folders, asked=max(len(frame), sum(asked)) if all(asked) else len(frame))
    for error in damaged:
        note(f"damaged, not shown: {error}")
    return 1 if damaged else 0


# For programs


def print_json(frame: RunFrame) -> None:
    """Print one JSON object: every run with its settings and results."""
    runs = [_as_json(run, str(frame.loc[name, "folder"])) for name, run in frame.runs.items()]
    print(json.dumps({"runs": runs}, allow_nan=False))


_SAME = ("id", "method", "seconds", "trained_together", "finished", "failed_at_epoch")  # names in JSON and in a record
_BY_CLASS = {
    "per_class_accuracy": "test_accuracy", "per_class_precision": "test_precision", "raw_class_age": "age",
    "class_weight": "weight", "class_offset": "offset",
}  # fmt: skip


def _as_json(run: Run, folder: str) -> dict[str, Json]:
    from aol.records.metrics import CURVES, accuracy_metrics, class_measures, counted, is_stream, zero_threshold_share
    from aol.records.record import numbers

    def finite(metrics: Mapping[str, float]) -> Json:
        return {name: value if math.isfinite(value) else None for name, value in metrics.items()}

    result: dict[str, Json] = {name: getattr(run, name) for name in _SAME}
    result |= {"config": dict(run.settings), "out": folder, "versions": dict(run.versions)}
    result["accuracy"] = dict.fromkeys(("last", "best", "tail_mean"))
    for split, curve in CURVES.items():
        if len(run.curves.get(curve, ())):
            metrics = accuracy_metrics(counted(run, curve), stream=is_stream(run))
            result["accuracy" if split == "test" else curve] = finite(metrics)
    result |= {name: finite(metrics) for name, metrics in class_measures(run).items()}
    age = "smoothed_age" if "smoothed_age" in run.by_class else "age"
    for name, reading in {**_BY_CLASS, "class_age": age}.items():
        result[name] = numbers(run.by_class[reading]) if reading in run.by_class else [None] * len(run.classes)
    if is_stream(run):
        result["zero_threshold"] = numbers([zero_threshold_share(run)])[0]
    return result


# For people


def print_runs(frame: RunFrame, folders: Sequence[Path], *, asked: int) -> None:
    """Print the table over seeds, the classes that are wrong longest, and what to do next."""
    from aol.records.store import REQUEST, resume_command

    out = console()
    finished = frame[frame.finished.astype(bool)] if len(frame) else frame
    if len(finished):
        _print_table(out, finished)
        _print_classes(out, finished)
        _print_oldest(out, finished)
    _print_unfinished(out, frame)
    lines = []
    for run in frame.runs.values():
        if run.failed_at_epoch is not None:
            where = "" if run.seed is None else f", seed {run.seed}"
            lines.append(f"Failed: {run.method}{where}: its loss was not finite in epoch {run.failed_at_epoch}.")
    if len(finished) < asked:
        lines.append(f"{len(finished)}/{asked} runs complete.")
        lines += [f"Continue:       {resume_command(folder)}" for folder in folders if (folder / REQUEST).is_file()]
    if len(frame):
        lines.append(f"Look closer:    aol report {shlex.join(map(str, folders))} --open")
        lines.append(f"In Python:      aol.load_runs({', '.join(repr(str(folder)) for folder in folders)})")
    for line in lines:
        out.print(line, soft_wrap=True, markup=False)


def _print_unfinished(out: Console, frame: RunFrame) -> None:
    """Print how far the runs are that are not complete."""
    rows = []
    for name, run in frame.runs.items():
        if not run.finished:
            epoch = f"{run.epochs[-1] if len(run.epochs) else 0}/{run.planned or '?'}"
            last = _percent(float(frame["test_last"][name]), ".1f")
            rows.append((run.method, "" if run.seed is None else str(run.seed), epoch, last))
    print_table(out, ("in progress", "seed", "epoch", "test %"), rows)


def _percent(value: float | None, form: str = ".2f") -> str:
    return "" if value is None or math.isnan(value) else f"{100 * value:{form}}"


def _print_table(out: Console, frame: RunFrame) -> None:
    from aol.records.compare import compare
    from aol.records.metrics import is_stream, zero_threshold_share

    runs = list(frame.runs.values())
    stream = all(is_stream(run) for run in runs)
    rows = compare(runs, frame["test_second_half_mean" if stream else "test_tail_mean"].tolist())
    head = ["with", "method", "seeds", "test %", "sd", "gain over none", "95 % interval"]
    first = 0 if any(row.conditions for row in rows) else 1
    body = []
    for row in rows:
        gain = _percent(row.gain.mean, "+.2f") if row.gain else ""
        interval = " to ".join(_percent(end, "+.2f") for end in row.gain.interval or ()) if row.gain else ""
        cells = (row.conditions, row.method, str(row.seeds), _percent(row.mean), _percent(row.spread), gain, interval)
        body.append(cells[first:])
    print_table(out, head[first:], body)
    if body:
        what = "the second half of the stream" if stream else "the last 5 % of epochs"
        text = f"Test accuracy, mean over {what}; sd over seeds; gains are paired by seed, with Student's interval."
        out.print(text, soft_wrap=True)
    if any(run.failed_at_epoch is not None for run in runs):
        out.print("A run that diverged counts as chance.", soft_wrap=True)
    zeros = [zero_threshold_share(run) for run in runs if run.settings.get("threshold") is None]
    if zeros := [share for share in zeros if share > 0.0]:
        text = f"The median accuracy of the classes was 0 in {sum(zeros) / len(zeros):.0%} of the steps, "
        out.print(f"{text}in which no class grew older. Compare --threshold positive-median.", soft_wrap=True)


def _print_classes(out: Console, frame: RunFrame) -> None:
    """Print what the mean over all test samples hides: the worst classes, head and tail."""
    from aol.records.metrics import measure_text
    from aol.report.methods import class_table

    rows = class_table(frame)
    if rows.empty:
        return
    names = [measure_text(f"{name}_last").removesuffix(" accuracy") for name in rows.columns]
    body = [(str(method), *(_percent(float(value)) for value in values)) for method, values in rows.iterrows()]
    print_table(out, ("method", *names), body, "Classes, test %")
    if "tail_accuracy" in rows:
        out.print("head, middle, tail: thirds of the classes by training samples.", soft_wrap=True)


def _print_oldest(out: Console, frame: RunFrame) -> None:
    """Print the classes with the highest age at the end, mean over runs; only of runs on the same data.

    Ages of runs of different length, imbalance or scenario have no common mean.
    """
    runs, classes = list(frame.runs.values()), frame.classes()
    if len({(*run.classes, str(run.counts), run.planned) for run in runs}) > 1 or "age" not in classes:
        return
    mean = classes.groupby(["class", "name"], sort=False).mean(numeric_only=True).reset_index()
    mean = mean[mean["age"] >= _OLD].sort_values("age", ascending=False, kind="stable").head(MOST_CLASSES)
    body = []
    for row in mean.to_dict("records"):
        count = row.get("count", math.nan)
        shown = "" if math.isnan(count) else f"{count:,.0f}"
        body.append((str(row["name"]), shown, f"{row['age']:.1f}", _percent(row.get("test_accuracy"), ".1f")))
    title = "Wrong longest" + (f", mean over {len(runs)} runs" if len(runs) > 1 else "")
    print_table(out, ("class", "training samples", "age in epochs", "test %"), body, title)


# The page


@command(
    "report",
    "Show where runs have been wrong, for how long, and what to do about it: one page, figures, a table.",
    (
        "aol report runs/latest --open",
        "aol report runs/a runs/b --write compare.html",
        "aol report runs/latest --figures figures --format pdf,png",
    ),
    value("runs", "RUN", "folders of runs: --out of a command, a study, or one run", nargs="+", type=path),
    value("--write", "FILE", f"file of the page (default: {PAGE} in RUN, or here for several)", type=path),
    value("--figures", "FOLDER", "write figures for a paper into this folder, and no page", type=path),
    value("--format", "KINDS", f"of the figures: {', '.join(FIGURE_FORMATS)}, or several with commas (default: png)"),
    value("--export", "FILE", "write the table of samples (.csv or .parquet), and no page", type=path),
    switch("--watch", "update the page until all runs have finished"),
    value("--every", "S", "seconds between two updates of --watch", type=number(0.1), default=5.0),
    switch("--open", "open the page in a browser"),
)
def _report(args: argparse.Namespace) -> int:
    """Write what is asked for: the page if nothing is; figures or a table alone, unless a flag asks for the page."""
    from aol.report.write import follow_runs, write_report

    page: Path | None = args.write
    if page is None and (args.watch or args.open or not (args.figures or args.export)):
        page = args.runs[0] / PAGE if len(args.runs) == 1 else Path(PAGE)
    formats = tuple(dict.fromkeys((args.format or "png").split(",")))
    if args.format is not None and args.figures is None:
        raise UsageError("--format is of the figures: add --figures FOLDER.")
    if any(part not in FIGURE_FORMATS for part in formats):
        raise UsageError(f"--format must be {', '.join(FIGURE_FORMATS)}, or several of them, not {args.format!r}.")
    if args.export is not None and args.export.suffix.lower() not in SAMPLE_TABLES:
        raise UsageError(f"--export must end in {' or '.join(SAMPLE_TABLES)}, not {str(args.export)!r}.")
    if page is not None and (page.suffix.lower() not in (".html", ".htm") or page.is_dir()):
        raise UsageError(f"--write must be a file that ends in .html, not {str(page)!r}.")
    opened = _open if args.open else _ignore
    also: dict[str, Any] = {"figures": args.figures, "formats": formats, "table": args.export}
    damaged: list[str] = []
    if args.watch and page is not None:
        follow_runs(args.runs, page, every=args.every, say=_ignore if args.json else note, opened=opened)
        written = {"page": [page]} | (write_report(args.runs, **also) if args.figures or args.export else {})
    else:
        written = write_report(args.runs, page=page, damaged=damaged.append, **also)
        if page is not None:
            opened(page)
    files = {kind: [str(path) for path in paths] for kind, paths in written.items()}
    tell(args, files, [path for paths in files.values() for path in paths])
    for reason in damaged:
        note(f"damaged, left out: {reason}")
    return 1 if damaged else 0


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        note(f"no browser here; the page is {page}")


def _ignore(_: object) -> None:
    pass
