"""Real processes that talk over gloo: started once, given functions by name, never left hanging."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

PATIENCE = 240.0  # seconds for one piece of work on a busy machine


def _serve(rank: int, world: int, store: str, pipe) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=PATIENCE / 2)
    )
    pipe.send(("done", None))
    while True:
        order = pipe.recv()
        if order is None:
            break
        name, arguments = order
        try:
            function = getattr(importlib.import_module("tests.support.scenarios"), name)
            pipe.send(("done", function(rank, world, **arguments)))
        except BaseException:
            pipe.send(("failed", traceback.format_exc()))
    dist.destroy_process_group()


class Processes:
    """So many processes, each of which runs the functions of `scenarios` with its rank."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._members: list = []

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="aol-gloo-")  # deleted with this object or at exit
        store = str(Path(self._folder.name) / "store")
        # Gloo would else look for the network interface that the host's name leads to, which need not be there.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        for rank in range(self.world):
            here, there = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(rank, self.world, store, there), daemon=True)
            process.start()
            there.close()
            self._members.append((process, here))
        self._answers()

    def run(self, name: str, **arguments) -> list:
        """Return what `scenarios.name(rank, world, **arguments)` returned on each process, in rank order."""
        if not self._members:
            self._start()
        for _, pipe in self._members:
            pipe.send((name, arguments))
        return self._answers()

    def _answers(self) -> list:
        deadline = time.monotonic() + PATIENCE
        answers = []
        for rank, (process, pipe) in enumerate(self._members):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                self.stop()
                raise TimeoutError(f"process {rank} of {self.world} did not answer within {PATIENCE:.0f} s")
            try:
                answers.append(pipe.recv())
            except EOFError:
                code = process.exitcode
                self.stop()
                raise RuntimeError(f"process {rank} of {self.world} died ({code})") from None
        failures = [f"process {rank}:\n{text}" for rank, (kind, text) in enumerate(answers) if kind == "failed"]
        if failures:
            self.stop()  # whatever was under way between them is in an unknown state
            raise AssertionError("\n".join(failures))
        return [value for _, value in answers]

    def stop(self) -> None:
        """End the processes, politely if they listen."""
        for process, pipe in self._members:
            with contextlib.suppress(OSError):
                pipe.send(None)
            process.join(0.5)
            if process.is_alive():
                process.kill()
                process.join()
        self._members = []
