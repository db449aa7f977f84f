"""The words `aol study list`, `run`, `status` and `gather`: words to calls, results to lines or JSON.

Assumes it is mounted on the main command, which turns errors into one line. Exit status: 0 done, 1 a run failed, 2 the
words were wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from aol._words import DEFAULTS, Parser, count, seconds, setting_value, usable_device
from aol.data import open_data
from aol.data.named import NAMES, NUM_CLASSES
from aol.engine.settings import Settings, Value, WrongSettingsError
from aol.engine.source import AnyPair
from aol.engine.training import Conduct
from aol.study import drawing, showing
from aol.study.claims import Claims
from aol.study.gathering import gather
from aol.study.on_ray import Cluster, Conditions, ray_package, run_on
from aol.study.plan import standing
from aol.study.progress import Display, Lines, Screen, spoken
from aol.study.records import Store
from aol.study.reporting import counts, report
from aol.study.running import Work, run_here
from aol.study.spec import Study, builtin_names, load
from aol.study.stopping import Stop


def add_study(parser: argparse.ArgumentParser) -> None:
    """Add the words that say which study, or which part of one, is meant, and where its results are."""
    add = parser.add_argument
    add("study", metavar="STUDY", help="a built-in study (aol study list) or a TOML file")
    add("--out", metavar="FOLDER", default="results", help="folder of the records [results]")
    add(
        "--only",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="only these cells, methods or settings: data=cifar10, imbalance=200,50, method=none,aol, rho=0.5",
    )
    add("--seeds", metavar="VALUES", help="these seeds instead of the study's")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="another common setting: epochs=20")
    add("--precision", choices=("fp32", "bf16"), help="the same as --set precision=...")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--debug", action="store_true", help="show the traceback of an error")


def chosen(words: argparse.Namespace) -> Study:
    """Return the study, or the part of one, that the words mean. Other settings or seeds are other runs."""
    study = load(words.study)
    changed = dict(_pair("--set", text) for text in words.set)
    if words.precision:
        changed["precision"] = words.precision
    if changed:
        study = study.with_settings(**{name: _setting("--set", name, text) for name, text in changed.items()})
    if words.seeds is not None:
        study = dataclasses.replace(study, seeds=tuple(_seed(text) for text in words.seeds.split(",")))
    only: dict[str, list[Value]] = {}
    for name, text in (_pair("--only", text) for text in words.only):
        values = [part.strip() for part in text.split(",")]
        only.setdefault(name, []).extend(
            values if name == "method" else [_setting("--only", name, value) for value in values]
        )
    return study.only(**only) if only else study


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise WrongSettingsError(f"{option} must be NAME=VALUE, not {text!r}.")
    return name.strip().replace("-", "_"), value.strip()


def _setting(option: str, name: str, text: str) -> Value:
    if name not in DEFAULTS:
        raise WrongSettingsError(f"{option}: {name!r} is no setting of a run.")
    try:
        return setting_value(name, text)
    except WrongSettingsError as error:  # in the words that were used
        raise WrongSettingsError(f"{option} {str(error).removeprefix('--')}") from error


def _seed(text: str) -> int:
    if not text.strip().isdecimal():
        raise WrongSettingsError(f"--seeds must be whole numbers with commas between them, not {text.strip()!r}.")
    return int(text)


def _opener(folders: Mapping[str, str], data_dir: str | None) -> Callable[[Sequence[Settings]], dict[str, AnyPair]]:
    """Return what opens the data sets of some runs: by name, or from the folder that was given for a name."""

    def opened(runs: Sequence[Settings]) -> dict[str, AnyPair]:
        found: dict[str, AnyPair] = {}
        for name in dict.fromkeys(run.data for run in runs):
            if name not in folders and name not in NAMES and not Path(name).exists():
                raise WrongSettingsError(
                    f"The data set {name} must be given: --data {name}=FOLDER; or leave it out with --only data=..."
                )
            found[name] = open_data(folders.get(name, name), data_dir=data_dir)
            classes, known = found[name].num_classes, NUM_CLASSES.get(name)
            if known is not None and classes != known:  # records of such runs would be taken for damaged ones
                raise WrongSettingsError(
                    f"--data {name}={folders.get(name, name)} has {classes} classes, and {name} has {known}: call it "
                    "by another name in the study."
                )
        return found

    return opened


def _run(words: argparse.Namespace) -> int:
    study, store = chosen(words), Store(Path(words.out).expanduser().absolute())
    if names := study.without_choice():
        what = f"The grid of {', '.join(names)} cannot be chosen from without a validation part"
        raise WrongSettingsError(f"{what}: --set validation=0.05, or one setting by --only.")
    if words.ray is not None:
        ray_package()
    display = _display(words, study)
    stop = Stop(None if words.limit_minutes is None else 60 * words.limit_minutes)
    folders = dict(_pair("--data", text) for text in words.data)
    start = time.monotonic()
    store.prepare()
    try:
        with Claims(store.folder) as claims:
            work = Work(study, store, claims, _conduct(words), _opener(folders, words.data_dir), display)
            if words.ray is None:
                run_here(work, stop)
            else:
                _run_on_ray(words, work, stop, folders)
            found = standing(study, store, claims)
    finally:
        display.close()
    summary = {
        **counts(study, store, found),
        "trained": work.trained,
        "seconds": round(time.monotonic() - start, 3),
        "stopped": stop.came,
        "untrained": work.untrained,
    }
    if words.json:
        print(json.dumps(summary))
    else:
        report(study, store, found)
        stopped = " Stopped before the end: the same command goes on from here." if stop.came else ""
        many = "1 run" if work.trained == 1 else f"{work.trained} runs"
        print(f"{many} in {spoken(time.monotonic() - start)}.{stopped}")
    return 143 if stop.asked.is_set() else 1 if found.failed or work.untrained else 0


def _run_on_ray(words: argparse.Namespace, work: Work, stop: Stop, folders: Mapping[str, str]) -> None:
    where = {name: str(Path(folder).expanduser().absolute()) for name, folder in folders.items()}
    data_dir = None if words.data_dir is None else str(Path(words.data_dir).expanduser().absolute())
    conditions = Conditions(where, data_dir, words.device, words.workers, words.checkpoint_seconds)
    with Cluster(words.ray) as cluster:
        run_on(cluster, work, stop, conditions)


def _conduct(words: argparse.Namespace) -> Conduct:
    return Conduct(
        out=Path(words.out),
        device=usable_device("cpu" if words.ray is not None else words.device),
        together=words.together,
        workers=words.workers,
        checkpoint_seconds=words.checkpoint_seconds,
    )


def _display(words: argparse.Namespace, study: Study) -> Display:
    console = Console(stderr=True)
    if words.json:
        return Display()
    return Screen(console, study.name) if console.is_terminal else Lines()


def _status(words: argparse.Namespace) -> int:
    study, store = chosen(words), Store(words.out)
    found = standing(study, store, Claims(store.folder))
    if words.json:
        print(json.dumps(counts(study, store, found)))
    else:
        report(study, store, found)
    return 0


def _list(words: argparse.Namespace) -> int:
    studies = [load(name) for name in builtin_names(smoke=False)]
    if words.json:
        found = [{"name": each.name, "title": each.title, "runs": len(each.all_runs())} for each in studies]
        print(json.dumps({"studies": found}))
        return 0
    for each in studies:
        print(f"{each.name:<20} {len(each.all_runs()):>5} runs  {each.title}")
    print("Each also as NAME-smoke: the same methods, in seconds, on digits.")
    return 0


def _gather(words: argparse.Namespace) -> int:
    store = Store(words.out)
    store.prepare()
    found = gather([Path(source) for source in words.sources], store)
    if words.json:
        refused = [{"file": name, "why": why} for name, why in found.refused]
        print(json.dumps({"new": found.new, "known": found.known, "refused": refused}))
    else:
        print(f"{found.new} new records in {store.folder / 'records'}, {found.known} were there already.")
        for name, why in found.refused:
            print(f"Not taken: {name}: {why}.", file=sys.stderr)
    return 1 if found.refused else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser("aol study", description="Whole tables of runs, from a file or built in.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="The built-in studies.", allow_abbrev=False)
    listing.set_defaults(act=_list)
    run = commands.add_parser("run", help="Train what is missing; the same words go on.", allow_abbrev=False)
    add_study(run)
    _add_conduct(run)
    run.set_defaults(act=_run)
    status = commands.add_parser("status", help="What is done, under way, missing, damaged.", allow_abbrev=False)
    add_study(status)
    status.set_defaults(act=_status)
    showing.add_commands(commands, add_study, chosen)
    drawing.add_command(commands, add_study, chosen)
    take = commands.add_parser("gather", help="Take over records from elsewhere, verified.", allow_abbrev=False)
    take.add_argument("sources", nargs="+", metavar="FROM", help="a folder, a record or a tar archive of records")
    take.add_argument("--out", metavar="FOLDER", default="results", help="folder of the records [results]")
    take.set_defaults(act=_gather)
    for each in (listing, take):
        each.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
        each.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _add_conduct(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("how it is carried out").add_argument
    add("--data-dir", metavar="FOLDER", help="where data sets lie, besides $AOL_DATA and the cache folder")
    add("--data", action="append", default=[], metavar="NAME=FOLDER", help="the folder of a data set of the study")
    add("--device", metavar="NAME", default="auto", help="auto, cpu, cuda, cuda:1 ... [auto]")
    add("--together", type=count(1), metavar="N", help="the most runs trained as one; default: what suits the device")
    add("--workers", type=count(0), metavar="N", default=0, help="processes that decode images of a large set [0]")
    add(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="train on a Ray cluster: at ADDRESS, at 'auto', or without it a new one on this machine",
    )
    add("--limit-minutes", type=seconds, metavar="M", help="stop after so long, with all that was done kept")
    add("--checkpoint-seconds", type=seconds, metavar="S", default=60.0, help="least time between checkpoints [60]")


def main(arguments: Sequence[str]) -> int:
    """Run the words after `aol study` and return the exit status."""
    words = _parser().parse_args(list(arguments))
    try:
        status: int = words.act(words)
    except KeyboardInterrupt:
        print("aol: stopped; the same command goes on from the last checkpoint.", file=sys.stderr)
        return 130
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        print("aol: the disk is full; what was written is whole: make room, and repeat the command.", file=sys.stderr)
        return 1
    return status
