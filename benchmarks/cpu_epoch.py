"""CPU time of an epoch of `aol train` on a CPU, compared with an older version, or with memory that is not kept.

"Before" is malloc as it is, and evaluation batches of 2^22 pixels, with the code of `--before`, a checkout of this
repository; "now" is what `aol train` does. Each case runs in a separate process; both are timed alternately. The time
of the system is that of page faults. That of convolutions is measured afterwards, in as many epochs in which every
convolution is timed.

    python benchmarks/cpu_epoch.py [--before CHECKOUT] [--data-dir FOLDER] [--repeats 3]
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from measuring import Record, in_words, machine, options, table, write

CASES: dict[str, tuple[int, int, Record]] = {  # epochs, runs, settings
    "digits, 8 runs as one": (20, 8, {"data": "digits", "batch_size": 32}),  # as in `make demo`
    "CIFAR-10, 10,000 samples, small CNN": (
        1,
        1,
        {"data": "cifar10", "imbalance": None, "samples": 10_000, "net": "cnn"},
    ),
}


def epoch(case: str, way: str, data_dir: str | None) -> dict[str, float]:
    """Train for one epoch, then measure the next ones in this process: seconds and page faults of one, peak memory."""
    import resource

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from aol.lab.data import open_data
    from aol.lab.engine import OfflineLoop, grid, passes
    from aol.lab.engine.device import usable_device

    device = usable_device("cpu") if way == "now" else torch.device("cpu")
    if way == "before":
        passes._EVALUATION_BATCH["cpu"] = (4096, 1 << 22)
    epochs, runs, given = CASES[case]
    settings = grid({**given, "weighting": "aol"}, seed=list(range(runs)))
    loop = OfflineLoop(settings, open_data(given["data"], data_dir), device=device)
    loop.run_epoch()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(epochs):
        loop.run_epoch()
    after = resource.getrusage(resource.RUSAGE_SELF)

    class Convolutions(TorchDispatchMode):
        """Adds up the CPU time of convolutions, forward and backward, those of all threads included."""

        seconds = 0.0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            start = time.process_time()
            result = func(*args, **(kwargs or {}))
            if "convolution" in func.name():
                self.seconds += time.process_time() - start
            return result

    with Convolutions() as convolutions:
        for _ in range(epochs):
            loop.run_epoch()
    return {
        "convolutions_s": convolutions.seconds / epochs,
        "user_s": (after.ru_utime - before.ru_utime) / epochs,
        "system_s": (after.ru_stime - before.ru_stime) / epochs,
        "page_faults": (after.ru_minflt - before.ru_minflt) / epochs,
        "peak_bytes": after.ru_maxrss * 1024,
    }


def apart(case: str, way: str, data_dir: str | None, checkout: str | None) -> dict[str, float]:
    """Measure in a separate process; "before" with the code of a checkout, if there is one."""
    env = dict(os.environ)
    if checkout and way == "before":
        env["PYTHONPATH"] = str(Path(checkout).resolve() / "src")
    words = [sys.executable, __file__, "--case", case, "--way", way, *(["--data-dir", data_dir] if data_dir else [])]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=env)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main(words: list[str] | None = None) -> int:
    parser = options("Measure an epoch on a CPU, before and now.", "cpu_epoch.json")
    parser.add_argument("--before", help='checkout whose code is "before"; without it, this code without kept memory')
    parser.add_argument("--data-dir", help="folder of CIFAR-10")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of each case; the median counts")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="what to train")
    parser.add_argument("--case", choices=CASES, help="measure this case in this process and print it as JSON")
    parser.add_argument("--way", choices=("before", "now"), default="now", help="of --case")
    given = parser.parse_args(words)
    if given.case:
        print(json.dumps(epoch(given.case, given.way, given.data_dir)))
        return 0
    record: Record = {"machine": machine(), "repeats": given.repeats, "cases": []}
    for case in given.cases:
        pairs = [
            {way: apart(case, way, given.data_dir, given.before) for way in ("before", "now")}
            for _ in range(given.repeats)
        ]
        record["cases"].append({"case": case, "pairs": pairs})
    print(text(record))
    write(record, given.out)
    return 0


def text(record: Record) -> str:
    """Return the table of a record."""
    rows = [_row(case["case"], case["pairs"], way) for case in record["cases"] for way in ("before", "now")]
    return in_words(record["machine"], record["repeats"]) + "\n\n" + table(rows)


def _row(case: str, pairs: list[Record], way: str) -> dict[str, str]:
    middle = {key: median(pair[way][key] for pair in pairs) for key in pairs[0][way]}
    total = [{each: pair[each]["user_s"] + pair[each]["system_s"] for each in pair} for pair in pairs]
    ratios = [each["before"] / each[way] for each in total]
    share = middle.get("convolutions_s", math.nan) / (middle["user_s"] + middle["system_s"])
    return {
        "epoch of": case,
        "way": way,
        "user": f"{middle['user_s']:.2f} s",
        "system": f"{middle['system_s']:.2f} s",
        "in convolutions": "not measured" if math.isnan(share) else f"{share:.0%}",
        "page faults": f"{middle['page_faults']:,.0f}",
        "peak memory": f"{middle['peak_bytes'] / 1e6:,.0f} MB",
        "speed (least to most)": f"{median(ratios):.2f} × ({min(ratios):.2f} to {max(ratios):.2f})",
    }


if __name__ == "__main__":
    sys.exit(main())
