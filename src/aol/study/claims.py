"""Who trains what, where several processes or machines share one folder: stacks of runs, each held by one process.

`FOLDER/work/bound/RUN` says which stack a run belongs to: a symbolic link, made in one step and by one process only.
`FOLDER/work/stacks/STACK/` holds the stack: `runs.json`, `checkpoint.pt`, `holder-N` (a link, too, whose text says who
has held it; the highest N holds it now), `beat` (a counter that the holder moves on), `epoch` (where it stands).

Assumes a file system on which making a file, a folder or a link happens once, as on every local disk and on NFS. No
locks, which many shared folders do not pass on to other machines; and no clocks, which differ between machines: a
holder is dead when its process is known to be gone from this machine, or when its counter has stood still for as long
as a watcher's own clock says. A successor makes `holder-(N+1)`, which only one can. One that was taken for dead wrongly
(a laptop asleep) sees that file before it writes anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aol.engine.settings import Settings
from aol.records.files import write_atomically
from aol.study import hosts
from aol.study.stacks import Stack, entries, holder, introduce, overwrite, read, turn_of

BEAT_SECONDS = 5.0
PATIENCE = 60.0


class TakenOverError(RuntimeError):
    """Another process took this one for dead and holds its stack now."""


@dataclass(frozen=True)
class Held:
    """A stack as others see it.

    Args:
        stack: with no runs if its holder has not written them down yet, or died before it did.
        turn: how many have held it.
        host: of the last holder.
        pid: of the last holder.
        alive: whether it is held: True, False if it is free to be taken, None if that is not known yet.
    """

    stack: Stack
    turn: int
    host: str
    pid: int
    alive: bool | None


@dataclass
class Claims:
    """The stacks of a folder as one process sees and holds them.

    Args:
        folder: of the study's results.
        patience: seconds after which a holder elsewhere that shows no life is taken for dead.
        beat_seconds: between two signs of life of this process.
    """

    folder: Path
    patience: float = PATIENCE
    beat_seconds: float = BEAT_SECONDS
    _mine: dict[str, int] = field(default_factory=dict)
    _watched: dict[str, tuple[str, float, bool]] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _beating: threading.Lock = field(default_factory=threading.Lock)
    _heart: threading.Thread | None = None

    @property
    def _stacks(self) -> Path:
        return self.folder / "work" / "stacks"

    @property
    def _bound(self) -> Path:
        return self.folder / "work" / "bound"

    def bind(
        self, runs: Sequence[Settings], keep: tuple[str, ...] = (), *, wanted: Callable[[Settings], bool]
    ) -> Stack | None:
        """Make a stack of those of the runs that belong to no other, and hold it; None if the first of them does.

        Of several that want the same runs one gets the first, and so all. `wanted` is asked of a run when it is tied:
        another process may just have finished it, and let it go.
        """
        folder = self._begin()
        got: list[Settings] = []
        for run in runs:
            if self._tie(run, folder.name, wanted):
                got.append(run)
            elif not got:
                break
        stack = Stack(folder, tuple(got), keep)
        if not got or not self.holds(stack):
            self.dissolve(stack)
            return None
        content = {"keep": list(keep), "runs": [run.as_dict() for run in got]}
        write_atomically(folder / "runs.json", (json.dumps(content) + "\n").encode())
        return stack

    def take_over(self, held: Held) -> bool:
        """Hold a stack that is free; False if another was quicker."""
        try:
            introduce(held.stack.folder, held.turn + 1)
        except (FileExistsError, FileNotFoundError):  # taken, or removed, in the meantime
            return False
        self._hold(held.stack.folder, held.turn + 1)
        return True

    def holds(self, stack: Stack) -> bool:
        """Whether this process still holds a stack."""
        return stack.name in self._mine and turn_of(stack.folder) == self._mine[stack.name]

    def check(self, stack: Stack) -> None:
        """Raise `TakenOverError` unless this process still holds the stack."""
        if not self.holds(stack):
            self._mine.pop(stack.name, None)
            raise TakenOverError(f"Another process has taken over {len(stack.runs)} runs of this one, and goes on.")

    def release(self, stack: Stack) -> None:
        """Let go of a stack, with its checkpoint: the next process may take it at once."""
        turn = self._mine.pop(stack.name, None)
        if turn is not None and stack.folder.exists():
            overwrite(stack.folder / "released", str(turn))

    def dissolve(self, stack: Stack) -> None:
        """Free the runs of a stack that this process holds, and remove all that is left of it."""
        (stack.folder / "runs.json").unlink(missing_ok=True)  # first: what is left without runs is only removed
        for path in self._links():
            if _target(path) == stack.name:
                path.unlink(missing_ok=True)
        with self._beating:
            self._mine.pop(stack.name, None)
        shutil.rmtree(stack.folder, ignore_errors=True)

    def look(self) -> list[Held]:
        """Return all stacks of the folder, those of this process too."""
        found = []
        for folder in entries(self._stacks):
            with contextlib.suppress(FileNotFoundError):  # finished and removed while we look
                found.append(self._seen(folder))
        return found

    def tidy(self) -> None:
        """Undo ties to stacks that are gone."""
        for path in self._links():
            target = _target(path)
            if target is not None and not (self._stacks / target).exists():
                self._undo(path, target)

    def bound(self) -> dict[str, str]:
        """Return the stack of each run that belongs to one, by run id."""
        ties = ((path.name, _target(path)) for path in self._links())
        return {name: target for name, target in ties if target is not None}

    def close(self) -> None:
        """Let go of everything."""
        for name in list(self._mine):
            self.release(Stack(self._stacks / name, ()))
        self._over.set()
        if self._heart is not None:
            self._heart.join()
            self._heart = None

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> Path:
        """Make the folder of a new stack, and hold it."""
        self._bound.mkdir(parents=True, exist_ok=True)
        while True:
            folder = self._stacks / secrets.token_hex(6)
            folder.mkdir(parents=True)
            try:
                introduce(folder, 1)
            except (FileExistsError, FileNotFoundError):  # another took it for the remains of a stack
                continue
            self._hold(folder, 1)
            return folder

    def _tie(self, run: Settings, stack: str, wanted: Callable[[Settings], bool]) -> bool:
        link = self._bound / run.run_id
        try:
            os.symlink(stack, link)
        except FileExistsError:
            return False
        if wanted(run):
            return True
        link.unlink()
        return False

    def _undo(self, path: Path, target: str) -> None:
        """Remove a tie to a stack that is gone, and never one that another process has made in its place."""
        caught = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        with contextlib.suppress(FileNotFoundError):
            path.rename(caught)
            if _target(caught) == target:
                caught.unlink()
            else:
                caught.rename(path)

    def _links(self) -> list[Path]:
        return entries(self._bound)

    def _hold(self, folder: Path, turn: int) -> None:
        self._mine[folder.name] = turn
        if self._heart is None:
            self._over.clear()
            self._heart = threading.Thread(target=self._live, name="aol-beat", daemon=True)
            self._heart.start()

    def _live(self) -> None:
        """Move on the counters of all stacks that are held, until told to stop."""
        beats = 0
        while not self._over.wait(self.beat_seconds):
            beats += 1
            for name, turn in list(self._mine.items()):
                with self._beating, contextlib.suppress(OSError):  # a disk that is full for now
                    if name in self._mine:
                        overwrite(self._stacks / name / "beat", f"{turn} {beats}")

    def _seen(self, folder: Path) -> Held:
        turn = turn_of(folder)
        who, listed = holder(folder, turn), read(folder / "runs.json")
        try:
            runs = tuple(Settings(**each) for each in listed.get("runs", []))
        except (TypeError, ValueError):  # of another version of this library: none that we could go on with
            runs = ()
        stack = Stack(folder, runs, tuple(listed.get("keep", [])))
        alive = True if self._mine.get(folder.name) == turn else self._alive(folder, turn, who)
        return Held(stack, turn, str(who.get("host", "?")), int(who.get("pid", 0)), alive)

    def _alive(self, folder: Path, turn: int, who: dict[str, object]) -> bool | None:
        """Return whether the holder of a stack is there; None if it must be watched for longer to tell."""
        if turn == 0:  # its holder died while it removed the folder, or before it had written its name there
            return False
        with contextlib.suppress(OSError):
            if (folder / "released").read_text() == str(turn):
                return False
        if (seen := hosts.alive(who)) is not None:
            return seen
        beat = f"{turn} "
        with contextlib.suppress(OSError):  # none yet: that, too, can be watched
            beat += (folder / "beat").read_text()
        now = time.monotonic()
        last, since, moved = self._watched.get(folder.name, ("", now, False))
        if beat != last:
            self._watched[folder.name] = (beat, now, bool(last))
            return True if last else None
        if now - since >= self.patience:
            return False
        return True if moved and now - since < 3 * self.beat_seconds else None


def _target(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
