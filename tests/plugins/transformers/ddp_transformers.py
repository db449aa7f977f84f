"""Trains on as many processes as torchrun started, and saves what came of it: for the tests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from small_transformers import losses, made, texts, weights

import aol

torch.set_num_threads(1)


def run(
    out: Path,
    *,
    samples: int = 60,
    parts: int = 1,
    classes: bool = False,
    step: int | None = None,
    args: dict | None = None,
    **options,
) -> None:
    """Train; the batch of a step is 12, however many processes and parts share it."""
    processes, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    data = texts(samples)
    labels = [each["label"] for each in data]
    ages = aol.ClassAges(3, rho=0.5) if classes else aol.SampleAges(labels, level="sample")
    settings = {
        "per_device_train_batch_size": 12 // processes // parts,
        "gradient_accumulation_steps": parts,
        "output_dir": str(out / f"run-{processes}"),
        "max_grad_norm": 0.0,
        "optim": "sgd",
        "learning_rate": 0.3,
        **(args or {}),
    }
    trainer = made(ages, data=data, args=settings, **options)
    assert trainer.accelerator.num_processes == processes
    trainer.train(resume_from_checkpoint=None if step is None else str(out / f"run-{processes}" / f"checkpoint-{step}"))
    found = {"age": ages.age, "ema": ages.ema, "weights": weights(trainer), "losses": torch.tensor(losses(trainer))}
    resumed = "" if step is None else "-resumed"
    torch.save(found, out / f"{processes}-{rank}{resumed}.pt")


if __name__ == "__main__":
    for number, setting in enumerate(json.loads(sys.argv[2])):
        folder = Path(sys.argv[1]) / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        run(folder, **setting)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
