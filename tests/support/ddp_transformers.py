"""Trains on as many processes as torchrun started, and saves what came of it: for the tests.

A setting with `stop` is run a second time, from the checkpoint of that step.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import IterableDataset

import aol
from tests.support.small_transformers import losses, made, made_margins, texts, weights


class Stream(IterableDataset):
    """Samples one after another, of an unknown number."""

    def __init__(self, items: list[dict]) -> None:
        self.items = items

    def __iter__(self):
        return iter(self.items)


def run(
    out: Path,
    *,
    samples: int = 60,
    parts: int = 1,
    evaluated: int | None = None,
    iterable: bool = False,
    classes: bool = False,
    margins: str | None = None,
    stop: int | None = None,
    resume: bool = False,
    args: dict | None = None,
    **options,
) -> None:
    """Train; the batch of a step is 12, however many processes and parts share it."""
    processes, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if stop is not None and not resume:
        args = {**(args or {}), "save_strategy": "steps", "save_steps": stop}
    data = texts(samples)
    labels = [each["label"] for each in data]
    data = Stream(data) if iterable else data
    ages = aol.ClassAges(3, rho=0.5, threshold=0.5) if classes else aol.SampleAges(labels, level="sample")
    kept = None if margins is None else made_margins(margins, torch.tensor(labels))
    settings = {
        "per_device_train_batch_size": 12 // processes // parts,
        "gradient_accumulation_steps": parts,
        "output_dir": str(out / f"run-{processes}"),
        "max_grad_norm": 0.0,
        "optim": "sgd",
        "learning_rate": 0.3,
        **(args or {}),
    }
    if evaluated is not None:
        settings["eval_strategy"], options["eval_dataset"] = "epoch", texts(evaluated)
    recorder = None if stop is not None or resume else out / f"record-{processes}"
    trainer = made(ages, data=data, args=settings, margins=kept, recorder=recorder, **options)
    assert trainer.accelerator.num_processes == processes
    trainer.train(resume_from_checkpoint=str(out / f"run-{processes}" / f"checkpoint-{stop}") if resume else None)
    found = {"age": ages.age, "ema": ages.ema, "weights": weights(trainer), "losses": torch.tensor(losses(trainer))}
    if kept is not None:
        found["offsets"] = kept.offsets
    torch.save(found, out / f"{processes}-{rank}{'-resumed' * resume}.pt")


def run_all(out: Path, settings: list[dict]) -> None:
    """Train with each setting, into folders that are numbered."""
    for number, options in enumerate(settings):
        folder = out / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        run(folder, **options)
        if "stop" in options:
            run(folder, **options, resume=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_all(Path(sys.argv[1]), json.loads(sys.argv[2]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
