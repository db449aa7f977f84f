"""`aol study list`, `run`, `status`, `show`, `page`, `draw` and `gather`."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aol.cli.flags import DEFAULTS, add_execution, setting_values
from aol.cli.parser import (
    Commands,
    Parser,
    add_command,
    add_common,
    check_place,
    folder,
    seed_list,
    show_help,
)
from aol.engine.settings import Settings, Value, WrongSettingsError

if TYPE_CHECKING:
    from aol.engine.source import AnyPair
    from aol.runs.record import Json
    from aol.runs.store import Store
    from aol.study.spec import Study
    from aol.study.status import StudyStatus

FORMATS = ("table", "markdown", "csv", "latex", "json")
ENDINGS = {".txt": "table", ".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}
FIGURES = ("ages", "accuracy", "gain", "shifts")  # of `draw`
NARROW, WIDE = 60, 100


def add(commands: Commands) -> None:
    """Add `aol study` and its commands."""
    parser = add_command(commands, "study", show_help, "Run and compare grids of runs, built in or from a file.", (
        "aol study list", "aol study run period-10-smoke --out /tmp/smoke", "aol study show period-10",
    ))  # fmt: skip
    more = parser.add_subparsers(dest="subcommand", metavar="COMMAND", title="commands", prog="aol study")

    listing = add_command(more, "list", _list, "List the built-in studies.", ("aol study list",))
    add_common(listing)

    run = _add(more, "run", _run, "Train missing runs (resumable).", (
        "aol study run period-10-smoke --out smoke",
        "aol study run period-10 --only imbalance=200 --seeds 0-4",
        "aol study run my-study.toml --shard 3/16 --out share-3   # then: aol study gather share-* --out results",
    ))  # fmt: skip
    group = add_execution(run, checkpoint_seconds=60.0, parallel=False)
    group.add_argument("--data", action="append", default=[], metavar="NAME=FOLDER",
                       help="folder of a data set that the study names")  # fmt: skip
    group.add_argument("--ray", nargs="?", const="local", metavar="ADDRESS",
                       help="train on a Ray cluster: at ADDRESS, 'auto', or a new one on this machine")  # fmt: skip
    run.set_defaults(stopped="run the same command again to continue from the last checkpoint")

    _add(more, "status", _status, "Show which runs are complete, in progress, missing or damaged.", (
        "aol study status period-10", "aol study status my-study.toml --out results --json",
    ))  # fmt: skip

    show = _add(more, "show", _show, "Print the table: verdicts, gains with intervals, the paper's figures.", (
        "aol study show period-10", "aol study show period-10 --write table.tex",
    ))  # fmt: skip
    flag = show.add_argument
    flag(
        "--format", choices=FORMATS, help="default: by the ending of --write (.txt, .md, .csv, .tex, .json), else table"
    )
    flag("--write", metavar="FILE", help="write to this file instead of printing")
    flag(
        "--figure", metavar="NAME", help="last, tail_mean, second_half_mean (streams), best (optimistic), averaged_..."
    )
    flag("--optimistic", action="store_true", help="also the best setting on test, beside as many baseline runs")

    page = add_command(more, "page", _page, "Write the page of results, from all records.", (
        "aol study page --write docs/results.md", "aol study page period-10 --out results",
    ))  # fmt: skip
    page.add_argument(
        "study", nargs="*", metavar="STUDY", help="built-in studies or TOML files (default: all built-in)"
    )
    _add_out(page)
    page.add_argument("--write", metavar="FILE", help="write to this file instead of printing")
    add_common(page, json=False)

    draw = _add(more, "draw", _draw, "Draw a figure: class ages, accuracy or gains over epochs, one panel per cell.", (
        "aol study draw heatmaps --write ages.pdf", "aol study draw period-10 --of shifts --write shifts.png",
    ))  # fmt: skip
    draw.add_argument("--write", metavar="FILE", required=True, help="file of the figure: .png, .pdf or .svg")
    draw.add_argument(
        "--of", choices=FIGURES, help='default: ages if the study keeps them (keep = ["age"]), else accuracy'
    )

    gather = add_command(more, "gather", _gather, "Copy runs from other folders, after checking them.", (
        "aol study gather share-1 share-2 --out results", "aol study gather records.tgz",
    ))  # fmt: skip
    gather.add_argument("sources", nargs="+", metavar="FROM", help="a folder of runs, a run, or a tar archive of runs")
    _add_out(gather)
    add_common(gather)


def _add(
    commands: Commands, name: str, act: Callable[[argparse.Namespace], int], text: str, examples: Sequence[str]
) -> Parser:
    """Add a command about one study, with the flags that choose the study or a part of it."""
    parser = add_command(commands, name, act, text, examples)
    parser.add_argument("study", metavar="STUDY", help="a built-in study (aol study list) or a TOML file")
    _add_out(parser)
    add = parser.add_argument_group("part of the study").add_argument
    add("--only", action="append", default=[], metavar="NAME=VALUES",
        help="only these cells, methods or settings: data=cifar10, imbalance=200,50, method=none,aol")  # fmt: skip
    add("--seeds", metavar="VALUES", help="these seeds instead of the study's: 0,1,2 or 0-4")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="change a common setting: epochs=20")
    add("--precision", choices=("fp32", "bf16"), help="short for --set precision=...")
    add_common(parser)
    return parser


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=folder, metavar="FOLDER", default="results", help="folder of the runs")


# Which study


def chosen(words: argparse.Namespace) -> Study:
    """Return the study, or the part of one, that the flags ask for. Other settings or seeds are other runs."""
    from aol.study.spec import load

    study = load(words.study)
    changed = dict(_pair("--set", text) for text in words.set)
    if words.precision:
        changed["precision"] = words.precision
    if changed:
        study = study.with_settings(**{name: _settings("--set", name, text)[0] for name, text in changed.items()})
    if words.seeds is not None:
        study = dataclasses.replace(study, seeds=tuple(seed_list("--seeds", words.seeds)))
    only: dict[str, list[Value]] = {}
    for name, text in (_pair("--only", text) for text in words.only):
        values: list[Value] = [part.strip() for part in text.split(",")]
        only.setdefault(name, []).extend(values if name == "method" else _settings("--only", name, text))
    return study.only(**only) if only else study


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise WrongSettingsError(f"{flag} must be NAME=VALUE, not {text!r}.")
    return name.strip().replace("-", "_") if flag != "--data" else name.strip(), value.strip()


def _pairs(flag: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    return [_pair(flag, text) for text in texts]


def _settings(flag: str, name: str, text: str) -> list[Value]:
    from aol._values import did_you_mean

    if name not in DEFAULTS:
        raise WrongSettingsError(f"{flag}: {name!r} is not a setting of a run.{did_you_mean(name, DEFAULTS)}")
    try:
        return setting_values(name, text)
    except WrongSettingsError as error:  # in the words that were used
        raise WrongSettingsError(f"{flag} {str(error).removeprefix('--')}") from error


def _opener(folders: Mapping[str, str], data_dir: str | None) -> Callable[[Sequence[Settings]], dict[str, AnyPair]]:
    """Return what opens the data sets of some runs: by name, or from the folder that was given for a name."""

    def opened(runs: Sequence[Settings]) -> dict[str, AnyPair]:
        from aol.data import open_data
        from aol.data.named import NAMES, NUM_CLASSES

        pairs: dict[str, AnyPair] = {}
        for name in dict.fromkeys(run.data for run in runs):
            if name not in folders and name not in NAMES and not Path(name).exists():
                raise WrongSettingsError(
                    f"The data set {name} must be given: --data {name}=FOLDER; or leave it out with --only data=..."
                )
            pairs[name] = open_data(folders.get(name, name), data_dir=data_dir)
            classes, known = pairs[name].num_classes, NUM_CLASSES.get(name)
            if known is not None and classes != known:  # records of such runs would be taken for damaged ones
                raise WrongSettingsError(
                    f"--data {name}={folders.get(name, name)} has {classes} classes, but {name} has {known}: use "
                    "another name in the study."
                )
        return pairs

    return opened


def _store_in(out: str, study: str) -> Store:
    from aol.runs.store import Store, refuse_old_format

    if not Path(out).is_dir():
        raise WrongSettingsError(f"There is no folder {out}: aol study run {study} --out {out} creates it.")
    refuse_old_format(Path(out))
    return Store(out)


# Commands


def _list(words: argparse.Namespace) -> int:
    from aol.study.spec import builtin_names, load

    studies = [load(name) for name in builtin_names(smoke=False)]
    if words.json:
        listed = [{"name": each.name, "title": each.title, "runs": len(each.all_runs())} for each in studies]
        print(json.dumps({"studies": listed}))
        return 0
    for each in studies:
        print(f"{each.name:<20} {len(each.all_runs()):>5} runs  {each.title}")
    print("NAME-smoke is the same study on digits, reduced to a few seconds.")
    return 0


def _run(words: argparse.Namespace) -> int:
    from rich.console import Console

    from aol.engine.device import usable_device
    from aol.runs.driver import ExecutionOptions, train
    from aol.runs.from_loop import OVER_TIME
    from aol.runs.progress import Lines, Live, Silent, duration
    from aol.runs.store import Store, write_request
    from aol.study.status import study_status

    study, store = chosen(words), Store(Path(words.out).expanduser().absolute())
    if names := study.without_choice():
        what = f"No setting of the grid of {', '.join(names)} can be chosen without a validation part"
        raise WrongSettingsError(f"{what}: --set validation=0.05, or select one setting with --only.")
    if words.ray is not None and words.shard is not None:
        raise WrongSettingsError("--ray and --shard contradict each other: Ray shares out the runs itself.")
    folders = {name: str(Path(each).expanduser().absolute()) for name, each in _pairs("--data", words.data)}
    data_dir = None if words.data_dir is None else str(Path(words.data_dir).expanduser().absolute())
    options = ExecutionOptions(
        device=usable_device("cpu" if words.ray is not None else words.device),
        together=words.together,
        workers=words.workers,
        checkpoint_seconds=words.checkpoint_seconds,
        shard=words.shard,
        minutes=words.minutes,
        networks=False,
        data_dir=data_dir,
    )
    open_all = _opener(folders, data_dir)

    def opened(runs: Sequence[Settings]) -> dict[str, AnyPair]:
        pairs = open_all(runs)
        write_request(store.folder, _request(words, study))  # by now the folder is locked
        return pairs

    console = Console(stderr=True)
    progress = Silent() if words.json else Live(console, study.name) if console.is_terminal else Lines()
    start = time.monotonic()
    keep = tuple(dict.fromkeys((*OVER_TIME, *study.keep)))
    try:
        if words.ray is None:
            outcome = train(study.all_runs(), store, opened, options, progress, keep=keep, require=study.keep)
        else:
            from aol.study.ray import WorkerOptions, ray_package, train_on_ray

            ray_package()
            worker = WorkerOptions(words.device, folders, data_dir, words.workers, words.checkpoint_seconds, keep)
            outcome = train_on_ray(
                words.ray, study.all_runs(), store, opened, options, progress, worker=worker, require=study.keep
            )
    finally:
        progress.close()
    status, seconds = study_status(study, store), time.monotonic() - start
    if words.json:
        more = {"trained": outcome.trained, "seconds": round(seconds, 3), "stopped": outcome.stopped}
        print(json.dumps({**status.as_dict(), **more, "untrained": outcome.untrained}))
    else:
        _print_status(status)
        stopped = " Stopped early: run the same command again to continue." if outcome.stopped else ""
        print(f"Trained {outcome.trained} run{'s' * (outcome.trained != 1)} in {duration(seconds)}.{stopped}")
    return 143 if outcome.terminated else 1 if status.failed or outcome.untrained else 0


def _print_status(status: StudyStatus) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    console.print(f"{status.study.name}: {status.study.title}", soft_wrap=True, markup=False)
    console.print(status.table())
    for line in status.lines():
        console.print(line, soft_wrap=True, markup=False)


_CHOICE: dict[str, Json] = {"only": [], "seeds": None, "set": [], "precision": None, "data": []}
_OPTIONS: dict[str, Json] = {
    "data_dir": None, "device": "auto", "together": None, "workers": 0, "checkpoint_seconds": 60.0, "shard": None,
    "ray": None,
}  # fmt: skip


def _request(words: argparse.Namespace, study: Study) -> dict[str, Json]:
    """Return what was asked for, for `aol resume`; paths are absolute, so that it works from any folder."""
    path = Path(words.study).expanduser()
    given = dict(_pair("--data", text) for text in words.data)
    folders: list[Json] = [f"{name}={Path(place).expanduser().absolute()}" for name, place in given.items()]
    choice: dict[str, Json] = {name: getattr(words, name) for name in _CHOICE}
    options: dict[str, Json] = {name: getattr(words, name) for name in _OPTIONS}
    if words.data_dir is not None:
        options["data_dir"] = str(Path(words.data_dir).expanduser().absolute())
    runs = study.all_runs()
    return {
        "command": "study",
        "study": str(path.absolute()) if path.is_file() else words.study,
        "choice": choice | {"data": folders},
        "options": options | {"shard": list(words.shard) if words.shard else None},
        "ids": [run.run_id for run in runs],
        "runs": [dict(run.as_dict()) for run in runs],
    }


def resume(words: argparse.Namespace, request: Mapping[str, Json]) -> int:
    """Continue the study that a folder was last used for; `words` holds the flags of `aol resume`."""
    choice, options = request.get("choice"), request.get("options")
    given = {**_CHOICE, **(choice if isinstance(choice, dict) else {})}
    given |= {**_OPTIONS, "minutes": None, **(options if isinstance(options, dict) else {})}
    asked = argparse.Namespace(**{**given, **vars(words)})
    asked.study, asked.out = request.get("study"), str(words.folder)
    asked.shard = tuple(asked.shard) if asked.shard else None
    return _run(asked)


def _status(words: argparse.Namespace) -> int:
    from aol.runs.store import Store
    from aol.study.status import study_status

    status = study_status(chosen(words), Store(words.out))
    if words.json:
        print(json.dumps(status.as_dict()))
    else:
        _print_status(status)
    return 0


def _show(words: argparse.Namespace) -> int:
    study = chosen(words)
    if words.write is not None:
        check_place(words.write)
    wanted = _format(words)
    store = _store_in(words.out, words.study)
    from aol.study.comparisons import study_results
    from aol.study.formats import render, styled_lines

    results = study_results(study, store, figure=words.figure, more_seeds=words.seeds is None)
    if wanted != "table" or words.write or not sys.stdout.isatty():
        _give(render(results, wanted, optimistic=words.optimistic), words.write)
    else:
        width = max(NARROW, min(WIDE, shutil.get_terminal_size().columns))
        _print(styled_lines(results, optimistic=words.optimistic, width=width))
    return 0


def _format(words: argparse.Namespace) -> str:
    if words.json and words.format not in (None, "json"):
        raise WrongSettingsError(f"--json and --format {words.format} contradict each other.")
    if words.json:
        return "json"
    if words.format is not None or words.write is None:
        return str(words.format or "table")
    ending = Path(words.write).suffix.lower()
    if ending not in ENDINGS:
        raise WrongSettingsError(f"--write must end in {', '.join(ENDINGS)}, or give --format, not {words.write!r}.")
    return ENDINGS[ending]


def _print(lines: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for style, line in lines:
        console.print(Text(line, style=style), soft_wrap=True)


def _page(words: argparse.Namespace) -> int:
    from aol.study.page import results_page
    from aol.study.spec import load

    if words.write is not None:
        check_place(words.write)
    store = _store_in(words.out, "NAME")
    studies = {word: load(word) for word in words.study}
    called = {study.name: word for word, study in studies.items()}
    page = results_page(store.folder, list(studies.values()) or None, called=called, charts=words.write is not None)
    for name, content in page.charts.items():
        _write(Path(words.write).parent / name, content)
    _give(page.text, words.write)
    return 0


def _draw(words: argparse.Namespace) -> int:
    from aol.plots import style

    study = chosen(words)
    path = Path(words.write).expanduser()
    kind = path.suffix.lower().removeprefix(".")
    if kind not in style.FORMATS:
        endings = ", ".join(f".{each}" for each in style.FORMATS)
        raise WrongSettingsError(f"--write must end in one of {endings}, not {words.write!r}.")
    check_place(str(path))
    style.matplotlib()
    store = _store_in(words.out, words.study)

    from aol.study.comparisons import study_results
    from aol.study.draw import draw

    results = study_results(study, store, more_seeds=words.seeds is None)
    if not len(results.frame):
        raise WrongSettingsError(
            f"There are no complete runs of {study.name} in {store.folder}: aol study run {words.study} "
            f"--out {words.out} trains them. With --only, --seeds or --set, give draw the same flags as run."
        )
    picture = draw(results, words.of)
    _write(path, style.rendered(picture.figure, kind))
    if words.json:
        panels = [{"title": title, "seeds": list(seeds)} for title, seeds in picture.panels]
        print(json.dumps({"figure": str(path), "of": picture.of, "panels": panels, "notes": picture.notes}))
        return 0
    for note in picture.notes:
        print(note, file=sys.stderr)
    print(f"Written: {path}", file=sys.stderr)
    return 0


def _gather(words: argparse.Namespace) -> int:
    from aol.runs.store import Store
    from aol.study.gather import gather

    store = Store(words.out)
    gathered = gather([Path(source) for source in words.sources], store)
    if words.json:
        refused = [{"file": name, "why": why} for name, why in gathered.refused]
        numbers = {"new": gathered.new, "known": gathered.known, "unfinished": gathered.unfinished}
        print(json.dumps({**numbers, "refused": refused}))
    else:
        print(f"{gathered.new} new runs in {store.folder}, {gathered.known} already there.")
        if gathered.unfinished:
            print(f"Not copied: {gathered.unfinished} unfinished.")
        for name, why in gathered.refused:
            print(f"Refused: {name}: {why}.", file=sys.stderr)
    return 1 if gathered.refused else 0


def _give(text: str, file: str | None) -> None:
    """Print a text, or write it to a file, as a whole."""
    if file is None:
        print(text, end="")
        return
    _write(Path(file), text.encode())
    print(f"Written: {file}", file=sys.stderr)


def _write(path: Path, content: bytes) -> None:
    """Write a file as a whole; where that is not allowed, name the file itself, not its temporary name."""
    from aol._files import write_atomically

    try:
        write_atomically(path, content)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise WrongSettingsError(f"--write: {path} cannot be written: {error.strerror}.") from error
