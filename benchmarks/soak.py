"""Kill, damage and misuse aol at random for an hour, and count what came of it: `make soak`, `MINUTES=5 make soak`.

Kinds of tries, in turn:

- **kill**: a command, or a loop with a `Recorder`, is killed (SIGKILL or SIGTERM) at random moments and resumed until
  it ends; what it leaves behind must be what an undisturbed one leaves, to the last bit.
- **damage**: a file of one of the kinds below gets flipped bits, is cut short, overwritten, swapped with another file,
  or replaced by a pipe, a folder or a link to /dev/zero; what reads it must take it, with the same numbers where it has
  a checksum, or refuse it in one sentence.
- **words**: a command gets random bad words; it must refuse them, or do something, in a sentence.
- **loop**: the same as "kill", for loops of users with plain PyTorch and in frameworks (`benchmarks/soak_loops.py`).
- **checkpoint**: the same as "damage", for the checkpoints of these loops. What is loaded must be exact, or refused by
  aol in one sentence, or by the framework.

Loops run here and in the environments that are given, one after the other, beside the other kinds.

Wrong is: a result that differs, a signal (a crash), no end within a minute (a hang), a traceback, "an error in aol
itself". Every try follows from one seed: `python -m benchmarks.soak --kind damage --seed 123` repeats one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

import aol
from aol._checkpoint import load_tensors
from aol.cli import build, main
from aol.cli.parser import COMMANDS
from aol.cli.train import _open
from aol.lab.data import open_data
from aol.lab.train.group_training import make_loop
from aol.lab.train.groups import ExecutionOptions, begun_groups, load_checkpoint
from aol.records.record import read_run
from aol.records.store import Store
from aol.report.export import columns
from aol.report.run_data import load
from benchmarks import soak_loops
from tests.support.recorded_loop import LABELS, ages_over_time, epoch_of, samples_of
from tests.support.running import forked, killed_after, status_of, told
from tests.support.tiny_sets import image_folder

KINDS = ("damage", "checkpoint", "kill", "loop", "words")
_PATIENCE = 60  # seconds for one try
_FEW = "--samples 120 --batch-size 60 --checkpoint-seconds 0 --seed 0,1"
KILLED = {
    "train": f"train --epochs 4 --weighting aol --average 0.9 --keep-samples {_FEW}",
    "resample": f"train --epochs 4 --weighting aol --mechanism resample --level sample --optimiser adamw {_FEW}",
    "margins": f"train --epochs 4 --margin age,error --validation 0.2 {_FEW}",
    "arrival": f"train --epochs 4 --weighting old --fraction 0.4 --keep-samples {_FEW}",
    "stream": f"stream --steps 4 --weighting aol --memory reservoir:50 {_FEW}",
    "stream all": f"stream --steps 4 --weighting cb+aol --stream access --fraction 0.3 --memory all {_FEW}",
}
COPYING = {"gather": "study gather RUNS --out OUT", "report": "report RUNS --write OUT/report.html"}


class Wrong(Exception):  # noqa: N818 (a verdict)
    """What must not come of a try."""


# Kills


class Killable(NamedTuple):
    """What can be killed: how to begin or continue it in a folder, and what must be the same at its end."""

    begin: Callable[[Path], int]
    left: Callable[[Path], dict[str, object]]


def commands(sets: Path) -> dict[str, Killable]:
    """Return the commands that are killed."""
    kinds = [*KILLED, "recorder", "study", *COPYING]
    return {kind: Killable(partial(_begun, kind, sets), partial(_left, kind)) for kind in kinds}


def killable_loops() -> dict[str, Killable]:
    """Return the loops of this environment."""

    def begin(loop: soak_loops.Loop, out: Path) -> int:
        out.mkdir(exist_ok=True)
        return _child(lambda: loop.run(out, False))

    return {name: Killable(partial(begin, loop), soak_loops.left) for name, loop in soak_loops.loops_here().items()}


def kill(
    kinds: dict[str, Killable], out: Path, chance: random.Random, wanted: dict[str, tuple[dict[str, object], float]]
) -> tuple[str, int]:
    """Kill one of them at random moments, resume it until it ends, and compare; return which, and how often."""
    kind = chance.choice(list(kinds))
    one = kinds[kind]
    if kind not in wanted:
        straight = out.with_name("straight")
        shutil.rmtree(straight, ignore_errors=True)
        begun = time.monotonic()
        if status_of(one.begin(straight)):
            raise Wrong(f"{kind}: the undisturbed one failed")
        wanted[kind] = one.left(straight), time.monotonic() - begun
    known, seconds = wanted[kind]
    kills = 0
    for _ in range(chance.randint(2, 8)):
        by = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        child = one.begin(out)
        end = time.monotonic() + chance.uniform(0.02, 0.9) * seconds
        while time.monotonic() < end and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.002)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, by)
        if (status := _limited(child)) == 124:
            raise Wrong(f"{kind}: no end within a minute after {by.name}")
        kills += status != 0
    if status := _limited(one.begin(out)):
        raise Wrong(f"{kind}: status {status} after {kills} kills")
    left = one.left(out)
    if left != known:
        names = [n for n in {**left, **known} if left.get(n) != known.get(n)]
        raise Wrong(f"{kind}: another result after {kills} kills: {', '.join(names[:3])}")
    return kind, kills


def _begun(kind: str, sets: Path, out: Path) -> int:
    """Start what is killed, or continue it, in a process of its own."""
    if kind == "recorder":
        return _child(lambda: _recorded(out))
    if kind == "study":
        return forked(["study", "run", "margins-digits-smoke", "--only", "method=none", "--out", str(out)])
    if kind in COPYING:
        out.mkdir(exist_ok=True)
        return forked(COPYING[kind].replace("RUNS", str(_runs(sets))).replace("OUT", str(out)).split())
    words = KILLED[kind].replace("SETS", str(sets)).replace("OUT", str(out)).split()
    return forked([*words, "--out", str(out), "--resume"])


def _runs(sets: Path) -> Path:
    """Return a folder of finished runs, for commands that read them."""
    folder = sets / "runs"
    if not folder.exists() and status_of(forked([*KILLED["train"].split(), "--out", str(folder)])):
        raise Wrong("the runs to copy could not be trained")
    return folder


def _recorded(out: Path) -> None:
    """Run a user's loop, which continues from its own checkpoint."""
    ages = aol.SampleAges(LABELS, num_classes=4)
    out.mkdir(exist_ok=True)
    saved = out / "mine.pt"
    if saved.exists():
        ages.load_state_dict(torch.load(saved, weights_only=True))
    with aol.Recorder(out / "run", ages, epochs=6, resume=True) as recorder:
        for epoch in range(ages.epoch, 6):
            epoch_of(ages, recorder, epoch)
            torch.save(ages.state_dict(), out / "new.pt")
            os.replace(out / "new.pt", saved)


def _left(kind: str, out: Path) -> dict[str, object]:
    """Return what must be the same after any number of kills."""
    if kind == "recorder":  # means over time count epochs that are repeated twice
        run = read_run(out / "run")
        ages = ages_over_time(samples_of(out / "run"))
        return {"epochs": run.epochs.tolist(), "ages": str(run.by_class["age"].tolist()), "samples": ages}
    if kind == "report":  # all but the time of writing
        page = (out / "report.html").read_text(encoding="utf-8")
        return {"files": sorted(path.name for path in out.iterdir()), "page": re.sub(r'"written":"[^"]*"', "", page)}
    return {name: content for name, content in told(out).items() if name != "request.json"}


# Damage


_BYTES = ("flip", "flip", "flip", "cut", "cut", "overwrite", "swap", "empty")
_PLACES = ("pipe", "zeros", "folder")  # not for files that a framework opens: it waits, or reads without an end


def damaged(whole: bytes, other: bytes, path: Path, chance: random.Random, ways: Sequence[str]) -> str:
    """Damage a file in one way, and say which."""
    how = chance.choice(ways)
    content = bytearray(whole)
    if how == "flip":
        for _ in range(chance.choice((1, 1, 2, 20))):
            place = chance.randrange(8 * max(1, len(content)))
            if content:
                content[place // 8] ^= 1 << place % 8
    elif how == "cut":
        content = content[: chance.randrange(len(content) + 1)]
    elif how == "overwrite" and content:
        start = chance.randrange(len(content))
        content[start : start + chance.randrange(1, 4096)] = chance.randbytes(chance.randrange(1, 4096))
    elif how in ("swap", "empty"):
        content = bytearray(other if how == "swap" else b"")
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "zeros":
        path.symlink_to("/dev/zero")
    elif how == "folder":
        path.mkdir()
    else:
        path.write_bytes(content)
    return how


def damage(
    places: dict[str, list[Path]],
    reads: dict[str, Callable[[], object]],
    chance: random.Random,
    rivals: Mapping[Path, list[Path]],
    ways: Sequence[str] = (*_BYTES, *_PLACES),
) -> str:
    """Damage one file, let aol read it, and put it back; return the kind and what came of it.

    A file is swapped with one of its rivals. One without them is swapped with one of another kind, because a whole file
    of the same kind says the truth of another.
    """
    kind = chance.choice(sorted(places))
    path = chance.choice(places[kind])
    whole = path.read_bytes()
    strangers = [path for each, some in sorted(places.items()) if each != kind for path in some]
    other = chance.choice(rivals.get(path) or strangers or [path]).read_bytes()
    how = damaged(whole, other, path, chance, ways)
    try:
        came = _judged(reads[kind], f"{path.name} ({how})")
    finally:
        _put_back(path, whole)
    return f"{kind}: {came}"


def _put_back(path: Path, whole: bytes) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    path.write_bytes(whole)


def _judged(read: Callable[[], object], what: str) -> str:
    """Call what reads a damaged file; return whether it was taken or refused."""
    said, told_ = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(told_), _time_limit():
            status = read()
    except (ValueError, OSError, ImportError) as error:  # of the library, in one sentence
        return "refused" if str(error) else _wrong(f"{what}: {type(error).__name__} without a sentence")
    except Exception as error:
        return _wrong(f"{what}: {type(error).__name__}: {error}")
    text = said.getvalue()
    if "Traceback" in text or "error in aol itself" in text:
        return _wrong(f"{what}: {text.strip().splitlines()[-1]}")
    if status not in (0, None) and not text.strip() and not told_.getvalue().strip():
        return _wrong(f"{what}: status {status} without a sentence")
    return "refused" if status else "taken"


def _wrong(text: str) -> str:
    raise Wrong(text)


@contextlib.contextmanager
def _time_limit() -> object:
    def stop(*_: object) -> None:
        raise Wrong("no end within a minute")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def prepared(base: Path) -> tuple[dict[str, list[Path]], dict[str, Callable[[], object]]]:
    """Make a file of every kind that aol reads; return their paths, and what reads each kind."""
    runs, begun, loop = base / "runs", base / "begun", base / "loop"
    few = ["--samples", "120", "--epochs", "2", "--weighting", "aol", "--seed", "0,1", "--keep-samples"]
    assert main(["train", *few, "--out", str(runs), "--json"]) == 0
    more = [*few[:2], "--epochs", "500", "--checkpoint-seconds", "0", "--weighting", "aol", "--average", "0.9"]
    while not list(begun.glob("work/*/checkpoint.pt")):
        assert killed_after(3.0, ["train", *more, "--keep-samples", "--out", str(begun), "--resume"]) < 0
    _recorded(loop)
    sets = base / "sets"
    folder = image_folder(sets / "folder")
    states = {"ages": aol.SampleAges([0, 1, 1]), "margins": aol.Margins(3), "reservoir": aol.Reservoir(5)}
    for name, state in states.items():
        torch.save(state.state_dict(), base / f"{name}.pt")
    study = base / "study.toml"
    study.write_text('name = "s"\nseeds = [0]\nbaseline = "none"\n[[methods]]\nname = "none"\n')

    def every(folder: Path, pattern: str) -> list[Path]:
        found = [path for path in sorted(folder.rglob(pattern)) if path.is_file() and not path.name.startswith(".")]
        assert found, (folder, pattern)
        return found

    places = {"image": every(folder, "*.JPEG")}
    places |= {
        name: every(base, name)
        for name in ("run.json", "samples.safetensors", "request.json", "ids.json")
        if list(base.rglob(name))
    }
    places |= {"checkpoint.pt": every(begun, "checkpoint.pt"), "group.json": every(begun, "group.json")}
    places |= {"state": [base / f"{name}.pt" for name in states], "study.toml": [study]}
    (group,) = begun_groups(Store(begun))
    pairs = _open(base, None, group.runs)
    options = ExecutionOptions(torch.device("cpu"), keep_samples=True)
    target = make_loop(group.runs, pairs, options)
    wanted = _net(load_checkpoint(group.checkpoint))

    def resumed() -> None:
        state = load_checkpoint(group.checkpoint)
        target.load_state_dict(state)
        if _net(state) != wanted:
            raise Wrong("checkpoint.pt: other numbers were taken")

    def tables() -> dict[str, str]:
        return {
            str(run.folder): columns(run).drop(columns="id").to_csv() if run.samples is not None else ""
            for run in load(runs, begun, loop)
        }

    known = tables()

    def compared() -> None:
        if any(table != known[folder] for folder, table in tables().items()):
            raise Wrong("samples.safetensors: other numbers were taken")

    def loaded() -> None:
        for name, state in states.items():
            state.load_state_dict(load_tensors(base / f"{name}.pt"))

    def grouped() -> None:
        begun_groups(Store(begun))

    def decoded() -> None:
        pair = open_data(folder)
        for split in (pair.train, pair.test):
            for place in range(len(split)):
                split.whole(place)

    reads: dict[str, Callable[[], object]] = {"image": decoded}
    reads |= dict.fromkeys(("samples.safetensors", "ids.json"), compared)
    reads |= {"run.json": lambda: main(["show", str(runs), str(begun), str(loop)])}
    reads |= {"request.json": lambda: main(["resume", str(runs), "--minutes", "0"])}
    reads |= {"checkpoint.pt": resumed, "group.json": grouped, "state": loaded}
    reads |= {"study.toml": lambda: main(["study", "show", str(study), "--out", str(runs)])}
    return places, reads


def prepared_loops(
    base: Path,
) -> tuple[dict[str, list[Path]], dict[str, Callable[[], object]], dict[Path, list[Path]]]:
    """Make checkpoints of the loops; return their files, what reads each kind, and earlier files of the same names."""
    places, reads, rivals = {}, {}, {}
    for name, loop in soak_loops.loops_here().items():
        if loop.saved:
            out = base / "loops" / name
            out.parent.mkdir(exist_ok=True)
            assert status_of(_child(partial(soak_loops.stop_halfway, loop, out))) == 0, name
            rivals |= soak_loops.files(loop, out)
            places[name], reads[name] = list(soak_loops.files(loop, out)), _loads(loop, out, base / f"{name}.known")
    return places, reads, rivals


def _loads(loop: soak_loops.Loop, out: Path, known: Path) -> Callable[[], None]:
    assert status_of(_child(lambda: known.write_text(soak_loops.look(loop, out)) < 0)) == 0, out

    def read() -> None:
        if soak_loops.look(loop, out) != known.read_text():
            raise Wrong("another state was taken")

    return read


def _said() -> int:
    print("problems found")
    return 1


def _net(state: dict[str, object]) -> object:
    return {
        name: value.numpy().tobytes()
        for name, value in state["learner"]["net"].items()
        if isinstance(value, torch.Tensor)
    }


# Words

_VALUES = (
    "", "--", "-1", "0", "nan", "inf", "-inf", "1e400", str(2**70), "1" + "0" * 30, "x", "a,b,,c", "../..", "~",
    "/dev/zero", "\x1b[2J", "é" * 300, "=1+1", "0-9999999", "none", "1/0", "[", "{}", "@", "*", "a" * 5000, "NAME=",
    "=", ":", "hf:", "os:system",
)  # fmt: skip


def words(base: Path, chance: random.Random) -> str:
    """Give a command random bad words."""
    path = chance.choice(sorted(COMMANDS))
    parser = build()
    for word in path.split():
        parser = next(each.choices[word] for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    flags = [
        each
        for each in parser._actions
        if each.option_strings and each.option_strings[-1] not in ("--help", "--debug", "--watch", "--open", "--ray")
    ]
    given = path.split()
    for action in parser._actions:
        if not action.option_strings and action.metavar and not isinstance(action, argparse._SubParsersAction):
            given.append(chance.choice([*_VALUES, str(base / "runs")]))
    for action in chance.sample(flags, min(len(flags), chance.randint(1, 4))):
        name, value = action.option_strings[-1], chance.choice(_VALUES)
        given += [name] if action.nargs == 0 else [f"{name}={value}"] if chance.random() < 0.5 else [name, value]
    if "--minutes" in {each.option_strings[-1] for each in flags} and path != "study":
        given += ["--minutes", "0"]
    if path == "bench":  # which would begin to measure
        given += ["--device", "x"]
    status = _limited(_child(lambda: _heard(given, base)))
    if status not in (0, 1, 2, 130, 143):
        raise Wrong(f"aol {' '.join(given)!r}: {_MEANING.get(status, status)}")
    return "right"


_MEANING = {70: "a traceback", 71: "no sentence", 72: "an error in aol itself", 124: "no end within a minute"}


def _heard(given: Sequence[str], base: Path) -> int:
    here = Path(tempfile.mkdtemp(dir=base)) / "a" / "b"  # "../.." is still ours
    here.mkdir(parents=True)
    os.chdir(here)
    os.environ["HOME"] = str(here)
    said, told_ = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(told_):
        status = main(list(given))
    if "Traceback" in said.getvalue():
        return 70
    if "error in aol itself" in said.getvalue():
        return 72
    return 71 if status and not (said.getvalue() + told_.getvalue()).strip() else status


# Processes


def _child(work: Callable[[], object]) -> int:
    """Do something in a copy of this process, silently; its status is what comes back, 70 after an exception."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        found = work()
        status = found if isinstance(found, int) else 0
    finally:
        os._exit(status)


def _limited(child: int) -> int:
    """Return the status of a child: minus the signal that ended it, 124 if it had to be ended."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if (done := os.waitpid(child, os.WNOHANG))[0]:
            return os.waitstatus_to_exitcode(done[1])
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


def _batch(seeds: Sequence[int], base: Path, work: Callable[[int], str]) -> list[tuple[int, str]]:
    """Do some tries in a copy of this process, so that a crash is seen; return the verdict of each seed."""
    log = base / "batch.log"
    log.write_text("")

    def tries() -> None:
        with open(log, "a", buffering=1) as file:
            for seed in seeds:
                file.write(f"{seed}\t")
                file.flush()  # it may be the last word of this process
                try:
                    file.write(f"{work(seed)}\n")
                except Wrong as verdict:
                    file.write(f"WRONG {' '.join(str(verdict).split())}\n")

    child = _child(tries)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    lines = [line.partition("\t") for line in log.read_text().splitlines()]
    return [(int(seed), text or f"WRONG the process ended with {status}") for seed, _, text in lines]


def _here(seeds: Sequence[int], work: Callable[[int], str]) -> Iterator[tuple[int, str]]:
    """Do some tries in this process, which begin others themselves; yield the verdict of each seed."""
    for seed in seeds:
        try:
            yield seed, work(seed)
        except Wrong as verdict:
            yield seed, f"WRONG {verdict}"


class Try(NamedTuple):
    """A kind of tries: how many in turn, what to do with a seed, and the files that it damages."""

    times: int
    work: Callable[[int], str]
    originals: dict[Path, bytes]

    def verdicts(self, seeds: Sequence[int], base: Path) -> Iterable[tuple[int, str]]:
        """Return what came of some seeds."""
        if not self.originals:
            return _here(seeds, self.work)
        found = _batch(seeds, base, self.work)
        if any(text.startswith("WRONG") for _, text in found):  # a process that crashed has put nothing back
            for path, whole in self.originals.items():
                _put_back(path, whole)
        return found


def tries(base: Path, kinds: Sequence[str]) -> dict[str, Try]:
    """Return the kinds that were asked for."""
    found: dict[str, Try] = {}
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        if {"damage", "kill", "words"} & {*kinds}:
            places, reads = prepared(base)
            named = places["samples.safetensors"]  # each says of which run it is
            rivals = {path: [each for each in named if each != path] for path in named}
            found["damage"] = _damaging("damage", 100, places, reads, rivals, (*_BYTES, *_PLACES))
        if "checkpoint" in kinds:
            found["checkpoint"] = _damaging("checkpoint", 50, *prepared_loops(base), _BYTES)
    found["kill"] = _killing("kill", commands(base / "packing"), base / "killed")
    found["loop"] = _killing("loop", killable_loops() if "loop" in kinds else {}, base / "killed")
    found["words"] = Try(10, lambda seed: words(base, random.Random(f"words {seed}")), {})
    return {kind: each for kind, each in found.items() if kind in kinds}


def _damaging(
    kind: str,
    times: int,
    places: dict[str, list[Path]],
    reads: dict[str, Callable[[], object]],
    rivals: dict[Path, list[Path]],
    ways: Sequence[str],
) -> Try:
    originals = {path: path.read_bytes() for some in places.values() for path in some}
    return Try(times, lambda seed: damage(places, reads, random.Random(f"{kind} {seed}"), rivals, ways), originals)


def _killing(kind: str, those: dict[str, Killable], out: Path) -> Try:
    wanted: dict[str, tuple[dict[str, object], float]] = {}

    def work(seed: int) -> str:
        try:
            name, kills = kill(those, out, random.Random(f"{kind} {seed}"), wanted)
            return f"{name}: {kills}"
        finally:
            shutil.rmtree(out, ignore_errors=True)

    return Try(2, work, {})


@dataclass
class Result:
    """Counts, what was wrong, and the loops that ran."""

    loops: set[str]
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def note(self, kind: str, seed: int, text: str) -> None:
        """Count the verdict of a seed."""
        if text.startswith("WRONG"):
            self.counts[f"{kind}: wrong"] += 1
            self.wrong.append(f"--kind {kind} --seed {seed}: {text[6:]}")
        elif kind in ("kill", "loop"):
            name, _, kills = text.rpartition(": ")
            self.counts[f"{kind}: kills"] += int(kills)
            self.counts[f"{kind}: kills of {name}"] += int(kills)
        else:
            self.counts[f"{kind}: {text.rpartition(': ')[2]}"] += 1

    def add(self, other: subprocess.Popen[str]) -> None:
        """Add what another environment found."""
        told, _ = other.communicate()
        try:
            found = json.loads(told)
        except ValueError:
            self.wrong.append(f"{other.args}: status {other.returncode}")  # type: ignore[str-bytes-safe]
            return
        self.loops |= {*found["loops"]}
        self.counts.update(found["counts"])
        self.wrong += [f"{Path(other.args[0]).parents[1].name}: {each}" for each in found["wrong"]]  # type: ignore[index]


def elsewhere(environments: Sequence[Path], minutes: float, seed: int) -> Iterator[subprocess.Popen[str]]:
    """Run the loops of other environments, one after the other; each gets an equal share of the time."""
    for each in environments:
        words = ["--kind", "loop", "checkpoint", "--minutes", str(minutes / len(environments)), "--seed", str(seed)]
        command = [str(each / "bin" / "python"), "-m", "benchmarks.soak", *words, "--json"]
        yield subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def soak(minutes: float, first: int, kinds: Sequence[str], once: bool, environments: Sequence[Path]) -> Result:
    """Try, until the time is over."""
    base = Path(tempfile.mkdtemp(prefix="aol-soak-"))
    os.environ["XDG_STATE_HOME"] = str(base / "state")
    others = elsewhere(environments, minutes, first)
    running = next(others, None)
    result = Result({*soak_loops.loops_here()} if {"loop", "checkpoint"} & {*kinds} else set())
    mine = tries(base, kinds)
    end, seed = time.monotonic() + 60 * minutes, first
    while time.monotonic() < end:
        if running is not None and running.poll() is not None:
            result.add(running)
            running = next(others, None)
        for kind, each in mine.items():
            seeds = range(seed, seed + (1 if once else each.times))
            for one, text in each.verdicts(seeds, base):
                result.note(kind, one, text)
            seed = seeds[-1] + 1
        if once:
            break
    while running is not None:
        result.add(running)
        running = next(others, None)
    shutil.rmtree(base, ignore_errors=True)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("MINUTES") or 60))
    parser.add_argument("--seed", type=int, help="of the first try; with one --kind, of the only one")
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=KINDS, help="only these kinds")
    parser.add_argument("--environments", type=Path, nargs="*", default=[], help="others whose loops are run as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    once = len(given.kind) == 1 and given.seed is not None
    found = soak(given.minutes, given.seed or 0, given.kind, once, given.environments)
    if given.json:
        print(json.dumps({"loops": sorted(found.loops), "counts": found.counts, "wrong": found.wrong}))
        sys.exit(0)
    for name, number in sorted(found.counts.items()):
        print(f"{name:<32} {number:>8,}")
    if "loop" in given.kind and (missing := sorted({*soak_loops.LOOPS} - found.loops)):
        print(f"left out, because no environment has their framework: {', '.join(missing)}")
    print(*found.wrong, sep="\n")
    sys.exit(1 if found.wrong else 0)
