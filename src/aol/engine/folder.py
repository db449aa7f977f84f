"""The folder of some runs: what was asked for, how it was grouped, and where everything in it lies.

`runs.json` holds the settings of every run, `stacks.json` which runs are trained as one, by id: a run that goes on must
go on among the same others, since a stack's results equal the separate ones only to the last few bits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from aol.engine.settings import Settings, WrongSettingsError
from aol.records.files import sweep, write_atomically


def run_folder(out: Path, run: Settings) -> Path:
    """Return where the records of one run lie."""
    return out / "runs" / run.run_id


def checkpoint_path(out: Path, stack: int) -> Path:
    """Return where the checkpoint of a stack lies while it is under way."""
    return out / f"stack-{stack}" / "checkpoint.pt"


def prepare(runs: Sequence[Settings], out: Path, *, resume: bool, fresh: bool) -> None:
    """Note what was asked for, or see that it is what was asked for before. Nothing that was trained is overwritten.

    `fresh` first deletes the runs that are there, and nothing else.
    """
    if fresh:
        _clear(out)
    sweep(out)
    path = out / "runs.json"
    wanted = [run.as_dict() for run in runs]
    if _begun(out):
        if not resume:
            raise WrongSettingsError(
                f"{out} holds runs already: add --resume to go on with them, --fresh to delete them, or choose another "
                "--out."
            )
        if _read(path) != wanted:
            raise WrongSettingsError(f"{out} holds other runs: repeat their settings, or choose another --out.")
        return
    (out / "stacks.json").unlink(missing_ok=True)
    write_atomically(path, (json.dumps(wanted, indent=1) + "\n").encode())


def recall_stacks(runs: Sequence[Settings], out: Path) -> list[list[Settings]] | None:
    """Return the stacks as they were begun, or None where none was."""
    known = _read(out / "stacks.json")
    by_id = {run.run_id: run for run in runs}
    if known is None:
        return None
    if not isinstance(known, list) or sorted(name for names in known for name in names) != sorted(by_id):
        raise WrongSettingsError(f"{out / 'stacks.json'} does not fit runs.json beside it; choose another --out.")
    return [[by_id[name] for name in names] for names in known]


def note_stacks(stacks: Sequence[Sequence[Settings]], out: Path) -> None:
    """Write down which runs are trained as one."""
    names = [[run.run_id for run in stack] for stack in stacks]
    write_atomically(out / "stacks.json", (json.dumps(names, indent=1) + "\n").encode())


def _begun(out: Path) -> bool:
    """Whether anything was trained here that would be lost."""
    return any(out.glob("stack-*/checkpoint.pt")) or any(out.glob("runs/*/result.json"))


def _clear(out: Path) -> None:
    """Delete the runs in a folder; refuse one that was not made by a run."""
    others = [path.name for path in out.iterdir() if not path.name.startswith(".lock-")]
    if others and not (out / "runs.json").exists():
        raise WrongSettingsError(f"--fresh deletes only what aol made, but {out} holds no runs: choose another --out.")
    for path in (out / "runs", *out.glob("stack-*")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
    for name in ("stacks.json", "runs.json"):  # last: until then the folder is known as one of ours
        (out / name).unlink(missing_ok=True)


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise WrongSettingsError(f"{path} is damaged; choose another --out.") from error
