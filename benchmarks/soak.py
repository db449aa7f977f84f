"""Kill, damage and misuse aol at random for an hour, and count what came of it: `make soak`, `MINUTES=5 make soak`.

Three kinds of tries, in turn:

- **kill**: a command, or a loop with a `Recorder`, is killed (SIGKILL) at random moments and resumed until it ends;
  what it leaves behind must be what an undisturbed one leaves, to the last bit.
- **damage**: a file of one of the kinds below gets flipped bits, is cut short, overwritten, swapped with another file,
  or replaced by a pipe, a folder or a link to /dev/zero; what reads it must take it, with the same numbers where it has
  a checksum, or refuse it in one sentence.
- **words**: a command gets random bad words; it must refuse them, or do something, in a sentence.

Wrong is: a result that differs, a signal (a crash), no end within a minute (a hang), a traceback, "an error in aol
itself". Every try follows from one seed: `python benchmarks/soak.py --kind damage --seed 123` repeats one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
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

import torch

import aol
from aol._checkpoint import load_tensors
from aol.cli import build, main
from aol.cli.parser import COMMANDS
from aol.cli.train import _open
from aol.data import check
from aol.report.export import columns
from aol.report.run_data import load
from aol.runs.driver import make_loop
from aol.runs.groups import ExecutionOptions, begun_groups, load_checkpoint
from aol.runs.record import read_run
from aol.runs.store import Store
from tests.support.recorded_loop import LABELS, ages_over_time, epoch_of, samples_of
from tests.support.running import forked, killed_after, status_of, told
from tests.support.tiny_sets import image_folder, tiny_lmdb, tiny_parquet

_PATIENCE = 60  # seconds for one try
_FEW = "--samples 120 --batch-size 60 --checkpoint-seconds 0 --seed 0,1"
KILLED = {
    "train": f"train --epochs 4 --weighting aol --average 0.9 --keep-samples {_FEW}",
    "resample": f"train --epochs 4 --weighting aol --mechanism resample --level sample --optimiser adamw {_FEW}",
    "margins": f"train --epochs 4 --margin age,error --validation 0.2 {_FEW}",
    "arrival": f"train --epochs 4 --weighting old --fraction 0.4 --keep-samples {_FEW}",
    "stream": f"stream --steps 4 --weighting aol --memory reservoir:50 {_FEW}",
    "stream all": f"stream --steps 4 --weighting cb+aol --stream access --fraction 0.3 --memory all {_FEW}",
    "pack": "data pack SETS/folder OUT --size 24",
}


class Wrong(Exception):  # noqa: N818 (a verdict)
    """What must not come of a try."""


# Kills


def kill(sets: Path, out: Path, chance: random.Random, wanted: dict[str, tuple[dict[str, object], float]]) -> int:
    """Kill a command at random moments, resume it until it ends, and compare; return the number of kills."""
    kind = chance.choice([*KILLED, "recorder", "study"])
    if kind not in wanted:
        straight = out.with_name("straight")
        shutil.rmtree(straight, ignore_errors=True)
        begun = time.monotonic()
        if status_of(_begun(kind, sets, straight)):
            raise Wrong(f"{kind}: the undisturbed one failed")
        wanted[kind] = _left(kind, straight), time.monotonic() - begun
    seconds = wanted[kind][1]
    kills = 0
    for _ in range(chance.randint(2, 8)):
        child = _begun(kind, sets, out)
        end = time.monotonic() + chance.uniform(0.02, 0.9) * seconds
        while time.monotonic() < end and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.002)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        kills += status_of(child) == -signal.SIGKILL
    status = _limited(_begun(kind, sets, out))
    if status:
        raise Wrong(f"{kind}: status {status} after {kills} kills")
    left = _left(kind, out)
    if left != wanted[kind][0]:
        names = [n for n in {**left, **wanted[kind][0]} if left.get(n) != wanted[kind][0].get(n)]
        raise Wrong(f"{kind}: another result after {kills} kills: {', '.join(names[:3])}")
    return kills


def _begun(kind: str, sets: Path, out: Path) -> int:
    """Start what is killed, or continue it, in a process of its own."""
    if kind == "recorder":
        return _child(lambda: _recorded(out))
    if kind == "study":
        return forked(["study", "run", "margins-digits-smoke", "--only", "method=none", "--out", str(out)])
    words = KILLED[kind].replace("SETS", str(sets)).replace("OUT", str(out)).split()
    return forked(words if kind == "pack" else [*words, "--out", str(out), "--resume"])


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
    found = {name: each for name, each in told(out).items() if name != "request.json"}
    parsed = {name: json.loads(each) for name, each in found.items() if kind == "pack" and name.endswith(".json")}
    return found | parsed  # the order of keys may differ


# Damage


def damaged(whole: bytes, other: bytes, path: Path, chance: random.Random) -> str:
    """Damage a file in one way, and say which."""
    how = chance.choice(("flip", "flip", "flip", "cut", "cut", "overwrite", "swap", "empty", "pipe", "zeros", "folder"))
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


def damage(places: dict[str, list[Path]], reads: dict[str, Callable[[], object]], chance: random.Random) -> str:
    """Damage one file, let aol read it, and put it back; return the kind and what came of it."""
    kind = chance.choice(sorted(places))
    path = chance.choice(places[kind])
    whole = path.read_bytes()
    strangers = [path for each, some in sorted(places.items()) if each != kind for path in some]
    other = chance.choice(strangers or [path]).read_bytes()  # a whole file of the same kind says the truth of another
    how = damaged(whole, other, path, chance)
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
    more = [
        "--samples",
        "120",
        "--epochs",
        "500",
        "--checkpoint-seconds",
        "0",
        "--weighting",
        "aol",
        "--average",
        "0.9",
    ]
    while not list(begun.glob("work/*/checkpoint.pt")):
        assert killed_after(3.0, ["train", *more, "--keep-samples", "--out", str(begun), "--resume"]) < 0
    _recorded(loop)
    sets = base / "sets"
    image_folder(base / "packing" / "folder")  # of its own: what is put back after damage has another time
    kinds = {
        "image": image_folder(sets / "folder"),
        "parquet": tiny_parquet(sets / "parquet"),
        "lmdb": tiny_lmdb(sets / "lmdb"),
    }
    assert main(["data", "pack", str(sets / "folder"), str(sets / "packed"), "--json"]) == 0
    kinds["packed"] = sets / "packed"
    states = {"ages": aol.SampleAges([0, 1, 1]), "margins": aol.Margins(3), "reservoir": aol.Reservoir(5)}
    for name, state in states.items():
        torch.save(state.state_dict(), base / f"{name}.pt")
    study = base / "study.toml"
    study.write_text('name = "s"\nseeds = [0]\nbaseline = "none"\n[[methods]]\nname = "none"\n')

    def every(folder: Path, pattern: str) -> list[Path]:
        found = [path for path in sorted(folder.rglob(pattern)) if path.is_file() and not path.name.startswith(".")]
        assert found, (folder, pattern)
        return found

    places = {name: every(folder, "*") for name, folder in kinds.items()}
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

    def tables() -> None:
        found = {}
        for data in load(runs, begun, loop):
            found[str(data.folder)] = columns(data).drop(columns="id").to_csv() if data.samples is not None else ""
        if any(table != known[folder] for folder, table in found.items()):
            raise Wrong("samples.safetensors: other numbers were taken")

    known: dict[str, str] = {}
    known |= {
        str(d.folder): columns(d).drop(columns="id").to_csv() if d.samples is not None else ""
        for d in load(runs, begun, loop)
    }

    def loaded() -> None:
        for name, state in states.items():
            state.load_state_dict(load_tensors(base / f"{name}.pt"))

    def grouped() -> None:
        begun_groups(Store(begun))

    reads: dict[str, Callable[[], object]] = {name: _checks(check, folder) for name, folder in kinds.items()}
    reads |= dict.fromkeys(("samples.safetensors", "ids.json"), tables)
    reads |= {"run.json": lambda: main(["show", str(runs), str(begun), str(loop)])}
    reads |= {"request.json": lambda: main(["resume", str(runs), "--minutes", "0"])}
    reads |= {"checkpoint.pt": resumed, "group.json": grouped, "state": loaded}
    reads |= {"study.toml": lambda: main(["study", "show", str(study), "--out", str(runs)])}
    return places, reads


def _checks(check: Callable[..., object], folder: Path) -> Callable[[], int]:
    return lambda: 0 if check(folder, decode=True, workers=1).ok else _said()


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
    return path


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


def soak(minutes: float, first: int, kinds: Sequence[str], once: bool) -> dict[str, object]:
    """Try, until the time is over; return the counts, and what was wrong."""
    base = Path(tempfile.mkdtemp(prefix="aol-soak-"))
    os.environ["XDG_STATE_HOME"] = str(base / "state")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        places, reads = prepared(base)
    originals = {path: path.read_bytes() for some in places.values() for path in some}
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    wanted: dict[str, tuple[dict[str, object], float]] = {}
    end, seed = time.monotonic() + 60 * minutes, first
    while time.monotonic() < end:
        if "damage" in kinds:
            seeds = range(seed, seed + (1 if once else 100))
            for each, text in _batch(seeds, base, lambda s: damage(places, reads, random.Random(f"damage {s}"))):
                counts[f"damage, {text.split(': ')[-1] if not text.startswith('WRONG') else 'wrong'}"] += 1
                if text.startswith("WRONG"):
                    wrong.append(f"--kind damage --seed {each}: {text[6:]}")
            seed = seeds[-1] + 1
            if wrong:  # a process that crashed has put nothing back
                for path, whole in originals.items():
                    _put_back(path, whole)
        for kind, times in (("kill", 2), ("words", 10)):
            for each in range(seed, seed + (1 if once else times)) if kind in kinds else ():
                chance = random.Random(f"{kind} {each}")
                out = base / "killed"
                try:
                    if kind == "kill":
                        counts["kills"] += kill(base / "packing", out, chance, wanted)
                    else:
                        words(base, chance)
                    counts[f"{kind}, right"] += 1
                except Wrong as verdict:
                    counts[f"{kind}, wrong"] += 1
                    wrong.append(f"--kind {kind} --seed {each}: {verdict}")
                shutil.rmtree(out, ignore_errors=True)
                seed = each + 1
        if once:
            break
    shutil.rmtree(base, ignore_errors=True)
    return {"minutes": minutes, "counts": dict(sorted(counts.items())), "wrong": wrong}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("MINUTES") or 60))
    parser.add_argument("--seed", type=int, help="of the first try; with --kind, of the only one")
    parser.add_argument("--kind", choices=("kill", "damage", "words"), help="only this kind")
    parser.add_argument("--write", action="store_true", help="write the figures into benchmarks/results")
    given = parser.parse_args()
    found = soak(
        given.minutes,
        given.seed or 0,
        [given.kind] if given.kind else ["kill", "damage", "words"],
        given.kind is not None and given.seed is not None,
    )
    for name, number in found["counts"].items():
        print(f"{name:<24} {number:>8,}")
    print(*found["wrong"], sep="\n")
    sys.exit(1 if found["wrong"] else 0)
