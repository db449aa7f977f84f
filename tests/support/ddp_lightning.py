"""Trains on as many processes as told, started by Lightning itself, and saves what came of it: for the tests."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

import torch

from aol.plugins.lightning import WatchCallback
from tests.support.running import PATIENCE
from tests.support.small_lightning import DATA, TEST, Net, loader, sample_ages, trainer


def run(out: Path, processes: int) -> None:
    """Train two epochs; the batch of a step is 12, in two parts, however many processes share it."""
    callback = WatchCallback(out / f"record-{processes}", DATA, TEST, ages=sample_ages())
    model = Net(callback.ages, divide_by="count")
    options = {"strategy": "ddp", "use_distributed_sampler": False} if processes > 1 else {}
    fitting = trainer(callback, devices=processes, accumulate_grad_batches=2, max_epochs=2, **options)
    fitting.fit(model, loader(size=6 // processes))
    losses = torch.tensor(model.losses)
    if processes > 1:
        torch.distributed.all_reduce(losses)
    outcome = {"age": callback.ages.age, "ema": callback.ages.ema, "weights": model.weights()}
    torch.save({**outcome, "losses": losses / processes}, out / f"{processes}-{fitting.global_rank}.pt")
    fitting.save_checkpoint(out / f"{processes}.ckpt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(0.9 * PATIENCE)  # so that a process that waits for ever says where
    run(Path(sys.argv[1]), int(sys.argv[2]))
