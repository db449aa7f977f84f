"""Training steps of 16 runs of any network, by each stacking, against steps of one run: milliseconds of a run's step.

    python benchmarks/network_steps.py --seconds 150 --out benchmarks/results/networks-steps.json

Each network and way has a process of its own. Those that compile are prepared side by side, then timed one by one while
the others wait; then the rest. What fails or takes too long is recorded as such. Results are written after each.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import torch
from measuring import RESULTS, Record, write

from aol.lab.engine.stacking import ALONE, Case, milliseconds, training_step
from aol.lab.settings import Settings
from aol.records.record import versions

NAMES = {
    "vit": "vit",
    "ResNet-18 of a user (as timm's)": "user_networks:resnet18",
    "ResNet-18 of a user with group norm": "user_networks:group_norm_resnet18",
}
AUTOTUNED = " autotuned"  # ways with this ending let Inductor choose among its own matrix products
WAYS = (ALONE, "compiled-vmap", "compiled", "compiled-vmap autotuned", "vmap", "streams")
WAVES = (WAYS[:4], WAYS[4:])
SHARE = 0.8  # of the time is for the first wave
REPEATS = 5


def timed(network: str, way: str, runs: int, batch: int, device: torch.device) -> Record:
    """Prepare the step of a way, wait for a line, and time it; on standard output "ready", then the result."""
    began = time.perf_counter()
    precision = "bf16" if device.type == "cuda" else "fp32"
    case = Case(Settings(net=network, batch_size=batch, precision=precision), (3, 32, 32), 10, device, samples=11_203)
    number = 1 if way == ALONE else runs
    step, losses = training_step(case, number, "grouped" if way == ALONE else way.removesuffix(AUTOTUNED))
    step()
    first = losses.tolist()
    prepared = time.perf_counter() - began
    print("ready", flush=True)
    sys.stdin.readline()
    taken = [milliseconds(step, device) / number for _ in range(REPEATS)]
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    return {
        "ms_of_a_run": statistics.median(taken),
        "range_ms": [min(taken), max(taken)],
        "prepared_s": prepared,
        "memory_gib": memory,
        "first_losses": first,
        "last_losses": losses.tolist(),
    }


class Child:
    """A process that times one way of one network."""

    def __init__(self, network: str, way: str, arguments: argparse.Namespace) -> None:
        self.network, self.way = network, way
        self._errors: TextIO = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, __file__, "--one", NAMES[network], way, "--device", arguments.device]
        command += ["--runs", str(arguments.runs), "--batch", str(arguments.batch)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(os.path.abspath(each) for each in sys.path if each),
            "TORCHINDUCTOR_COMPILE_THREADS": "4",
            "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM": str(int(way.endswith(AUTOTUNED))),
        }
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("ready", "{")):  # compilers may print other lines
                self._lines.put(line)
        self._lines.put("")

    def ready(self, until: float) -> bool:
        """Wait until the step is captured; False if it fails or takes too long."""
        return self._line(until).strip() == "ready"

    def result(self, until: float) -> Record:
        """Time the step."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        line = self._line(until)
        return json.loads(line) if line else self.failure()  # type: ignore[no-any-return]

    def failure(self) -> Record:
        """End the process, and return what it said last."""
        late = "too late: " if self._process.poll() is None else ""
        self.end()
        self._errors.seek(0)
        return {"error": late + self._errors.read()[-1500:]}

    def end(self) -> None:
        """End the process and free its memory."""
        self._process.kill()
        self._process.wait()

    def _line(self, until: float) -> str:
        try:
            return self._lines.get(timeout=max(0.01, until - time.monotonic()))
        except queue.Empty:
            return ""


def wave(ways: Sequence[str], arguments: argparse.Namespace, until: float) -> Iterator[tuple[str, str, Record]]:
    """Time some ways of all networks; yield the network, the way and what was found."""
    children = [Child(name, way, arguments) for way in ways for name in arguments.networks]
    ready = {child: child.ready(until - len(children)) for child in children}  # then a second to time each
    for child in children:
        if not ready[child]:
            yield child.network, child.way, child.failure()
    for child in children:
        if ready[child]:
            yield child.network, child.way, child.result(until)
            child.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--networks", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=150.0, help="stop after so long")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=RESULTS / "networks-steps.json")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(timed(*arguments.one, arguments.runs, arguments.batch, torch.device(arguments.device))))
        return 0
    images = f"random images 3×32×32, batches of {arguments.batch}, {'bf16' if arguments.device == 'cuda' else 'fp32'}"
    data = f"{images}; captured training steps, median of {REPEATS} × 10"
    record: Record = {"versions": versions(torch.device(arguments.device)), "data": data}
    rows = {
        name: {"network": name, "runs": arguments.runs, "ms_of_a_run": {}, "details": {}} for name in arguments.networks
    }
    record["rows"] = list(rows.values())
    began = time.monotonic()
    for share, ways in zip((SHARE, 1.0), WAVES, strict=True):
        wanted = [way for way in ways if way in arguments.ways]
        for name, way, found in wave(wanted, arguments, began + share * arguments.seconds):
            rows[name]["details"][way] = found
            if "ms_of_a_run" in found:
                rows[name]["ms_of_a_run"][way] = found["ms_of_a_run"]
            print(f"{name}, {way}:", found.get("ms_of_a_run", found.get("error")), flush=True)
            write(record, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
