"""`aol study list`, `run`, `status`, `show`, `page` and `draw`; `aol resume`, which continues studies and trainings."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aol._files import write_atomically
from aol.cli import UsageError, command, console, path, plain_lines, print_table, show_help, tell, value
from aol.lab.cli import (
    DEFAULTS,
    EXECUTION,
    absolute,
    add_noted,
    defaults_of,
    folder,
    noted,
    options_of,
    seed_list,
    setting_values,
    train_runs,
    train_with,
    unchanged,
)
from aol.lab.settings import Value

if TYPE_CHECKING:
    from aol.lab.study.spec import Study
    from aol.records.record import Json
    from aol.records.store import Store

ENDINGS = {".txt": "table", ".md": "markdown", ".csv": "csv", ".json": "json"}
_OUT = value("--out", "FOLDER", "folder of the runs", type=folder, default="results")
_WRITE = value("--write", "FILE", "write to this file instead of printing")
_STUDY = (value("study", "STUDY", "a built-in study (aol study list) or a TOML file"), _OUT)
_ONLY = "only these cells, methods or settings: data=cifar10, imbalance=200,50, method=none,aol"
_PART = (
    value("--only", "NAME=VALUES", _ONLY, action="append", default=[]),
    value("--seeds", "VALUES", "these seeds instead of the study's: 0,1,2 or 0-4"),
    value("--set", "NAME=VALUE", "change a common setting: epochs=20", action="append", default=[]),
)
_GROUPS = {"part of the study": _PART}
_DATA = value("--data", "NAME=FOLDER", "folder of a data set that the study names", action="append", default=[])
_CHOICE = defaults_of((*_PART, _DATA))
_STOPPED = "run the same command again to continue from the last checkpoint"
command(
    "study",
    "Run and compare grids of runs, built in or from a file.",
    ("aol study list", "aol study run losses-smoke --out /tmp/smoke", "aol study show period-10"),
)(show_help)


def chosen(args: argparse.Namespace) -> Study:
    """Return the study, or the part of one, that the flags ask for. Other settings or seeds are other runs."""
    from aol.lab.study.spec import load

    study = load(args.study)
    if changed := dict(_pair("--set", text) for text in args.set):
        study = study.with_settings(**{name: _settings("--set", name, text)[0] for name, text in changed.items()})
    if args.seeds is not None:
        study = dataclasses.replace(study, seeds=tuple(seed_list("--seeds", args.seeds)))
    only: dict[str, list[Value]] = {}
    for name, text in (_pair("--only", text) for text in args.only):
        values: list[Value] = [part.strip() for part in text.split(",")]
        only.setdefault(name, []).extend(values if name == "method" else _settings("--only", name, text))
    return study.only(**only) if only else study


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, _, value = map(str.strip, text.partition("="))
    if not name or not value:
        raise UsageError(f"{flag} must be NAME=VALUE, not {text!r}.")
    return name if flag == "--data" else name.replace("-", "_"), value


def _settings(flag: str, name: str, text: str) -> list[Value]:
    from aol._values import did_you_mean

    if name not in DEFAULTS:
        raise UsageError(f"{flag}: {name!r} is not a setting of a run.{did_you_mean(name, DEFAULTS)}")
    return setting_values(name, text, f"{flag} {name}")


def _store_in(args: argparse.Namespace) -> Store:
    from aol.records.store import Store

    if not Path(args.out).is_dir():
        raise UsageError(f"There is no folder {args.out}: aol study run ... --out {args.out} creates it.")
    return Store(args.out)


@command("study list", "List the built-in studies.", ("aol study list",))
def _list(args: argparse.Namespace) -> None:
    from aol.lab.study.spec import builtin_names, load

    studies = [load(name) for name in builtin_names()]
    listed = [{"name": study.name, "title": study.title, "runs": len(study.all_runs())} for study in studies]
    lines = [f"{row['name']:<20} {row['runs']:>5} runs  {row['title']}" for row in listed]
    tell(args, {"studies": listed}, [*lines, "NAME-smoke is the same study on digits, reduced to a few seconds."])


@command(
    "study run",
    "Train missing runs (resumable).",
    ("aol study run losses-smoke --out smoke", "aol study run period-10 --only imbalance=200 --minutes 28"),
    *_STUDY,
    groups=_GROUPS | {"execution": (*EXECUTION, _DATA)},
    checkpoint_seconds=60.0,
    stopped=_STOPPED,
)
def _run(args: argparse.Namespace) -> int:
    """Train the missing runs of a study."""
    from aol.lab.data.open import open_sets
    from aol.lab.train.folder import OVER_TIME
    from aol.records.store import Store, write_request

    study, store = chosen(args), Store(absolute(args.out) or "")
    runs = study.all_runs()
    if names := study.grids_without_validation():
        what = f"No setting of the grid of {', '.join(names)} can be chosen without a validation part"
        raise UsageError(f"{what}: --set validation=0.05, or select one setting with --only.")
    folders = {name: str(absolute(place)) for name, place in (_pair("--data", text) for text in args.data)}
    if strange := sorted(folders.keys() - {run.data for run in runs}):
        named = ", ".join(sorted({run.data for run in runs}))
        raise UsageError(f"--data: the study names no data set {strange[0]!r}; it has {named}.")
    data_dir, file = absolute(args.data_dir), Path(args.study).expanduser()
    options = options_of(args, data_dir=data_dir, networks=False)
    choice: dict[str, Json] = {name: getattr(args, name) for name in _CHOICE}
    request: dict[str, Json] = {  # for `aol resume`, from any folder
        "command": "study",
        "study": str(file.absolute()) if file.is_file() else args.study,
        "choice": choice | {"data": [f"{name}={place}" for name, place in folders.items()]},
        "options": noted(args),
        "ids": [run.run_id for run in runs],
        "runs": [dict(run.as_dict()) for run in runs],
    }
    opened, start = partial(open_sets, folders, data_dir), time.monotonic()
    how: dict[str, Any] = {"keep": OVER_TIME, "require": study.keep, "name": study.name}
    how["prepare"] = partial(write_request, store.folder, request)
    outcome = train_with(args, runs, store, opened, options, **how)
    told = {name: getattr(outcome, name) for name in ("trained", "stopped", "untrained")}
    failed = _print_status(args, study, store, told | {"seconds": round(time.monotonic() - start, 3)})
    return outcome.exit_status(failed)


@command(
    "resume",
    "Continue the runs of a folder: what was asked for is read from it, flags are needed only to change how.",
    ("aol resume runs/latest", "aol resume runs/cifar10 --device cuda:1 --minutes 60"),
    value("folder", "FOLDER", "--out of aol train, aol stream or aol study run", type=path),
    groups={"execution": unchanged(EXECUTION)},
)
def _resume(args: argparse.Namespace) -> int | None:
    from aol.lab.train.folder import requested_runs
    from aol.records.store import Store, read_request

    if not args.folder.is_dir():
        raise UsageError(f"there is no folder {args.folder}.")
    request = read_request(args.folder)
    if request is None:
        raise UsageError(
            f"{args.folder} does not say what to continue: aol resume takes the --out of aol train, aol stream or "
            "aol study run."
        )
    add_noted(args, request)
    args.out, args.fresh = str(args.folder), False
    if request.get("command") == "study":
        add_noted(args, request, "choice", _CHOICE)
        args.study, args.stopped = str(request.get("study")), _STOPPED
        return _run(args)
    return train_runs(args, requested_runs(request), Store(args.folder), request, resume=True)


@command(
    "study status",
    "Show which runs are complete, in progress, missing or damaged.",
    ("aol study status period-10", "aol study status my-study.toml --out results --json"),
    *_STUDY,
    groups=_GROUPS,
)
def _status(args: argparse.Namespace) -> None:
    from aol.records.store import Store

    _print_status(args, chosen(args), Store(args.out), {})


def _print_status(args: argparse.Namespace, study: Study, store: Store, more: Mapping[str, object]) -> bool:
    """Print the status of a study; return whether a run diverged."""
    from aol.lab.study.results import status_frame

    frame = status_frame(study, store)
    states, damaged, failed = frame["state"], frame[frame["state"] == "damaged"], frame[frame["failed"] > 0]
    complete, begun = (int((states == state).sum()) for state in ("complete", "in_progress"))
    missing = len(frame) - complete - begun
    status = {"study": study.name, "out": str(store.folder), "runs": len(frame), "complete": complete}
    status |= {"in_progress": begun, "missing": missing, "failed": failed["failed"].to_dict()}
    status |= {"damaged": [{"run": run, "why": why} for run, why in damaged["why"].items()], **more}
    lines = [f"{complete}/{len(frame)} runs complete, {begun} in progress, {missing} missing, {len(damaged)} damaged."]
    lines += [f"Damaged: {run}: {why}." for run, why in damaged["why"].items()]
    for row in failed.itertuples():
        run = f"{row.method}, seed {row.seed} ({row.Index})"
        lines.append(f"Diverged: {run}: its loss was not finite in epoch {row.failed}.")
    if complete < len(frame):
        lines.append("Run `aol study run` with the same arguments to train missing or damaged runs.")
    if not args.json:
        cells = (states == "complete").groupby(frame["cell"], sort=False).agg(["sum", "size"])
        rows = [(str(name), *map(str, row)) for name, *row in cells.itertuples()]
        print_table(console(), ("cell", "complete", "runs"), rows, f"{study.name}: {study.title}")
    tell(args, status, lines)
    return len(failed) > 0


@command(
    "study show",
    "Print the table: verdicts, gains with intervals, the paper's figures.",
    ("aol study show period-10", "aol study show results/studies/margins-fresh.toml --out results/margins"),
    *_STUDY,
    value(
        "--format", None, f"default: as --write ends ({', '.join(ENDINGS)}), else table", choices=(*ENDINGS.values(),)
    ),
    _WRITE,
    value("--figure", "NAME", "last, tail_mean, second_half_mean (streams), best; worst_class, macro_f1, ..."),
    groups=_GROUPS,
)
def _show(args: argparse.Namespace) -> None:
    from aol.lab.study.results import study_results
    from aol.lab.study.tables import render

    wanted, study = _chosen_format(args), chosen(args)
    results = study_results(study, _store_in(args), figure=args.figure)
    _give(render(results, wanted), args.write)


@command(
    "study page",
    "Write the page of results, from all records.",
    ("aol study page --write docs/results.md", "aol study page period-10 --out results"),
    value("study", "STUDY", "built-in studies or TOML files (default: all, and FOLDER/studies)", nargs="*"),
    _OUT,
    _WRITE,
    json=False,
)
def _page(args: argparse.Namespace) -> None:
    from aol.lab.study.page import results_page
    from aol.lab.study.spec import load

    called = {name: load(name) for name in args.study} or None
    text, charts = results_page(_store_in(args).folder, called, charts=args.write is not None)
    for name, content in charts.items():
        write(Path(args.write).parent / name, content)
    _give(text, args.write)


@command(
    "study draw",
    "Draw the ages of classes over epochs, in studies that keep them.",
    ("aol study draw correlations --write ages.pdf",),
    *_STUDY,
    value("--write", "FILE", "file of the figure: .png, .pdf or .svg", required=True),
    groups=_GROUPS,
    json=False,
)
def _draw(args: argparse.Namespace) -> None:
    from aol.lab.study.draw import draw
    from aol.lab.study.results import study_results
    from aol.report.figures import style

    study, kind = chosen(args), Path(args.write).suffix.lower().removeprefix(".")
    if kind not in style.FORMATS:
        raise UsageError(f"--write must end in .{', .'.join(style.FORMATS)}, not {args.write!r}.")
    results = study_results(study, _store_in(args))
    _give(style.rendered(draw(results), kind), args.write)


def _chosen_format(args: argparse.Namespace) -> str:
    """Return the format that `--json`, `--format` or the ending of `--write` asks for; "table" without them."""
    if args.json and args.format not in (None, "json"):
        raise UsageError(f"--json and --format {args.format} contradict each other.")
    if args.json or args.format is not None or args.write is None:
        return "json" if args.json else args.format or "table"
    ending = Path(args.write).suffix.lower()
    if ending not in ENDINGS:
        raise UsageError(f"--write must end in {', '.join(ENDINGS)}, or give --format, not {args.write!r}.")
    return ENDINGS[ending]


def _give(content: str | bytes, file: str | None) -> None:
    """Print a text, or write what was made to a file, as a whole."""
    if isinstance(content, str):
        content = plain_lines(content).encode()
    if file is None:
        print(content.decode(), end="")
    else:
        write(Path(file).expanduser(), content)
        print(f"Written: {file}", file=sys.stderr)


def write(place: Path, content: bytes) -> None:
    """Write the file of `--write` as a whole."""
    if not place.parent.is_dir():
        raise UsageError(f"--write: there is no folder {place.parent}.")
    if place.exists() and not place.is_file():  # a folder, or a device, which the new file would take the place of
        raise UsageError(f"--write: {place} is not a plain file.")
    write_atomically(place, content)
