"""`aol bench`: speed and memory of the engine on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from aol.cli.parser import Commands, add_command, add_common, count, counts, positive


def add(commands: Commands) -> None:
    """Add `aol bench`."""
    text = "Measure speed and memory of training on this machine."
    parser = add_command(commands, "bench", _bench, text, ("aol bench", "aol bench --runs 1,16 --out bench.json"))
    flag = parser.add_argument
    flag("--runs", type=counts, metavar="VALUES", help="numbers of runs trained together (default: 1,16,64; CPU: 1,2)")
    flag("--scale", type=positive, metavar="S", help="size of the data, 1 is CIFAR-10 (default: 1; CPU: 0.01)")
    flag("--epochs", type=count(1), metavar="N", help="epochs to time (default: 3; CPU: 1)")
    flag("--workers", type=count(0), default=2, metavar="N", help="worker processes of the reference loop")
    flag("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1 ...")
    flag("--out", metavar="FILE", help="also write the figures to this file, as JSON")
    add_common(parser)


def _bench(words: argparse.Namespace) -> int:
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
    print(json.dumps(result) if words.json else measure.table(rows, device, scale))
    return 0
