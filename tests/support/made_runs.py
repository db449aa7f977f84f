"""Folders of records as a run leaves them, written by hand: see docs/records.md."""

from __future__ import annotations

import json
from pathlib import Path

CLASSES = ("cat", "dog", "eel")


def write_run(out: Path, *, seed: int = 0, epochs: int, finished: bool = False, asked: int = 1) -> Path:
    """Write one run of `--out`; zero epochs leave only what was asked for. Return the run's folder."""
    folder = out / "runs" / f"run{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    settings = [{"data": "digits", "weighting": "none", "seed": number} for number in range(asked)]
    (out / "runs.json").write_text(json.dumps(settings))
    if not epochs:
        return folder
    (folder / "settings.json").write_text(json.dumps(settings[min(seed, asked - 1)]))
    rows = [f"{epoch},0.1,{0.2 * epoch:.3f},{1 / epoch:.3f}" for epoch in range(1, epochs + 1)]
    (folder / "epochs.csv").write_text("\n".join(["epoch,lr,test_accuracy,train_loss", *rows]) + "\n")
    cells = [
        f"{epoch},{place},{name},{1 + place / epoch:.3f},1,{30 - 10 * place},0.5"
        for epoch in range(1, epochs + 1)
        for place, name in enumerate(CLASSES)
    ]
    head = "epoch,class,name,age,weight,train_count,test_accuracy"
    (folder / "classes.csv").write_text("\n".join([head, *cells]) + "\n")
    if finished:
        (folder / "result.json").write_text(json.dumps({"id": folder.name, "failed_at_epoch": None}))
    return folder
