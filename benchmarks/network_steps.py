"""Training steps of 16 runs of any network, by each stacking, against steps of one run: milliseconds of a run's step.

    python benchmarks/network_steps.py --seconds 150 --out benchmarks/results/networks-steps.json

Each network and way has a process of its own. All ways of some networks are compiled and captured side by side; then
they are timed one by one, while the others wait. What fails or takes too long is recorded as such, and results are
written after each wave.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TextIO

import torch
from measuring import RESULTS, Record, write

from aol.engine.settings import Settings
from aol.engine.stacking import ALONE, Case, milliseconds, training_step
from aol.runs.record import versions

HERE = Path(__file__).parent
NAMES = {
    "vit": "vit",
    "ResNet-18 of a user (as timm's)": "user_networks:resnet18",
    "ResNet-18 of a user with group norm": "user_networks:group_norm_resnet18",
}
TOGETHER = 2  # networks that are prepared side by side
WAYS = (ALONE, "compiled-vmap", "compiled", "vmap", "streams")
REPEATS = 5


def timed(network: str, way: str, runs: int, batch: int, device: torch.device) -> Record:
    """Prepare the step of a way, wait for a line, and time it; on standard output "ready", then the result."""
    began = time.perf_counter()
    precision = "bf16" if device.type == "cuda" else "fp32"
    case = Case(Settings(net=network, batch_size=batch, precision=precision), (3, 32, 32), 10, device, samples=11_203)
    number = 1 if way == ALONE else runs
    step, losses = training_step(case, number, "grouped" if way == ALONE else way)
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
        self._process = subprocess.Popen(
            command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
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
        late = self._process.poll() is None
        self.end()
        self._errors.seek(0)
        return {"error": "too late" if late else self._errors.read()[-1500:]}

    def end(self) -> None:
        """End the process and free its memory."""
        self._process.kill()
        self._process.wait()

    def _line(self, until: float) -> str:
        try:
            return self._lines.get(timeout=max(0.01, until - time.monotonic()))
        except queue.Empty:
            return ""


def wave(networks: list[str], arguments: argparse.Namespace, until: float) -> list[Record]:
    """Time all ways of some networks."""
    children = [Child(network, way, arguments) for network in networks for way in arguments.ways]
    reserve = len(children)  # a second to time each
    waiting, results = [], {}
    for child in children:
        if child.ready(until - reserve):
            waiting.append(child)
        else:
            results[child.network, child.way] = child.failure()
    for child in waiting:
        results[child.network, child.way] = child.result(until)
        child.end()
        print(child.network, child.way, results[child.network, child.way].get("ms_of_a_run"), flush=True)
    return [
        row(network, {way: results[network, way] for way in arguments.ways}, arguments.runs) for network in networks
    ]


def row(network: str, results: dict[str, Record], runs: int) -> Record:
    """Return the record of a network."""
    taken = {way: found["ms_of_a_run"] for way, found in results.items() if "ms_of_a_run" in found}
    return {"network": network, "runs": runs, "ms_of_a_run": taken, "details": results}


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
    record: Record = {"versions": versions(torch.device(arguments.device)), "data": data, "rows": []}
    began = time.monotonic()
    names = arguments.networks
    for start in range(0, len(names), TOGETHER):
        share = 1.0 if start + TOGETHER >= len(names) else 0.6  # of the time; the first networks matter most
        record["rows"] += wave(names[start : start + TOGETHER], arguments, began + arguments.seconds * share)
        write(record, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
