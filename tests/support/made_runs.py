"""Runs made up for tests: a long tail that is learnt head first, with a few wrong labels, from a seed."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch

from aol.records.history import Answers, pack
from aol.records.previews import png
from aol.records.record import Run, write_run
from aol.records.samples import COLUMNS, FILE, write_samples
from aol.records.store import write_request
from aol.records.table import RunFrame, frame_of
from aol.report.run_data import RunData, Samples

# Text that must never become markup or script, wherever it turns up.
PAYLOADS = [
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=2</script>",
    "<img src=x onerror='window.hacked=3'>",
    '"><svg onload=window.hacked=4>',
    "' onmouseover='window.hacked=5",
    "line\u2028break\u2029end",
    "<!--<script>",
    "{{7*7}} ${window.hacked=6} javascript:window.hacked=7",
    "]]> &lt;b&gt; &amp; <b>bold</b>",
    "𝔄ge — größe — 年齢",
]


def grey_png(value: int, side: int = 8) -> bytes:
    """Return a square of one grey as a PNG."""
    return png(torch.full((1, side, side), value, dtype=torch.uint8))


def make_samples(counts: np.ndarray, epochs: int, rng: np.random.Generator, wrong_labels: int = 5) -> Samples:
    """Return samples of which the first few of class 0 are never right, and answered as class 1 with 97 %."""
    size, classes = int(counts.sum()), len(counts)
    label = np.repeat(np.arange(classes), counts)
    chance = np.linspace(0.95, 0.6, classes)[label]
    right = rng.random((epochs, size)) < chance * np.linspace(0.4, 1.0, epochs)[:, None]
    right[:, :wrong_labels] = False
    prediction = np.where(right[-1], label, (label + 1) % classes).astype(np.int32)
    confidence = np.where(right[-1], 0.8, 0.2).astype(np.float32)
    top = np.where(right[-1], 0.8, 0.45).astype(np.float32)
    confidence[:wrong_labels], top[:wrong_labels] = 0.01, 0.97
    answers = Answers(pack(right), None, size)
    ema = np.ones(size, np.float32)
    for _, _, age in answers.epochs():
        ema = (0.5 * ema + 0.5 * age).astype(np.float32)
    mean = right.mean(0).astype(np.float32) * 0.8
    return Samples(
        index=np.arange(size) * 3, label=label, prediction=prediction, confidence=confidence, top=top, other=top.copy(),
        times=np.full(size, epochs, np.int32), mean_confidence=mean,
        mean_other=np.where(np.arange(size) < wrong_labels, 0.9, 0.4 * (1.0 - mean)).astype(np.float32),
        mean_margin=np.where(np.arange(size) < wrong_labels, 0.9, -0.1 - mean).astype(np.float32),
        margin_weight=np.full(size, 0.1 * epochs, np.float32), lead=np.ones(size, np.int32),
        suggested=np.where(right.all(0), -1, (label + 1) % classes).astype(np.int32),
        age=answers.last(), ema=ema, answers=answers, picture=lambda row: grey_png(row % 256),
    )  # fmt: skip


def make_data(
    name: str = "none, seed 0",
    *,
    names: list[str] | None = None,
    counts: list[int] | None = None,
    epochs: int = 12,
    seed: int = 0,
    samples: bool = True,
    **changes: object,
) -> RunData:
    """Return a run of a long tail; `changes` replace fields, as `changed` does."""
    rng = np.random.default_rng(seed)
    names = names if names is not None else [f"class {place}" for place in range(6)]
    classes = len(names)
    sizes = np.array(counts if counts is not None else [max(4, int(60 * 0.6**place)) for place in range(classes)])
    time = np.arange(1, epochs + 1)[:, None]
    rank = np.argsort(np.argsort(-sizes, kind="stable"))[None] / max(1, classes - 1)
    age = 1.0 + 6.0 * rank * np.exp(-time / epochs) + 0.1 * rng.random((epochs, classes))
    accuracy = np.clip(time / epochs * (1.0 - 0.5 * rank) + 0.02 * rng.random((epochs, classes)), 0.0, 1.0)
    method = name.partition(",")[0]
    run = Run(
        id=f"id{seed}",
        method=method,
        seed=seed,
        settings={"data": "made up", "weighting": method, "seed": seed, "rho": 0.5},
        baseline="none",
        classes=list(names),
        counts=sizes.tolist(),
        epochs=np.arange(1, epochs + 1),
        curves={
            "test_accuracy": accuracy.mean(1),
            "train_accuracy": np.clip(accuracy.mean(1) + 0.05, 0, 0.95),
            "train_loss": np.exp(-time[:, 0] / epochs),
        },
        planned=epochs,
        finished=True,
        versions={"aol": "0.2.0", "torch": "2.13.0"},
        command=f"aol train --weighting {method} --seed {seed}",
    )
    over_time = {
        "age": age,
        "weight": age / age.mean(1, keepdims=True),
        "test_accuracy": accuracy,
        "train_accuracy": np.clip(accuracy + 0.05, 0.0, 0.9),
        "train_loss": 2.0 - accuracy,
        "train_margin": 4.0 * accuracy - 1.0,
    }
    table = make_samples(sizes, epochs, rng) if samples else None
    data = RunData(name, Path("/somewhere/runs") / run.id, run, table)
    return changed(data, **({"over_time": over_time} | changes))


def changed(data: RunData, **changes: object) -> RunData:
    """Return a run with other fields, its own or its record's; readings of the last epoch follow those over time."""
    own = {field.name for field in fields(RunData)}
    of_run = {name: value for name, value in changes.items() if name not in own}
    if "over_time" in of_run:
        given: dict[str, np.ndarray] = of_run["over_time"]  # type: ignore[assignment]
        over_time = {name: np.asarray(values, dtype=np.float32) for name, values in given.items()}
        last = {name: values[-1].astype(np.float64) for name, values in over_time.items()}
        if "age" in over_time:
            last["mean_age"] = over_time["age"].astype(np.float64).mean(0)
        of_run = {"by_class": last} | of_run | {"over_time": over_time}
    run = replace(data.run, **of_run)  # type: ignore[arg-type]
    return replace(data, run=run, **{name: value for name, value in changes.items() if name in own})  # type: ignore[arg-type]


def frame(*runs: RunData) -> RunFrame:
    """Return runs as a frame."""
    return frame_of((data.folder, data.run) for data in runs)


def write_data(folder: Path, data: RunData) -> RunData:
    """Write a run and its samples into a folder, and return it as it is there."""
    write_run(folder, data.run)
    found = data.samples
    if found is not None:
        columns = {name: getattr(found, name) for name in COLUMNS} | {"right": found.answers.right}
        columns |= {} if found.answers.seen is None else {"seen": found.answers.seen}
        tensors = {name: torch.from_numpy(value) for name, value in columns.items()}
        write_samples(folder / FILE, tensors, run=data.run.id, absent="keep")
    return replace(data, folder=folder)


def write_small_run(out: Path, *, seed: int = 0, epochs: int, finished: bool = False, asked: int = 1) -> Path:
    """Write one run of three classes into `--out`; zero epochs: only what was asked for. Return the run's folder."""
    ids = [f"id{number}" for number in range(asked)]
    write_request(out, {"runs": [{"seed": number} for number in range(asked)], "ids": list(ids)})
    folder = out / "runs" / f"id{seed}"
    if epochs:
        data = make_data(
            f"none, seed {seed}", names=["cat", "dog", "eel"], counts=[30, 20, 10], epochs=epochs, seed=seed,
            samples=False, finished=finished,
        )  # fmt: skip
        write_data(folder, data)
    return folder


def make_large_data(classes: int = 1000, epochs: int = 200, size: int = 1_000_000, seed: int = 0) -> RunData:
    """Return a run of the largest kind: random answers, half a byte a sample and epoch is never held."""
    rng = np.random.default_rng(seed)
    data = make_data(
        f"large, seed {seed}", names=[f"n{place:08d} a name of usual length" for place in range(classes)],
        counts=[max(5, int(5000 * 0.995**place)) for place in range(classes)], epochs=epochs, seed=seed, samples=False,
    )  # fmt: skip
    label = np.sort(rng.integers(0, classes, size))
    age = rng.geometric(0.2, size).astype(np.int32)
    top = rng.random(size).astype(np.float32)
    known = make_samples(np.array([1]), 1, rng)
    samples = replace(
        known, index=np.arange(size), label=label, prediction=rng.integers(0, classes, size).astype(np.int32),
        confidence=1 - top, top=top, other=top, times=np.full(size, epochs, np.int32), mean_confidence=1 - top,
        mean_other=rng.random(size).astype(np.float32), age=age, ema=age.astype(np.float32),
        answers=Answers(rng.integers(0, 256, (epochs, -(-size // 8)), dtype=np.uint8), None, size),
        picture=lambda row: grey_png(row % 256, 64) + bytes(rng.integers(0, 256, 2000, np.uint8)),
    )  # fmt: skip
    return replace(data, samples=samples)
