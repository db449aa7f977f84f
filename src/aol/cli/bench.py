"""`aol bench`: speed and memory of the engine on this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aol.cli.execution import DEVICE
from aol.cli.output import tell
from aol.cli.parser import command, count, counts, positive, value


@command(
    "bench",
    "Measure speed and memory of training on this machine.",
    ("aol bench", "aol bench --runs 1,16 --out bench.json"),
    value("--runs", "VALUES", "numbers of runs trained together (default: 1,16,64; CPU: 1,2)", type=counts),
    value("--scale", "S", "size of the data, 1 is CIFAR-10 (default: 1; CPU: 0.01)", type=positive),
    value("--epochs", "N", "epochs to time (default: 3; CPU: 1)", type=count(1)),
    value("--workers", "N", "worker processes of the reference loop", type=count(0), default=2),
    DEVICE,
    value("--out", "FILE", "also write the figures to this file, as JSON"),
)
def _bench(words: argparse.Namespace) -> None:
    from aol.bench import measure
    from aol.engine.device import usable_device

    device = usable_device(words.device)
    usual = measure.usual(device)
    scale = usual.scale if words.scale is None else words.scale
    rows = measure.measure(
        device,
        runs=words.runs or usual.runs,
        scale=scale,
        epochs=words.epochs or usual.epochs,
        workers=words.workers,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    if words.out:
        measure.write(rows, device, scale, Path(words.out))
    result = {"scale": scale, "rows": [vars(row) for row in rows]}
    tell(words, result, measure.table(rows, device, scale).splitlines())
