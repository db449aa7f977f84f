"""Kill, damage and misuse aol at random for an hour, and count the outcomes: `make soak`, `MINUTES=5 make soak`.

Kinds of trials, in turn:

- **kill**: a command, or a loop with a `Recorder`, is killed (SIGKILL or SIGTERM) at random moments and resumed until
  it ends; its files must be those of an undisturbed one, to the last bit.
- **damage**: a file gets flipped bits, is cut short, overwritten, emptied, swapped with another file, or replaced by a
  pipe, a folder or a link to /dev/zero; the command that reads it must report the same numbers, or refuse the file in
  one sentence.
- **words**: a command gets random bad arguments; it must refuse them, or work, in a sentence.

Failures are: another result, a signal (a crash), no end in a minute (a hang), a traceback, "an error in aol itself".
Each trial follows from one seed: `python -m benchmarks.soak --kind damage --seed 123` repeats one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

import aol
from aol.cli import MODULES, build, main
from aol.records.record import read_run
from tests.support.recorded_loop import LABELS, ages_over_time, epoch_of, samples_of
from tests.support.running import forked, status_of, told

PATIENCE = 60  # seconds for one trial
FEW = "--samples 120 --batch-size 60 --checkpoint-seconds 0 --seed 0,1"
KILLED = {
    "train": f"train --epochs 4 --weighting aol --keep-samples {FEW}",
    "resample": f"train --epochs 4 --weighting aol --mechanism resample --level sample {FEW}",
    "margins": f"train --epochs 4 --margin age,error --validation 0.2 {FEW}",
    "arrival": f"train --epochs 4 --weighting old --fraction 0.4 --keep-samples {FEW}",
    "stream": f"stream --steps 4 --weighting aol --memory reservoir:50 {FEW}",
    "stream all": f"stream --steps 4 --weighting cb+aol --stream access --fraction 0.3 --memory all {FEW}",
}
STUDY = """name = "small"
seeds = [0]
[common]
samples = 120
epochs = 3
batch_size = 60
[[methods]]
name = "none"
weighting = "none"
"""
WAYS = ("flip", "flip", "flip", "cut", "cut", "overwrite", "swap", "empty", "pipe", "zeros", "folder")
VALUES = (
    "", "--", "-1", "0", "nan", "inf", "-inf", "1e400", str(2**70), "1" + "0" * 30, "x", "a,b,,c", "../..", "~",
    "/dev/zero", "\x1b[2J", "é" * 300, "=1+1", "0-9999999", "none", "1/0", "[", "{}", "@", "*", "a" * 5000, "NAME=",
    "=", ":", "hf:", "os:system",
)  # fmt: skip
MEANING = {70: "a traceback", 71: "no sentence", 72: "an error in aol itself", 124: "no end within a minute"}


class Failure(Exception):  # noqa: N818 (the outcome of a trial, not a programming error)
    """What a trial must not lead to."""


class Output(NamedTuple):
    """What a command returned and printed."""

    status: int
    out: str
    err: str


# Processes


def child(work: Callable[[], object]) -> int:
    """Do something in a silent copy of this process; return its id. Its status is the result; 70 after an exception."""
    process = os.fork()
    if process:
        return process
    status = 70
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        result = work()
        status = result if isinstance(result, int) else 0
    finally:
        os._exit(status)


def limited(process: int) -> int:
    """Return the status of a child: minus the signal that ended it, 124 if it had to be ended."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if (done := os.waitpid(process, os.WNOHANG))[0]:
            return os.waitstatus_to_exitcode(done[1])
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return 124


def command(words: Sequence[str], folder: Path, home: Path | None = None) -> Output:
    """Run a command line in a copy of this process, in `folder`; raise for a crash, a hang or a traceback."""
    answer = folder / "answer.json"

    def work() -> int:
        os.chdir(home or folder)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(list(words))
        answer.write_text(json.dumps([status, out.getvalue(), err.getvalue()]))
        if "Traceback" in err.getvalue():
            return 70
        if "error in aol itself" in err.getvalue():
            return 72
        return 71 if status and not (out.getvalue() + err.getvalue()).strip() else 0

    answer.unlink(missing_ok=True)
    if status := limited(child(work)):
        raise Failure(f"aol {' '.join(words)!r}: {MEANING.get(status, f'status {status}')}")
    return Output(*json.loads(answer.read_text()))


# Kills


def begin(kind: str, out: Path) -> int:
    """Start what is killed, or continue it, in a process of its own."""
    out.mkdir(exist_ok=True)
    if kind == "recorder":
        return child(lambda: record_loop(out))
    if kind == "study":
        (out / "small.toml").write_text(STUDY)
        return forked(["study", "run", str(out / "small.toml"), "--out", str(out), "--checkpoint-seconds", "0"])
    return forked([*KILLED[kind].split(), "--out", str(out), "--resume"])


def record_loop(out: Path) -> None:
    """Run a user's loop, which continues from its own checkpoint."""
    ages = aol.SampleAges(LABELS, num_classes=4)
    saved = out / "mine.pt"
    if saved.exists():
        ages.load_state_dict(torch.load(saved, weights_only=True))
    with aol.Recorder(out / "run", ages, epochs=6, resume=True) as recorder:
        for epoch in range(int(ages.epoch), 6):
            epoch_of(ages, recorder, epoch)
            torch.save(ages.state_dict(), out / "new.pt")
            os.replace(out / "new.pt", saved)


def result(kind: str, out: Path) -> dict[str, object]:
    """Return what must be the same after any number of kills."""
    if kind == "recorder":  # means over time count epochs that are repeated twice
        run = read_run(out / "run")
        ages = ages_over_time(samples_of(out / "run"))
        return {"epochs": run.epochs.tolist(), "ages": str(run.by_class["age"].tolist()), "samples": ages}
    return {name: content for name, content in told(out).items() if name != "request.json"}


def kill(base: Path, chance: random.Random, undisturbed: dict[str, tuple[dict[str, object], float]]) -> str:
    """Kill a command at random moments, resume it until it ends, and compare; return which, and how often."""
    kind = chance.choice([*KILLED, "recorder", "study"])
    out = base / "killed"
    shutil.rmtree(out, ignore_errors=True)
    if kind not in undisturbed:
        start = time.monotonic()
        if status := limited(begin(kind, out)):
            raise Failure(f"{kind}: the undisturbed one failed: {MEANING.get(status, f'status {status}')}")
        undisturbed[kind] = result(kind, out), time.monotonic() - start
        shutil.rmtree(out)
    expected, seconds = undisturbed[kind]
    kills = 0
    for _ in range(chance.randint(2, 8)):
        by = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        process = begin(kind, out)
        end = time.monotonic() + chance.uniform(0.02, 0.9) * seconds
        while time.monotonic() < end and os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.002)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, by)
        status = limited(process)
        if status == 124:
            raise Failure(f"{kind}: no end within a minute after {by.name}")
        kills += status != 0
    if status := limited(begin(kind, out)):
        raise Failure(f"{kind}: status {status} after {kills} kills")
    now = result(kind, out)
    if now != expected:
        names = [name for name in {**now, **expected} if now.get(name) != expected.get(name)]
        raise Failure(f"{kind}: another result after {kills} kills: {', '.join(names[:3])}")
    return f"{kills} kills of {kind}"


# Damage


def prepare(base: Path) -> Path:
    """Make finished and unfinished runs, and a study file; return their folder."""
    few = ["--samples", "120", "--batch-size", "60", "--weighting", "aol", "--seed", "0,1", "--keep-samples"]
    done, begun = base / "whole" / "done", base / "whole" / "begun"
    if status_of(forked(["train", *few, "--epochs", "3", "--out", str(done)])):
        raise Failure("the runs to damage could not be trained")
    process = forked(["train", *few, "--epochs", "40", "--checkpoint-seconds", "0", "--out", str(begun), "--resume"])
    while not list(begun.glob("work/*/checkpoint.pt")):
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    limited(process)
    (base / "whole" / "small.toml").write_text(STUDY)
    return base / "whole"


def readings(folder: Path, base: Path) -> str:
    """Return the numbers of all runs below a folder that `aol show` takes, and its sentences about others."""
    shown = command(["show", str(folder / "done"), str(folder / "begun"), "--json"], base)
    runs = json.loads(shown.out or "{}").get("runs", [])
    return json.dumps({f"{run['id']} {run['finished']}": run["accuracy"] for run in runs}, sort_keys=True)


def damage(whole: Path, base: Path, chance: random.Random, expected: dict[str, str]) -> str:
    """Damage one file of a copy, let aol read it, and compare; return the kind of file and the outcome."""
    copy = base / "damaged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy, symlinks=True)
    files = [file for file in sorted(copy.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    kinds = sorted({file.name for file in files})
    kind = chance.choice(kinds)
    file = chance.choice([file for file in files if file.name == kind])
    other = chance.choice([file for file in files if file.name != kind])
    how = damaged(file, other, chance)
    numbers = json.loads(readings(copy, base))
    if "shown" not in expected:
        expected["shown"] = readings(whole, base)
    known = json.loads(expected["shown"])
    if any(known.get(run, value) != value for run, value in numbers.items()):
        raise Failure(f"{kind} ({how}): other numbers were taken")
    place = copy / ("begun" if "begun" in file.parts else "done")
    if kind == "small.toml":
        said = command(["study", "show", str(file), "--out", str(place)], base)
    elif chance.random() < 0.5:
        said = command(["report", str(place), "--write", str(base / "page.html")], base)
    else:
        said = command(["resume", str(place), "--json", "--minutes", "0"], base)
    return f"{kind}: {'refused' if said.status or said.err.strip() else 'taken'}"


def damaged(file: Path, other: Path, chance: random.Random) -> str:
    """Damage a file in one way, and say which."""
    how = chance.choice(WAYS)
    content = bytearray(file.read_bytes())
    if how == "flip":
        for _ in range(chance.choice((1, 1, 2, 20)) if content else 0):
            place = chance.randrange(8 * len(content))
            content[place // 8] ^= 1 << place % 8
    elif how == "cut":
        content = content[: chance.randrange(len(content) + 1)]
    elif how == "overwrite" and content:
        start = chance.randrange(len(content))
        content[start : start + chance.randrange(1, 4096)] = chance.randbytes(chance.randrange(1, 4096))
    elif how in ("swap", "empty"):
        content = bytearray(other.read_bytes() if how == "swap" else b"")
    file.unlink()
    if how == "pipe":
        os.mkfifo(file)
    elif how == "zeros":
        file.symlink_to("/dev/zero")
    elif how == "folder":
        file.mkdir()
    else:
        file.write_bytes(content)
    return how


# Words


def words(base: Path, chance: random.Random) -> str:
    """Give a command random bad arguments."""
    name = chance.choice(sorted(MODULES))
    parser, path = build(name), [name]
    while True:
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not below or (len(path) > 1 and path[0] != "study" and path[0] != "data"):
            break
        word = name if len(path) == 1 and parser.prog == "aol" else chance.choice(sorted(below[0].choices))
        if parser.prog != "aol":
            path.append(word)
        parser = below[0].choices[word]
    given = list(path)
    for action in parser._actions:
        if not action.option_strings and action.metavar and not isinstance(action, argparse._SubParsersAction):
            given.append(chance.choice([*VALUES, str(base / "whole" / "done")]))
    unwanted = ("--help", "--debug", "--open", "--ray")
    flags = [act for act in parser._actions if act.option_strings and act.option_strings[-1] not in unwanted]
    for action in chance.sample(flags, min(len(flags), chance.randint(1, 4))):
        flag, value = action.option_strings[-1], chance.choice(VALUES)
        given += [flag] if action.nargs == 0 else [f"{flag}={value}"] if chance.random() < 0.5 else [flag, value]
    if "--minutes" in {action.option_strings[-1] for action in flags}:
        given += ["--minutes", "0"]
    home = Path(tempfile.mkdtemp(dir=base)) / "a" / "b"  # "../.." is still ours
    home.mkdir(parents=True)
    os.environ["HOME"] = str(home)
    status = command(given, base, home).status
    if status not in (0, 1, 2, 130, 143):
        raise Failure(f"aol {' '.join(given)!r}: status {status}")
    return "right"


def trials(base: Path) -> dict[str, Callable[[int], str]]:
    """Return the kinds of trials; a trial is a function of its seed."""
    whole = prepare(base)
    undisturbed: dict[str, tuple[dict[str, object], float]] = {}
    expected: dict[str, str] = {}
    return {
        "damage": lambda seed: damage(whole, base, random.Random(f"damage {seed}"), expected),
        "kill": lambda seed: kill(base, random.Random(f"kill {seed}"), undisturbed),
        "words": lambda seed: words(base, random.Random(f"words {seed}")),
    }


def soak(minutes: float, first: int, kinds: Sequence[str], once: bool) -> tuple[Counter[str], list[str]]:
    """Try until the time is over; return counts of outcomes, and the failures with what repeats them."""
    counts: Counter[str] = Counter()
    failures = []
    with tempfile.TemporaryDirectory(prefix="aol-soak-", ignore_cleanup_errors=True) as name:
        base = Path(name)
        os.environ["XDG_STATE_HOME"] = str(base / "state")
        end = time.monotonic() + 60 * minutes
        works = {kind: work for kind, work in trials(base).items() if kind in kinds}
        for seed in itertools.count(first):
            for kind, work in works.items():
                try:
                    counts[f"{kind}: {work(seed)}"] += 1
                except Failure as failure:
                    counts[f"{kind}: failures"] += 1
                    failures.append(f"--kind {kind} --seed {seed}: {failure}")
            if once or time.monotonic() >= end:
                return counts, failures
    raise AssertionError


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("MINUTES") or 60))
    parser.add_argument("--seed", type=int, help="of the first trial; with one --kind, of the only one")
    parser.add_argument("--kind", choices=("damage", "kill", "words"), nargs="+", default=("damage", "kill", "words"))
    given = parser.parse_args()
    only_one = len(given.kind) == 1 and given.seed is not None
    outcomes, wrong = soak(given.minutes, given.seed or 0, given.kind, only_one)
    for outcome, times in sorted(outcomes.items()):
        print(f"{outcome:<48} {times:>8,}")
    kills = sum(int(outcome.split()[1]) * times for outcome, times in outcomes.items() if " kills of " in outcome)
    tried = {kind: sum(times for outcome, times in outcomes.items() if outcome.startswith(kind)) for kind in given.kind}
    print(f"{kills:,} kills,", ", ".join(f"{times:,} trials of {kind}" for kind, times in tried.items()))
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)
