"""Trains on as many processes as torchrun started, and saves what came of it: for the tests.

A setting with `stop` is run a second time, from the checkpoint of that step.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

import aol
from tests.support.small_transformers import LABELS, losses, made, made_margins, texts, weights


def run(
    out: Path,
    *,
    parts: int = 1,
    evaluated: int | None = None,
    classes: bool = False,
    stop: int | None = None,
    resume: bool = False,
    args: dict | None = None,
    **options,
) -> None:
    """Train; the batch of a step is 12, however many processes and parts share it."""
    processes, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if stop is not None and not resume:
        args = {**(args or {}), "save_strategy": "steps", "save_steps": stop}
    ages = aol.ClassAges(3, rho=0.5, threshold=0.5) if classes else aol.SampleAges(LABELS, level="sample")
    margins = made_margins("probability")
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
    trainer = made(ages, args=settings, margins=margins, recorder=recorder, **options)
    assert trainer.accelerator.num_processes == processes
    trainer.train(resume_from_checkpoint=str(out / f"run-{processes}" / f"checkpoint-{stop}") if resume else None)
    outcome = {"age": ages.age, "ema": ages.ema, "weights": weights(trainer), "losses": torch.tensor(losses(trainer))}
    torch.save({**outcome, "offsets": margins.offsets}, out / f"{processes}-{rank}{'-resumed' * resume}.pt")


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
