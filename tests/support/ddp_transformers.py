"""Trains on as many processes as torchrun started, and saves what came of it: for the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from tests.support.small_transformers import losses, texts, trained, weights


def run(out: Path) -> None:
    """Train; the batch of a step is 12 in two parts, however many processes share it."""
    processes, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    args = {
        "per_device_train_batch_size": 6 // processes,
        "gradient_accumulation_steps": 2,
        "output_dir": str(out / f"run-{processes}"),
        "max_grad_norm": 0.0,
        "optim": "sgd",
        "learning_rate": 0.3,
    }
    trainer, callback = trained(out / f"record-{processes}", eval_dataset=texts(61), args=args)
    assert trainer.accelerator.num_processes == processes
    outcome = {"age": callback.ages.age, "ema": callback.ages.ema, "weights": weights(trainer)}
    torch.save({**outcome, "losses": torch.tensor(losses(trainer))}, out / f"{processes}-{rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(Path(sys.argv[1]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
