"""`aol study list`, `run`, `status`, `show`, `page` and `draw`; `aol resume`, which continues studies and trainings."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aol.cli import (
    Flag,
    UsageError,
    check_place,
    choice,
    chosen_format,
    command,
    console,
    folder,
    give,
    path,
    plain_lines,
    print_table,
    seed_list,
    show_help,
    switch,
    tell,
    value,
    write,
)
from aol.lab.cli import (
    DEFAULTS,
    EXECUTION,
    absolute,
    add_noted,
    defaults_of,
    noted,
    options_of,
    progress_for,
    setting_values,
    train_runs,
    unchanged,
    work_of,
)
from aol.lab.settings import CHOICES, Settings, Value, word

if TYPE_CHECKING:
    from aol.lab.engine.source import AnyPair
    from aol.lab.study.spec import Study
    from aol.lab.study.status import StudyStatus
    from aol.records.record import Json
    from aol.records.store import Store

ENDINGS = {".txt": "table", ".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}
FORMATS = tuple(ENDINGS.values())
FIGURES = ("ages", "accuracy", "gain", "shifts")  # of `draw`
NARROW, WIDE = 60, 100

_OUT = value("--out", "FOLDER", "folder of the runs", type=folder, default="results")
_WRITE = value("--write", "FILE", "write to this file instead of printing")
_STUDY = (value("study", "STUDY", "a built-in study (aol study list) or a TOML file"), _OUT)
_ONLY = "only these cells, methods or settings: data=cifar10, imbalance=200,50, method=none,aol"
_PART = {
    "part of the study": (
        value("--only", "NAME=VALUES", _ONLY, action="append", default=[]),
        value("--seeds", "VALUES", "these seeds instead of the study's: 0,1,2 or 0-4"),
        value("--set", "NAME=VALUE", "change a common setting: epochs=20", action="append", default=[]),
        choice("--precision", tuple(CHOICES["precision"]), "short for --set precision=..."),
    )
}
_STOPPED = "run the same command again to continue from the last checkpoint"
_RUN: tuple[Flag, ...] = (
    *EXECUTION,
    value("--data", "NAME=FOLDER", "folder of a data set that the study names", action="append", default=[]),
)
_CHOICE = defaults_of((*_PART["part of the study"], *_RUN[-1:]))
command(
    "study",
    "Run and compare grids of runs, built in or from a file.",
    ("aol study list", "aol study run period-10-smoke --out /tmp/smoke", "aol study show period-10"),
)(show_help)


# Which study


def chosen(args: argparse.Namespace) -> Study:
    """Return the study, or the part of one, that the flags ask for. Other settings or seeds are other runs."""
    from aol.lab.study.spec import load

    study = load(args.study)
    changed = dict(_pair("--set", text) for text in args.set)
    if args.precision:
        changed["precision"] = args.precision
    if changed:
        study = study.with_settings(**{name: _settings("--set", name, text)[0] for name, text in changed.items()})
    if args.seeds is not None:
        study = dataclasses.replace(study, seeds=tuple(seed_list("--seeds", args.seeds)))
    only: dict[str, list[Value]] = {}
    for name, text in (_pair("--only", text) for text in args.only):
        values: list[Value] = [part.strip() for part in text.split(",")]
        only.setdefault(name, []).extend(values if name == "method" else _settings("--only", name, text))
    return study.only(**only) if only else study


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise UsageError(f"{flag} must be NAME=VALUE, not {text!r}.")
    return name.strip().replace("-", "_") if flag != "--data" else name.strip(), value.strip()


def _settings(flag: str, name: str, text: str) -> list[Value]:
    from aol._values import did_you_mean

    if name not in DEFAULTS:
        raise UsageError(f"{flag}: {name!r} is not a setting of a run.{did_you_mean(name, DEFAULTS)}")
    return setting_values(name, text, f"{flag}: {name}")


def _open(folders: Mapping[str, str], data_dir: str | None, runs: Sequence[Settings]) -> dict[str, AnyPair]:
    """Open the data sets of some runs: by name, or from the folder that was given for a name."""
    from aol.lab.data import open_data
    from aol.lab.data.named import NAMES, NUM_CLASSES
    from aol.lab.data.sources import is_source

    pairs: dict[str, AnyPair] = {}
    for name in dict.fromkeys(run.data for run in runs):
        place = folders.get(name, name)
        if name not in folders and not (name in NAMES or is_source(name) or Path(name).exists()):
            raise UsageError(
                f"The data set {name} must be given: --data {name}=FOLDER; or leave it out with --only data=..."
            )
        pairs[name] = open_data(place, data_dir=data_dir)
        classes = pairs[name].num_classes
        if classes != NUM_CLASSES.get(name, classes):  # records of such runs would be taken for damaged ones
            raise UsageError(
                f"--data {name}={place} has {classes} classes, but {name} has {NUM_CLASSES[name]}: use another name "
                "in the study."
            )
    return pairs


def _store_in(out: str, study: str) -> Store:
    from aol.records.store import Store

    if not Path(out).is_dir():
        raise UsageError(f"There is no folder {out}: aol study run {study} --out {out} creates it.")
    return Store(out)


# Commands


@command("study list", "List the built-in studies.", ("aol study list",))
def _list(args: argparse.Namespace) -> None:
    from aol.lab.study.spec import builtin_names, load

    studies = [load(name) for name in builtin_names(smoke=False)]
    listed = [{"name": each.name, "title": each.title, "runs": len(each.all_runs())} for each in studies]
    width = max(len(study.name) for study in studies)
    lines = [f"{each['name']:<{width}} {each['runs']:>5} runs  {each['title']}" for each in listed]
    tell(args, {"studies": listed}, [*lines, "NAME-smoke is the same study on digits, reduced to a few seconds."])


@command(
    "study run",
    "Train missing runs (resumable).",
    (
        "aol study run period-10-smoke --out smoke",
        "aol study run period-10 --only imbalance=200 --seeds 0-4",
        "aol study run period-10 --minutes 28    # the next cells that fit; again to continue",
        "aol study run my-study.toml --ray HOST:PORT --out /shared/results   # many machines",
    ),
    *_STUDY,
    groups=_PART | {"execution": _RUN},
    checkpoint_seconds=60.0,
    stopped=_STOPPED,
)
def _run(args: argparse.Namespace) -> int:
    """Train the missing runs of a study."""
    from aol.lab.study.status import study_status
    from aol.lab.train.driver import train
    from aol.lab.train.from_loop import OVER_TIME
    from aol.lab.train.progress import duration
    from aol.records.store import Store, write_request

    study, store = chosen(args), Store(absolute(args.out) or "")
    runs = study.all_runs()
    if names := study.grids_without_validation():
        what = f"No setting of the grid of {', '.join(names)} can be chosen without a validation part"
        raise UsageError(f"{what}: --set validation=0.05, or select one setting with --only.")
    folders = {name: str(absolute(each)) for name, each in (_pair("--data", text) for text in args.data)}
    if strange := sorted(folders.keys() - {run.data for run in runs}):
        named = ", ".join(sorted({run.data for run in runs}))
        raise UsageError(f"--data: the study names no data set {strange[0]!r}; it has {named}.")
    data_dir = absolute(args.data_dir)
    options = options_of(args, data_dir=data_dir, networks=False)
    path = Path(args.study).expanduser()
    choice: dict[str, Json] = {name: getattr(args, name) for name in _CHOICE}
    request: dict[str, Json] = {  # for `aol resume`, from any folder
        "command": "study",
        "study": str(path.absolute()) if path.is_file() else args.study,
        "choice": choice | {"data": [f"{name}={place}" for name, place in folders.items()]},
        "options": noted(args),
        "ids": [run.run_id for run in runs],
        "runs": [dict(run.as_dict()) for run in runs],
    }

    if options.minutes is not None:
        runs = study.fewest_missing_first(study_status(study, store).complete)
    opened, progress = partial(_open, folders, data_dir), progress_for(args, study.name)
    start = time.monotonic()
    try:
        outcome = train(
            runs,
            store,
            opened,
            options,
            progress,
            keep=OVER_TIME,
            require=study.keep,
            prepare=lambda _: write_request(store.folder, request),
            work=work_of(args, opened),
        )
    finally:
        progress.close()
    if outcome.signal == signal.SIGINT:
        raise KeyboardInterrupt
    status, seconds = study_status(study, store), time.monotonic() - start
    more = {"trained": outcome.trained, "seconds": round(seconds, 3), "stopped": outcome.stopped}
    _print_status(args, status, {**more, "untrained": outcome.untrained})
    if not args.json:
        stopped = " Stopped early: run the same command again to continue." if outcome.stopped else ""
        print(f"Trained {outcome.trained} run{'s' * (outcome.trained != 1)} in {duration(seconds)}.{stopped}")
        if len(status.complete) == len(status.runs):
            print(f"The table: {_show_command(args)}")
    return 128 + outcome.signal if outcome.signal else 1 if status.failed or outcome.untrained else 0


def _show_command(args: argparse.Namespace) -> str:
    """Return the command that prints the table of what these flags chose."""
    given = [(name, text) for name in ("only", "set") for text in getattr(args, name)]
    given += [(name, text) for name in ("seeds", "precision", "out") if (text := getattr(args, name))]
    return shlex.join(["aol", "study", "show", args.study, *(f"--{name}={text}" for name, text in given)])


def resume(args: argparse.Namespace, request: dict[str, Json]) -> int | None:
    """Continue the study that a folder was last used for; `args` holds the flags of `aol resume`."""
    from aol.lab.train.request import requested_choice, requested_options

    asked = {"study": str(request.get("study")), "out": str(args.folder), "stopped": _STOPPED}
    add_noted(args, _CHOICE, requested_choice(request), requested_options(request), asked)
    return _run(args)


@command(
    "resume",
    "Continue the runs of a folder: what was asked for is read from it, flags are needed only to change how.",
    ("aol resume runs/latest", "aol resume runs/cifar10 --device cuda:1 --minutes 60"),
    value("folder", "FOLDER", "--out of aol train, aol stream or aol study run", type=path),
    groups={"execution": unchanged(EXECUTION)},
)
def _resume(args: argparse.Namespace) -> int | None:
    from aol.lab.train.request import requested_options, requested_runs
    from aol.records.store import Store, read_request

    if not args.folder.is_dir():
        raise UsageError(f"there is no folder {args.folder}.")
    request = read_request(args.folder)
    if request is None:
        raise UsageError(
            f"{args.folder} does not say what to continue: aol resume takes the --out of aol train, aol stream or "
            "aol study run."
        )
    if request.get("command") == "study":
        return resume(args, request)
    add_noted(args, {"out": str(args.folder), "fresh": False}, requested_options(request))
    return train_runs(args, requested_runs(request), Store(args.folder), request, resume=True)


@command(
    "study status",
    "Show which runs are complete, in progress, missing or damaged.",
    ("aol study status period-10", "aol study status my-study.toml --out results --json"),
    *_STUDY,
    groups=_PART,
)
def _status(args: argparse.Namespace) -> None:
    from aol.lab.study.status import study_status
    from aol.records.store import Store

    _print_status(args, study_status(chosen(args), Store(args.out)), {})


def _print_status(args: argparse.Namespace, status: StudyStatus, more: Mapping[str, object]) -> None:
    from aol.lab.study.status import by_cell

    if args.json:
        print(json.dumps({**status.as_dict(), **more}))
        return
    out = console()
    out.print(f"{status.study.name}: {status.study.title}", soft_wrap=True, markup=False)
    rows = [
        (*map(word, cell.values()), str(done), str(runs)) for cell, done, runs in by_cell(status.study, status.complete)
    ]
    print_table(out, (*status.study.cells, "complete", "runs"), rows)
    for line in status.lines():
        out.print(line, soft_wrap=True, markup=False)


@command(
    "study show",
    "Print the table: verdicts, gains with intervals, the paper's figures.",
    ("aol study show period-10", "aol study show period-10 --write table.tex"),
    *_STUDY,
    choice("--format", FORMATS, f"default: by the ending of --write ({', '.join(ENDINGS)}), else table"),
    _WRITE,
    value(
        "--figure",
        "NAME",
        "last, tail_mean, second_half_mean (streams), best (optimistic), averaged_...; worst_class, worst_tenth, "
        "tail_accuracy, balanced_accuracy, macro_f1 ...",
    ),
    switch("--optimistic", "also the best setting on test, beside as many baseline runs"),
    groups=_PART,
)
def _show(args: argparse.Namespace) -> None:
    study = chosen(args)
    check_place(args.write)
    wanted = chosen_format(args, ENDINGS)
    store = _store_in(args.out, args.study)
    from aol.lab.study.comparisons import study_results
    from aol.lab.study.formats import render, styled_lines

    results = study_results(study, store, figure=args.figure, more_seeds=args.seeds is None)
    if wanted != "table" or args.write or not sys.stdout.isatty():
        give(render(results, wanted, optimistic=args.optimistic), args.write)
        return
    from rich.text import Text

    out, width = console(), max(NARROW, min(WIDE, shutil.get_terminal_size().columns))
    for style, line in styled_lines(results, optimistic=args.optimistic, width=width):
        out.print(Text(plain_lines(line), style=style), soft_wrap=True)


@command(
    "study page",
    "Write the page of results, from all records.",
    ("aol study page --write docs/results.md", "aol study page period-10 --out results"),
    value("study", "STUDY", "built-in studies or TOML files (default: all built-in)", nargs="*"),
    _OUT,
    _WRITE,
    json=False,
)
def _page(args: argparse.Namespace) -> None:
    from aol.lab.study.page import results_page
    from aol.lab.study.spec import load

    check_place(args.write)
    store = _store_in(args.out, "NAME")
    studies = {word: load(word) for word in args.study}
    called = {study.name: word for word, study in studies.items()}
    page = results_page(store.folder, list(studies.values()) or None, called=called, charts=args.write is not None)
    for name, content in page.charts.items():
        write(Path(args.write).parent / name, content)
    give(page.text, args.write)


@command(
    "study draw",
    "Draw a figure: class ages, accuracy or gains over epochs, one panel per cell.",
    ("aol study draw heatmaps --write ages.pdf", "aol study draw period-10 --of shifts --write shifts.png"),
    *_STUDY,
    value("--write", "FILE", "file of the figure: .png, .pdf or .svg", required=True),
    choice("--of", FIGURES, 'default: ages if the study keeps them (keep = ["age"]), else accuracy'),
    groups=_PART,
)
def _draw(args: argparse.Namespace) -> None:
    from aol.report.figures import style

    study = chosen(args)
    path = Path(args.write).expanduser()
    kind = path.suffix.lower().removeprefix(".")
    if kind not in style.FORMATS:
        endings = ", ".join(f".{each}" for each in style.FORMATS)
        raise UsageError(f"--write must end in one of {endings}, not {args.write!r}.")
    check_place(str(path))
    style.matplotlib()
    store = _store_in(args.out, args.study)

    from aol.lab.study.comparisons import study_results
    from aol.lab.study.draw import draw

    results = study_results(study, store, more_seeds=args.seeds is None)
    if not len(results.frame):
        raise UsageError(
            f"There are no complete runs of {study.name} in {store.folder}: aol study run {args.study} "
            f"--out {args.out} trains them. With --only, --seeds or --set, give draw the same flags as run."
        )
    picture = draw(results, args.of)
    write(path, style.rendered(picture.figure, kind))
    panels = [{"title": title, "seeds": list(seeds)} for title, seeds in picture.panels]
    if args.json:
        print(json.dumps({"figure": str(path), "of": picture.of, "panels": panels, "notes": picture.notes}))
    else:
        print(plain_lines("\n".join((*picture.notes, f"Written: {path}"))), file=sys.stderr)
